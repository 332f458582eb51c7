"""Checkpoints: weights, optimizer state and step, written completely or not at all.

    checkpoints/step-00001000/
        state.safetensors                     weights/NAME, moments/KEY/NAME, state/SLOT/NAME where steps continue
                                              each other, best/NAME where the best weights are kept
        state-00001-of-00004.safetensors ...  the same of a run on many devices: what each rank holds
        state.json                            step, the sha256 of each file above, what the run keeps beside it
    checkpoints/best.json     which step had the lowest held-out loss

A checkpoint is written under another name and renamed, so every one that exists is complete. Its checksums
and its step show whether it was changed since. The newest few are kept, and the best. A checkpoint can be read on
another number of devices than it was written on.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import sync, write_atomically
from bertree.files.formats import Json, read_json
from bertree.model.encoder import all_finite
from bertree.scale.shards import Box, LocalShard, ParameterLayout, is_first_holder, local_shard, parameter_layouts
from bertree.scale.world import SharedError, World
from bertree.train.checkpoint_files import (
    HEADER,
    SavedTensor,
    SavedTensors,
    open_tensors,
    read_header,
    verify_files,
    write_checkpoint,
)

BEST = "best.json"
NAME = re.compile(r"step-([0-9]{8,12})")
WEIGHTS, MOMENTS_OF = "weights", "moments"
BEST_PREFIX = "best/"  # how the names of the best weights begin
STATE_PREFIX = "state/"  # and those of the memory of lanes
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}  # kept for each parameter, if its group does not say otherwise (`kept`)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint, opened and verified."""

    step: int
    tensors: SavedTensors
    extra: Json  # what the run keeps in addition to tensors
    where: str  # of the header, for messages
    world: World = field(default_factory=World.alone)  # whose parts are read

    @torch.no_grad()
    def fill(self, name: str, tensor: Tensor, layout: ParameterLayout) -> None:
        """Read this rank's part of a saved tensor into the tensor that has it."""
        shard, saved = local_shard(tensor, layout, self.world), self.tensors[name]
        for box in shard.boxes:
            read = saved.read(box.offset, box.size)
            if shard.local.ndim:
                shard.local[box.row : box.row + len(read)].copy_(read)
            else:
                shard.local.copy_(read)


def shards_to_save(
    network: nn.Module, optimizer: Optimizer, more: Mapping[str, Tensor], world: World
) -> dict[str, LocalShard]:
    """Return what this rank writes of a network, its optimizer's state and `more`: of what several hold, the first
    writes it."""
    layouts, shards = parameter_layouts(network), {}
    for name, tensor in _tensors(network, optimizer, more):
        parameter = parameter_of(name)
        if parameter is None:  # the memory of lanes: each data-parallel rank has its own
            if world.tensor_rank == 0:
                shards[name] = LocalShard(
                    tensor, tuple(tensor.shape), (Box((0,) * tensor.ndim, tuple(tensor.shape), 0),)
                )
        elif is_first_holder(tensor, layouts[parameter], world):
            shard = local_shard(tensor, layouts[parameter], world)
            if shard.boxes:
                shards[name] = shard
    return shards


