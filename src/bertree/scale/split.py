"""How each parameter of a network is split among the ranks of a tensor-parallel group, as a table.

Megatron's split: the first product of each component by columns, so that every rank computes some heads or inner units;
the second product by rows, so that the sum over the ranks is the output; token embeddings by the vocabulary. All other
parameters are the same on every rank.

Heads and inner units must divide evenly. A vocabulary need not: the first ranks have `ceil(size / ranks)` entries, the
last ones fewer. So the shape of a parameter does not follow from that of a shard; `parameter_layouts` knows it.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertree.model.layers.feed_forward import GatedFeedForward
from bertree.model.network import Network


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
