"""A run in its folder: it goes on from its newest checkpoint, is watched, saved, interrupted and reported on.

What is trained, and on what, is decided by who builds the parts; every verb that trains runs them here.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertree.files import write_atomically
from bertree.recipe import Run
from bertree.train import report
from bertree.train.checkpoint import Checkpoint, Checkpoints, restore
from bertree.train.device import peak_flops
from bertree.train.feed import Feed
from bertree.train.hooks import Evaluate, Interrupts, Log, Measure, Save, Tally
from bertree.train.loop import Loop, Stop
from bertree.train.progress import Progress
from bertree.train.record import ENVIRONMENT, RECIPE, Record, environment

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Session:
    """Everything a run is made of."""

    out: Path
    recipe: str  # as TOML, for the record
    loop: Loop
    feed: Feed
    settings: Run
    measure: Measure  # figures on held-out text, after a step
    samples: Callable[[], list[dict[str, Any]]]  # texts to watch it learn by
    flops: Sequence[float]  # a token, in each phase

    def run(self, resume: bool, intro: Sequence[str], finish: Callable[[], None], note: Callable[[str], None]) -> int:
        """Take the steps that are left, then `finish`. The exit code: 0, or 128 and the signal that ended it."""
        checkpoints = Checkpoints(self.out / CHECKPOINTS, self.settings.keep)
        found = self._restored(checkpoints, note) if resume else None
        first, last = found.step if found else 0, len(self.feed.plan)
        record = Record(self.out, first, self.settings.tensorboard)
        write_atomically(self.out / RECIPE, self.recipe)
        write_atomically(self.out / ENVIRONMENT, json.dumps(environment(self.loop.device), indent=2) + "\n")
        record.write("event", first, {"text": f"resumed from step {first}" if found else "started"})
        with Progress(last, first) as progress:
            for line in intro:
                progress.say(line)
            tally = Tally(record, found.extra if found else None)
            log = Log(self.settings.log_every, record, progress, tally, self.flops, peak_flops(self.loop.device))
            evaluation = Evaluate(
                self.settings.eval_every, last, self.measure, self.samples, record, progress, tally, log
            )
            save = Save(
                self.settings.save_every, last, lambda step: self._save(step, checkpoints, evaluation, tally), log
            )
            interrupts = Interrupts(save)
            try:
                with interrupts.listening():
                    self.loop.run(self.feed.since(first), (tally, log, evaluation, save, interrupts))
            except Stop:
                progress.say(f"stopped at step {save.step:,} of {last:,} and saved; go on with --resume")
        if interrupts.caught is None:
            finish()
            parameters = sum(parameter.numel() for parameter in self.loop.network.parameters())
            record.write("end", last, tally.as_dict() | {"parameters": parameters})
        record.close()
        report.write(self.out)
        return 0 if interrupts.caught is None else 128 + interrupts.caught

    def _restored(self, checkpoints: Checkpoints, note: Callable[[str], None]) -> Checkpoint | None:
        found = checkpoints.newest(note)
        if found is None:
            note(f"{self.out}: no good checkpoint, starting from the beginning")
        else:
            restore(found, self.loop.network, self.loop.optimiser)
        return found

    def _save(self, step: int, checkpoints: Checkpoints, evaluation: Evaluate, tally: Tally) -> None:
        checkpoints.save(step, self.loop.network, self.loop.optimiser, tally.as_dict())
        newest, best = evaluation.newest, checkpoints.best()
        if newest and newest[0] == step and newest[1] < (best["loss"] if best else math.inf):
            checkpoints.mark_best(*newest)
        report.write(self.out)