def _tensors(network: nn.Module, optimizer: Optimizer, more: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from more.items()
    for name, parameter in network.named_parameters():
        yield f"{WEIGHTS}/{name}", parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{MOMENTS_OF}/{key}/{name}", value


def parameter_of(name: str) -> str | None:
    """Return the parameter that a tensor of a checkpoint belongs to; None: to no one."""
    kind, _, rest = name.partition("/")
    if kind == MOMENTS_OF:
        return rest.partition("/")[2]
    return None if kind == STATE_PREFIX[:-1] else rest


def check_optimizer_state(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer, steps: int) -> None:
    """Refuse a checkpoint whose optimizer state does not fit the network, or is not that of `steps` steps."""
    kept = {id(p): set(group.get("kept", MOMENTS)) for group in optimizer.param_groups for p in group["params"]}
    named, layouts = dict(network.named_parameters()), parameter_layouts(network)
    saved_keys: dict[str, set[str]] = {}
    steps_taken = 0.0
    for name, tensor in checkpoint.tensors.items():
        if name.startswith((f"{WEIGHTS}/", BEST_PREFIX, STATE_PREFIX)):
            continue
        kind, key, parameter = _parts(name)
        if kind != MOMENTS_OF or parameter not in named or key not in MOMENTS:
            raise UserError(f"{checkpoint.where}: there is '{name}', which the run does not know")
        expected = ((), torch.float32) if key == "step" else (layouts[parameter].shape, named[parameter].dtype)
        if (tensor.shape, tensor.dtype) != expected:
            raise UserError(f"{checkpoint.where}: the optimizer state '{name}' has another shape or type")
        if key == "step":
            count = float(tensor.read())
            if not 0 <= count < math.inf:
                raise UserError(f"{checkpoint.where}: '{name}' is {count:g}, not a number of steps")
            steps_taken = max(steps_taken, count)  # a parameter that has no gradient in some steps takes fewer
        saved_keys.setdefault(parameter, set()).add(key)
    if incomplete := [parameter for parameter, keys in saved_keys.items() if keys != kept.get(id(named[parameter]))]:
        raise UserError(f"{checkpoint.where}: the optimizer state of '{incomplete[0]}' is incomplete")
    if steps_taken != steps:
        raise UserError(f"{checkpoint.where}: the optimizer has taken {steps_taken:.0f} steps, not {steps}")


def restore(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer) -> None:
    """Read weights and optimizer state, each rank its part."""
    saved = saved_weights(checkpoint, f"{WEIGHTS}/")
    named, layouts = dict(network.named_parameters()), parameter_layouts(network)
    if not fit(saved, named, layouts):
        raise UserError(f"{checkpoint.where}: step {checkpoint.step} is of another model than the recipe's")
    for name, parameter in named.items():
        checkpoint.fill(f"{WEIGHTS}/{name}", parameter, layouts[name])
    for name, tensor in checkpoint.tensors.items():
        kind, key, parameter_name = _parts(name)
        if kind == MOMENTS_OF:
            parameter = named[parameter_name]
            state: dict[str, Any] = optimizer.state[parameter]
            if key == "step":
                # It stays where the optimizer keeps it: fused AdamW with the weights, LAMB on the host.
                state[key] = tensor.read().to(parameter.device if optimizer.defaults.get("fused") else "cpu")
            else:
                state[key] = torch.empty_like(parameter, requires_grad=False)
                checkpoint.fill(name, state[key], layouts[parameter_name])


def check_values(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint with values that no training step writes. Each rank reads some of the tensors."""
    world = checkpoint.world
    for name, tensor in list(checkpoint.tensors.items())[world.rank :: world.size]:
        values = tensor.read()
        if not all_finite(values):
            raise UserError(f"{checkpoint.where}: '{name}' holds numbers that are not finite")
        if name.startswith(f"{MOMENTS_OF}/exp_avg_sq/") and values.numel() and bool(values.min() < 0):
            raise UserError(f"{checkpoint.where}: '{name}' holds squares below 0")


def saved_weights(checkpoint: Checkpoint, prefix: str) -> dict[str, SavedTensor]:
    """Return the tensors whose names start with a prefix, by the rest of the name."""
    return {n.removeprefix(prefix): tensor for n, tensor in checkpoint.tensors.items() if n.startswith(prefix)}


def fit(saved: Mapping[str, SavedTensor], named: Mapping[str, Tensor], layouts: Mapping[str, ParameterLayout]) -> bool:
    """Return whether saved tensors have the names, shapes and types of these parameters."""
    expected = {name: (layouts[name].shape, parameter.dtype) for name, parameter in named.items()}
    return {name: (tensor.shape, tensor.dtype) for name, tensor in saved.items()} == expected


def _parts(name: str) -> tuple[str, str, str]:
    kind, key, parameter = (*name.split("/", 2), "", "")[:3]
    return kind, key, parameter


class CheckpointFolder:
    """The checkpoints of one run. All ranks save and read together; rank 0 alone marks and removes."""

    def __init__(self, folder: Path, keep: int = 2, world: World | None = None) -> None:
        self.folder, self._keep, self._world = folder, keep, world or World.alone()

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, newest first."""
        matches = [NAME.fullmatch(path.name) for path in self.folder.glob("step-*") if path.is_dir()]
        steps = [int(match[1]) for match in matches if match]
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
        shards = shards_to_save(network, optimizer, more or {}, self._world)
        try:
            write_checkpoint(target, step, shards, extra or {}, self._world)
        except (UserError, SafetensorError) as error:
            left = next(iter(self.steps()), None)
            good = f"the checkpoint of step {left} is intact" if left is not None else "there is no earlier one"
            kind = SharedError if isinstance(error, SharedError) else UserError
            raise kind(f"{error}; {good}: make room and go on with `resume=True`") from None
        self._world.check_together(lambda: self._remove_others(step))
        return target

    def _remove_others(self, step: int) -> None:
        if self._world.is_first:
            for newer in [existing for existing in self.steps() if existing > step]:
                self._remove(newer)  # the run was resumed from before it, so it is damaged; it must not count as kept
            self._tidy()

    def best(self) -> Json | None:
        """Return the best step and its loss, if one is marked."""
        path = self.folder / BEST
        try:
            best = read_json(path) if path.is_file() else {}
        except UserError:
            return None
        good = type(best.get("step")) is int and isinstance(best.get("loss"), float)
        return best if good and self.path(best["step"]).is_dir() else None

    def best_step(self) -> int | None:
        """Return the best step, if one is marked: on every rank what rank 0 finds."""
        best = self.best()
        return self._of_rank_0(best["step"] if best else None)

    def _of_rank_0(self, number: int | None) -> int | None:
        first = int(self._world.gather([-1 if number is None else number])[0][0])
        return None if first < 0 else first

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
        # Renamed first: a half-deleted folder must not look like a checkpoint, nor after a power cut.
        doomed = self.path(step).with_name(f".{self.path(step).name}.old")
        os.replace(self.path(step), doomed)
        sync(self.folder)
        shutil.rmtree(doomed, ignore_errors=True)
        sync(self.folder)

    def read_newest(self, check: Callable[[Checkpoint], None] = lambda checkpoint: None) -> Checkpoint | None:
        """Read the newest good checkpoint; None if there is none at all.

        One that is damaged, or that `check` refuses, is skipped with a note. If no good one is left, that is an error:
        starting again from the beginning is the user's decision.
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
        return Checkpoint(step=step, tensors=tensors, extra=header.extra, where=str(folder / HEADER), world=self._world)
