"""The log of a run: metrics.jsonl, TensorBoard where it is wanted, and the environment it was computed in.

Every line of metrics.jsonl is one JSON object with a `kind`: train, eval, sample, event or end. A run that is
resumed drops the lines after the step it resumes from, so no step is logged twice.

Callbacks are functions of the user (`on_step`, `on_evaluation`, `on_save`). The functions that train set them for the
time of their call, as `progress` is set, and the session calls them after a step, when its own work is done. If one
raises an exception, the run is saved first, so that it can be resumed behind this step.
"""

import importlib.metadata
import inspect
import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bertree.console import note
from bertree.engines.local import available_cores
from bertree.errors import UserError, install_hint
from bertree.files.atomic import write_atomically
from bertree.run_folder import METRICS, TENSORBOARD
from bertree.scale.launch import launched
from bertree.train.loop import StepResult
from bertree.version import __version__

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


class SilentLog:
    """The log of a rank that writes none: rank 0 does."""

    def write(self, kind: str, step: int, fields: Mapping[str, Any]) -> None:
        """Write nothing."""

    def sync(self) -> None:
        """Do nothing."""

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
        with self._report_errors():
            self._file.write(_json({"kind": kind, "step": step} | clean))
            self._file.flush()
        if self._board is not None and kind in ("train", "eval"):
            for key, value in clean.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{kind}/{key}", value, step)

    def sync(self) -> None:
        """Flush the lines to the disk: a checkpoint must not be there without the lines of the steps before it."""
        with self._report_errors():
            os.fsync(self._file.fileno())

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{self._path}: cannot be written ({error.strerror})") from None

    def close(self) -> None:
        """Flush the lines to the disk, and close the files."""
        with self._file:
            self.sync()
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
        value = json.loads(text)
        _json(value).encode()  # it is written again: numbers that are not finite and broken characters cannot be
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and type(value.get("step", 0)) is int else None


def _plain(value: Any) -> Any:
    """Round floats to six digits; JSON has no word for those that are not finite."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def _json(line: Any) -> str:
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


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """What a callback gets: where a run stands, and what has just happened."""

    folder: Path  # of the run; of several seeds, that of the seed
    step: int  # steps done
    steps: int  # of the whole run
    loss: float | None = None  # of this step, or on held-out text; None: not computed
    lr: float | None = None  # learning rate of this step
    tokens_per_s: float | None = None  # since the step before
    scores: Mapping[str, float] = field(default_factory=dict)  # of an evaluation
    path: Path | None = None  # what was saved: a checkpoint, or the model at the end


Callback = Callable[[TrainingEvent], object]


@dataclass(frozen=True)
class Callbacks:
    """The functions of the user; None: there is none."""

    on_step: Callback | None = None
    on_evaluation: Callback | None = None
    on_save: Callback | None = None

    def any(self) -> bool:
        """Whether there is one."""
        return any((self.on_step, self.on_evaluation, self.on_save))


_CALLBACKS: ContextVar[Callbacks] = ContextVar("callbacks", default=Callbacks())  # noqa: B039  # frozen


@contextmanager
def calling(on_step: Callback | None, on_evaluation: Callback | None, on_save: Callback | None) -> Iterator[None]:
    """Let the runs of this block call these functions."""
    callbacks = Callbacks(on_step, on_evaluation, on_save)
    for name, function in vars(callbacks).items():
        if function is not None and not _takes_event(function):
            raise UserError(f"`{name}`: must be a function of one argument, the event; this one has other arguments")
    if callbacks.any() and launched().size > 1:
        raise UserError("on_step, on_evaluation, on_save: are for one process; with several ranks read metrics.jsonl")
    token = _CALLBACKS.set(callbacks)
    try:
        yield
    finally:
        _CALLBACKS.reset(token)


def _takes_event(function: Callback) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a built-in function does not tell its arguments
        return True
    return True


def current_callbacks() -> Callbacks:
    """Return the functions that runs call now."""
    return _CALLBACKS.get()


class CallbackHook:
    """The last hook of a step: calls the user's functions with what has happened in it."""

    def __init__(self, folder: Path, steps: int, save: Callable[[StepResult], None]) -> None:
        """`save` saves the run after an exception."""
        self._callbacks, self._folder, self._steps, self._save = current_callbacks(), folder, steps, save
        self._scores: Mapping[str, Any] | None = None
        self._path: Path | None = None
        self._since = time.perf_counter()

    def evaluated(self, scores: Mapping[str, Any]) -> None:
        """Remember the scores of this step."""
        others = ("seconds", "tokens")  # of the run so far
        self._scores = {key: x for key, x in scores.items() if isinstance(x, int | float) and key not in others}

    def saved(self, path: Path) -> None:
        """Remember the checkpoint of this step."""
        self._path = path

    def __call__(self, result: StepResult) -> None:
        """Call the functions for this step."""
        scores, path, self._scores, self._path = self._scores, self._path, None, None
        seconds, self._since = time.perf_counter() - self._since, time.perf_counter()
        try:
            if on_step := self._callbacks.on_step:
                on_step(self._event(result.step, loss=result.loss, lr=result.lr, tokens_per_s=result.tokens / seconds))
            if (on_evaluation := self._callbacks.on_evaluation) and scores is not None:
                on_evaluation(self._event(result.step, loss=scores.get("loss"), lr=result.lr, scores=scores))
            if (on_save := self._callbacks.on_save) and path is not None:
                on_save(self._event(result.step, path=path))
        except Exception:
            if path is None:
                self._save(result)
            raise

    def _event(self, step: int, **fields: Any) -> TrainingEvent:
        return TrainingEvent(folder=self._folder, step=step, steps=self._steps, **fields)


def announce_model(folder: Path, path: Path, step: int, steps: int) -> None:
    """Call `on_save` with the model that a run has written."""
    if on_save := current_callbacks().on_save:
        on_save(TrainingEvent(folder=folder, step=step, steps=steps, path=path))
