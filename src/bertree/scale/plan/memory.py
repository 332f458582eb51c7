"""Memory of one rank at the peak of a training step, by what it is for.

A step has few moments that can be the peak (docs/plan.md derives the terms):

    forward begins    the root and the first layer are gathered
    loss              the logits of the predicted tokens, and everything that is kept for the backward pass
    layer             the backward pass of a layer: its activations, its parameters and those of the next, gradients
    layer ends        the same when all its gradients are there
    reduction         the gradients of a layer are summed over the ranks
    embeddings        the second gradient of the token embeddings is added to the first
    root              the gradients of the root are summed over the ranks

With b bytes per number (2 in bf16) and width h, the hidden states of t tokens take b t h bytes.
"""

from dataclasses import dataclass
from typing import NamedTuple

from bertree.model.architecture import Transformer
from bertree.model.cost.transformer import Activations
from bertree.scale.plan.sizes import RankSizes, rank_sizes

MASTER, MOMENTS, REDUCED = 4, 8, 4  # bytes of each parameter: its weight, Adam's moments, its gradient, in float32
LOGITS = 12  # bytes of each logit: log-softmax, its gradient, and the gradient of the logits, in float32
SPLIT_LOGITS = 14  # of a split vocabulary: probabilities, their error, the gradient in float32 and as it is passed on


@dataclass(frozen=True)
class Mesh:
    """How the devices are arranged: ranks that read other data, ranks that share each layer, and ZeRO's stage."""

    data: int = 1
    tensor: int = 1
    zero: int = 0
    sequence_parallel: bool = True  # with tensor > 1: norms and dropout are split by tokens

    @property
    def devices(self) -> int:
        """All ranks."""
        return self.data * self.tensor

    @property
    def shards(self) -> int:
        """Ranks that parameters, gradients and moments are sharded over."""
        return self.data if self.zero else 1

    @property
    def token_parts(self) -> int:
        """Ranks that the tokens outside of the matrix products are split over."""
        return self.tensor if self.sequence_parallel else 1


@dataclass(frozen=True)
class MicroBatch:
    """What a data rank computes at once, and how often in a step."""

    tokens: int
    predicted: int  # tokens that the head reads
    count: int = 1
    recompute: bool = True
    bf16: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of a number that is computed with."""
        return 2 if self.bf16 else 4


class Bytes(NamedTuple):
    """Bytes of one rank by part."""

    weights: float  # in float32, and, where they are not gathered layer by layer, as they are computed with
    gradients: float
    optimizer: float
    activations: float
    buffers: float  # gathered layers, and what is sent and received

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


class Peak(NamedTuple):
    """The moment of the peak, and its bytes."""

    moment: str
    bytes: Bytes


class AtRest(NamedTuple):
    """Bytes of one rank between two steps, and of its gradients before the optimizer's step."""

    weights: int
    gradients: int
    optimizer: int


def at_rest(a: Transformer, mesh: Mesh, bf16: bool = True) -> AtRest:
    """Return what a rank keeps; tensors that cannot be cut evenly make rank 0 the largest."""
    held = rank_sizes(a, bf16, mesh.tensor, mesh.shards).held
    return AtRest(MASTER * held, REDUCED * held, MOMENTS * held)


def peak(a: Transformer, mesh: Mesh, batch: MicroBatch) -> Peak:
    """Return the moment at which a rank needs most, and what for."""
    return max(moments(a, mesh, batch), key=lambda moment: moment.bytes.total)


def moments(a: Transformer, mesh: Mesh, batch: MicroBatch) -> list[Peak]:
    """Return the moments that can be the peak."""
    return _Step(a, mesh, batch).moments()


def paper_bytes(parameters: float, devices: int, stage: int) -> float:
    """Return bytes of weights, gradients and optimizer as the ZeRO paper counts them: 2, 2 and 12 a parameter, in
    mixed precision; each is divided among the devices from stage 3, 2 and 1 on."""
    shares = [1 / devices if stage >= first else 1.0 for first in (3, 2, 1)]
    return parameters * sum(size * share for size, share in zip((2, 2, 12), shares, strict=True))


