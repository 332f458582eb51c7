"""The memory of lanes between steps, for models whose batches continue each other (Transformer-XL).

Micro-batch i of a step continues micro-batch i of the step before: slot i holds its memory. Gradients do not flow from
step to step.
"""

import re
from collections.abc import Container, Sequence

import torch
from torch import Tensor, nn

from bertree.errors import UserError
from bertree.model.encoder import State, Stateful
from bertree.train.checkpoint import STATE_PREFIX, Checkpoint
from bertree.train.checkpoint_files import SavedTensors

NAME = re.compile(STATE_PREFIX + r"([0-9]{1,6})/(.+)")


class LaneMemories:
    """One memory for each slot of a step."""

    def __init__(self) -> None:
        self._slots: dict[int, State] = {}

    def clear(self) -> None:
        """Forget all memories."""
        self._slots = {}

    def get(self, slot: int) -> State | None:
        """Return the memory of a slot; None at the start."""
        return self._slots.get(slot)

    def put(self, slot: int, state: State | None) -> None:
        """Keep the memory of a slot, detached from the graph that computed it."""
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
        """Restore this rank's own slots from a checkpoint."""
        slots: dict[int, dict[str, Tensor]] = {}
        for full_name, tensor in tensors.items():
            if (match := NAME.fullmatch(full_name)) and int(match[1]) in own:
                slots.setdefault(int(match[1]), {})[match[2]] = tensor.read().to(device)
        self._slots = dict(slots)


def _keepable(tensor: Tensor) -> Tensor:
    """Set what is not finite to 0: a bad step, which changes no weight, must not spoil the steps after it."""
    return tensor.nan_to_num(0.0, 0.0, 0.0) if tensor.is_floating_point() else tensor


def check_state(checkpoint: Checkpoint, network: nn.Module, lanes: Sequence[int], own: Container[int]) -> None:
    """Refuse a checkpoint whose memory does not fit this network; `lanes` are those of each slot. Values are read for
    this rank's own slots only."""
    expected = {
        f"{STATE_PREFIX}{slot}/{name}": (slot, spec)
        for slot, count in enumerate(lanes)
        if isinstance(network, Stateful)
        for name, spec in network.state_specs(count).items()
    }
    saved = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith(STATE_PREFIX)}
    for name in sorted(expected.keys() | saved.keys()):
        if name not in expected:
            raise UserError(f"{checkpoint.where}: there is '{name}', which the run does not know")
        if name not in saved:
            raise UserError(f"{checkpoint.where}: there is no '{name}'")
        slot, spec = expected[name]
        if slot in own and not spec.fits(saved[name].read()):
            raise UserError(f"{checkpoint.where}: '{name}' has another shape or type, or is not finite")
