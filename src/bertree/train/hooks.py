"""The hooks of a run: after each step they count (`Totals`), log, evaluate, save and stop, in this order.

session.py builds them and passes them to `Loop.run`, which calls each with the result of every step. Reading a loss
from that result waits for the GPU, so hooks read it only at the steps where they write something.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from bertree.config.settings import AtLeast, read
from bertree.files.formats import Json
from bertree.scale.world import World
from bertree.train.device_setup import peak_memory
from bertree.train.loop import StepResult, StopTraining
from bertree.train.metrics_log import SilentLog
from bertree.train.progress import Progress
from bertree.train.signals import Signals

EvaluateStep = Callable[[StepResult], dict[str, float]]


@dataclass(frozen=True)
class SavedTotals:
    """The totals of a run as a checkpoint keeps them."""

    seconds: Annotated[float, AtLeast(0)] = 0.0
    tokens: Annotated[int, AtLeast(0)] = 0
    skipped: Annotated[int, AtLeast(0)] = 0
    waited: Annotated[float, AtLeast(0)] = 0.0

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any], where: str) -> "SavedTotals":
        """Read the totals from the header of a checkpoint."""
        names = ("seconds", "tokens", "skipped", "waited")
        totals: SavedTotals = read(cls, {name: extra[name] for name in names if name in extra}, where, "extra")
        return totals


class Totals:
    """Running totals of a run, across resumes."""

    def __init__(self, log: SilentLog, saved: SavedTotals | None = None) -> None:
        saved = saved or SavedTotals()
        self.tokens = saved.tokens
        self.waited = saved.waited  # for batches
        self._skipped = saved.skipped
        self._seconds_before = saved.seconds  # of the run until it was resumed
        self._began = time.perf_counter()
        self._log = log
        self._unread: list[StepResult] = []

    @property
    def seconds(self) -> float:
        """Time the run has taken so far, before and after it was resumed."""
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def skipped(self) -> int:
        """Steps without a finite gradient. The host waits for the newest step to know."""
        for result in self._unread:
            if result.skipped:
                self._skipped += 1
                self._log.write("event", result.step, {"text": "step skipped: the gradient was not finite"})
        self._unread = []
        return self._skipped

    def __call__(self, result: StepResult) -> None:
        """Count a step."""
        self.tokens += result.tokens
        self.waited += result.waited
        self._unread.append(result)

    def as_dict(self) -> Json:
        """Return the totals for the checkpoint."""
        return {"seconds": self.seconds, "tokens": self.tokens, "skipped": self.skipped, "waited": self.waited}


@dataclass(frozen=True)
class RunLog:
    """The log, the totals and the progress bar of a run."""

    metrics: SilentLog
    totals: Totals
    progress: Progress
    tell: Callable[[Mapping[str, Any]], None] = lambda figures: None  # the user's functions about an evaluation

    def evaluation(self, step: int, figures: dict[str, float]) -> None:
        """Log and show the figures of an evaluation."""
        fields = figures | {"seconds": self.totals.seconds, "tokens": self.totals.tokens}
        self.metrics.write("eval", step, fields)
        self.tell(fields)
        self.progress.evaluation({"step": step} | fields)


def rank_figures(world: World, device: torch.device, tokens_per_s: float) -> list[Json]:
    """Return peak memory and throughput of every rank, where there are ranks; all of them ask at the same step."""
    if not world.joined:
        return []
    rows = world.gather([float(peak_memory(device)), tokens_per_s])
    return [{"memory": int(memory), "tokens_per_s": speed} for memory, speed in rows]


@dataclass(kw_only=True)
class StepLogger:
    """Writes a line of metrics at regular steps (means since the last one), and a line for each new phase."""

    every: int
    last: int
    log: RunLog
    flops: Sequence[float]  # of a token in each phase
    peak_flops: float | None  # of all devices together, for the MFU
    ranks: Callable[[float], list[Json]]  # tokens per second of this rank -> figures of every rank
    _results: list[StepResult] = field(default_factory=list, init=False)
    _since: float = field(default_factory=time.perf_counter, init=False)
    _phase: int | None = field(default=None, init=False)

    def __call__(self, result: StepResult) -> None:
        """Collect a step, and write a line when it is time."""
        self.log.progress.step(result.step)
        if self._phase not in (None, result.phase):
            self.log.metrics.write("event", result.step, {"text": f"phase {result.phase + 1}"})
        self._phase = result.phase
        self._results.append(result)
        if result.step % self.every == 0 or result.step in (1, self.last):
            self._write(result)

    def _write(self, result: StepResult) -> None:
        totals, finite = self.log.totals, [r for r in self._results if not r.skipped] or self._results
        tokens = sum(r.tokens for r in self._results)
        seconds = time.perf_counter() - self._since
        fields: dict[str, Any] = {
            "loss": sum(r.loss for r in finite) / len(finite),
            **{name: sum(r.losses[name] for r in finite) / len(finite) for name in result.losses},
            "lr": result.lr,
            "norm": sum(r.norm for r in finite) / len(finite),
            "tokens": totals.tokens,
            "tokens_per_s": tokens / seconds,
            "seconds": totals.seconds,
            "waited": totals.waited,
            "epoch": result.epoch,
            "skipped": totals.skipped,
            "phase": result.phase,
            "batch_tokens": result.tokens,
        }
        if self.peak_flops:
            fields["mfu"] = fields["tokens_per_s"] * self.flops[result.phase] / self.peak_flops
        if ranks := self.ranks(sum(r.own_tokens for r in self._results) / seconds):
            fields["ranks"] = ranks
        self.log.metrics.write("train", result.step, fields)
        self.log.progress.train({"step": result.step} | fields)
        self._results, self._since = [], time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Exclude time that was not spent on training."""
        self._since += seconds


