"""What a run keeps and when it is evaluated, which differs between pretraining and fine-tuning.

Pretraining keeps the newest checkpoints and the one with the lowest held-out loss on disk. Fine-tuning keeps the
weights of the best evaluation in memory and restores them at the end; its checkpoints, at most one a minute because
many runs are shorter, hold those weights too.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from bertree.config.settings import AtLeast, read
from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.report.run_page import write_run_report
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, MODEL
from bertree.scale.shards import parameter_layouts
from bertree.train.checkpoint import BEST_PREFIX, Checkpoint, CheckpointFolder, fit, restore, saved_weights
from bertree.train.hooks import EvaluateStep, Evaluator, RunLog, StepLogger
from bertree.train.loop import Hook, Loop, StepResult


class KeepPolicy(ABC):
    """What is kept of a run."""

    checkpoints: int  # how many stay on disk
    pause: float  # seconds between two checkpoints, at least
    saves_last: bool  # whether the last step is saved in any case

    @abstractmethod
    def evaluator(self, last: int, log: RunLog, logger: StepLogger) -> Hook:
        """Return the hook that evaluates when it is due. `last` is the last step."""

    @abstractmethod
    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Restore what a checkpoint kept. None: there is no good one, the run starts from the beginning."""

    @abstractmethod
    def finish(self, last: int, folder: CheckpointFolder) -> None:
        """Finish the run after its last step."""

    def stop_reason(self) -> str | None:
        """Return why the run should stop before its last step, if it should."""
        return None

    def last_loss(self) -> float | None:
        """Return the newest held-out loss, if there is one."""
        return None

    def is_complete(self, checkpoint: Checkpoint | None, last: int) -> bool:
        """Return whether the run that wrote a checkpoint came to its end."""
        return False

    def extra(self, result: StepResult) -> Json:
        """Return what the checkpoint of a step keeps in its header."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return what a checkpoint keeps in addition to weights and optimizer state."""
        return {}

    def after_save(self, result: StepResult, folder: CheckpointFolder) -> None:  # noqa: B027
        """Act on a checkpoint that was just written."""

    def check(self, checkpoint: Checkpoint) -> None:  # noqa: B027
        """Refuse a checkpoint that cannot be of this run."""


HELD_OUT = "held_out"  # loss and phase of a checkpoint's evaluation
REPORT_PAUSE = 5.0  # seconds between reports during a run; its end always writes one


class StartModel(NamedTuple):
    """The model that a run starts from, if it must not end with a worse one."""

    loss: float  # on held-out text
    write: Callable[[str], None]  # into a folder of that name


