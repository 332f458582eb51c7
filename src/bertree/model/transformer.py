"""Batch -> hidden states: the transformer encoder, and a check of the parts it is built from.

Shape letters: t tokens, s sequences, h width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import ACTIVATIONS, Transformer
from bertree.model.embeddings import Embeddings
from bertree.model.encoder import Encoder
from bertree.model.init import initialize, scale_weights
from bertree.model.layers.attention import Attention, build_attention
from bertree.model.layers.feed_forward import FeedForward, build_feed_forward
from bertree.model.layers.norms import build_norm
from bertree.model.layers.positions import LearnedPositions, build_embedded_positions
from bertree.model.layers.residual import RESIDUALS, Block, PostNorm, PreNorm
from bertree.model.stack import Stack


class TransformerEncoder(Encoder):
    """Embeddings and stack; optionally a norm after the last layer (pre-norm needs it) and a pooler.

    `causal`: no token sees those after it, so a sequence is represented by its last token instead of its first.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        stack: Stack,
        width: int,
        norm: nn.Module | None,
        pooler: nn.Linear | None,
        causal: bool = False,
    ) -> None:
        super().__init__(embeddings, width, len(stack.plan))
        self.causal = causal
        self.stack = stack
        self.norm = norm
        self.pooler = pooler

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Yield the embeddings, then each layer's hidden states (t x h); the last are those of `forward`.

        Layers are computed as the states are taken, so a caller that stops early saves the layers above.
        """
        x_th = self.embeddings(batch)
        yield x_th
        for depth, state in enumerate(self.stack(x_th, batch), 1):
            is_last = depth == self.depth
            yield self.norm(state) if is_last and self.norm is not None else state

    def forward(self, batch: Batch) -> Tensor:
        """Return the last hidden states (t x h)."""
        x_th = self.embeddings(batch)
        for state in self.stack(x_th, batch):
            x_th = state
        return x_th if self.norm is None else self.norm(x_th)

    def summary_index(self, batch: Batch) -> Tensor:
        """Index of the token that represents each sequence: the first, or the last if causal (s, int64)."""
        return batch.last if self.causal else batch.first

    def pool(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return the pooler's output for each sequence (s x h)."""
        assert self.pooler is not None, "this architecture has no pooler"
        pooled: Tensor = self.pooler(hidden_th[self.summary_index(batch)]).tanh()
        return pooled

    def recompute(self, wanted: bool) -> None:
        """Compute each layer again in the backward pass instead of keeping its activations."""
        self.stack.recompute = wanted


def build_transformer(a: Transformer) -> TransformerEncoder:
    """Build a transformer encoder with random weights."""
    residual = RESIDUALS[a.residual]
    embeddings = Embeddings(
        tokens=nn.Embedding(a.vocab_size, a.embedding_width),
        positions=build_embedded_positions(a),
        segments=nn.Embedding(a.segments, a.embedding_width) if a.segments else None,
        norm=build_norm(a, a.embedding_width) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=nn.Linear(a.embedding_width, a.width) if a.embedding_projection else None,
    )
    attention, ffn = build_attention(a), build_feed_forward(a)
    encoder = TransformerEncoder(
        embeddings,
        Stack(
            [Block(part, build_norm(a, a.width), a.dropout) for part in attention],
            [Block(part, build_norm(a, a.width), a.dropout) for part in ffn],
            list(zip(a.plan("attention"), a.plan("ffn"), strict=True)),
            residual,
        ),
        a.width,
        build_norm(a, a.width) if residual.norms_last else None,
        nn.Linear(a.width, a.width) if a.pooler else None,
        not any(part.mask.looks_ahead for part in attention),
    )
    initialize(encoder, a.init_std)
    if a.residual_init == "scaled":  # so that the sum over all layers starts as large as one term
        scale_weights([part.out for part in attention] + [part.down for part in ffn], (2 * a.layers) ** -0.5)
    return encoder


@dataclass(frozen=True)
class KnownPart:
    """A part by its exact types, and the parts in it by name; `*` is any name."""

    types: tuple[type[nn.Module], ...]
    parts: Mapping[str, "KnownPart"] = field(default_factory=dict)


def _blocks(part: KnownPart) -> KnownPart:
    block = KnownPart((Block,), {"part": part, "norm": _NORM, "dropout": _DROPOUT})
    return KnownPart((nn.ModuleList,), {"*": block})


_EMBEDDING, _LINEAR = KnownPart((nn.Embedding,)), KnownPart((nn.Linear,))
_NORM, _DROPOUT = KnownPart((nn.LayerNorm,)), KnownPart((nn.Dropout,))
TABLES = {"tokens": _EMBEDDING, "positions": KnownPart((LearnedPositions,)), "segments": _EMBEDDING}
TRANSFORMER = KnownPart(
    (TransformerEncoder,),
    {
        "embeddings": KnownPart((Embeddings,), {**TABLES, "norm": _NORM, "dropout": _DROPOUT, "projection": _LINEAR}),
        "stack": KnownPart(
            (Stack,),
            {
                "attention": _blocks(KnownPart((Attention,), {"qkv": _LINEAR, "out": _LINEAR})),
                "ffn": _blocks(KnownPart((FeedForward,), {"up": _LINEAR, "down": _LINEAR})),
            },
        ),
        "norm": _NORM,
        "pooler": _LINEAR,
    },
)


def unknown_part(encoder: nn.Module) -> str:
    """Name the first part of an encoder that is not built as `TRANSFORMER` says; empty if there is none.

    Code that computes from an encoder's weights without calling its modules must ask this first: a subclass, another
    activation or a forward hook would be left out of the result without an error.
    """
    found = _find_unknown(encoder, TRANSFORMER)
    return f"encoder{found}" if found else ""


def _find_unknown(part: nn.Module, known: KnownPart) -> str:
    if reason := part_difference(part, known.types):
        return f" {reason}"
    for name, inner in part._modules.items():
        known_inner = known.parts.get(name) or known.parts.get("*") or KnownPart(())
        if inner is not None and (found := _find_unknown(inner, known_inner)):
            return f".{name}{found}"
    return ""


def part_difference(part: nn.Module, known: tuple[type[nn.Module], ...]) -> str:
    """Say how a module differs from those of a known type; empty if it does not."""
    if type(part) not in known:
        return f"is a {type(part).__name__}"
    if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
        return "has a forward hook or a forward function of its own"
    for name, parameter in part._parameters.items():
        if parameter is None:
            return f"has no {name}"
    if type(part) is Stack and type(part.residual) not in (PostNorm, PreNorm):
        return f"has the residual connection {type(part.residual).__name__}"
    if type(part) is Attention and part.positions is not None:
        return f"has {type(part.positions).__name__}"
    if type(part) is FeedForward and part.activation_name not in ACTIVATIONS:
        return f"has the activation {part.activation_name or part.activation}"
    return ""
