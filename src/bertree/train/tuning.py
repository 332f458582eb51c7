"""A fine-tuning run in its folder: short, measured by a score, and what counts in the end is its best moment.

The weights of the best evaluation are kept in memory and put back at the end. A checkpoint is written now and then
(never more than one a minute: many runs are over before), with those weights in it, so that a run that was killed
ends in the same bytes as one that was not.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from bertree.config.sections import RunSettings
from bertree.errors import UserError
from bertree.files import Json
from bertree.report.run import write_run_report
from bertree.run_folder import CHECKPOINTS
from bertree.train.checkpoint import Checkpoint, CheckpointFolder, restore
from bertree.train.feed import StepBatches
from bertree.train.hooks import CheckpointSaver, SignalHandler, StepLogger, Totals
from bertree.train.loop import Loop, StepResult, StopTraining
from bertree.train.metrics_log import MetricsLog
from bertree.train.progress import Progress
from bertree.train.schedule import TrainingPlan
from bertree.train.session import begin

BEST = "best/"  # what the names of the best weights begin with in a checkpoint
PAUSE = 60.0  # seconds between two checkpoints, at least


class Feed(Protocol):
    """Where the steps come from."""

    plan: TrainingPlan

    def steps_from(self, first: int) -> Iterator[StepBatches]:
        """Steps from `first` on."""


@dataclass
class Best:
    """The best evaluation so far, and what happened since."""

    step: int = 0
    score: float = -float("inf")
    waited: int = 0  # evaluations since
    weights: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Tuning:
    """Everything a fine-tuning run is made of."""

    out: Path
    recipe: str  # as TOML, for the record
    loop: Loop
    feed: Feed
    settings: RunSettings
    measure: Callable[[], dict[str, float]]  # scores on the dev split
    metric: str  # the score that counts; higher is better
    evaluations: Sequence[int]  # the steps after which it is measured
    patience: int  # evaluations without a better score after which the run stops; 0: it never does
    identity: Json  # what must be the same when the run is resumed

    def run(self, resume: bool, intro: Sequence[str]) -> tuple[int | None, Best]:
        """Take the steps that are left and put the best weights back.

        Return the signal that ended the run early, if any, and the best evaluation."""
        checkpoints = CheckpointFolder(self.out / CHECKPOINTS, 1)
        found = self._restored(checkpoints) if resume else None
        first = found.step if found else 0
        record, tally = begin(self.out, self.recipe, self.loop.device, self.settings, found)
        best = self._best(found)
        try:
            caught = self._train(first, best, checkpoints, record, tally, intro)
            if caught is None:
                self._put_back(best)
                parameters = sum(parameter.numel() for parameter in self.loop.network.parameters())
                record.write("end", len(self.feed.plan), tally.as_dict() | {"parameters": parameters})
        finally:
            record.close()
            write_run_report(self.out)
        return caught, best

    def _train(
        self,
        first: int,
        best: Best,
        checkpoints: CheckpointFolder,
        record: MetricsLog,
        tally: Totals,
        intro: Sequence[str],
    ) -> int | None:
        last = len(self.feed.plan)
        with Progress(last, first) as progress:
            for line in intro:
                progress.say(line)
            log = StepLogger(self.settings.log_every, last, record, progress, tally, [0.0], None)
            saved = time.monotonic()

            def write(result: StepResult) -> None:
                nonlocal saved
                extra = tally.as_dict() | {"identity": self.identity}
                extra |= {"best": {"step": best.step, "score": best.score, "waited": best.waited}}
                kept = {BEST + name: tensor for name, tensor in best.weights.items()}
                checkpoints.save(result.step, self.loop.network, self.loop.optimizer, extra, kept)
                saved = time.monotonic()

            def evaluate(result: StepResult) -> None:
                if result.step in due:
                    self._evaluate(result, best, record, progress, tally, log)

            save = CheckpointSaver(0, last, write, log)

            def now_and_then(result: StepResult) -> None:
                if result.step % self.settings.save_every == 0 and time.monotonic() - saved > PAUSE:
                    save.now(result)

            due = set(self.evaluations)
            interrupts = SignalHandler(save)
            try:
                with interrupts.listening():
                    hooks = (tally, log, evaluate, now_and_then, interrupts)
                    self.loop.run(self._steps(first, best), hooks)
            except StopTraining:
                progress.say(f"stopped at step {save.step:,} of {last:,} and saved; go on with --resume")
            if interrupts.caught is None and self.patience and best.waited >= self.patience:
                text = f"stopped early: no better {self.metric} in {best.waited} evaluations"
                progress.say(text)
                record.write("event", last, {"text": text})
        return interrupts.caught

    def _steps(self, first: int, best: Best) -> Iterator[StepBatches]:
        for work in self.feed.steps_from(first):
            if self.patience and best.waited >= self.patience:
                return
            yield work

    def _evaluate(
        self, result: StepResult, best: Best, record: MetricsLog, progress: Progress, tally: Totals, log: StepLogger
    ) -> None:
        began = time.perf_counter()
        scores = self.measure()
        record.write("eval", result.step, scores | {"seconds": tally.seconds, "tokens": tally.tokens})
        progress.evaluation({"step": result.step} | scores)
        best.waited += 1
        if scores[self.metric] > best.score:
            best.step, best.score, best.waited = result.step, scores[self.metric], 0
            best.weights = {
                name: parameter.detach().clone()
                for name, parameter in self.loop.network.named_parameters()
                if parameter.requires_grad
            }
        log.pause(time.perf_counter() - began)

    def _put_back(self, best: Best) -> None:
        with torch.no_grad():
            for name, parameter in self.loop.network.named_parameters():
                if name in best.weights:
                    parameter.copy_(best.weights[name])

    def _best(self, found: Checkpoint | None) -> Best:
        before: Any = found.extra.get("best") if found else None
        if found is None or not isinstance(before, dict):
            return Best()
        device = self.loop.device
        weights = {n.removeprefix(BEST): t.to(device) for n, t in found.tensors.items() if n.startswith(BEST)}
        return Best(int(before["step"]), float(before["score"]), int(before["waited"]), weights)

    def _restored(self, checkpoints: CheckpointFolder) -> Checkpoint | None:
        found = checkpoints.read_newest()
        if found is None:
            return None
        if found.extra.get("identity") != self.identity:
            raise UserError(f"{self.out}: was started with other data or settings; put them back, or start a new run")
        restore(found, self.loop.network, self.loop.optimizer)
        return found
