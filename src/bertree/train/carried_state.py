"""The states that a run carries from step to step, where a batch continues the one before it.

Micro-batch i of a step continues micro-batch i of the step before: slot i holds its state. Gradients do not flow from
step to step.
"""

import re
from collections.abc import Container, Sequence

import torch
from torch import Tensor, nn

from bertree.errors import UserError
from bertree.model.encoder import State, Stateful
from bertree.train.checkpoints.contents import STATE_PREFIX, Checkpoint
from bertree.train.checkpoints.tensors import SavedTensors

NAME = re.compile(STATE_PREFIX + r"([0-9]{1,6})/(.+)")


class CarriedState:
    """One state for each slot of a step."""

    def __init__(self) -> None:
        self._slots: dict[int, State] = {}

    def clear(self) -> None:
        """Start fresh."""
        self._slots = {}

    def take(self, slot: int) -> State | None:
        """Return the state of a slot; None at the start."""
        return self._slots.get(slot)

    def put(self, slot: int, state: State | None) -> None:
        """Keep the state of a slot, apart from the graph that computed it."""
        if state is not None:
            self._slots[slot] = {name: _keepable(tensor.detach()) for name, tensor in state.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint holds."""
        return {
            f"{STATE_PREFIX}{slot}/{name}": tensor
            for slot, state in self._slots.items()
            for name, tensor in state.items()
        }

    def restore(self, tensors: SavedTensors, device: torch.device, own: Container[int]) -> None:
        """Take back what a checkpoint held of this rank's own slots."""
        slots: dict[int, dict[str, Tensor]] = {}
        for full_name, tensor in tensors.items():
            if (found := NAME.fullmatch(full_name)) and int(found[1]) in own:
                slots.setdefault(int(found[1]), {})[found[2]] = tensor.read().to(device)
        self._slots = dict(slots)


def _keepable(tensor: Tensor) -> Tensor:
    """Empty what is not finite: a bad step, which changes no weight, must not spoil the steps after it."""
    return tensor.nan_to_num(0.0, 0.0, 0.0) if tensor.is_floating_point() else tensor


def check_state(checkpoint: Checkpoint, network: nn.Module, lanes: Sequence[int], own: Container[int]) -> None:
    """Refuse a checkpoint whose state is not that of this network; `lanes` are those of each slot. What the state
    holds is read of this rank's own slots alone."""
    wanted = {
        f"{STATE_PREFIX}{slot}/{name}": (slot, spec)
        for slot, count in enumerate(lanes)
        if isinstance(network, Stateful)
        for name, spec in network.state_specs(count).items()
    }
    found = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(STATE_PREFIX)}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in wanted:
            raise UserError(f"{checkpoint.where}: there is '{name}', which the run does not know")
        if name not in found:
            raise UserError(f"{checkpoint.where}: there is no '{name}'")
        slot, spec = wanted[name]
        if slot in own and not spec.fits(found[name].read()):
            raise UserError(f"{checkpoint.where}: '{name}' has another shape or type, or is not finite")
