"""Where the local shard of a rank lies in the whole tensor, and whole tensors gathered from the shards of all ranks.

Tensor parallelism splits some tensors along one dimension, each of their stacked pieces separately; FSDP2 then shards
the rows of the result among the data-parallel ranks. So a local shard consists of blocks of rows, and each block is a
box of the whole tensor.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

from bertree.scale.gradients import first_row, is_sharded, local
from bertree.scale.split import ParameterLayout, parameter_layouts
from bertree.scale.world import World

Shape = tuple[int, ...]
Slices = tuple[slice, ...]


class Box(NamedTuple):
    """A box of a whole tensor, and the first row in the local tensor that holds it."""

    offset: Shape
    size: Shape
    row: int

    def meet(self, offset: Shape, size: Shape) -> tuple[Slices, Slices] | None:
        """Return where the overlap with another box lies, in the local tensor and in the other box; None if they do
        not overlap."""
        low = [max(pair) for pair in zip(self.offset, offset, strict=True)]
        high = [min(a + m, b + n) for a, m, b, n in zip(self.offset, self.size, offset, size, strict=True)]
        if any(first >= end for first, end in zip(low, high, strict=True)):
            return None
        begins = [o - (0 if dim else self.row) for dim, o in enumerate(self.offset)]
        return _relative(low, high, begins), _relative(low, high, offset)


def _relative(low: list[int], high: list[int], begins: list[int] | Shape) -> Slices:
    return tuple(slice(first - o, end - o) for first, end, o in zip(low, high, begins, strict=True))


class LocalShard(NamedTuple):
    """The local tensor of a rank, the shape of the whole tensor, and the boxes of it that the local one holds."""

    local: Tensor
    whole_shape: Shape
    boxes: tuple[Box, ...]


def local_shard(tensor: Tensor, layout: ParameterLayout, world: World) -> LocalShard:
    """Return this rank's shard of a parameter or of one of its optimizer moments, sharded by FSDP2 or not.

    `layout` is that of the parameter. A number (the optimizer's step count) has no rows and is one box.
    """
    own = local(tensor)
    if not tensor.ndim:
        return LocalShard(own, (), (Box((), (), 0),))
    first = first_row(tensor, world)
    return LocalShard(own, layout.shape, boxes_of(layout, range(first, first + len(own)), world))


def boxes_of(layout: ParameterLayout, rows: range, world: World) -> tuple[Box, ...]:
    """Return the boxes that make up some rows of the shard that tensor parallelism leaves on this rank."""
    zeros = [0] * len(layout.shape)
    if layout.split is None or world.tensor == 1:
        boxes = [Box((rows.start, *zeros[1:]), (len(rows), *layout.shape[1:]), 0)]
    elif layout.split.dim > 0:
        dim = layout.split.dim
        assert layout.split.pieces == 1, "only rows are stacked"
        span = layout.split.spans(layout.shape[dim], world.tensor_rank, world.tensor)[0]
        offset, size = [rows.start, *zeros[1:]], [len(rows), *layout.shape[1:]]
        offset[dim], size[dim] = span.start, len(span)
        boxes = [Box(tuple(offset), tuple(size), 0)]
    else:
        boxes, before = [], 0  # `before`: rows of the previous pieces
        for span in layout.split.spans(layout.shape[0], world.tensor_rank, world.tensor):
            first, end = max(rows.start, before), min(rows.stop, before + len(span))
            start = span.start + first - before
            boxes.append(Box((start, *zeros[1:]), (max(0, end - first), *layout.shape[1:]), first - rows.start))
            before += len(span)
    return tuple(box for box in boxes if all(box.size))


def is_first_holder(tensor: Tensor, layout: ParameterLayout, world: World) -> bool:
    """Return whether this is the lowest rank that holds this shard of a parameter, or of one of its moments."""
    if world.tensor_rank and (layout.split is None or not tensor.ndim):
        return False
    return world.data_rank < (world.shard if is_sharded(tensor) else 1)


@torch.no_grad()
def whole_tensors(network: nn.Module, world: World) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole parameters of a network one by one. It is a collective operation: every rank must take all of
    them."""
    layouts = parameter_layouts(network)
    for name, parameter in network.named_parameters():
        yield name, whole_tensor(parameter.detach(), layouts[name], world)


def whole_tensor(tensor: Tensor, layout: ParameterLayout, world: World) -> Tensor:
    """Return a whole tensor, gathered from the shards of all ranks: a collective operation."""
    if is_sharded(tensor):
        tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    if layout.split is None or world.tensor == 1:
        return tensor
    split = layout.split
    lengths = [sum(map(len, split.spans(layout.shape[split.dim], rank, world.tensor))) for rank in range(world.tensor)]
    shape = list(tensor.shape)
    shape[split.dim] = max(lengths)  # the last rank may have fewer vocabulary entries
    padded = tensor.new_zeros(shape)
    padded.narrow(split.dim, 0, tensor.shape[split.dim]).copy_(tensor)
    shards = [torch.empty_like(padded) for _ in lengths]
    distributed.all_gather(shards, padded, group=world.tensor_group)
    return split.join([shard.narrow(split.dim, 0, length) for shard, length in zip(shards, lengths, strict=True)])
