"""Keep the newest checkpoints and the one with the lowest held-out loss, on disk."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertree.console import note
from bertree.errors import UserError
from bertree.report.run_page import write_run_report
from bertree.run_folder import BEST_MODEL, MODEL
from bertree.train.checkpoints.contents import Checkpoint, restore
from bertree.train.checkpoints.folder import CheckpointFolder
from bertree.train.hooks import EvaluateStep, Evaluator, RunLog, StepLogger
from bertree.train.keep.policy import KeepPolicy
from bertree.train.loop import Loop, StepResult

REPORT_PAUSE = 5.0  # seconds between the reports of a run that goes on; its end writes one in any case


@dataclass
class KeepNewestAndBest(KeepPolicy):
    """A run that is evaluated by its held-out loss. At the end the last model is written and, if an earlier one of the
    same phase was better, that one too."""

    out: Path
    loop: Loop
    checkpoints: int  # newest ones on disk
    eval_every: int
    evaluate: EvaluateStep  # on held-out text, after a step
    samples: Callable[[], list[dict[str, Any]]]  # texts that show what it has learned
    write_model: Callable[[str], None]  # into a folder of that name
    pause: float = 0.0
    saves_last: bool = True
    _evaluator: Evaluator | None = field(default=None, init=False)
    _next_report: float = field(default=0.0, init=False)

    def evaluator(self, last: int, log: RunLog, logger: StepLogger) -> Evaluator:
        """Return what evaluates every so many steps."""
        self._evaluator = Evaluator(self.eval_every, last, self.evaluate, self.samples, log, logger)
        return self._evaluator

    def after_save(self, result: StepResult, folder: CheckpointFolder) -> None:
        """Mark the checkpoint if it is the best; write the report, unless it is new."""
        newest = self._evaluator.newest if self._evaluator else None
        if newest and newest[0] == result.step:
            folder.mark_best(*newest, result.phase)
        if time.monotonic() >= self._next_report:
            write_run_report(self.out)
            self._next_report = time.monotonic() + REPORT_PAUSE

    def resume(self, checkpoint: Checkpoint | None) -> None:
        """Say that there is nothing to go on from, if so."""
        if checkpoint is None:
            note(f"{self.out}: no checkpoint yet, starting from the beginning")

    def is_complete(self, checkpoint: Checkpoint | None, last: int) -> bool:
        """Return whether the last step was saved and the model written."""
        return checkpoint is not None and checkpoint.step == last and (self.out / MODEL).is_dir()

    def finish(self, last: int, folder: CheckpointFolder) -> None:
        """Write the last model and, if an earlier one of the same phase was better, that one too."""
        self.write_model(MODEL)
        best = folder.best_step()
        if best is not None and best != last:
            try:
                restore(folder.read(best), self.loop.network, self.loop.optimizer)
            except UserError as error:
                note(f"{error}; {BEST_MODEL} is not written")
            else:
                self.write_model(BEST_MODEL)