@dataclass(kw_only=True)
class Evaluator:
    """Evaluates on held-out text at regular steps, and at the end."""

    every: int
    last: int
    evaluate: EvaluateStep
    samples: Callable[[], list[dict[str, Any]]]
    log: RunLog
    logger: StepLogger
    newest: tuple[int, float] | None = field(default=None, init=False)  # step and loss

    def __call__(self, result: StepResult) -> None:
        """Evaluate when it is time."""
        if result.step % self.every and result.step != self.last:
            return
        began, figures = time.perf_counter(), self.evaluate(result)
        self.newest = result.step, figures["loss"]
        self.log.evaluation(result.step, figures)
        for sample in self.samples():
            self.log.metrics.write("sample", result.step, sample)
        self.logger.leave_out(time.perf_counter() - began)


@dataclass(kw_only=True)
class CheckpointSaver:
    """Saves a checkpoint at regular steps, if the one before is at least `pause` seconds old, and after the last step
    if `last` is set."""

    every: int
    last: int | None
    pause: float
    save: Callable[[StepResult], None]
    logger: StepLogger
    world: World
    step: int | None = field(default=None, init=False)  # of the newest checkpoint
    _saved_at: float = field(default_factory=time.monotonic, init=False)

    def __call__(self, result: StepResult) -> None:
        """Save when it is time."""
        due = result.step % self.every == 0 and self._has_paused()
        if due or result.step == self.last:
            self.now(result)

    def _has_paused(self) -> bool:
        """Return whether the last checkpoint is old enough, by the clock of rank 0: all ranks save together."""
        if not self.pause:
            return True
        paused = time.monotonic() - self._saved_at >= self.pause
        return bool(self.world.agree({"paused": int(paused and self.world.is_first)})["paused"])

    def now(self, result: StepResult) -> None:
        """Save, unless this step is saved already."""
        if self.step == result.step:
            return
        began = time.perf_counter()
        self.save(result)
        self.step, self._saved_at = result.step, time.monotonic()
        self.logger.leave_out(time.perf_counter() - began)


class StopOnSignal:
    """Saves and ends the run after the step in which a signal came; with several ranks one step later, because they
    exchange it during a step."""

    def __init__(self, signals: Signals, saver: CheckpointSaver, alone: bool = True) -> None:
        self._signals, self._saver, self._alone = signals, saver, alone

    def __call__(self, result: StepResult) -> None:
        """Stop if a signal has come."""
        if self._signals.caught is not None if self._alone else result.stop:
            self._saver.now(result)
            raise StopTraining
