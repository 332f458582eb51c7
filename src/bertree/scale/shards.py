"""How the parameters of a network are split among ranks, the shards of a rank, and gradients over all ranks.

Megatron's split, for a tensor-parallel group: the first product of each component by columns, so that every rank
computes some heads or inner units; the second product by rows, so that the sum over the ranks is the output; token
embeddings by the vocabulary. All other parameters are the same on every rank. Heads and inner units must divide evenly.
A vocabulary need not: the first ranks have `ceil(size / ranks)` entries, the last ones fewer. So the shape of a
parameter does not follow from that of a shard; `parameter_layouts` knows it.

Tensor parallelism splits some tensors along one dimension, each of their stacked pieces separately; FSDP2 then shards
the rows of the result among the data-parallel ranks. So a local shard consists of blocks of rows, and each block is a
box of the whole tensor.

A parameter is a DTensor that the data ranks of a copy share, or a plain tensor: whole, or the shard of a tensor rank.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

from bertree.model.layers.feed_forward import GatedFeedForward
from bertree.model.network import Network
from bertree.scale.world import World

Shape = tuple[int, ...]
Slices = tuple[slice, ...]
Named = Sequence[tuple[str, nn.Parameter]]


class Split(NamedTuple):
    """The dimension that is split. `pieces`: equal matrices stacked along it, each of them split (3 for queries, keys
    and values)."""

    dim: int
    pieces: int = 1

    def spans(self, length: int, rank: int, ranks: int) -> list[range]:
        """Return where the shard of a rank lies in the split dimension, which has this length: one range per piece."""
        piece = length // self.pieces
        most = ceil(piece / ranks)
        first, end = min(rank * most, piece), min((rank + 1) * most, piece)
        return [range(start + first, start + end) for start in range(0, self.pieces * piece, max(1, piece))]

    def cut(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """Return the shard of a rank, a new tensor."""
        spans = self.spans(whole.shape[self.dim], rank, ranks)
        return torch.cat([whole.narrow(self.dim, span.start, len(span)) for span in spans], self.dim)

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """Return the whole tensor, given the shards of all ranks."""
        pieces = [shard.chunk(self.pieces, self.dim) for shard in shards]
        return torch.cat([piece[number] for number in range(self.pieces) for piece in pieces], self.dim)


# By the end of a parameter's name.
SPLITS: dict[str, Split] = {
    "attention.*.part.qkv.weight": Split(0, 3),
    "attention.*.part.qkv.bias": Split(0, 3),
    "attention.*.part.qv.weight": Split(0, 2),
    "attention.*.part.qv.bias": Split(0, 2),
    "attention.*.part.out.weight": Split(1),
    "attention.*.part.positions.project.weight": Split(0),
    "attention.*.part.positions.content_bias": Split(0),
    "attention.*.part.positions.distance_bias": Split(0),
    "attention.*.part.positions.segment_vectors": Split(1),
    "attention.*.part.positions.segment_bias": Split(0),
    "ffn.*.part.up.weight": Split(0),
    "ffn.*.part.up.bias": Split(0),
    "ffn.*.part.down.weight": Split(1),
    "embeddings.tokens.weight": Split(0),
    "heads.mask.output.weight": Split(0),
    "heads.mask.bias": Split(0),
}
# Where the feed-forward is gated: the gate and its input are pieces of one tensor.
GATED = {"ffn.*.part.up.weight": Split(0, 2), "ffn.*.part.up.bias": Split(0, 2)}


def split_of(name: str, gated: bool = False) -> Split | None:
    """Return how a parameter is split; None: it is the same on every rank. `gated`: the feed-forward is.

    An adaptive softmax is not split, although its bias has the name of another head's: see `split_layouts`.
    """
    words = name.split(".")
    for ending, split in SPLITS.items():
        pattern = ending.split(".")
        if len(words) >= len(pattern) and all(
            expected in ("*", word) for expected, word in zip(pattern, words[-len(pattern) :], strict=True)
        ):
            return GATED.get(ending, split) if gated else split
    return None


class ParameterLayout(NamedTuple):
    """The shape of a whole parameter, and how it is split; None: it is the same on every rank."""

    shape: tuple[int, ...]
    split: Split | None


def split_layouts(network: Network) -> dict[str, ParameterLayout]:
    """Return how each parameter of a network on one device would be split, by name."""
    gated = any(isinstance(module, GatedFeedForward) for module in network.modules())
    adaptive = not hasattr(network.encoder.embeddings.tokens, "weight")  # an adaptive softmax is not split
    return {
        name: ParameterLayout(
            tuple(parameter.shape),
            None if adaptive and name.startswith("heads.mask.") else split_of(name, gated),
        )
        for name, parameter in network.named_parameters()
    }


def parameter_layouts(network: nn.Module) -> Mapping[str, ParameterLayout]:
    """Return the layout of a network's parameters by name, whichever shard of them this rank has."""
    layouts: Mapping[str, ParameterLayout] | None = vars(network).get("layouts")  # set by `put_tensor_parallel`
    if layouts is not None:
        return layouts
    return {name: ParameterLayout(tuple(parameter.shape), None) for name, parameter in network.named_parameters()}


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


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, in the same memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the data ranks of a copy share a tensor."""
    return hasattr(tensor, "to_local")


def first_row(tensor: Tensor, world: World) -> int:
    """Return the index of the first row of a tensor that this rank holds."""
    return world.shard_rank * -(-len(tensor) // world.shard) if is_sharded(tensor) else 0


def squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of squares of each tensor. On the CPU PyTorch's own norm is off by up to 1e-4 of its value."""
    if tensors and tensors[0].is_cuda:
        norms = torch._foreach_norm(list(tensors))
        return list(torch._foreach_mul(norms, norms))
    return [tensor.square().sum() for tensor in tensors]


