"""How many parameters one rank holds.

FSDP2 gathers and reduces parameters by groups: each layer is one, and what is outside of the layers (embeddings, heads)
is another, the root, with the blocks that several layers share. A tensor is sharded along its first dimension; the last
shard may be smaller, so rank 0 holds the most. Under bf16 the norms, which are computed in float32, are not sharded.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import NamedTuple

from bertree.model.architecture import Transformer
from bertree.model.layers.basic import without_weights
from bertree.model.network import build
from bertree.scale.distribute import layers_of, whole_parameters
from bertree.scale.shards import Split, split_layouts


class GroupSize(NamedTuple):
    """Parameters of a group on one rank, after tensor parallelism: gathered, and of its shard."""

    whole: int
    shard: int

    def padded(self, shards: int) -> int:
        """Return the size of what is gathered or reduced: all shards are as large as the first."""
        return self.shard * shards


@dataclass(frozen=True)
class RankSizes:
    """Parameters of one rank."""

    shards: int
    layers: tuple[GroupSize, ...]  # the groups of the layers
    root: GroupSize
    norms: int  # which every rank holds whole
    table: int  # of the output matrix, whose gradient stays until the backward pass ends
    down: int  # of the last matrix of a layer, whose gradient is the first that its backward pass makes

    @cached_property
    def layer(self) -> GroupSize:
        """The largest group of a layer."""
        return max(self.layers, default=GroupSize(0, 0))

    @cached_property
    def whole(self) -> int:
        """All parameters of a rank, if nothing is sharded."""
        return self.root.whole + sum(part.whole for part in self.layers)

    @cached_property
    def shard(self) -> int:
        """All sharded parameters that a rank keeps."""
        return self.root.shard + sum(part.shard for part in self.layers)

    @cached_property
    def held(self) -> int:
        """All parameters that a rank keeps."""
        return self.shard + self.norms


@dataclass(frozen=True)
class TensorShape:
    """A parameter: its shape, and how tensor parallelism splits it."""

    name: str
    shape: tuple[int, ...]
    split: Split | None

    def on_rank(self, tensor: int, shards: int) -> GroupSize:
        """Return what rank 0 holds of it."""
        shape = list(self.shape)
        if self.split is not None:
            shape[self.split.dim] = sum(map(len, self.split.spans(shape[self.split.dim], 0, tensor)))
        return GroupSize(prod(shape), ceil(shape[0] / shards) * prod(shape[1:]))


@dataclass(frozen=True)
class Shapes:
    """The parameters of a network by group."""

    layers: tuple[tuple[TensorShape, ...], ...]
    root: tuple[TensorShape, ...]
    norms: tuple[TensorShape, ...]  # which are not sharded

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(prod(t.shape) for group in (*self.layers, self.root, self.norms) for t in group)

    def on(self, tensor: int, shards: int) -> RankSizes:
        """Return what one rank holds."""
        table = [t for t in self.root if t.name.endswith(("heads.mask.output.weight", "embeddings.tokens.weight"))]
        downs = [t for group in self.layers for t in group if t.name.endswith("down.weight")]
        return RankSizes(
            shards,
            tuple(_sum(group, tensor, shards) for group in self.layers),
            _sum(self.root, tensor, shards),
            _sum(self.norms, tensor, 1).whole,
            max((t.on_rank(tensor, 1).whole for t in table), default=0),
            max((t.on_rank(tensor, 1).whole for t in downs), default=0),
        )


def _sum(group: tuple[TensorShape, ...], tensor: int, shards: int) -> GroupSize:
    parts = [t.on_rank(tensor, shards) for t in group]
    return GroupSize(sum(part.whole for part in parts), sum(part.shard for part in parts))


@lru_cache(maxsize=64)
def shapes(a: Transformer, bf16: bool = True) -> Shapes:
    """Return the parameters of an architecture with the head that predicts tokens, without making any."""
    with without_weights():
        network = build(a, {"mask": 0})
    tensors = {name: TensorShape(name, *layout) for name, layout in split_layouts(network).items()}
    names = {parameter: name for name, parameter in network.named_parameters()}
    norms = {names[parameter] for parameter in whole_parameters(network, bf16)}
    layers = []
    for blocks in layers_of(network):
        inside = [names[parameter] for block in blocks for parameter in block.parameters()]
        layers.append(tuple(tensors[name] for name in inside if name not in norms))
    grouped = norms | {tensor.name for layer in layers for tensor in layer}
    root = tuple(tensor for name, tensor in tensors.items() if name not in grouped)
    return Shapes(tuple(layers), root, tuple(tensors[name] for name in tensors if name in norms))


@lru_cache(maxsize=256)
def rank_sizes(a: Transformer, bf16: bool, tensor: int, shards: int) -> RankSizes:
    """Return what one rank of so many holds of an architecture: many batches are tried on each mesh."""
    return shapes(a, bf16).on(tensor, shards)