class _Tokens:
    """Bytes of activations of one rank."""

    def __init__(self, a: Transformer, mesh: Mesh, batch: MicroBatch) -> None:
        self.a, self.batch = a, batch
        activations, scale = Activations(a), batch.bytes / 2  # the figures of `Activations` are those of bf16
        self.parts, self.tensor = mesh.token_parts, mesh.tensor
        t, h = batch.tokens, a.width
        self.states = batch.bytes * t * h / self.parts  # of a rank's own tokens
        self.gathered = batch.bytes * t * h  # of all tokens, which products read under tensor parallelism
        self.mask = t * h / self.parts if a.dropout else 0.0
        stream = 2 * (self.mask + self.states)  # before each block's norm
        inside = max(activations.attention(kind) for kind in set(a.attention_kinds)) - activations.feed_forward()
        self.inner = scale * activations.inner() * (min(t, a.ffn_chunk) if a.ffn_chunk else t) / self.tensor
        heads = scale * inside * t / self.tensor  # queries, keys, values and what attention returns
        self.kept = stream + 2 * self.gathered + heads + (0 if a.ffn_chunk else self.inner)  # by one layer
        last = 2 * h + 8 if a.residual == "pre-norm" and a.final_norm else 0
        self.outside = scale * (activations.outside() - last) * t
        self.last = scale * last * t  # input of the norm after the last layer
        self.reversible = (
            scale * (activations.at_end(t) - activations.at_start(t, 0)) if a.residual == "reversible" else 0.0
        )
        self.start = scale * activations.at_start(t, 0)

    def saved(self, layers: int) -> float:
        """Return what so many layers keep until their backward pass."""
        if self.a.residual == "reversible":
            return self.start
        return self.outside + layers * (self.states if self.batch.recompute else self.kept)

    def layer(self) -> float:
        """Return what the backward pass of a layer needs beside what is kept."""
        if self.a.residual == "reversible":
            return self.reversible
        again = self.kept - self.states - self.mask if self.batch.recompute else -self.mask
        gradients = 2 * self.states + (self.gathered if self.parts > 1 else 0) + self.inner / 2
        return again + gradients + (1.5 * self.inner - self.inner / 2 if self.a.ffn_chunk else 0)

    def layer_end(self) -> float:
        """Return what the last product of the same needs: its input, the gradients of queries, keys and values, and
        those of its input and of the stream."""
        if self.a.residual == "reversible":
            return self.reversible
        return 3 * self.gathered / self.tensor + 2 * self.gathered + self.states

    def loss(self) -> float:
        """Return what the head needs: its input, what its dense layer makes, and the logits."""
        a, m = self.a, self.batch.predicted
        rows = min(m, a.ffn_chunk) if a.ffn_chunk else m
        dense = 3 * self.batch.bytes * a.embedding_width if a.mask_transform else 0
        logits = LOGITS if self.tensor == 1 else SPLIT_LOGITS / self.tensor
        return m * self.batch.bytes * a.output_width + rows * (dense + logits * a.vocab_size)


