"""Where the local tensor of a rank lies in the whole one.

Tensor parallelism splits some tensors along one dimension, each of their stacked pieces for itself; FSDP2 then shards
the rows of what a rank has left among the data-parallel ranks. A local tensor so consists of blocks of rows, each of
which is a box of the whole tensor.
"""

from typing import NamedTuple

from torch import Tensor

from bertree.scale.gradients import first_row, is_sharded, local
from bertree.scale.split import Whole
from bertree.scale.world import World

Shape = tuple[int, ...]
Slices = tuple[slice, ...]


class Box(NamedTuple):
    """A box of a whole tensor, and the first row in the local tensor that holds it."""

    offset: Shape
    size: Shape
    row: int

    def meet(self, offset: Shape, size: Shape) -> tuple[Slices, Slices] | None:
        """Return where the overlap with another box of the whole tensor lies in the local tensor, and where in that
        other box; None if they do not meet."""
        low = [max(pair) for pair in zip(self.offset, offset, strict=True)]
        high = [min(a + m, b + n) for a, m, b, n in zip(self.offset, self.size, offset, size, strict=True)]
        if any(first >= end for first, end in zip(low, high, strict=True)):
            return None
        begins = [o - (0 if dim else self.row) for dim, o in enumerate(self.offset)]
        return _relative(low, high, begins), _relative(low, high, offset)


def _relative(low: list[int], high: list[int], begins: list[int] | Shape) -> Slices:
    return tuple(slice(first - o, end - o) for first, end, o in zip(low, high, begins, strict=True))


class LocalPart(NamedTuple):
    """The local tensor of a rank, the shape of the whole one, and the boxes of it that the local one consists of."""

    local: Tensor
    whole_shape: Shape
    boxes: tuple[Box, ...]


def local_part(tensor: Tensor, whole: Whole, world: World) -> LocalPart:
    """Return the local part of a parameter, or of a moment of it: a plain tensor, or one that FSDP2 has sharded.

    `whole` is that of the parameter (`wholes_of`). A number (the steps that an optimizer counts) has no rows: one box.
    """
    own = local(tensor)
    if not tensor.ndim:
        return LocalPart(own, (), (Box((), (), 0),))
    first = first_row(tensor, world)
    return LocalPart(own, whole.shape, boxes_of(whole, range(first, first + len(own)), world))


def boxes_of(whole: Whole, rows: range, world: World) -> tuple[Box, ...]:
    """Return the boxes that make up some rows of what a rank has of a tensor after tensor parallelism."""
    zeros = [0] * len(whole.shape)
    if whole.split is None or world.tensor == 1:
        found = [Box((rows.start, *zeros[1:]), (len(rows), *whole.shape[1:]), 0)]
    elif whole.split.dim > 0:
        dim = whole.split.dim
        assert whole.split.pieces == 1, "only rows are stacked"
        span = whole.split.spans(whole.shape[dim], world.tensor_rank, world.tensor)[0]
        offset, size = [rows.start, *zeros[1:]], [len(rows), *whole.shape[1:]]
        offset[dim], size[dim] = span.start, len(span)
        found = [Box(tuple(offset), tuple(size), 0)]
    else:
        found, before = [], 0  # rows of the pieces before
        for span in whole.split.spans(whole.shape[0], world.tensor_rank, world.tensor):
            first, end = max(rows.start, before), min(rows.stop, before + len(span))
            start = span.start + first - before
            found.append(Box((start, *zeros[1:]), (max(0, end - first), *whole.shape[1:]), first - rows.start))
            before += len(span)
    return tuple(box for box in found if all(box.size))


def is_first_holder(tensor: Tensor, whole: Whole, world: World) -> bool:
    """Return whether no rank before this one holds the same part of a parameter, or of a moment of it."""
    if world.tensor_rank and (whole.split is None or not tensor.ndim):
        return False
    return world.data_rank < (world.shard if is_sharded(tensor) else 1)
