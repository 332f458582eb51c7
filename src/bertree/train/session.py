"""A training run in its folder: resumed from its newest checkpoint, logged, saved, interrupted and reported on.

Who builds the parts decides what is trained and on what; every training verb runs them here. `PretrainingSession`
keeps the newest checkpoints and the best; `FineTuningSession` (fine_tuning_session.py) keeps the best weights.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertree.config.sections import RunSettings
from bertree.console import note
from bertree.errors import UserError
from bertree.files import Json, write_atomically
from bertree.report.run import write_run_report
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, ENVIRONMENT, MODEL, RECIPE
from bertree.train.checkpoint import Checkpoint, CheckpointFolder, check_optimizer_state, restore
from bertree.train.device import measure_peak_flops
from bertree.train.feed import Feed, StepBatches
from bertree.train.hooks import CheckpointSaver, EvaluateStep, Evaluator, SavedTotals, StepLogger, StopOnSignal, Totals
from bertree.train.loop import Hook, Loop, StepResult, StopTraining
from bertree.train.metrics_log import MetricsLog, environment
from bertree.train.progress import Progress
from bertree.train.signals import Signals, catch_signals


@dataclass(frozen=True)
class RunLog:
    """The log, the totals and the progress bar of a run."""

    metrics: MetricsLog
    totals: Totals
    progress: Progress


@dataclass(frozen=True)
class Session(ABC):
    """A training run in its folder."""

    out: Path
    recipe: str  # as TOML, for the record
    loop: Loop
    feed: Feed
    settings: RunSettings
    identity: Json  # what must be the same when the run is resumed

    def run(self, resume: bool, intro: Sequence[str]) -> int | None:
        """Take the steps that are left. Return the signal that stopped the run before its end, if any."""
        with catch_signals() as signals:
            found = self._resume() if resume else None
            if self._is_complete(found):
                note(f"{self.out}: the run is complete, nothing is left to do")
                return None
            first, last = found.step if found else 0, len(self.feed.plan)
            metrics = MetricsLog(self.out, first, self.settings.tensorboard)
            write_atomically(self.out / RECIPE, self.recipe)
            write_atomically(self.out / ENVIRONMENT, json.dumps(environment(self.loop.device), indent=2) + "\n")
            metrics.write("event", first, {"text": f"resumed from step {first}" if found else "started"})
            totals = Totals(metrics, SavedTotals.from_extra(found.extra, found.where) if found else None)
            try:
                with Progress(self.feed.plan.tokens_after, first) as progress:
                    for line in intro:
                        progress.say(line)
                    if not self._train(first, RunLog(metrics, totals, progress), signals):
                        return signals.caught
                self._finish()
                parameters = sum(parameter.numel() for parameter in self.loop.network.parameters())
                metrics.write("end", last, totals.as_dict() | {"parameters": parameters})
            except UserError as error:
                metrics.write("event", first, {"text": f"stopped: {error}"})
                raise
            finally:
                metrics.close()
                write_run_report(self.out)
        return None

    def _train(self, first: int, log: RunLog, signals: Signals) -> bool:
        """Take the steps that are left; return whether they came to their end."""
        hooks, saver = self._hooks(log)
        try:
            self.loop.run(self._steps(first), (*hooks, StopOnSignal(signals, saver)))
        except StopTraining:
            total = len(self.feed.plan)
            log.progress.say(f"stopped at step {saver.step:,} of {total:,} and saved; go on with --resume")
            return False
        return True

    def _steps(self, first: int) -> Iterator[StepBatches]:
        return self.feed.steps_from(first)

    @abstractmethod
    def _hooks(self, log: RunLog) -> tuple[Sequence[Hook], CheckpointSaver]:
        """Return what is done after each step, and what saves a checkpoint."""

    @abstractmethod
    def _finish(self) -> None:
        """Do what is left after the last step."""

    def _is_complete(self, found: Checkpoint | None) -> bool:
        return False

    @property
    def _checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.out / CHECKPOINTS, self.settings.keep)

    def _resume(self) -> Checkpoint | None:
        """Restore the newest good checkpoint."""
        found = self._checkpoints.read_newest(self._check)
        if found is not None:
            self._check_identity(found)
            restore(found, self.loop.network, self.loop.optimizer)
        return found

    @abstractmethod
    def _check_identity(self, checkpoint: Checkpoint) -> None:
        """Refuse to resume a run with other data."""

    def _check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that cannot be of this run; an older one is taken then."""
        last = len(self.feed.plan)
        if checkpoint.step > last:
            raise UserError(f"{checkpoint.where}: is of step {checkpoint.step}, but the run has {last}")
        skipped = SavedTotals.from_extra(checkpoint.extra, checkpoint.where).skipped
        check_optimizer_state(checkpoint, self.loop.network, checkpoint.step - skipped)


@dataclass(frozen=True)
class PretrainingSession(Session):
    """A run that is evaluated by its held-out loss and keeps the newest checkpoints and the best."""

    evaluate: EvaluateStep  # on held-out text, after a step
    samples: Callable[[], list[dict[str, Any]]]  # texts that show what it has learned
    flops: Sequence[float]  # a token, in each phase
    write_model: Callable[[str], None]  # into a folder of that name

    def _hooks(self, log: RunLog) -> tuple[Sequence[Hook], CheckpointSaver]:
        run, last = self.settings, len(self.feed.plan)
        peak = measure_peak_flops(self.loop.device)
        logger = StepLogger(run.log_every, last, log.metrics, log.progress, log.totals, self.flops, peak)
        evaluator = Evaluator(
            run.eval_every, last, self.evaluate, self.samples, log.metrics, log.progress, log.totals, logger
        )
        checkpoints = self._checkpoints

        def save(result: StepResult) -> None:
            extra = log.totals.as_dict() | {"identity": self.identity}
            checkpoints.save(result.step, self.loop.network, self.loop.optimizer, extra)
            if evaluator.newest and evaluator.newest[0] == result.step:
                checkpoints.mark_best(*evaluator.newest, result.phase)
            write_run_report(self.out)

        saver = CheckpointSaver(run.save_every, last, save, logger)
        return (log.totals, logger, evaluator, saver), saver

    def _finish(self) -> None:
        """Write the last model and, if an earlier one of the same phase was better, that one too."""
        self.write_model(MODEL)
        best = self._checkpoints.best()
        if best and best["step"] != len(self.feed.plan):
            try:
                restore(self._checkpoints.read(best["step"]), self.loop.network, self.loop.optimizer)
            except UserError as error:
                note(f"{error}; {BEST_MODEL} is not written")
            else:
                self.write_model(BEST_MODEL)

    def _is_complete(self, found: Checkpoint | None) -> bool:
        return found is not None and found.step == len(self.feed.plan) and (self.out / MODEL).is_dir()

    def _resume(self) -> Checkpoint | None:
        found = super()._resume()
        if found is None:
            note(f"{self.out}: no good checkpoint, starting from the beginning")
        return found

    def _check_identity(self, checkpoint: Checkpoint) -> None:
        before = checkpoint.extra.get("identity")
        for name, value in self.identity.items():
            if not isinstance(before, dict) or before.get(name) != value:
                raise UserError(f"{self.out}: was started with another {name}; put it back, or start a new run")
