"""What a transformer answers, and how its axes change together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Self

from bertree.model.architecture.axes import MAX_ROWS, two_sizes
from bertree.model.architecture.base import TASK_HEADS, Architecture
from bertree.model.architecture.transformer_axes import TransformerAxes
from bertree.model.architecture.transformer_checks import transformer_problems

# Heads that read a pooler, in which families: RoBERTa's classifier does not, but its choice head does.
POOLED = {"sequence": ("pooler",), "choice": ("pooler", "tanh")}
LEARNING_RATES = ((1024, 2e-5), (768, 3e-5), (384, 1e-4), (0, 2e-4))  # from this width on


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
            own["max_positions"] = _places(own.get("axial_shape", cls.axial_shape))
        return cls(**own)

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
            implied["residual_init"] = "scaled" if changes["residual"] == "pre-norm" else "plain"
        if changes.get("positions", self.positions) == "axial":
            implied |= self._implied_by_axial({**changes, **implied})
        return implied

    def _implied_by_axial(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The longest sequence is the product of the shape; parts of another width are halves."""
        implied: dict[str, Any] = {}
        if self.positions != "axial" or "axial_shape" in changes:
            implied["max_positions"] = _places(changes.get("axial_shape", self.axial_shape))
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
        """True if the token that represents a sequence stands behind its texts (XLNet's <cls>)."""
        return self.summary == "last"

    @property
    def reads_segments(self) -> bool:
        """True if the two texts of a pair are told apart by their segments."""
        return self.segments > 1

    @property
    def replayable(self) -> bool:
        """True unless the host reads how many tokens a cluster of the vocabulary or a bucket has, or saves the state
        of the random numbers for a reversible layer."""
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
        return f"{super().describe()}, {self.heads} heads"

    @property
    def _mark(self) -> str:
        return f"A{self.heads}"


def _without_body(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "body"}


def _places(axial_shape: str) -> int:
    """Return the product of an axial shape; 1 if it is none, which the checks report."""
    return 1 if two_sizes(axial_shape) or not axial_shape else prod(int(part) for part in axial_shape.split(","))
