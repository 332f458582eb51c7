"""Keep the weights of the best evaluation in memory, and restore them at the end.

A checkpoint is written now and then (at most one a minute: many runs are over before), with those weights in it, so
that a run that was killed ends in the same bytes as one that was not.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from bertree.config.bounds import AtLeast
from bertree.config.settings import read
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.scale.split import parameter_layouts
from bertree.train.checkpoints.contents import BEST_PREFIX, Checkpoint, fit, saved_weights
from bertree.train.checkpoints.folder import CheckpointFolder
from bertree.train.hooks import RunLog, StepLogger
from bertree.train.keep.policy import KeepPolicy
from bertree.train.loop import Hook, Loop, StepResult

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


@dataclass
class KeepBestWeights(KeepPolicy):
    """A run that is evaluated by a score and ends with the weights of its best evaluation."""

    loop: Loop
    evaluate: Callable[[], dict[str, float]]  # scores on the dev split
    metric: str  # the score that counts; higher is better
    evaluations: Sequence[int]  # the steps after which it is evaluated
    patience: int  # evaluations without a better score after which the run stops; 0: it never does
    best: BestEvaluation = field(default_factory=BestEvaluation)
    checkpoints: int = 1
    pause: float = field(default_factory=lambda: PAUSE)
    saves_last: bool = False

    def evaluator(self, last: int, log: RunLog, logger: StepLogger) -> Hook:
        """Return what evaluates after some steps and keeps the best weights."""
        due = set(self.evaluations)

        def evaluate(result: StepResult) -> None:
            if result.step in due:
                self._evaluate(result, log, logger)

        return evaluate

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

    def stop_reason(self) -> str | None:
        """Return that patience has run out, if it has."""
        if not self.patience or self.best.waited < self.patience:
            return None
        return f"stopped early: no better {self.metric} in {self.best.waited} evaluations"

    def extra(self) -> Json:
        """Return the best evaluation."""
        return {"best": {"step": self.best.step, "score": self.best.score, "waited": self.best.waited}}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the best weights."""
        return {BEST_PREFIX + name: tensor for name, tensor in self.best.weights.items()}

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint whose best weights do not fit the network."""
        wanted = self._trainable() if _saved_best(checkpoint).step else {}
        if not fit(saved_weights(checkpoint, BEST_PREFIX), wanted, parameter_layouts(self.loop.network)):
            raise UserError(f"{checkpoint.where}: the weights of the best evaluation do not fit the network")

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Take back the best evaluation."""
        if checkpoint is not None:
            saved, best = _saved_best(checkpoint), self.best
            best.step, best.score, best.waited = saved.step, saved.score, saved.waited
            best.weights = {}
            if saved.step:
                wholes = parameter_layouts(self.loop.network)
                for name, parameter in self._trainable().items():
                    best.weights[name] = torch.empty_like(parameter, requires_grad=False)
                    checkpoint.fill(BEST_PREFIX + name, best.weights[name], wholes[name])

    def finish(self, last: int, folder: CheckpointFolder) -> None:
        """Restore the weights of the best evaluation."""
        with torch.no_grad():
            for name, parameter in self._trainable().items():
                if name in self.best.weights:
                    parameter.copy_(self.best.weights[name])


def _saved_best(checkpoint: Checkpoint) -> SavedBest:
    """Return the best evaluation before the checkpoint; its step is 0 if there was none."""
    before: Any = checkpoint.extra.get("best")
    none = isinstance(before, dict) and (before.get("step"), before.get("score")) == (0, -float("inf"))
    found: SavedBest = read(SavedBest, before | {"score": 0.0} if none else before, checkpoint.where, "extra.best")
    if found.step > checkpoint.step or (found.step == 0) != none:
        raise UserError(f"{checkpoint.where}: extra.best.step: cannot be {found.step}")
    return replace(found, score=-float("inf")) if none else found
