"""The architecture of a transformer: which values of its axes fit together, which follow from others, its properties.

The axes themselves are in transformer_axes.py, what all architectures share in base.py. To constrain a new axis, add
its problems here: each is one line that names the axis first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Self

from bertree.model.architecture.base import MAX_ROWS, TASK_HEADS, WRITTEN, Architecture, two_sizes
from bertree.model.architecture.transformer_axes import TransformerAxes


def transformer_problems(a: TransformerAxes) -> list[str]:
    """Return each violated constraint on more than one axis."""
    problems = []
    if a.width % a.heads and not a.head_width:
        problems.append(f"heads: {a.heads} heads cannot divide a width of {a.width} evenly; or set head_width")
    if a.embedding_width != a.width and not (a.embedding_projection or a.cutoffs):
        problems.append(
            f"embedding_width: {a.embedding_width} differs from width {a.width}, so embedding_projection must be true"
        )
    if a.sequence_head == "compare":
        problems.append("sequence_head: compare reads the texts of a pair apart, which only body = bilstm does")
    if not a.first_norm and (a.residual == "post-norm" or a.sharing in ("attention", "all")):
        problems.append(
            "first_norm: only a pre-norm or reversible model whose attention is not shared can be without it"
        )
    if a.positions != "learned" and a.position_offset:
        problems.append(
            f"position_offset: {a.positions} positions have no table, so it must be 0, not {a.position_offset}"
        )
    if a.positions == "rotary" and a.head_size % 2:
        problems.append(f"heads: rotary positions need heads of an even width, not {a.head_size}")
    if a.positions in ("sinusoidal", "relative") and a.width % 2:
        problems.append(f"width: {a.positions} positions need an even width, not {a.width}")
    problems += [*_direction_problems(a), *_memory_problems(a), *_stream_problems(a), *_cluster_problems(a)]
    problems += [*_attention_problems(a), *_axial_problems(a), *_output_problems(a)]
    if not 1 <= a.groups <= a.layers:
        problems.append(f"groups: {a.groups} groups do not fit {a.layers} layers")
    if a.sharing == "none" and a.groups != 1:
        problems.append(f"groups: {a.groups} has no meaning when nothing is shared (sharing = none)")
    kinds = () if problems else set(zip(a.sharing_indices("attention"), a.attention_kinds, strict=True))
    if len(kinds) > len({stored for stored, _ in kinds}):
        problems.append(f"sharing: layers with different attention ({a.attention}) cannot share it")
    return problems


def _direction_problems(a: TransformerAxes) -> Iterator[str]:
    if a.direction == "forward":
        return
    if not a.causal:
        yield f"direction: {a.direction}: with {a.attention} attention tokens see both sides; set attention = causal"
    if a.memory:
        yield f"direction: {a.direction}: a memory holds the text before; set memory = 0"


def _memory_problems(a: TransformerAxes) -> list[str]:
    problems = []
    if a.positions != "relative":
        for name in ("memory", "clamp", "shared_position_bias"):
            if getattr(a, name):
                problems.append(f"{name}: needs positions = relative, not {a.positions}")
    if a.memory and a.attention not in ("causal", "full"):
        problems.append(f"memory: needs attention = causal or full, not {a.attention}")
    if not a.memory and a.same_length:
        problems.append("same_length: has no meaning without a memory")
    if a.same_length and not a.causal:
        problems.append(f"same_length: needs attention = causal, not {a.attention}")
    return problems


def _stream_problems(a: TransformerAxes) -> list[str]:
    """Return the problems of axes that XLNet needs and Transformer-XL does not."""
    needs = []
    if a.segment_encoding == "relative":
        needs.append("segment_encoding: relative")
        if a.segments < 2:
            return [f"segments: there must be 2 or more to be told apart by scores, not {a.segments}"]
    if a.query_stream:
        needs.append("query_stream:")
    problems = []
    if a.positions != "relative":
        problems += [f"{what} needs positions = relative, not {a.positions}" for what in needs]
    if a.attention != "full":
        problems += [f"{what} needs attention = full, not {a.attention}" for what in needs]
    return problems


def _cluster_problems(a: TransformerAxes) -> list[str]:
    if not a.cutoffs:
        return ["embedding_divisor: has no meaning without cutoffs"] if a.embedding_divisor > 1 else []
    problems = []
    if a.cluster_starts[-2] >= a.vocab_size:
        problems.append(f"cutoffs: {a.cutoffs} must lie below the vocabulary size {a.vocab_size}")
    if a.embedding_projection:
        problems.append("embedding_projection: clusters (cutoffs) have projections of their own")
    if a.mask_transform or not a.mask_bias:
        problems.append("cutoffs: an adaptive softmax has a bias and no transform (mask_transform = false)")
    if a.embedding_norm or a.segments or a.positions == "learned":
        problems.append("cutoffs: need embeddings without norm, segments and learned positions")
    if int(a.output_projections.split(",")[-1] or 0) >= len(a.cluster_starts) - 1:
        problems.append(f"output_projections: {a.output_projections} names a cluster that does not exist")
    return problems


def _attention_problems(a: TransformerAxes) -> Iterator[str]:
    kinds = set(a.attention_kinds)
    if not a.look_ahead and "full" in kinds:
        causal = a.attention.replace("full", "causal")
        yield f"attention: full looks ahead, which look_ahead = false forbids; use {causal}"
    if a.shared_qk and not kinds & {"full", "causal", "lsh"}:
        yield f"shared_qk: has no meaning with attention = {a.attention}; it is for full and causal"
    if a.positions == "relative" and (a.shared_qk or kinds & {"chunked", "lsh"}):
        what = f"attention = {a.attention}" if kinds & {"chunked", "lsh"} else "shared_qk = true"
        yield f"positions: {what} has no scores by distance; use axial, learned or sinusoidal, not relative"
    if "chunked" in kinds and not a.look_ahead and a.chunks_after:
        yield f"chunks_after: no token sees a chunk after its own with look_ahead = false; use 0, not {a.chunks_after}"


def _axial_problems(a: TransformerAxes) -> Iterator[str]:
    if a.positions != "axial":
        return
    if not a.axial_shape:
        yield "axial_shape: must be two whole numbers of at least 1 divided by a comma, for example 64,64"
        return
    rows, columns = a.axial_sizes
    if a.max_positions != rows * columns:
        fits = f"{-(-a.max_positions // columns)},{columns}"
        yield (
            f"max_positions: axial_shape {a.axial_shape} has {rows * columns} positions, not {a.max_positions}; set "
            f"axial_shape alone, for example {fits}"
        )
    if a.embedding_width < 2:
        yield f"embedding_width: axial positions have two vectors of width 1 or more, but it is {a.embedding_width}"
    elif sum(a.axial_vector_widths) != a.embedding_width:
        of_row = min(a.axial_vector_widths[0], a.embedding_width - 1)
        yield (
            f"axial_widths: {a.axial_widths} sum to {sum(a.axial_vector_widths)}, not to the embedding width "
            f"{a.embedding_width}; for example {of_row},{a.embedding_width - of_row}"
        )


def _output_problems(a: TransformerAxes) -> Iterator[str]:
    reversible = a.residual == "reversible"
    if reversible and a.memory:
        yield "memory: a reversible residual keeps no hidden states; use memory = 0 or residual = pre-norm"
    if reversible and a.query_stream:
        yield "query_stream: needs residual = post-norm or pre-norm, not reversible"
    if a.cutoffs and (reversible or not a.tied_output):
        what = "residual = reversible" if reversible else "tied_output = false"
        yield f"cutoffs: an adaptive softmax needs tied embeddings and one residual stream, so {what} is impossible"
    if a.tied_output and not a.mask_transform and not a.cutoffs and a.reader_width != a.embedding_width:
        yield (
            f"tied_output: the head's states have width {a.reader_width}, but the token embeddings "
            f"{a.embedding_width}; set tied_output = false or mask_transform = true"
        )


# Task heads that read a pooler, and with which `sequence_head`: RoBERTa's (tanh) only for multiple choice.
POOLED = {"sequence": ("pooler",), "choice": ("pooler", "tanh")}
LEARNING_RATES = ((1024, 2e-5), (768, 3e-5), (384, 1e-4), (0, 2e-4))  # of fine-tuning, from this width on


@dataclass(frozen=True)
class Transformer(TransformerAxes):
    """A transformer encoder."""

    body: ClassVar[str] = "transformer"
    has_attention: ClassVar[bool] = True
    pretrainable: ClassVar[bool] = True
    layers_readable: ClassVar[bool] = True
    head_names: ClassVar[tuple[str, ...]] = ("mask", "pair", *TASK_HEADS)

    def _problems(self) -> list[str]:
        return transformer_problems(self)

    @classmethod
    def _make(cls, values: Mapping[str, Any]) -> Self:
        own = _without_body(values)
        if own.get("positions") == "axial" and "max_positions" not in own:
            own["max_positions"] = _position_count(own.get("axial_shape", cls.axial_shape))
        return cls(**own)

    @classmethod
    def _changed(cls, before: Architecture, changes: Mapping[str, Any]) -> Self:
        implied: dict[str, Any] = {}
        if not isinstance(before, cls):
            narrow = before.embedding_width != before.width
            converted = {"embedding_norm": True, "sequence_head": "relu", "embedding_projection": narrow}
            implied = {"embedding_projection": before.embedding_width != changes.get("width", before.width)}
            shared = {name: value for name, value in before.axes().items() if name in WRITTEN}
            before = cls._make(shared | converted)
        return replace(before, **(implied | before._implied(changes) | _without_body(changes)))

    def _implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes of other axes that follow from these (see `Architecture.with_values`)."""
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
            implied["residual_init"] = "scaled" if changes["residual"] == "pre-norm" else "plain"
        if changes.get("positions", self.positions) == "axial":
            implied |= self._implied_by_axial({**changes, **implied})
        return implied

    def _implied_by_axial(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return what axial positions imply: the shape's product is the longest sequence; a new width is halved."""
        implied: dict[str, Any] = {}
        if self.positions != "axial" or "axial_shape" in changes:
            implied["max_positions"] = _position_count(changes.get("axial_shape", self.axial_shape))
        if changes.get("embedding_width", self.embedding_width) != self.embedding_width:
            implied["axial_widths"] = ""
        return implied

    @property
    def summarizes_last(self) -> bool:
        """True if a sequence is represented by its last token."""
        return self.summary == "last" or (self.causal and self.summary != "mean")

    @property
    def longest_input(self) -> int:
        """Most tokens that a sequence may have: relative positions have no end."""
        return MAX_ROWS if self.positions == "relative" else self.max_positions

    @property
    def ends_in_summary(self) -> bool:
        """True if the token that represents a sequence comes after its texts (XLNet's <cls>)."""
        return self.summary == "last"

    @property
    def reads_segments(self) -> bool:
        """True if the two texts of a pair are told apart by their segments."""
        return self.segments > 1

    @property
    def replayable(self) -> bool:
        """True unless the host reads sizes (of vocabulary clusters, of hash buckets) in a step, or saves the state of
        the random generator for a reversible layer: a CUDA graph can do neither."""
        reads_sizes = self.cutoffs or {"chunked", "lsh"} & set(self.attention_kinds)
        return not reads_sizes and self.residual != "reversible"

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
        read = {"forward": "", "backward": ", read backward", "both": ", read in both directions"}[self.direction]
        return f"{super().describe()}, {self.heads} heads{read}"

    @property
    def _mark(self) -> str:
        return f"A{self.heads}"


def _without_body(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "body"}


def _position_count(axial_shape: str) -> int:
    """Return the product of an axial shape; 1 if it is none, which the checks report."""
    return 1 if two_sizes(axial_shape) or not axial_shape else prod(int(part) for part in axial_shape.split(","))