class _Step:
    """The moments of one step."""

    def __init__(self, a: Transformer, mesh: Mesh, batch: MicroBatch) -> None:
        self.a, self.mesh, self.batch = a, mesh, batch
        self.sizes: RankSizes = rank_sizes(a, batch.bf16, mesh.tensor, mesh.shards)
        self.tokens = _Tokens(a, mesh, batch)
        self.b = batch.bytes
        self.alone = self.sizes.shards == 1  # nothing is gathered: weights are converted, gradients copied

    def moments(self) -> list[Peak]:
        """Return all of them."""
        layers = self.a.layers
        peaks = [self._forward(), self._loss()]
        for place in {1, min(2, layers), max(1, layers - 1), layers}:  # they grow or shrink evenly between
            peaks += [self._layer(place), self._layer(place, ends=True), self._reduction(place)]
        return [*peaks, self._embeddings(), self._root()]

    def _make(
        self, moment: str, gathered: float, sharded: int, local: float, activations: float, buffers: float
    ) -> Peak:
        """`gathered`: parameters as they are computed with; `sharded`: those whose gradients are reduced; `local`:
        gradients that are not yet."""
        kept, many = self.mesh.zero < 3, self.batch.count > 1
        weights = MASTER * self.sizes.held + (gathered if kept else 0)
        gradients = REDUCED * sharded + local
        if many and self.mesh.zero >= 2:  # those of the micro-batches before
            gradients = REDUCED * self.sizes.held + local
        elif many:  # summed over the micro-batches in float32, and reduced with the last
            gradients += REDUCED * self.sizes.whole * (1 - sharded / self.sizes.shard)
        parts = (weights, gradients, MOMENTS * self.sizes.held, activations, buffers + (0 if kept else gathered))
        return Peak(moment, Bytes(*parts))

    def _gathered(self, layers: int) -> float:
        """Return the bytes of gathered parameters while so many layers are still needed."""
        if self.mesh.zero == 3:
            return self.b * (self.sizes.root.whole + (self.sizes.layer.whole if layers else 0))
        share = 1.0 if self.batch.count > 1 else layers / self.a.layers
        return self.b * (self.sizes.root.whole + share * (self.sizes.whole - self.sizes.root.whole))

    def _forward(self) -> Peak:
        gathered = self._gathered(1)
        received = 0 if self.alone else self.b * (self.sizes.root.whole + self.sizes.layer.whole)
        return self._make("forward begins", gathered, 0, 0, 2 * self.tokens.states, received)

    def _loss(self) -> Peak:
        layers = 0 if self.mesh.zero == 3 else self.a.layers
        kept = self.tokens.saved(self.a.layers) + self.tokens.last
        return self._make("loss", self._gathered(layers), 0, 0, kept + self.tokens.loss(), 0)

    def _reduced(self, place: int) -> int:
        """Return the sharded parameters whose gradients are there when the backward pass is at a layer."""
        return round((place - 1) / self.a.layers * (self.sizes.shard - self.sizes.root.shard))

    def _layer(self, place: int, ends: bool = False) -> Peak:
        left, layer = self.a.layers - place + 1, self.sizes.layer
        sent = REDUCED * layer.padded(self.sizes.shards) if place > 1 else 0  # until the next layer's are
        ahead = self.b * layer.whole if self.mesh.zero == 3 and not self.alone and left > 1 else 0
        local = self.sizes.table + (layer.whole if ends else self.sizes.down)
        if not self.sizes.layers:  # all gradients stay until the backward pass ends
            local = self.sizes.root.whole
        activations = self.tokens.saved(left) + (self.tokens.layer_end() if ends else self.tokens.layer())
        moment = "layer ends" if ends else "layer"
        return self._make(moment, self._gathered(left), self._reduced(place), self.b * local, activations, sent + ahead)

    def _reduction(self, place: int) -> Peak:
        left, layer = self.a.layers - place, self.sizes.layer
        gradients = self.b * layer.whole  # the layer's gradients, gone before anything is received
        buffers = REDUCED * layer.padded(self.sizes.shards) * (2 if self.alone else 1)
        own = 0 if self.alone else gradients
        activations = self.tokens.saved(left) + self.tokens.states
        gathered = self._gathered(0 if self.alone and self.mesh.zero == 3 else left)
        local = self.b * self.sizes.table + own
        return self._make("reduction", gathered, self._reduced(place), local, activations, buffers)

    def _embeddings(self) -> Peak:
        sent = REDUCED * self.sizes.layer.padded(self.sizes.shards)
        local = 2 * self.b * self.sizes.table
        activations = self.tokens.states + self.tokens.mask
        reduced = self.sizes.shard - self.sizes.root.shard
        return self._make("embeddings", self._gathered(0), reduced, local, activations, sent)

    def _root(self) -> Peak:
        buffers = REDUCED * self.sizes.root.padded(self.sizes.shards) * (2 if self.alone else 1)
        local = 0 if self.alone else self.b * self.sizes.root.whole
        return self._make("root", 0, self.sizes.shard - self.sizes.root.shard, local, 0, buffers)
