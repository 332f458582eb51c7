"""What a run writes down about itself: metrics.jsonl, recipe.toml, environment.json, and TensorBoard if asked.

Every line of metrics.jsonl is one JSON object with a `kind`: train, eval, sample, event or end. A run that is
resumed drops the lines after the step it goes on from, so no step is told twice.
"""

import importlib.metadata
import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertree.errors import UserError
from bertree.files import write_atomically
from bertree.run_folder import METRICS, TENSORBOARD
from bertree.version import __version__

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


class MetricsLog:
    """The log of one run, from a step on."""

    def __init__(self, out: Path, step: int = 0, tensorboard: bool = False) -> None:
        self._path = out / METRICS
        kept = [line for line in _lines(self._path) if line.get("step", 0) <= step] if step else []
        write_atomically(self._path, "".join(_json(line) for line in kept if line.get("kind") != "end"))
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _board(out / TENSORBOARD, step) if tensorboard else None

    def write(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        """One line."""
        clean = _plain(dict(fields))
        self._file.write(_json({"kind": kind, "step": step} | clean))
        self._file.flush()
        if self._board is not None and kind in ("train", "eval"):
            for key, value in clean.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{key}", value, step)

    def close(self) -> None:
        """Nothing more will be written."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict) and isinstance(value.get("step", 0), int):
            found.append(value)
    return found


def _plain(value: Any) -> Any:
    """JSON has no word for infinity."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("run.tensorboard: the package is not installed; pip install tensorboard") from None
    return SummaryWriter(str(folder), purge_step=step + 1)


def environment(device: torch.device) -> dict[str, Any]:
    """Where and with what a run is computed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "bertree": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {cores} cores",
        "threads": torch.get_num_threads(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        "command": shlex.join(["bertree", *sys.argv[1:]]),
    }
