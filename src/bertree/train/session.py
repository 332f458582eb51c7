"""A training run in its folder: resumed from its newest checkpoint, logged, saved, interrupted, reported.

Every training verb builds a loop and a feed and runs them here. What is evaluated and kept is a policy (keep.py).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from signal import SIGTERM

from bertree.config.sections import RunSettings
from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json
from bertree.report.formats import run_labels
from bertree.report.run_page import write_run_report
from bertree.run_folder import CHECKPOINTS, ENVIRONMENT, RECIPE
from bertree.train.checkpoint import (
    Checkpoint,
    CheckpointFolder,
    check_optimizer_state,
    check_values,
    restore,
)
from bertree.train.device_setup import measure_peak_flops
from bertree.train.feed import Feed, StepBatches
from bertree.train.hooks import CheckpointSaver, RunLog, SavedTotals, StepLogger, StopOnSignal, Totals, rank_figures
from bertree.train.keep import KeepPolicy
from bertree.train.lane_memory import check_state
from bertree.train.loop import Loop, StepResult, StopTraining
from bertree.train.metrics_log import CallbackHook, MetricsLog, SilentLog, current_callbacks, environment
from bertree.train.progress import Progress
from bertree.train.signals import Signals, catch_signals

WHOLE_RUN = "run"  # an identity that covers all data and settings


@dataclass(frozen=True, kw_only=True)
class Session:
    """A training run in its folder."""

    out: Path
    recipe: str  # as TOML, for the record
    loop: Loop
    feed: Feed
    settings: RunSettings
    identity: Json  # what must be the same when the run is resumed
    keep: KeepPolicy
    flops: Sequence[float] = ()  # for each token, by phase; empty: not reported
    parameters: int = 0  # of the full network, for the log; 0: count those of the loop's network
    started: str = ""  # a remark for the log

    def run(self, resume: bool, intro: Sequence[str]) -> int | None:
        """Take the remaining steps. Return the signal that stopped the run early, if any."""
        world = self.loop.world
        with catch_signals() as signals:
            self.loop.wants_to_stop = lambda: signals.caught is not None
            checkpoint = world.check_together(self._resume) if resume else None
            world.check_same(f"{self.out}: the newest checkpoint", str(checkpoint and checkpoint.step))
            if self.keep.is_complete(checkpoint, len(self.feed.schedule)):
                note(f"{self.out}: the run is complete, nothing is left to do")
                return None
            first, last = checkpoint.step if checkpoint else 0, len(self.feed.schedule)
            metrics = world.check_together(lambda: self._open_log(first))
            started = f"started: {self.started}" if self.started else "started"
            metrics.write("event", first, {"text": f"resumed from step {first}" if checkpoint else started})
            totals = Totals(metrics, SavedTotals.from_extra(checkpoint.extra, checkpoint.where) if checkpoint else None)
            try:
                with Progress(self.feed.schedule.tokens_after, first, labels=run_labels(self.recipe)) as progress:
                    for line in intro:
                        progress.say(line)
                    if not self._train(first, RunLog(metrics, totals, progress), signals):
                        return signals.caught or SIGTERM
                self.loop.check_end(self.keep.last_loss())
                # Complete the log before the model is written: a resumed run that has a model has nothing to do.
                parameters = sum(parameter.numel() for parameter in self.loop.network.parameters())
                metrics.write("end", last, totals.as_dict() | {"parameters": self.parameters or parameters})
                metrics.sync()
                self.keep.finish(last, self._checkpoints)
            except UserError as error:
                metrics.write("event", first, {"text": f"stopped: {error}"})
                raise
            finally:
                metrics.close()
                if world.is_first:
                    write_run_report(self.out)
        return None

    def _open_log(self, first: int) -> SilentLog:
        """Write recipe and environment, and return the log."""
        if not self.loop.world.is_first:
            return SilentLog()
        metrics = MetricsLog(self.out, first, self.settings.tensorboard)
        write_atomically(self.out / RECIPE, self.recipe)
        write_atomically(self.out / ENVIRONMENT, json.dumps(environment(self.loop.device), indent=2) + "\n")
        return metrics

    def _train(self, first: int, log: RunLog, signals: Signals) -> bool:
        """Take the remaining steps; return whether the last one was reached."""
        settings, last = self.settings, len(self.feed.schedule)
        world = self.loop.world
        called: list[CallbackHook] = []
        if current_callbacks().any():
            called = [CallbackHook(self.out, last, lambda result: saver.now(result))]
            log = replace(log, tell=called[0].evaluated)
        peak = (measure_peak_flops(self.loop.device) or 0.0) * world.size if self.flops else None
        logger = StepLogger(
            every=settings.log_every,
            last=last,
            log=log,
            flops=self.flops or (0.0,),
            peak_flops=peak,
            ranks=partial(rank_figures, world, self.loop.device),
        )
        evaluator = self.keep.evaluator(last, log, logger)
        saver = CheckpointSaver(
            every=settings.save_every,
            last=last if self.keep.saves_last else None,
            pause=self.keep.pause,
            save=lambda result: self._save(result, log, called),
            logger=logger,
            world=world,
        )
        try:
            stop = StopOnSignal(signals, saver, alone=world.size == 1)
            self.loop.run(self._steps(first), (log.totals, logger, evaluator, saver, *called, stop))
        except StopTraining:
            log.progress.say(f"stopped at step {saver.step:,} of {last:,} and saved; go on with `resume=True`")
            return False
        if (reason := self.keep.stop_reason()) is not None:
            log.progress.say(reason)
            log.metrics.write("event", last, {"text": reason})
        return True

    def _steps(self, first: int) -> Iterator[StepBatches]:
        for step in self.feed.steps_from(first):
            if self.keep.stop_reason() is not None:
                return
            yield step

    @property
    def _checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.out / CHECKPOINTS, self.keep.checkpoints, self.loop.world)

    def _save(self, result: StepResult, log: RunLog, called: Sequence[CallbackHook]) -> None:
        extra = log.totals.as_dict() | {"identity": self.identity} | self.feed.extra() | self.keep.extra(result)
        tensors = {**self.keep.tensors(), **self.loop.memories.tensors()}
        log.metrics.sync()
        path = self._checkpoints.save(result.step, self.loop.network, self.loop.optimizer, extra, tensors)
        world = self.loop.world
        world.check_together(lambda: self.keep.after_save(result, self._checkpoints) if world.is_first else None)
        for hook in called:
            hook.saved(path)

    def _resume(self) -> Checkpoint | None:
        """Restore the newest good checkpoint."""
        checkpoint = self._checkpoints.read_newest(self._check)
        if checkpoint is not None:
            self._check_identity(checkpoint)
            restore(checkpoint, self.loop.network, self.loop.optimizer)
            self.loop.memories.restore(checkpoint.tensors, self.loop.device, self._slots(checkpoint.step))
        self.keep.resume(checkpoint)
        return checkpoint

    def _slots(self, step: int) -> range:
        """Return the slots whose memory this rank holds after a step."""
        world, slots = self.loop.world, len(self.feed.lanes_after(step))
        return range(world.data_rank * slots // world.data, (world.data_rank + 1) * slots // world.data)

    def _check_identity(self, checkpoint: Checkpoint) -> None:
        """Refuse to resume a run with other data or settings."""
        if (name := self._changed(checkpoint)) is not None:
            covers_all = name == WHOLE_RUN
            reason = "other data or settings; put them back" if covers_all else f"another {name}; put it back"
            raise UserError(f"{self.out}: was started with {reason}, or start a new run")

    def _changed(self, checkpoint: Checkpoint) -> str | None:
        """Return the first part of the identity that differs from a checkpoint's."""
        before = checkpoint.extra.get("identity")
        identity = before if isinstance(before, dict) else {}
        return next((name for name, value in self.identity.items() if identity.get(name) != value), None)

    def _check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that cannot be of this run; an older one is used then."""
        last = len(self.feed.schedule)
        if checkpoint.step > last:
            raise UserError(f"{checkpoint.where}: is of step {checkpoint.step}, but the run has {last}")
        skipped = SavedTotals.from_extra(checkpoint.extra, checkpoint.where).skipped
        check_optimizer_state(checkpoint, self.loop.network, self.loop.optimizer, checkpoint.step - skipped)
        check_values(checkpoint)
        if self._changed(checkpoint) is None:  # otherwise it is the memory of another run, which is refused
            lanes = self.feed.lanes_after(checkpoint.step)
            check_state(checkpoint, self.loop.network, lanes, self._slots(checkpoint.step))
        self.keep.check(checkpoint)
