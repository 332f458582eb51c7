"""Which tensor of a network is split how among the ranks of a tensor-parallel group, as data.

Megatron's split: the first product of each part by columns, so that every rank computes some heads or inner units,
the second by rows, so that the sum over the ranks is the output; token embeddings by the vocabulary. All other tensors
are the same on every rank.

Heads and inner units must divide evenly. A vocabulary need not: the first ranks have `ceil(size / ranks)` entries, the
last ones fewer. So the shape of a whole tensor does not follow from that of a part; `wholes_of` knows it.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertree.model.architecture import Transformer
from bertree.model.init import without_weights
from bertree.model.layers.feed_forward import GatedFeedForward
from bertree.model.network import Network, build


class Split(NamedTuple):
    """The dimension that is split, and of how many equal pieces, each of them split, the tensor consists."""

    dim: int
    pieces: int = 1

    def spans(self, length: int, rank: int, ranks: int) -> list[range]:
        """Return where the part of a rank lies in the dimension of the whole tensor, of that length: once a piece."""
        piece = length // self.pieces
        most = ceil(piece / ranks)
        first, end = min(rank * most, piece), min((rank + 1) * most, piece)
        return [range(start + first, start + end) for start in range(0, self.pieces * piece, max(1, piece))]

    def cut(self, whole: Tensor, rank: int, ranks: int) -> Tensor:
        """Return the part of a rank, a new tensor."""
        spans = self.spans(whole.shape[self.dim], rank, ranks)
        return torch.cat([whole.narrow(self.dim, span.start, len(span)) for span in spans], self.dim)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the whole tensor of the parts of all ranks."""
        pieces = [part.chunk(self.pieces, self.dim) for part in parts]
        return torch.cat([piece[number] for number in range(self.pieces) for piece in pieces], self.dim)


# By the end of a parameter's name. Queries, keys and values are pieces of one tensor.
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
# The same where the feed-forward parts are gated: the gate and its input are pieces of one tensor.
GATED = {"ffn.*.part.up.weight": Split(0, 2), "ffn.*.part.up.bias": Split(0, 2)}


def split_of(name: str, gated: bool = False) -> Split | None:
    """Return how a parameter is split; None: it is the same on every rank. `gated`: the feed-forward parts are.

    The tables of an adaptive softmax are not split, but its bias has the name of another head's: see `wholes_of`.
    """
    parts = name.split(".")
    for end, split in SPLITS.items():
        wanted = end.split(".")
        if len(parts) >= len(wanted) and all(w in ("*", p) for w, p in zip(wanted, parts[-len(wanted) :], strict=True)):
            return GATED.get(end, split) if gated else split
    return None


class Whole(NamedTuple):
    """The shape of a whole parameter, and how it is split; None: it is the same on every rank."""

    shape: tuple[int, ...]
    split: Split | None


def splits_of(network: Network) -> dict[str, Whole]:
    """Return how each parameter of a whole network would be split, by name."""
    gated = any(isinstance(part, GatedFeedForward) for part in network.modules())
    clusters = not hasattr(network.encoder.embeddings.tokens, "weight")  # of an adaptive softmax, which stays whole
    return {
        name: Whole(
            tuple(parameter.shape),
            None if clusters and name.startswith("heads.mask.") else split_of(name, gated),
        )
        for name, parameter in network.named_parameters()
    }


def wholes_of(network: nn.Module) -> Mapping[str, Whole]:
    """Return the whole parameters of a network by name, whatever part of them this rank has."""
    kept: Mapping[str, Whole] | None = vars(network).get("wholes")  # by `put_tensor_parallel`
    if kept is not None:
        return kept
    return {name: Whole(tuple(parameter.shape), None) for name, parameter in network.named_parameters()}


class Numbers(NamedTuple):
    """Parameters that are split among the ranks of a tensor-parallel group, and those that are not."""

    split: int
    whole: int

    def local(self, tensor: int) -> float:
        """Return how many a rank holds."""
        return self.split / tensor + self.whole

    @property
    def total(self) -> int:
        """All of them."""
        return self.split + self.whole


class ModelSizes(NamedTuple):
    """Parameters of a network with the MLM or LM head: of the largest layer, of all layers, and of the rest."""

    layer: Numbers
    layers: Numbers
    root: Numbers

    @property
    def all(self) -> Numbers:
        """All parameters."""
        return Numbers(self.layers.split + self.root.split, self.layers.whole + self.root.whole)


def model_sizes(a: Transformer) -> ModelSizes:
    """Count the parameters of an architecture without making any."""
    with without_weights():
        network = build(a, {"mask": 0})
    root = [0, 0]
    blocks: dict[tuple[str, str], list[int]] = {}
    for name, whole in splits_of(network).items():
        kind = 0 if whole.split is not None else 1
        part, _, rest = name.partition("stack.")[2].partition(".")
        block = blocks.setdefault((part, rest.split(".")[0]), [0, 0]) if part in ("attention", "ffn") else root
        block[kind] += torch.Size(whole.shape).numel()
    largest = {part: max((b for (p, _), b in blocks.items() if p == part), key=sum) for part in ("attention", "ffn")}
    layer = Numbers(*(sum(pair) for pair in zip(*largest.values(), strict=True)))
    layers = Numbers(*(sum(pair) for pair in zip(*blocks.values(), strict=True)))
    return ModelSizes(layer, layers, Numbers(*root))
