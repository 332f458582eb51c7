"""Checkpoints: weights, optimizer state and the step, complete or not there at all.

    checkpoints/step-00001000/
        state.safetensors     weights/NAME, moments/KEY/NAME, and state/SLOT/NAME where steps continue each other
        state.json            step, the sha256 of the file above, what the run keeps beside it
    checkpoints/best.json     which step had the lowest held-out loss

A checkpoint is written under another name and renamed, so one that is there is complete. Its checksum, and what it says
about the step, tell whether it was changed since. The newest few are kept, and the best.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import new_folder, write_atomically, write_text
from bertree.files.formats import Json, file_hash, read_json

STATE, HEADER, BEST = "state.safetensors", "state.json", "best.json"
FORMAT, VERSION = "bertree-checkpoint", 1
NAME = re.compile(r"step-([0-9]{8,12})")
STATE_PREFIX = "state/"  # how the names of what is carried from step to step begin
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}  # kept for each parameter, if its group does not say otherwise (`kept`)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, read and verified."""

    step: int
    tensors: dict[str, Tensor]
    extra: Json  # what the run keeps beside the tensors
    where: str  # of the header, for messages


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self._keep = folder, keep

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
        try:
            with new_folder(target, (STATE, HEADER)) as work:
                save_file(_state(network, optimizer, more or {}), work / STATE)
                header = {"format": FORMAT, "version": VERSION, "step": step, "sha256": file_hash(work / STATE)}
                write_text(work / HEADER, json.dumps(header | {"extra": extra or {}}) + "\n")
        except (UserError, SafetensorError) as error:
            left = next(iter(self.steps()), None)
            good = f"the checkpoint of step {left} is intact" if left is not None else "there is no earlier one"
            raise UserError(f"{error}; {good}: make room and go on with --resume") from None
        for newer in [other for other in self.steps() if other > step]:
            self._remove(newer)  # the run was resumed from before it, so it is damaged; it must not count as kept
        self._tidy()
        return target

    def best(self) -> Json | None:
        """Return the best step and its loss, if one is marked."""
        path = self.folder / BEST
        try:
            found = read_json(path) if path.is_file() else {}
        except UserError:
            return None
        good = type(found.get("step")) is int and isinstance(found.get("loss"), float)
        return found if good and self.path(found["step"]).is_dir() else None

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
        """Read the newest good checkpoint. One that is damaged, or that `check` refuses, is skipped with a note."""
        for leftover in self.folder.glob(".step-*"):  # of a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        for step in self.steps():
            try:
                checkpoint = self.read(step)
                check(checkpoint)
                return checkpoint
            except UserError as error:
                note(f"{error}; taking the checkpoint before it")
        return None

    def read(self, step: int) -> Checkpoint:
        """Read and verify one checkpoint."""
        folder = self.path(step)
        header, extra = (found := read_json(folder / HEADER)), found.get("extra")
        known = (header.get("format"), header.get("version"), header.get("step"))
        if known != (FORMAT, VERSION, step) or not isinstance(extra, dict):
            raise UserError(f"{folder / HEADER}: is not the header of this checkpoint")
        if file_hash(folder / STATE) != header.get("sha256"):
            raise UserError(f"{folder / STATE}: is damaged (its checksum differs)")
        try:
            return Checkpoint(step, load_file(folder / STATE), extra, str(folder / HEADER))
        except SafetensorError as error:
            raise UserError(f"{folder / STATE}: is damaged ({error})") from None


def check_optimizer_state(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer, steps: int) -> None:
    """Refuse a checkpoint whose optimizer state does not fit the network, or is not that of `steps` steps."""
    kept = {id(p): set(group.get("kept", MOMENTS)) for group in optimizer.param_groups for p in group["params"]}
    named = dict(network.named_parameters())
    found: dict[str, set[str]] = {}
    taken = 0.0
    for name, tensor in checkpoint.tensors.items():
        if name.startswith(("weights/", "best/", STATE_PREFIX)):
            continue
        kind, key, parameter = _parts(name)
        if kind != "moments" or parameter not in named or key not in MOMENTS:
            raise UserError(f"{checkpoint.where}: there is '{name}', which the run does not know")
        wanted = torch.zeros(()) if key == "step" else named[parameter]
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            raise UserError(f"{checkpoint.where}: the optimizer state '{name}' has another shape or type")
        if key == "step":
            taken = max(taken, float(tensor))  # a parameter that has no gradient in some steps takes fewer
        found.setdefault(parameter, set()).add(key)
    if incomplete := [parameter for parameter, keys in found.items() if keys != kept.get(id(named[parameter]))]:
        raise UserError(f"{checkpoint.where}: the optimizer state of '{incomplete[0]}' is incomplete")
    if taken != steps:
        raise UserError(f"{checkpoint.where}: the optimizer has taken {taken:.0f} steps, not {steps}")


def restore(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer) -> None:
    """Load weights and optimizer state."""
    weights = {n.removeprefix("weights/"): t for n, t in checkpoint.tensors.items() if n.startswith("weights/")}
    named = dict(network.named_parameters())
    if {n: (t.shape, t.dtype) for n, t in weights.items()} != {n: (p.shape, p.dtype) for n, p in named.items()}:
        raise UserError(f"{checkpoint.where}: step {checkpoint.step} is of another model than the recipe's")
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weights[name])
    for name, tensor in checkpoint.tensors.items():
        kind, key, parameter_name = _parts(name)
        if kind == "moments":
            parameter = named[parameter_name]
            state: dict[str, Any] = optimizer.state[parameter]
            # The step count stays where the optimizer keeps it: fused AdamW beside the weights, LAMB on the host.
            on_host = key == "step" and not optimizer.defaults.get("fused")
            state[key] = tensor.to("cpu" if on_host else parameter.device).clone()


def _parts(name: str) -> tuple[str, str, str]:
    kind, key, parameter = (*name.split("/", 2), "", "")[:3]
    return kind, key, parameter


def _state(network: nn.Module, optimizer: Optimizer, more: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = dict(more)
    for name, parameter in network.named_parameters():
        tensors[f"weights/{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"moments/{key}/{name}"] = value
    return {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