@dataclass(kw_only=True)
class KeepNewestAndBest(KeepPolicy):
    """A run that is evaluated by its held-out loss. At the end the last model is written and, if an earlier one of the
    same phase was better, that one too. With `start`, only the best is written, and `start` if none is better."""

    out: Path
    loop: Loop
    checkpoints: int  # newest ones on disk
    eval_every: int
    evaluate: EvaluateStep  # on held-out text, after a step
    samples: Callable[[], list[dict[str, Any]]]  # texts that show what it has learned
    write_model: Callable[[str], None]  # into a folder of that name
    start: StartModel | None = None
    pause: float = 0.0
    saves_last: bool = True
    _evaluator: Evaluator | None = field(default=None, init=False)
    _next_report: float = field(default=0.0, init=False)

    def evaluator(self, last: int, log: RunLog, logger: StepLogger) -> Evaluator:
        """Return the hook that evaluates at regular steps."""
        self._evaluator = Evaluator(
            every=self.eval_every, last=last, evaluate=self.evaluate, samples=self.samples, log=log, logger=logger
        )
        return self._evaluator

    def extra(self, result: StepResult) -> Json:
        """Return the held-out loss of the step, if it was evaluated."""
        newest = self._evaluator.newest if self._evaluator else None
        return {HELD_OUT: {"loss": newest[1], "phase": result.phase}} if newest and newest[0] == result.step else {}

    def last_loss(self) -> float | None:
        """Return the newest held-out loss, if there is one."""
        newest = self._evaluator.newest if self._evaluator else None
        return newest[1] if newest else None

    def after_save(self, result: StepResult, folder: CheckpointFolder) -> None:
        """Mark the checkpoint if it is the best; write the report, unless it is new."""
        if held_out := self.extra(result).get(HELD_OUT):
            folder.mark_best(result.step, **held_out)
        if time.monotonic() >= self._next_report:
            write_run_report(self.out)
            self._next_report = time.monotonic() + REPORT_PAUSE

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Mark the checkpoint if it is the best: the run may have stopped just before. Note if there is none."""
        if checkpoint is None:
            note(f"{self.out}: no checkpoint yet, starting from the beginning")
            return
        held_out = checkpoint.extra.get(HELD_OUT)
        if isinstance(held_out, dict) and self.loop.world.is_first:
            loss, phase = held_out.get("loss"), held_out.get("phase")
            if isinstance(loss, float) and type(phase) is int:
                CheckpointFolder(self.out / CHECKPOINTS, self.checkpoints).mark_best(checkpoint.step, loss, phase)

    def is_complete(self, checkpoint: Checkpoint | None, last: int) -> bool:
        """Return whether the last step was saved and the models written."""
        if checkpoint is None or checkpoint.step != last or not (self.out / MODEL).is_dir():
            return False
        best = CheckpointFolder(self.out / CHECKPOINTS).best()
        return self.start is not None or best is None or best["step"] == last or (self.out / BEST_MODEL).is_dir()

    def finish(self, last: int, folder: CheckpointFolder) -> None:
        """Write the models."""
        if self.start is not None:
            self._write_best(self.start, folder)
            return
        self.write_model(MODEL)
        best = folder.best_step()
        if best is not None and best != last:
            try:
                restore(folder.read(best), self.loop.network, self.loop.optimizer)
            except UserError as error:
                note(f"{error}; {BEST_MODEL} is not written")
            else:
                self.write_model(BEST_MODEL)

    def _write_best(self, start: StartModel, folder: CheckpointFolder) -> None:
        best = folder.best()
        if best is None or best["loss"] >= start.loss:
            start.write(MODEL)
            return
        restore(folder.read(best["step"]), self.loop.network, self.loop.optimizer)
        self.write_model(MODEL)


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


@dataclass(kw_only=True)
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
        """Return the hook that evaluates at the chosen steps and keeps the best weights."""
        due = set(self.evaluations)

        def evaluate(result: StepResult) -> None:
            if result.step in due:
                self._evaluate(result, log, logger)

        return evaluate

    def _evaluate(self, result: StepResult, log: RunLog, logger: StepLogger) -> None:
        began, best = time.perf_counter(), self.best
        scores = self.evaluate()
        log.evaluation(result.step, scores)
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

    def extra(self, result: StepResult) -> Json:
        """Return the best evaluation."""
        return {"best": {"step": self.best.step, "score": self.best.score, "waited": self.best.waited}}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the best weights."""
        return {BEST_PREFIX + name: tensor for name, tensor in self.best.weights.items()}

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint whose best weights do not fit the network."""
        expected = self._trainable() if _saved_best(checkpoint).step else {}
        if not fit(saved_weights(checkpoint, BEST_PREFIX), expected, parameter_layouts(self.loop.network)):
            raise UserError(f"{checkpoint.where}: the weights of the best evaluation do not fit the network")

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Restore the best evaluation."""
        if checkpoint is not None:
            saved, best = _saved_best(checkpoint), self.best
            best.step, best.score, best.waited = saved.step, saved.score, saved.waited
            best.weights = {}
            if saved.step:
                layouts = parameter_layouts(self.loop.network)
                for name, parameter in self._trainable().items():
                    best.weights[name] = torch.empty_like(parameter, requires_grad=False)
                    checkpoint.fill(BEST_PREFIX + name, best.weights[name], layouts[name])

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
    saved: SavedBest = read(SavedBest, before | {"score": 0.0} if none else before, checkpoint.where, "extra.best")
    if saved.step > checkpoint.step or (saved.step == 0) != none:
        raise UserError(f"{checkpoint.where}: extra.best.step: cannot be {saved.step}")
    return replace(saved, score=-float("inf")) if none else saved
