"""The axes of a transformer, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from bertree.model.architecture.axes import (
    MAX_ROWS,
    MAX_WIDTH,
    above_zero,
    at_most,
    axis,
    list_of,
    list_of_rising_numbers,
    not_negative,
    one_of,
    positive,
    probability,
)
from bertree.model.architecture.base import TASK_HEADS, Architecture

SHARING = ("none", "attention", "ffn", "all")
ACTIVATIONS = ("gelu", "gelu-tanh", "relu")
ATTENTION = ("full", "causal", "local")
POSITIONS = ("learned", "sinusoidal", "relative", "rotary")
MEMORY_STARTS = ("none", "zeros")
SEGMENT_ENCODINGS = ("absolute", "relative")
SUMMARIES = ("first", "last")
FEED_FORWARD = ("plain", "gated")
NORMS = ("layer", "rms")
RESIDUALS = ("post-norm", "pre-norm")
RESIDUAL_INITS = ("plain", "scaled")
# Heads that read a pooler, in which families: RoBERTa's classifier does not, but its choice head does.
POOLED = {"sequence": ("pooler",), "choice": ("pooler", "tanh")}
LEARNING_RATES = ((1024, 2e-5), (768, 3e-5), (384, 1e-4), (0, 2e-4))  # from this width on


@dataclass(frozen=True)
class Transformer(Architecture):
    """A transformer encoder."""

    body: ClassVar[str] = "transformer"
    has_attention: ClassVar[bool] = True
    pretrainable: ClassVar[bool] = True
    layers_readable: ClassVar[bool] = True
    head_names: ClassVar[tuple[str, ...]] = ("mask", "pair", *TASK_HEADS)

    heads: int = axis(12, "attention heads", positive, at_most(MAX_WIDTH))
    head_width: int = axis(0, "width of one attention head; 0: width / heads", not_negative, at_most(MAX_WIDTH))
    attention: str = axis(
        "full",
        "tokens that a token sees: all of its sequence (full), itself and those before it (causal), or those near it "
        "(local); full,local,local: in turn, from layer to layer",
        list_of(ATTENTION),
    )
    window: int = axis(64, "tokens that local attention sees to each side", positive, at_most(MAX_ROWS))
    embedding_projection: bool = axis(False, "linear map from E to H after the embeddings")
    embedding_scale: bool = axis(False, "token embeddings times the square root of the width")
    cutoffs: str = axis(
        "",
        "adaptive embeddings and softmax: ids at which the vocabulary, sorted by frequency, is cut into clusters, for "
        "example 20000,40000; empty: one table",
        list_of_rising_numbers,
    )
    embedding_divisor: int = axis(
        1, "embeddings of each cluster are so many times narrower than those of the cluster before", positive
    )
    output_projections: str = axis(
        "0",
        "clusters whose projection before the softmax is their own; the others use that of their embeddings",
        list_of_rising_numbers,
    )
    positions: str = axis(
        "learned",
        "how the order of tokens is known: a vector for each place, learned or of sines and cosines (sinusoidal); "
        "scores by distance, as in Transformer-XL (relative); or queries and keys rotated by their place (rotary)",
        one_of(POSITIONS),
    )
    clamp: int = axis(
        0, "largest distance that relative positions tell apart; 0: no limit", not_negative, at_most(MAX_ROWS)
    )
    shared_position_bias: bool = axis(False, "the two biases of relative positions are the same in all layers")
    memory: int = axis(
        0,
        "tokens next to a segment, read before it, whose states it sees; 0: no memory",
        not_negative,
        at_most(MAX_ROWS),
    )
    memory_start: str = axis(
        "none",
        "what is in the memory before the first segment: nothing (none), or states of zeros, as Hugging Face has it",
        one_of(MEMORY_STARTS),
    )
    same_length: bool = axis(False, "every token sees as many tokens as the memory holds, itself included")
    rotary_base: float = axis(10_000.0, "base of the wavelengths of rotary positions", above_zero)
    local_rotary_base: float = axis(10_000.0, "the same, in local attention", above_zero)
    position_offset: int = axis(
        0, "rows of the position table that are never used, before position 0", not_negative, at_most(MAX_ROWS)
    )
    segments: int = axis(2, "segments (token types) that are told apart: 0, 1 or more", not_negative, at_most(MAX_ROWS))
    segment_encoding: str = axis(
        "absolute",
        "how segments are told apart: by embeddings added to the tokens (absolute), or by scores of whether two tokens "
        "are of the same segment (relative)",
        one_of(SEGMENT_ENCODINGS),
    )
    query_stream: bool = axis(
        False, "a second stream predicts tokens from their places, in any order of the tokens (XLNet)"
    )
    summary: str = axis(
        "first",
        "token that represents a sequence: first or last; with causal attention always the last",
        one_of(SUMMARIES),
    )
    sharing: str = axis("none", "what the layers share: none, attention, ffn or all", one_of(SHARING))
    groups: int = axis(1, "distinct layers among the shared ones")
    ffn: str = axis(
        "plain",
        "feed-forward part: two linear layers (plain), or with a gate beside the activation (gated)",
        one_of(FEED_FORWARD),
    )
    activation: str = axis("gelu", "of the feed-forward part", one_of(ACTIVATIONS))
    mask_activation: str = axis("gelu", "of the MLM head", one_of(ACTIVATIONS))
    mask_transform: bool = axis(True, "the MLM or LM head has a dense layer, an activation and a norm")
    mask_bias: bool = axis(True, "the MLM or LM head has a bias for each entry of the vocabulary")
    norm: str = axis(
        "layer", "norms of the encoder: layer norms, or by the root mean square alone (rms)", one_of(NORMS)
    )
    norm_bias: bool = axis(True, "biases of the encoder's layer norms; rms has none")
    attention_bias: bool = axis(True, "biases of the linear layers of attention")
    ffn_bias: bool = axis(True, "biases of the linear layers of the feed-forward part")
    residual: str = axis(
        "post-norm",
        "norms after each part (post-norm), or before it and once at the end (pre-norm)",
        one_of(RESIDUALS),
    )
    final_norm: bool = axis(True, "norm after the last layer of a pre-norm model")
    residual_init: str = axis(
        "plain",
        "initial matrices that write into the residual: plain, or scaled by 1 / sqrt(2 layers)",
        one_of(RESIDUAL_INITS),
    )
    pooler: bool = axis(True, "dense + tanh on the token that represents a sequence, trained with the encoder")
    attention_dropout: float = axis(
        0.1, "on attention probabilities (above 0, training takes the padded kernel)", probability
    )

    def _problems(self) -> list[str]:
        found = []
        if self.width % self.heads and not self.head_width:
            found.append(f"heads: {self.heads} heads cannot divide a width of {self.width} evenly; or set head_width")
        if self.embedding_width != self.width and not (self.embedding_projection or self.cutoffs):
            found.append(
                f"embedding_width: {self.embedding_width} differs from width {self.width}, "
                "so embedding_projection must be true"
            )
        if self.sequence_head == "compare":
            found.append("sequence_head: compare reads the texts of a pair apart, which only body = bilstm does")
        if self.positions != "learned" and self.position_offset:
            found.append(
                f"position_offset: {self.positions} positions have no table, so it must be 0, not "
                f"{self.position_offset}"
            )
        if self.positions == "rotary" and self.head_size % 2:
            found.append(f"heads: rotary positions need heads of an even width, not {self.head_size}")
        if self.positions in ("sinusoidal", "relative") and self.width % 2:
            found.append(f"width: {self.positions} positions need an even width, not {self.width}")
        found += self._memory_problems() + self._stream_problems() + self._cluster_problems()
        if not 1 <= self.groups <= self.layers:
            found.append(f"groups: {self.groups} groups do not fit {self.layers} layers")
        if self.sharing == "none" and self.groups != 1:
            found.append(f"groups: {self.groups} has no meaning when nothing is shared (sharing = none)")
        kinds = () if found else set(zip(self.plan("attention"), self.attention_kinds, strict=True))
        if len(kinds) > len({stored for stored, _ in kinds}):
            found.append(f"sharing: layers with different attention ({self.attention}) cannot share it")
        return found

    def _memory_problems(self) -> list[str]:
        found = []
        if self.positions != "relative":
            for name in ("memory", "clamp", "shared_position_bias"):
                if getattr(self, name):
                    found.append(f"{name}: needs positions = relative, not {self.positions}")
        if self.memory and self.attention not in ("causal", "full"):
            found.append(f"memory: needs attention = causal or full, not {self.attention}")
        if not self.memory and self.same_length:
            found.append("same_length: has no meaning without a memory")
        if self.same_length and not self.causal:
            found.append(f"same_length: needs attention = causal, not {self.attention}")
        return found

    def _stream_problems(self) -> list[str]:
        """Problems of what XLNet has beside Transformer-XL."""
        needs = []
        if self.segment_encoding == "relative":
            needs.append("segment_encoding: relative")
            if self.segments < 2:
                return [f"segments: there must be 2 or more to be told apart by scores, not {self.segments}"]
        if self.query_stream:
            needs.append("query_stream:")
        found = [f"{what} needs positions = relative, not {self.positions}" for what in needs]
        found = found if self.positions != "relative" else []
        if self.attention != "full":
            found += [f"{what} needs attention = full, not {self.attention}" for what in needs]
        return found

    def _cluster_problems(self) -> list[str]:
        if not self.cutoffs:
            return ["embedding_divisor: has no meaning without cutoffs"] if self.embedding_divisor > 1 else []
        found = []
        if self.cluster_starts[-2] >= self.vocab_size:
            found.append(f"cutoffs: {self.cutoffs} must lie below the vocabulary size {self.vocab_size}")
        if self.embedding_projection:
            found.append("embedding_projection: clusters (cutoffs) have projections of their own")
        if self.mask_transform or not self.mask_bias:
            found.append("cutoffs: an adaptive softmax has a bias and no transform (mask_transform = false)")
        if self.embedding_norm or self.segments or self.positions == "learned":
            found.append("cutoffs: need embeddings without norm, segments and learned positions")
        if int(self.output_projections.split(",")[-1] or 0) >= len(self.cluster_starts) - 1:
            found.append(f"output_projections: {self.output_projections} names a cluster that is not there")
        return found

    @classmethod
    def _make(cls, values: Mapping[str, Any]) -> Self:
        return cls(**_without_body(values))

    @classmethod
    def _changed(cls, before: Architecture, changes: Mapping[str, Any]) -> Self:
        implied: dict[str, Any] = {}
        if not isinstance(before, cls):
            narrow = before.embedding_width != before.width
            turned = {"embedding_norm": True, "sequence_head": "relu", "embedding_projection": narrow}
            implied = {"embedding_projection": before.embedding_width != changes.get("width", before.width)}
            before = cls._make(before.axes() | turned)
        return replace(before, **(implied | before._implied(changes) | _without_body(changes)))

    def _implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes on other axes that follow from some."""
        implied: dict[str, Any] = {}
        if "width" in changes:
            if self.embedding_width == self.width:
                implied["embedding_width"] = changes["width"]
            if self.ffn_width == 4 * self.width:
                implied["ffn_width"] = 4 * int(changes["width"])
        if "embedding_width" in changes:
            implied["embedding_projection"] = changes["embedding_width"] != changes.get("width", self.width)
        if "activation" in changes and self.mask_activation == self.activation:
            implied["mask_activation"] = changes["activation"]
        if changes.get("positions", "learned") != "learned":
            implied["position_offset"] = 0
        if changes.get("cutoffs"):
            implied |= {"mask_transform": False, "embedding_norm": False, "segments": 0}
        if changes.get("sharing") == "none":
            implied["groups"] = 1
        if changes.get("residual", self.residual) != self.residual:
            implied["embedding_norm"] = changes["residual"] == "post-norm"
            implied["residual_init"] = "plain" if changes["residual"] == "post-norm" else "scaled"
        return implied

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.width // self.heads

    @property
    def cluster_starts(self) -> tuple[int, ...]:
        """The first id of each cluster of the vocabulary, and the end of the last."""
        return (0, *(int(cut) for cut in self.cutoffs.split(",") if cut), self.vocab_size)

    def plan(self, part: str) -> tuple[int, ...]:
        """Return which stored copy of `part` ("attention" or "ffn") each layer uses: the sharing plan."""
        if self.sharing in (part, "all"):
            return tuple(int(depth / (self.layers / self.groups)) for depth in range(self.layers))
        return tuple(range(self.layers))

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The kind of attention of each layer."""
        kinds = self.attention.split(",")
        return tuple(kinds[depth % len(kinds)] for depth in range(self.layers))

    @property
    def causal(self) -> bool:
        """True if no token sees those after it."""
        return set(self.attention_kinds) == {"causal"}

    @property
    def summarizes_last(self) -> bool:
        """True if a sequence is represented by its last token."""
        return self.causal or self.summary == "last"

    @property
    def longest_input(self) -> int:
        """Most tokens that a sequence may have: relative positions have no end."""
        return MAX_ROWS if self.positions == "relative" else self.max_positions

    @property
    def ends_in_summary(self) -> bool:
        """True if the token that represents a sequence stands behind its texts (XLNet's <cls>)."""
        return self.summary == "last"

    @property
    def reads_segments(self) -> bool:
        """True if the two texts of a pair are told apart by their segments."""
        return self.segments > 1

    @property
    def replayable(self) -> bool:
        """True unless the vocabulary is cut: how many tokens of a batch are in each cluster is read on the host."""
        return not self.cutoffs

    @property
    def learning_rate(self) -> float:
        """The learning rate of fine-tuning, if none is set: narrow models need larger ones."""
        return next(rate for width, rate in LEARNING_RATES if self.width >= width)

    def for_task(self, head: str, pairs: bool, reads_states: bool) -> Architecture:
        """Return the architecture with a pooler if the head reads one."""
        reads_pooler = self.sequence_head in POOLED.get(head, ()) and not reads_states
        return self.with_values({"pooler": True}) if reads_pooler else self

    def describe(self) -> str:
        """Return kind and size in words."""
        return f"{super().describe()}, {self.heads} heads"

    @property
    def _mark(self) -> str:
        return f"A{self.heads}"


def _without_body(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "body"}
