"""Batch -> hidden states: the transformer encoder, and a check of the components it is built from.

Shape letters: t tokens, s sequences, h width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import ACTIVATIONS, Transformer
from bertree.model.encoder import Encoder, EncoderOutput, State, StateSpec
from bertree.model.layers.attention import Attention
from bertree.model.layers.attention_kinds import build_attention
from bertree.model.layers.basic import build_norm, initialize, scale_weights
from bertree.model.layers.embeddings import AdaptiveEmbeddings, Embeddings, TokenEmbeddings, VocabularyClusters
from bertree.model.layers.feed_forward import FeedForward, build_feed_forward
from bertree.model.layers.positions import POSITIONS, LearnedPositions
from bertree.model.layers.residual import RESIDUALS, Block, PostNorm, PreNorm
from bertree.model.layers.stack import Past, Stack
from bertree.model.masks import SlidingWindow
from bertree.model.memory import KEYS, LENGTHS, MEMORY, VALUES, CachePast, MemoryPast, TwoStreams
from bertree.model.pooling import mean_states
from bertree.model.torch_internals import has_forward_hooks


class MemorySettings(NamedTuple):
    """The memory of an architecture: how many tokens it holds, whether every token sees as many (same_length), and
    whether a text starts with a memory of zeros."""

    length: int
    same_length: bool
    starts_with_zeros: bool


class TransformerEncoder(Encoder):
    """Embeddings and stack; optionally a norm after the last layer (pre-norm needs it) and a pooler.

    `causal`: no token sees those after it. `query_stream`: a second stream predicts the tokens of a permutation.
    `summary`: what represents a sequence: its first token, its last, or the mean of all.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        stack: Stack,
        *,
        width: int,
        norm: nn.Module | None,
        pooler: nn.Linear | None,
        causal: bool = False,
        memory: MemorySettings | None = None,
        query_stream: bool = False,
        summary: str = "first",
    ) -> None:
        super().__init__(embeddings, width, len(stack.sharing))
        self.causal = causal
        self.stack = stack
        self.norm = norm
        self.pooler = pooler
        self.memory = memory
        self.summary = summary
        self.query_start = nn.Parameter(torch.zeros(width)) if query_stream else None
        self.drawn = ("query_start",) if query_stream else ()

    def states(self, batch: Batch, past: Past | None = None) -> Iterator[Tensor]:
        """Yield the embeddings, then each layer's hidden states (t x h); the last are those of `forward`. The rows that
        predict the tokens of a permutation follow those of the tokens.

        Layers are computed as the states are taken, so a caller that stops early saves the layers above.
        """
        x_th, past = self._start(batch, past)
        yield self.stack.residual.close(self.stack.residual.open(x_th))
        for depth, state in enumerate(self.stack(x_th, batch, past), 1):
            is_last = depth == self.depth
            yield self.norm(state) if is_last and self.norm is not None else state

    def forward(self, batch: Batch, past: Past | None = None) -> Tensor:
        """Return the last hidden states (t x h), and behind them those that predict the tokens of a permutation."""
        x_th, past = self._start(batch, past)
        x_th = self.stack.last(x_th, batch, past)
        return x_th if self.norm is None else self.norm(x_th)

    def _start(self, batch: Batch, past: Past | None) -> tuple[Tensor, Past | None]:
        """Return the input of the first layer, and what its tokens see besides each other."""
        past, x_th = past or self._first_past(batch), self.embeddings(batch)
        if batch.permutation is None:
            return x_th, past
        assert self.query_start is not None, "the tokens of a permutation are predicted by a query stream"
        assert past is None or isinstance(past, MemoryPast), "a permutation is read whole"
        starts_mh = self.query_start.to(x_th.dtype).expand(len(batch.permutation.queries), -1)
        return torch.cat([x_th, self.embeddings.dropout(starts_mh)]), TwoStreams(batch, past)

    def _first_past(self, batch: Batch) -> MemoryPast | None:
        """Return the memory of zeros that every text starts with, if there is one."""
        if self.memory is None or not self.memory.starts_with_zeros:
            return None
        alone = replace(batch, continuation=None)
        return self._memory_past(self.start_memory(len(batch.cu_seqlens) - 1), alone)

    def _memory_past(self, state: State, batch: Batch) -> MemoryPast:
        same_length, starts_with_zeros = self.memory[1:] if self.memory else (False, False)
        mask = SlidingWindow(state[MEMORY].shape[2] - 1, 0) if same_length else None
        return MemoryPast(state, batch, mask, starts_with_zeros, looks_ahead=not self.causal)

    def encode(self, batch: Batch, state: State | None = None) -> EncoderOutput:
        """Return the last hidden states, and the memory or cache for the batch that continues this one."""
        if state is None and batch.continuation is not None:
            state = self.start_state(batch.continuation.count)
        if state is None or LENGTHS not in state:
            return EncoderOutput(self(batch))
        past: Past = CachePast(state, batch) if KEYS in state else self._memory_past(state, batch)
        return EncoderOutput(self(batch, past), past.state())

    def start_state(self, lanes: int) -> State | None:
        """Return an empty memory, as in training; None if there is none."""
        return None if self.memory is None else self.start_memory(lanes)

    def start_memory(self, lanes: int, length: int | None = None) -> State:
        """Return an empty memory for this number of lanes; `length`: how many tokens it holds, if not as in training.
        It needs relative or rotary positions, which have no absolute position."""
        size = length if length is not None else self.memory.length if self.memory else 0
        assert size, "this architecture has no memory"
        filled = size if self.memory and self.memory.starts_with_zeros else 0
        rows = self._zeros(self.depth, lanes, size, self.width)
        return {MEMORY: rows, LENGTHS: torch.full((lanes,), filled, device=rows.device)}

    def start_cache(self, lanes: int, capacity: int) -> State:
        """Return an empty cache of keys and values for this number of lanes, `capacity` tokens each."""
        assert self.causal, "tokens of a cache do not see those after them"
        attention = self.stack.attention[0].part
        assert isinstance(attention, Attention)
        shape = (self.depth, lanes, attention.heads, capacity, attention.head_width)
        keys, values = self._zeros(*shape), self._zeros(*shape)
        return {KEYS: keys, VALUES: values, LENGTHS: torch.zeros(lanes, dtype=torch.int64, device=keys.device)}

    def _zeros(self, *shape: int) -> Tensor:
        """Return zeros in the precision of the residual stream."""
        weight = next(self.parameters())
        kind = weight.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        return torch.zeros(shape, device=weight.device, dtype=dtype)

    def state_specs(self, lanes: int) -> Mapping[str, StateSpec]:
        """Describe the memory for this number of lanes."""
        if self.memory is None:
            return {}
        rows = StateSpec((self.depth, lanes, self.memory.length, self.width), None)
        least = self.memory.length if self.memory.starts_with_zeros else 0
        return {MEMORY: rows, LENGTHS: StateSpec((lanes,), torch.int64, least, self.memory.length)}

    def summary_index(self, batch: Batch) -> Tensor:
        """Index of the token that represents each sequence: the batch says which, or it is the first or last (s,
        int64)."""
        if batch.summary is not None:
            return batch.summary
        return batch.last if self.summary == "last" else batch.first

    def sequence_states(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """Return one state per sequence, of states of any width: a token's, or the mean of all (s x h)."""
        if self.summary == "mean":
            return mean_states(hidden_th, batch).to(hidden_th.dtype)
        return super().sequence_states(hidden_th, batch)

    def recompute(self, wanted: bool) -> None:
        """Compute each layer again in the backward pass instead of keeping its activations."""
        self.stack.recompute = wanted


def build_transformer(a: Transformer) -> TransformerEncoder:
    """Build a transformer encoder with random weights."""
    residual = RESIDUALS[a.residual]
    embeddings = Embeddings(
        tokens=build_token_embeddings(a),
        positions=POSITIONS[a.positions].embedded(a),
        segments=nn.Embedding(a.segments, a.embedding_width)
        if a.segments and a.segment_encoding == "absolute"
        else None,
        norm=build_norm(a, a.embedding_width) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=nn.Linear(a.embedding_width, a.width) if a.embedding_projection else None,
    )
    attention, ffn = build_attention(a), build_feed_forward(a)
    encoder = TransformerEncoder(
        embeddings,
        Stack(
            [Block(component, norm, a.dropout) for component, norm in zip(attention, _attention_norms(a), strict=True)],
            [Block(component, build_norm(a, a.width), a.dropout) for component in ffn],
            list(zip(a.sharing_indices("attention"), a.sharing_indices("ffn"), strict=True)),
            residual,
        ),
        width=a.output_width,
        norm=build_norm(a, a.output_width) if residual.norms_last and a.final_norm else None,
        pooler=nn.Linear(a.output_width, a.width) if a.pooler else None,
        causal=not any(component.mask.looks_ahead for component in attention),
        memory=MemorySettings(a.memory, a.same_length, a.memory_start == "zeros") if a.memory else None,
        query_stream=a.query_stream,
        summary="last" if a.summarizes_last else a.summary,
    )
    initialize(encoder, a.init_std)
    if a.residual_init == "scaled":  # so that the sum over all layers starts as large as one term
        scale_weights(
            [component.out for component in attention] + [component.down for component in ffn], (2 * a.layers) ** -0.5
        )
    return encoder


def _attention_norms(a: Transformer) -> list[nn.Module]:
    """Build the norm of each stored attention; the first may be without one."""
    norms = [build_norm(a, a.width) for _ in set(a.sharing_indices("attention"))]
    return norms if a.first_norm else [nn.Identity(), *norms[1:]]


def build_token_embeddings(a: Transformer) -> TokenEmbeddings | AdaptiveEmbeddings:
    """Build the table of token embeddings, or the tables of clusters of the vocabulary."""
    scale = a.width**0.5 if a.embedding_scale else 1.0
    clusters = vocabulary_clusters(a)
    if clusters is None:
        return TokenEmbeddings(a.vocab_size, a.embedding_width, scale)
    return AdaptiveEmbeddings(clusters, a.width, scale)


def vocabulary_clusters(a: Transformer) -> VocabularyClusters | None:
    """Return the clusters of a vocabulary; None if it is not cut."""
    if not a.cutoffs:
        return None
    return VocabularyClusters.cut(a.cluster_starts, a.embedding_width, a.embedding_divisor)


@dataclass(frozen=True)
class KnownComponent:
    """A component by its exact types, and the components in it by name; `*` is any name."""

    types: tuple[type[nn.Module], ...]
    components: Mapping[str, "KnownComponent"] = field(default_factory=dict)


def _blocks(component: KnownComponent) -> KnownComponent:
    block = KnownComponent((Block,), {"part": component, "norm": _NORM, "dropout": _DROPOUT})
    return KnownComponent((nn.ModuleList,), {"*": block})


_EMBEDDING, _LINEAR = KnownComponent((nn.Embedding,)), KnownComponent((nn.Linear,))
_TOKENS = KnownComponent((TokenEmbeddings,))
_NORM, _DROPOUT = KnownComponent((nn.LayerNorm,)), KnownComponent((nn.Dropout,))
TABLES = {"tokens": _TOKENS, "positions": KnownComponent((LearnedPositions,)), "segments": _EMBEDDING}
TRANSFORMER = KnownComponent(
    (TransformerEncoder,),
    {
        "embeddings": KnownComponent(
            (Embeddings,), {**TABLES, "norm": _NORM, "dropout": _DROPOUT, "projection": _LINEAR}
        ),
        "stack": KnownComponent(
            (Stack,),
            {
                "attention": _blocks(KnownComponent((Attention,), {"qkv": _LINEAR, "out": _LINEAR})),
                "ffn": _blocks(KnownComponent((FeedForward,), {"up": _LINEAR, "down": _LINEAR})),
            },
        ),
        "norm": _NORM,
        "pooler": _LINEAR,
    },
)


def unknown_component(encoder: nn.Module, embeddings: bool = True) -> str:
    """Name the first component of an encoder that is not built as `TRANSFORMER` says; empty if there is none.

    Code that computes from an encoder's weights without calling its modules must ask this first: a subclass, another
    activation or a forward hook would be left out of the result without an error. `embeddings`: False leaves them
    out, for code that calls their module.
    """
    difference = _find_unknown(encoder, TRANSFORMER, () if embeddings else ("embeddings",))
    return f"encoder{difference}" if difference else ""


def unknown_attention(encoder: nn.Module) -> str:
    """As `unknown_component`, for components that mix tokens only: for code that calls all others."""
    if reason := component_difference(encoder, TRANSFORMER.types):
        return f"encoder {reason}"
    assert isinstance(encoder, TransformerEncoder)
    stack = TRANSFORMER.components["stack"]
    if reason := component_difference(encoder.stack, stack.types):
        return f"encoder.stack {reason}"
    difference = _find_unknown(encoder.stack.attention, stack.components["attention"])
    return f"encoder.stack.attention{difference}" if difference else ""


def _find_unknown(component: nn.Module, expected: KnownComponent, left_out: tuple[str, ...] = ()) -> str:
    if reason := component_difference(component, expected.types):
        return f" {reason}"
    for name, inner in component._modules.items():
        expected_inner = expected.components.get(name) or expected.components.get("*") or KnownComponent(())
        if inner is not None and name not in left_out and (difference := _find_unknown(inner, expected_inner)):
            return f".{name}{difference}"
    return ""


def component_difference(component: nn.Module, types: tuple[type[nn.Module], ...]) -> str:
    """Say how a module differs from those of a known type; empty if it does not."""
    if type(component) not in types:
        return f"is a {type(component).__name__}"
    if has_forward_hooks(component) or "forward" in vars(component):
        return "has a forward hook or a forward function of its own"
    for name, parameter in component._parameters.items():
        if parameter is None:
            return f"has no {name}"
    if type(component) is Stack and type(component.residual) not in (PostNorm, PreNorm):
        return f"has the residual connection {type(component.residual).__name__}"
    if type(component) is TokenEmbeddings and component.scale != 1.0:
        return "is scaled"
    if type(component) is TransformerEncoder and component.memory is not None:
        return "has a memory"
    if type(component) is TransformerEncoder and component.query_start is not None:
        return "has a query stream"
    if type(component) is Attention and component.positions is not None:
        return f"has {type(component.positions).__name__}"
    if type(component) is Attention and component.out.in_features != component.out.out_features:
        return "has heads of another width than the layer's"
    if type(component) is FeedForward and component.activation_name not in ACTIVATIONS:
        return f"has the activation {component.activation_name or component.activation}"
    return ""
