"""The log of a run: metrics.jsonl, TensorBoard where it is wanted, and the environment it was computed in.

Every line of metrics.jsonl is one JSON object with a `kind`: train, eval, sample, event or end. A run that is
resumed drops the lines after the step it resumes from, so no step is logged twice.
"""

import importlib.metadata
import json
import math
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertree.console import note
from bertree.engines.cores import available_cores
from bertree.errors import UserError, install_hint
from bertree.files.atomic import write_atomically
from bertree.run_folder import METRICS, TENSORBOARD
from bertree.version import __version__

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


class SilentLog:
    """The log of a rank that writes none: rank 0 does."""

    def write(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Do nothing."""


class MetricsLog(SilentLog):
    """The log of one run, written from a step on."""

    def __init__(self, out: Path, step: int = 0, tensorboard: bool = False) -> None:
        self._path = out / METRICS
        kept = [line for line in _lines(self._path) if line.get("step", 0) <= step] if step else []
        write_atomically(self._path, "".join(_json(line) for line in kept if line.get("kind") != "end"))
        self._file = self._path.open("a", encoding="utf-8")
        self._board = _board(out / TENSORBOARD, step) if tensorboard else None

    def write(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        """Write one line."""
        clean = _plain(dict(fields))
        self._file.write(_json({"kind": kind, "step": step} | clean))
        self._file.flush()
        if self._board is not None and kind in ("train", "eval"):
            for key, value in clean.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{key}", value, step)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines that are good. A killed run leaves half a line at the end; other bad lines are damage."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    parsed = [_line(line) for line in lines]
    if bad := parsed[:-1].count(None):
        note(f"{path}: {bad} damaged {'line is' if bad == 1 else 'lines are'} dropped")
    return [line for line in parsed if line is not None]


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and type(value.get("step", 0)) is int else None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _plain(value: Any) -> Any:
    """Round floats to six digits; JSON has no word for those that are not finite."""
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
        raise UserError(f"run.tensorboard: the package is not installed; {install_hint('tensorboard')}") from None
    return SummaryWriter(str(folder), purge_step=step + 1)


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the machine, the versions and the command of a run."""
    return {
        "bertree": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {available_cores()} cores",
        "threads": torch.get_num_threads(),
        **{package: importlib.metadata.version(package) for package in PACKAGES},
        "command": shlex.join(["bertree", *sys.argv[1:]]),
    }