def sum_over_ranks(sums: Tensor, sharded: Iterable[bool], split: Iterable[bool], world: World) -> Tensor:
    """Sum one number per tensor over the ranks that hold its shards, in at most two calls."""
    groups = ((sharded, world.sum_over_shards, world.shard), (split, world.sum_over_tensor, world.tensor))
    for flags, add, ranks in groups:
        if ranks > 1 and any(chosen := list(flags)):
            chosen_x = torch.tensor(chosen, device=sums.device)
            sums = torch.where(chosen_x, add(torch.where(chosen_x, sums, 0.0)), sums)
    return sums


def sum_whole_gradients(named: Named, world: World) -> None:
    """Sum the gradients of unsharded parameters over the data ranks."""
    whole = [p.grad for _, p in named if p.grad is not None and not is_sharded(p)] if world.data > 1 else []
    if whole:
        flat = world.sum_over_data(torch.cat([grad.flatten() for grad in whole]))
        for grad, summed in zip(whole, flat.split([grad.numel() for grad in whole]), strict=True):
            grad.copy_(summed.view_as(grad))


def fill_missing_gradients(named: Named, world: World) -> None:
    """Set a zero gradient where another data rank has a gradient and this rank's examples did not use the parameter."""
    used = world.agree({name: int(p.grad is not None) for name, p in named})
    for name, parameter in named:
        if used[name] and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def clip(named: Named, max_norm: float, world: World, split: Collection[str] = ()) -> Tensor:
    """Clip the gradients to a norm of `max_norm` over all ranks; return the norm before clipping. `split`: names of the
    parameters of which tensor ranks hold different shards."""
    gradients = [(name, p.grad) for name, p in named if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    grads = [local(grad) for _, grad in gradients]
    sums = torch.stack([total.to(grads[0].device) for total in squares(grads)])
    sharded, by_tensor_rank = [is_sharded(grad) for _, grad in gradients], [name in split for name, _ in gradients]
    norm = sum_over_ranks(sums, sharded, by_tensor_rank, world).sum().sqrt()
    if max_norm < math.inf:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for device in {grad.device for grad in grads}:
            torch._foreach_mul_([grad for grad in grads if grad.device == device], factor.to(device))
    return norm
