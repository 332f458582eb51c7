"""Whole tensors of the parts of all ranks."""

from collections.abc import Iterator

import torch
from torch import Tensor, distributed, nn

from bertree.scale.gradients import is_sharded
from bertree.scale.split import Whole, wholes_of
from bertree.scale.world import World


@torch.no_grad()
def whole_tensors(network: nn.Module, world: World) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole parameters of a network, one after the other: every rank must take all of them, so that none
    waits for another."""
    wholes = wholes_of(network)
    for name, parameter in network.named_parameters():
        yield name, whole_tensor(parameter.detach(), wholes[name], world)


def whole_tensor(tensor: Tensor, whole: Whole, world: World) -> Tensor:
    """Return a whole tensor of the parts of all ranks, which must ask for it together."""
    if is_sharded(tensor):
        tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    if whole.split is None or world.tensor == 1:
        return tensor
    split = whole.split
    lengths = [sum(map(len, split.spans(whole.shape[split.dim], rank, world.tensor))) for rank in range(world.tensor)]
    shape = list(tensor.shape)
    shape[split.dim] = max(lengths)  # of a vocabulary the last rank may have fewer entries
    padded = tensor.new_zeros(shape)
    padded.narrow(split.dim, 0, tensor.shape[split.dim]).copy_(tensor)
    parts = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(parts, padded, group=world.tensor_group)
    return split.join([part.narrow(split.dim, 0, length) for part, length in zip(parts, lengths, strict=True)])
