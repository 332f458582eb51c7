"""Checkpoints: weights, optimizer state and the step, complete or not there at all.

    checkpoints/step-00001000/
        state.safetensors                     weights/NAME, moments/KEY/NAME, state/SLOT/NAME where steps continue
                                              each other, best/NAME where the best weights are kept
        state-00001-of-00004.safetensors ...  the same of a run on many devices: what each rank holds
        state.json                            step, the sha256 of each file above, what the run keeps beside it
    checkpoints/best.json     which step had the lowest held-out loss

A checkpoint is written under another name and renamed, so one that is there is complete. Its checksums, and what it
says about the step, tell whether it was changed since. The newest few are kept, and the best. Any number of devices
reads what any other has written.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json, read_json
from bertree.scale.world import SharedError, World
from bertree.train.checkpoints.contents import Checkpoint, parts_to_save
from bertree.train.checkpoints.files import HEADER, read_header, verify_files, write_checkpoint
from bertree.train.checkpoints.tensors import open_tensors

BEST = "best.json"
NAME = re.compile(r"step-([0-9]{8,12})")


class CheckpointFolder:
    """The checkpoints of one run. All ranks save and read together; rank 0 alone marks and removes."""

    def __init__(self, folder: Path, keep: int = 2, world: World | None = None) -> None:
        self.folder, self._keep, self._world = folder, keep, world or World.alone()

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first."""
        found = [NAME.fullmatch(path.name) for path in self.folder.glob("step-*") if path.is_dir()]
        steps = [int(match[1]) for match in found if match]
        return sorted((step for step in steps if self.path(step).is_dir()), reverse=True)

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        network: nn.Module,
        optimizer: Optimizer,
        extra: Json | None = None,
        more: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Write a checkpoint, then remove old ones; a full disk loses nothing. `more` are tensors to keep with it."""
        target = self.path(step)
        parts = parts_to_save(network, optimizer, more or {}, self._world)
        try:
            write_checkpoint(target, step, parts, extra or {}, self._world)
        except (UserError, SafetensorError) as error:
            left = next(iter(self.steps()), None)
            good = f"the checkpoint of step {left} is intact" if left is not None else "there is no earlier one"
            kind = SharedError if isinstance(error, SharedError) else UserError
            raise kind(f"{error}; {good}: make room and go on with `resume=True`") from None
        self._world.check_together(lambda: self._remove_others(step))
        return target

    def _remove_others(self, step: int) -> None:
        if self._world.is_first:
            for newer in [other for other in self.steps() if other > step]:
                self._remove(newer)  # the run was resumed from before it, so it is damaged; it must not count as kept
            self._tidy()

    def best(self) -> Json | None:
        """Return the best step and its loss, if one is marked."""
        path = self.folder / BEST
        try:
            found = read_json(path) if path.is_file() else {}
        except UserError:
            return None
        good = type(found.get("step")) is int and isinstance(found.get("loss"), float)
        return found if good and self.path(found["step"]).is_dir() else None

    def best_step(self) -> int | None:
        """Return the best step, if one is marked: on every rank what rank 0 finds."""
        best = self.best()
        return self._of_rank_0(best["step"] if best else None)

    def _of_rank_0(self, number: int | None) -> int | None:
        found = int(self._world.gather([-1 if number is None else number])[0][0])
        return None if found < 0 else found

    def mark_best(self, step: int, loss: float, phase: int) -> None:
        """Remember a checkpoint if its held-out loss is the lowest of its phase; phases do not compare."""
        best = self.best()
        if loss < (best["loss"] if best and best.get("phase") == phase else math.inf):
            write_atomically(self.folder / BEST, json.dumps({"step": step, "loss": loss, "phase": phase}) + "\n")
            self._tidy()

    def _tidy(self) -> None:
        best = self.best()
        for step in self.steps()[self._keep :]:
            if not best or step != best["step"]:
                self._remove(step)

    def _remove(self, step: int) -> None:
        # Under another name first: what is half deleted must not look like a checkpoint.
        doomed = self.path(step).with_name(f".{self.path(step).name}.old")
        os.replace(self.path(step), doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def read_newest(self, check: Callable[[Checkpoint], None] = lambda checkpoint: None) -> Checkpoint | None:
        """Read the newest good checkpoint; None if there is none at all.

        One that is damaged, or that `check` refuses, is skipped with a note. If no good one is left, that is an error:
        a run that would begin again from nothing must be started by its user.
        """
        if self._world.is_first:
            for leftover in self.folder.glob(".step-*"):  # of a run that was killed
                shutil.rmtree(leftover, ignore_errors=True)
        refused: UserError | None = None
        for step in self._steps_of_rank_0():
            if refused is not None:
                note(f"{refused}; taking the checkpoint before it")
            try:
                checkpoint = self.read(step)
                self._world.check_together(partial(check, checkpoint))
                return checkpoint
            except UserError as error:
                refused = error
        if refused is not None:
            raise UserError(f"{refused}; there is no good checkpoint before it, so start a new run")
        return None

    def _steps_of_rank_0(self) -> Iterator[int]:
        steps = iter(self.steps())
        while (step := self._of_rank_0(next(steps, None))) is not None:
            yield step

    def read(self, step: int) -> Checkpoint:
        """Open and verify one checkpoint."""
        return self._world.check_together(lambda: self._read(step))

    def _read(self, step: int) -> Checkpoint:
        folder = self.path(step)
        header = read_header(folder, step)
        verify_files(folder, header, self._world)
        tensors = open_tensors(folder, sorted(header.files))
        return Checkpoint(step, tensors, header.extra, str(folder / HEADER), self._world)
