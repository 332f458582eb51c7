"""Batch -> hidden states: the transformer encoder, and a check of the parts it is built from.

Shape letters: t tokens, s sequences, h width.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import ACTIVATIONS, Architecture
from bertree.model.attention import Attention, build_attention
from bertree.model.embeddings import Embeddings
from bertree.model.feed_forward import FeedForward
from bertree.model.init import initialize, scale_weights
from bertree.model.residual import PostNorm, PreNorm
from bertree.model.stack import Stack


class Encoder(nn.Module):
    """Embeddings and stack; optionally a norm after the last layer (pre-norm needs it) and a pooler.

    `causal`: no token sees those after it, so a sequence is represented by its last token instead of its first.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        stack: Stack,
        norm: nn.LayerNorm | None,
        pooler: nn.Linear | None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.embeddings = embeddings
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
            is_last = depth == len(self.stack.plan)
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

    def sequence_states(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return one state per sequence (s x h)."""
        return hidden_th[self.summary_index(batch)]

    def pool(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return the pooler's output for each sequence (s x h)."""
        assert self.pooler is not None, "this architecture has no pooler"
        pooled: Tensor = self.pooler(hidden_th[self.summary_index(batch)]).tanh()
        return pooled


def build_transformer(a: Architecture) -> Encoder:
    """Build a transformer encoder with random weights."""

    def norm(width: int) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=a.norm_eps)

    residual = {"post-norm": PostNorm, "pre-norm": PreNorm}[a.residual]
    attention_plan, ffn_plan = a.plan("attention"), a.plan("ffn")
    embeddings = Embeddings(
        tokens=nn.Embedding(a.vocab_size, a.embedding_width),
        positions=nn.Embedding(a.max_positions + a.position_offset, a.embedding_width),
        position_offset=a.position_offset,
        segments=nn.Embedding(a.segments, a.embedding_width) if a.segments else None,
        norm=norm(a.embedding_width) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=nn.Linear(a.embedding_width, a.width) if a.embedding_projection else None,
    )
    attention = [build_attention(a) for _ in set(attention_plan)]
    ffn = [FeedForward(a.width, a.ffn_width, a.activation) for _ in set(ffn_plan)]
    encoder = Encoder(
        embeddings,
        Stack(
            [residual(part, norm(a.width), a.dropout) for part in attention],
            [residual(part, norm(a.width), a.dropout) for part in ffn],
            list(zip(attention_plan, ffn_plan, strict=True)),
        ),
        norm(a.width) if a.residual == "pre-norm" else None,
        nn.Linear(a.width, a.width) if a.pooler else None,
        attention[0].causal,
    )
    initialize(encoder, a.init_std)
    if a.residual_init == "scaled":  # so that the sum over all layers starts as large as one term
        scale_weights([part.out for part in attention] + [part.down for part in ffn], (2 * a.layers) ** -0.5)
    return encoder


_NORMED = (PostNorm, PreNorm)
_EMBEDDING, _LINEAR, _NORM, _DROPOUT = (nn.Embedding,), (nn.Linear,), (nn.LayerNorm,), (nn.Dropout,)
# The parts of a transformer by their place in it; {i} is the number of a stored layer.
PARTS: dict[str, tuple[type[nn.Module], ...]] = {
    "": (Encoder,),
    "embeddings": (Embeddings,),
    "embeddings.tokens": _EMBEDDING,
    "embeddings.positions": _EMBEDDING,
    "embeddings.segments": _EMBEDDING,
    "embeddings.norm": _NORM,
    "embeddings.dropout": _DROPOUT,
    "embeddings.projection": _LINEAR,
    "stack": (Stack,),
    "stack.attention": (nn.ModuleList,),
    "stack.attention.{i}": _NORMED,
    "stack.attention.{i}.part": (Attention,),
    "stack.attention.{i}.part.qkv": _LINEAR,
    "stack.attention.{i}.part.out": _LINEAR,
    "stack.attention.{i}.norm": _NORM,
    "stack.attention.{i}.dropout": _DROPOUT,
    "stack.ffn": (nn.ModuleList,),
    "stack.ffn.{i}": _NORMED,
    "stack.ffn.{i}.part": (FeedForward,),
    "stack.ffn.{i}.part.up": _LINEAR,
    "stack.ffn.{i}.part.down": _LINEAR,
    "stack.ffn.{i}.norm": _NORM,
    "stack.ffn.{i}.dropout": _DROPOUT,
    "norm": _NORM,
    "pooler": _LINEAR,
}


def unknown_part(encoder: nn.Module) -> str:
    """Name the first part of an encoder that is not built as `PARTS` says; empty if there is none.

    Code that computes from an encoder's weights without calling its modules must ask this first: a subclass, another
    activation or a forward hook would be left out of the result without an error.
    """
    for name, part in encoder.named_modules(remove_duplicate=False):
        place = ".".join("{i}" if word.isdigit() else word for word in name.split("."))
        if reason := part_difference(part, PARTS.get(place, ())):
            return f"{'.'.join(filter(None, ('encoder', name)))} {reason}"
    return ""


def part_difference(part: nn.Module, known: tuple[type[nn.Module], ...]) -> str:
    """Say how a module differs from those of a known type; empty if it does not."""
    if type(part) not in known:
        return f"is a {type(part).__name__}"
    if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
        return "has a forward hook or a forward function of its own"
    if None in part._parameters.values():
        return f"has no {next(name for name, value in part._parameters.items() if value is None)}"
    if type(part) is FeedForward and part.activation_name not in ACTIVATIONS:
        return f"has the activation {part.activation_name or part.activation}"
    return ""
