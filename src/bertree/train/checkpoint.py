"""Checkpoints: weights, moments and one number, whole or not there.

    checkpoints/step-00001000/
        state.safetensors     weights/NAME and moments/KEY/NAME
        state.json            step, the sha256 of the file above, what the run wants to remember
    checkpoints/best.json     which step had the lowest held-out loss

A checkpoint is written beside its place and renamed into it, so one that is there is complete; what the disk
may have done to it since, its checksum tells. The newest few are kept, and the best.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
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
from bertree.files import Json, file_hash, new_folder, read_json, write_atomically, write_text

STATE, HEADER, BEST = "state.safetensors", "state.json", "best.json"
FORMAT, VERSION = "bertree-checkpoint", 1


@dataclass(frozen=True)
class Checkpoint:
    """A good checkpoint, read and verified."""

    step: int
    tensors: dict[str, Tensor]
    extra: Json  # what the run wants to remember beside the numbers


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self._keep = folder, keep

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, newest first."""
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        numbers = [path.name.removeprefix("step-") for path in found]
        return sorted((int(number) for number in numbers if number.isdigit()), reverse=True)

    def path(self, step: int) -> Path:
        """Folder of a step's checkpoint."""
        return self.folder / f"step-{step:08d}"

    def save(
        self,
        step: int,
        network: nn.Module,
        optimizer: Optimizer,
        extra: Json | None = None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Write a checkpoint; older ones go once it is there. When the disk is full, nothing is lost.

        `beside` holds tensors the run wants to keep with it."""
        target = self.path(step)
        try:
            with new_folder(target, (STATE, HEADER)) as work:
                save_file(_state(network, optimizer, beside or {}), work / STATE)
                header = {"format": FORMAT, "version": VERSION, "step": step, "sha256": file_hash(work / STATE)}
                write_text(work / HEADER, json.dumps(header | {"extra": extra or {}}) + "\n")
        except (UserError, SafetensorError) as error:
            left = next(iter(self.steps()), None)
            good = f"the checkpoint of step {left} is intact" if left is not None else "there is no earlier one"
            raise UserError(f"{error}; {good}: make room and go on with --resume") from None
        for newer in [other for other in self.steps() if other > step]:
            self._remove(newer)  # the run went on from before it, so it is damaged; it must not count as kept
        self._tidy()
        return target

    def best(self) -> Json | None:
        """The best step and its loss, if one was marked."""
        path = self.folder / BEST
        try:
            found = read_json(path) if path.is_file() else {}
        except UserError:
            return None
        good = type(found.get("step")) is int and isinstance(found.get("loss"), float)
        return found if good and self.path(found["step"]).is_dir() else None

    def mark_best(self, step: int, loss: float, phase: int) -> None:
        """Remember the checkpoint if its held-out loss is the lowest of its phase; phases do not compare."""
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

    def read_newest(self) -> Checkpoint | None:
        """Read the newest good checkpoint; damaged ones are passed over with a note."""
        for leftover in self.folder.glob(".step-*"):  # of a run that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        for step in self.steps():
            try:
                return self.read(step)
            except UserError as error:
                note(f"{error}; taking the one before it")
        return None

    def read(self, step: int) -> Checkpoint:
        """One checkpoint, verified."""
        folder = self.path(step)
        header = read_json(folder / HEADER)
        if header.get("format") != FORMAT or header.get("version") != VERSION or header.get("step") != step:
            raise UserError(f"{folder / HEADER}: is not the header of this checkpoint")
        if file_hash(folder / STATE) != header.get("sha256"):
            raise UserError(f"{folder / STATE}: is damaged (its checksum differs)")
        extra = header.get("extra")
        return Checkpoint(step, load_file(folder / STATE), extra if isinstance(extra, dict) else {})


def restore(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer) -> None:
    """Put weights and moments back in their places."""
    weights = {n.removeprefix("weights/"): t for n, t in checkpoint.tensors.items() if n.startswith("weights/")}
    named = dict(network.named_parameters())
    if set(weights) != set(named) or any(weights[name].shape != p.shape for name, p in named.items()):
        raise UserError(f"the checkpoint of step {checkpoint.step} is of another model than the recipe's")
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weights[name])
    for name, tensor in checkpoint.tensors.items():
        kind, key, parameter_name = (*name.split("/", 2), "")[:3]
        if kind == "moments":
            parameter = named[parameter_name]
            place: dict[str, Any] = optimizer.state[parameter]
            # A count is kept where the optimiser keeps it: fused AdamW beside the weights, LAMB on the host.
            host = key == "step" and not _fused(optimizer)
            place[key] = tensor.to("cpu" if host else parameter.device).clone()


def _fused(optimizer: Optimizer) -> bool:
    return bool(optimizer.defaults.get("fused"))


def _state(network: nn.Module, optimizer: Optimizer, beside: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = dict(beside)
    for name, parameter in network.named_parameters():
        tensors[f"weights/{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"moments/{key}/{name}"] = value
    return {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
