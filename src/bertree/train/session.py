"""A run in its folder: it goes on from its newest checkpoint, is watched, saved, interrupted and reported on.

What is trained, and on what, is decided by who builds the parts; every verb that trains runs them here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertree.config.sections import RunSettings
from bertree.console import note
from bertree.errors import UserError
from bertree.files import Json, write_atomically
from bertree.report.run import write_run_report
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, ENVIRONMENT, MODEL, RECIPE
from bertree.train.checkpoint import Checkpoint, CheckpointFolder, restore
from bertree.train.device import measure_peak_flops
from bertree.train.feed import StreamFeed
from bertree.train.hooks import CheckpointSaver, EvaluateStep, Evaluator, SignalHandler, StepLogger, Totals
from bertree.train.loop import Loop, StepResult, StopTraining
from bertree.train.metrics_log import MetricsLog, environment
from bertree.train.progress import Progress


def begin(
    out: Path, recipe: str, device: torch.device, settings: RunSettings, found: Checkpoint | None
) -> tuple[MetricsLog, Totals]:
    """Write down what is run and where; the log and the totals go on from the checkpoint, where there is one."""
    first = found.step if found else 0
    record = MetricsLog(out, first, settings.tensorboard)
    write_atomically(out / RECIPE, recipe)
    write_atomically(out / ENVIRONMENT, json.dumps(environment(device), indent=2) + "\n")
    record.write("event", first, {"text": f"resumed from step {first}" if found else "started"})
    return record, Totals(record, found.extra if found else None)


@dataclass(frozen=True)
class Session:
    """Everything a run is made of."""

    out: Path
    recipe: str  # as TOML, for the record
    loop: Loop
    feed: StreamFeed
    settings: RunSettings
    measure: EvaluateStep  # figures on held-out text, after a step
    samples: Callable[[], list[dict[str, Any]]]  # texts to watch it learn by
    flops: Sequence[float]  # a token, in each phase
    identity: Json  # what must be the same when the run is resumed: names of the data
    finish: Callable[[str], None]  # write the model into a folder of that name

    def run(self, resume: bool, intro: Sequence[str]) -> int | None:
        """Take the steps that are left, then call `finish`. Return the signal that ended the run early, if any."""
        checkpoints = CheckpointFolder(self.out / CHECKPOINTS, self.settings.keep)
        found = self._restored(checkpoints) if resume else None
        first, last = found.step if found else 0, len(self.feed.plan)
        if first == last and (self.out / MODEL).is_dir():
            note(f"{self.out}: the run is complete, nothing is left to do")
            return None
        record, tally = begin(self.out, self.recipe, self.loop.device, self.settings, found)
        try:
            caught = self._train(first, checkpoints, record, tally, intro)
            if caught is None:
                self._finish(checkpoints, record, tally)
        except UserError as error:
            record.write("event", first, {"text": f"stopped: {error}"})
            raise
        finally:
            record.close()
            write_run_report(self.out)
        return caught

    def _train(
        self, first: int, checkpoints: CheckpointFolder, record: MetricsLog, tally: Totals, intro: Sequence[str]
    ) -> int | None:
        """The steps that are left; the signal that ended them early, if one did."""
        last = len(self.feed.plan)
        with Progress(last, first) as progress:
            for line in intro:
                progress.say(line)
            log = StepLogger(
                self.settings.log_every, last, record, progress, tally, self.flops, measure_peak_flops(self.loop.device)
            )
            evaluation = Evaluator(
                self.settings.eval_every, last, self.measure, self.samples, record, progress, tally, log
            )

            def write(result: StepResult) -> None:
                extra = tally.as_dict() | {"identity": self.identity}
                checkpoints.save(result.step, self.loop.network, self.loop.optimizer, extra)
                if evaluation.newest and evaluation.newest[0] == result.step:
                    checkpoints.mark_best(*evaluation.newest, result.phase)
                write_run_report(self.out)

            save = CheckpointSaver(self.settings.save_every, last, write, log)
            interrupts = SignalHandler(save)
            try:
                with interrupts.listening():
                    self.loop.run(self.feed.steps_from(first), (tally, log, evaluation, save, interrupts))
            except StopTraining:
                progress.say(f"stopped at step {save.step:,} of {last:,} and saved; go on with --resume")
        return interrupts.caught

    def _finish(self, checkpoints: CheckpointFolder, record: MetricsLog, tally: Totals) -> None:
        """The last model and, where an earlier one of the same phase was better, that one too."""
        last = len(self.feed.plan)
        self.finish(MODEL)
        best = checkpoints.best()
        if best and best["step"] != last:
            restore(checkpoints.read(best["step"]), self.loop.network, self.loop.optimizer)
            self.finish(BEST_MODEL)
        parameters = sum(parameter.numel() for parameter in self.loop.network.parameters())
        record.write("end", last, tally.as_dict() | {"parameters": parameters})

    def _restored(self, checkpoints: CheckpointFolder) -> Checkpoint | None:
        found = checkpoints.read_newest()
        if found is None:
            note(f"{self.out}: no good checkpoint, starting from the beginning")
            return None
        before = found.extra.get("identity")
        for name, value in self.identity.items():
            if not isinstance(before, dict) or before.get(name) != value:
                raise UserError(f"{self.out}: was started with another {name}; put it back, or start a new run")
        restore(found, self.loop.network, self.loop.optimizer)
        return found
