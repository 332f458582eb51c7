"""A fine-tuning run in its folder: evaluated by a score, and its best evaluation is what counts.

The weights of the best evaluation are kept in memory and restored at the end. A checkpoint is written now and then
(at most one a minute: many runs are over before), with those weights in it, so that a run that was killed ends in the
same bytes as one that was not.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from bertree.config.bounds import AtLeast
from bertree.config.settings import read
from bertree.errors import UserError
from bertree.run_folder import CHECKPOINTS
from bertree.train.checkpoint import Checkpoint, CheckpointFolder
from bertree.train.feed import StepBatches
from bertree.train.hooks import CheckpointSaver, StepLogger
from bertree.train.loop import Hook, StepResult
from bertree.train.session import RunLog, Session
from bertree.train.signals import Signals

BEST = "best/"  # how the names of the best weights begin in a checkpoint
PAUSE = 60.0  # seconds between two checkpoints, at least


@dataclass(frozen=True)
class SavedBest:
    """The best evaluation as a checkpoint keeps it."""

    step: Annotated[int, AtLeast(0)]
    score: float
    waited: Annotated[int, AtLeast(0)]


@dataclass
class BestEvaluation:
    """The best evaluation so far, and how many came after it."""

    step: int = 0
    score: float = -float("inf")
    waited: int = 0  # evaluations since
    weights: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class FineTuningSession(Session):
    """A run that is evaluated by a score and ends with the weights of its best evaluation."""

    evaluate: Callable[[], dict[str, float]]  # scores on the dev split
    metric: str  # the score that counts; higher is better
    evaluations: Sequence[int]  # the steps after which it is evaluated
    patience: int  # evaluations without a better score after which the run stops; 0: it never does
    best: BestEvaluation = field(default_factory=BestEvaluation)

    def _train(self, first: int, log: RunLog, signals: Signals) -> bool:
        ended = super()._train(first, log, signals)
        if ended and self._out_of_patience:
            text = f"stopped early: no better {self.metric} in {self.best.waited} evaluations"
            log.progress.say(text)
            log.metrics.write("event", len(self.feed.plan), {"text": text})
        return ended

    @property
    def _out_of_patience(self) -> bool:
        return bool(self.patience) and self.best.waited >= self.patience

    def _steps(self, first: int) -> Iterator[StepBatches]:
        for step in self.feed.steps_from(first):
            if self._out_of_patience:
                return
            yield step

    def _hooks(self, log: RunLog) -> tuple[Sequence[Hook], CheckpointSaver]:
        last, due = len(self.feed.plan), set(self.evaluations)
        logger = StepLogger(self.settings.log_every, last, log.metrics, log.progress, log.totals)
        saved_at = time.monotonic()

        def save(result: StepResult) -> None:
            nonlocal saved_at
            best = self.best
            extra = log.totals.as_dict() | {"identity": self.identity}
            extra |= {"best": {"step": best.step, "score": best.score, "waited": best.waited}}
            weights = {BEST + name: tensor for name, tensor in best.weights.items()}
            self._checkpoints.save(result.step, self.loop.network, self.loop.optimizer, extra, weights)
            saved_at = time.monotonic()

        saver = CheckpointSaver(self.settings.save_every, last, save, logger)

        def evaluate(result: StepResult) -> None:
            if result.step in due:
                self._evaluate(result, log, logger)

        def save_now_and_then(result: StepResult) -> None:
            if result.step % self.settings.save_every == 0 and time.monotonic() - saved_at > PAUSE:
                saver.now(result)

        return (log.totals, logger, evaluate, save_now_and_then), saver

    def _evaluate(self, result: StepResult, log: RunLog, logger: StepLogger) -> None:
        began, best = time.perf_counter(), self.best
        scores = self.evaluate()
        log.metrics.write("eval", result.step, scores | {"seconds": log.totals.seconds, "tokens": log.totals.tokens})
        log.progress.evaluation({"step": result.step} | scores)
        best.waited += 1
        if scores[self.metric] > best.score:
            best.step, best.score, best.waited = result.step, scores[self.metric], 0
            best.weights = {name: parameter.detach().clone() for name, parameter in self._trainable().items()}
        logger.leave_out(time.perf_counter() - began)

    def _trainable(self) -> dict[str, Tensor]:
        named = self.loop.network.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def _finish(self) -> None:
        """Restore the weights of the best evaluation."""
        with torch.no_grad():
            for name, parameter in self._trainable().items():
                if name in self.best.weights:
                    parameter.copy_(self.best.weights[name])

    @property
    def _checkpoints(self) -> CheckpointFolder:
        return CheckpointFolder(self.out / CHECKPOINTS, 1)

    def _resume(self) -> Checkpoint | None:
        found = super()._resume()
        if found is not None:
            saved, best = _saved_best(found), self.best
            best.step, best.score, best.waited = saved.step, saved.score, saved.waited
            best.weights = {name: tensor.to(self.loop.device) for name, tensor in _best_weights(found).items()}
        return found

    def _check_identity(self, checkpoint: Checkpoint) -> None:
        if checkpoint.extra.get("identity") != self.identity:
            raise UserError(f"{self.out}: was started with other data or settings; put them back, or start a new run")

    def _check(self, checkpoint: Checkpoint) -> None:
        super()._check(checkpoint)
        weights = _best_weights(checkpoint)
        wanted = self._trainable() if _saved_best(checkpoint).step else {}
        if {n: (t.shape, t.dtype) for n, t in weights.items()} != {n: (p.shape, p.dtype) for n, p in wanted.items()}:
            raise UserError(f"{checkpoint.where}: the weights of the best evaluation do not fit the network")


def _saved_best(checkpoint: Checkpoint) -> SavedBest:
    """Return the best evaluation before the checkpoint; its step is 0 if there was none."""
    before: Any = checkpoint.extra.get("best")
    none = isinstance(before, dict) and (before.get("step"), before.get("score")) == (0, -float("inf"))
    found: SavedBest = read(SavedBest, before | {"score": 0.0} if none else before, checkpoint.where, "extra.best")
    if found.step > checkpoint.step or (found.step == 0) != none:
        raise UserError(f"{checkpoint.where}: extra.best.step: cannot be {found.step}")
    return replace(found, score=-float("inf")) if none else found


def _best_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {n.removeprefix(BEST): tensor for n, tensor in checkpoint.tensors.items() if n.startswith(BEST)}
