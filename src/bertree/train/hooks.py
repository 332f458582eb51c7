"""What happens after a step beside learning: counting, logging, evaluating, saving, stopping.

Each hook is called with the result of every step, in this order.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bertree.files import Json
from bertree.train.loop import StepResult, StopTraining
from bertree.train.metrics_log import MetricsLog
from bertree.train.progress import Progress

EvaluateStep = Callable[[StepResult], dict[str, float]]


class Totals:
    """Running totals of a run, across resumes."""

    def __init__(self, record: MetricsLog, before: Json | None = None) -> None:
        before = before or {}
        self.tokens = int(before.get("tokens", 0))
        self.waited = float(before.get("waited", 0.0))  # for batches
        self._skipped = int(before.get("skipped", 0))
        self._earlier = float(before.get("seconds", 0.0))
        self._began = time.perf_counter()
        self._record = record
        self._unread: list[StepResult] = []

    @property
    def seconds(self) -> float:
        """Time the run has taken so far, with everything it does."""
        return self._earlier + time.perf_counter() - self._began

    @property
    def skipped(self) -> int:
        """Steps without a finite gradient; to know of the newest, the host waits for it."""
        for result in self._unread:
            if result.skipped:
                self._skipped += 1
                self._record.write("event", result.step, {"text": "step skipped: the gradient was not finite"})
        self._unread = []
        return self._skipped

    def __call__(self, result: StepResult) -> None:
        """Count a step."""
        self.tokens += result.tokens
        self.waited += result.waited
        self._unread.append(result)

    def as_dict(self) -> Json:
        """For the checkpoint."""
        return {"seconds": self.seconds, "tokens": self.tokens, "skipped": self.skipped, "waited": self.waited}


class StepLogger:
    """A line of metrics every so many steps: means since the last one. Skipped steps and new phases are told."""

    def __init__(
        self,
        every: int,
        last: int,
        record: MetricsLog,
        progress: Progress,
        tally: Totals,
        flops: Sequence[float],
        peak: float | None,
    ) -> None:
        self._last = last
        self._every, self._record, self._progress, self._tally = every, record, progress, tally
        self._flops, self._peak = flops, peak
        self._results: list[StepResult] = []
        self._since = time.perf_counter()
        self._phase: int | None = None

    def __call__(self, result: StepResult) -> None:
        """Collect, and write when it is time."""
        self._progress.step(result.step)
        if self._phase not in (None, result.phase):
            self._record.write("event", result.step, {"text": f"phase {result.phase + 1}"})
        self._phase = result.phase
        self._results.append(result)
        if result.step % self._every == 0 or result.step in (1, self._last):
            self._write(result)

    def _write(self, result: StepResult) -> None:
        finite = [r for r in self._results if not r.skipped] or self._results
        tokens = sum(r.tokens for r in self._results)
        seconds = time.perf_counter() - self._since
        fields: dict[str, Any] = {
            "loss": sum(r.loss for r in finite) / len(finite),
            **{name: sum(r.losses[name] for r in finite) / len(finite) for name in result.losses},
            "lr": result.lr,
            "norm": sum(r.norm for r in finite) / len(finite),
            "tokens": self._tally.tokens,
            "tokens_per_s": tokens / seconds,
            "seconds": self._tally.seconds,
            "waited": self._tally.waited,
            "epoch": result.epoch,
            "skipped": self._tally.skipped,
            "phase": result.phase,
            "batch_tokens": result.tokens,
        }
        if self._peak:
            fields["mfu"] = fields["tokens_per_s"] * self._flops[result.phase] / self._peak
        self._record.write("train", result.step, fields)
        self._progress.train({"step": result.step} | fields)
        self._results, self._since = [], time.perf_counter()

    def pause(self, seconds: float) -> None:
        """Leave out time that was not spent on training."""
        self._since += seconds


class Evaluator:
    """Held-out text every so many steps, and at the end."""

    def __init__(
        self,
        every: int,
        last: int,
        measure: EvaluateStep,
        samples: Callable[[], list[dict[str, Any]]],
        record: MetricsLog,
        progress: Progress,
        tally: Totals,
        log: StepLogger,
    ) -> None:
        self._every, self._last, self._measure, self._samples = every, last, measure, samples
        self._record, self._progress, self._tally, self._log = record, progress, tally, log
        self.newest: tuple[int, float] | None = None  # step and loss

    def __call__(self, result: StepResult) -> None:
        """Measure when it is time."""
        if result.step % self._every and result.step != self._last:
            return
        began = time.perf_counter()
        fields = self._measure(result) | {"seconds": self._tally.seconds, "tokens": self._tally.tokens}
        self.newest = result.step, fields["loss"]
        self._record.write("eval", result.step, fields)
        for sample in self._samples():
            self._record.write("sample", result.step, sample)
        self._progress.evaluation({"step": result.step} | fields)
        self._log.pause(time.perf_counter() - began)


class CheckpointSaver:
    """A checkpoint every so many steps, and at the end. What it costs is time, so it is left out of the speed."""

    def __init__(self, every: int, last: int, save: Callable[[StepResult], None], log: StepLogger) -> None:
        self._every, self._last, self._save, self._log = every, last, save, log
        self.step: int | None = None  # of the newest checkpoint

    def __call__(self, result: StepResult) -> None:
        """Save when it is time."""
        if result.step % self._every == 0 or result.step == self._last:
            self.now(result)

    def now(self, result: StepResult) -> None:
        """Save, unless this step is saved."""
        if self.step == result.step:
            return
        began = time.perf_counter()
        self._save(result)
        self.step = result.step
        self._log.pause(time.perf_counter() - began)


class SignalHandler:
    """SIGINT and SIGTERM: the step at hand is finished and saved, then the run ends. A second one ends it at once."""

    def __init__(self, save: CheckpointSaver) -> None:
        self._save = save
        self.caught: int | None = None

    def __call__(self, result: StepResult) -> None:
        """Stop if someone asked for it."""
        if self.caught is not None:
            self._save.now(result)
            raise StopTraining

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals while the block runs."""

        def catch(number: int, frame: object) -> None:
            self.caught = number
            for other, old in before.items():
                signal.signal(other, old)

        before: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, catch)
        except ValueError:
            pass  # not the main thread: whoever runs us there handles signals
        try:
            yield
        finally:
            for caught, old in before.items():
                signal.signal(caught, old)
