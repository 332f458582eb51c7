"""The sections that only recipes of pretraining have: the text, the length of the run, distillation on text."""

from dataclasses import dataclass
from typing import Annotated

from bertree.config.sections import RunSettings
from bertree.config.settings import Above, AtLeast, AtMost, OneOf, Share, setting

LANES = ("lanes", "lanes+documents", "lanes+pairs")


@dataclass(frozen=True)
class DataSettings:
    """Which text, and what an example is."""

    store: str = setting("", "folder of a token store (`bertree prepare`)")
    held_out: str = setting("", "another store to evaluate on; without one, a share of the documents is held out")
    held_out_share: Annotated[float, Share()] = setting(
        0.01, "share of the documents that is held out, counted in tokens"
    )
    share: Annotated[float, Above(0), AtMost(1)] = setting(
        1.0, "share of the training documents that is read, spread evenly"
    )
    format: str = setting(
        "full-sentences",
        "what an example is: segment-pair or sentence-pair (with +nsp or +sop), full-sentences, doc-sentences, stream; "
        "or lanes, in which each step continues the text of the one before, for a model with a memory. In "
        "lanes+documents a document starts with an empty memory; in lanes+pairs two segments stand beside text that "
        "continues the step before",
    )
    masking: str = setting(
        "token",
        "which tokens are predicted: token, word, ngram (masked), next, permutation; word+static4 draws 4 fixed masks",
    )
    mask_rate: Annotated[float, Above(0)] = setting(0.15, "share of the tokens that are chosen to be predicted")
    mask: Annotated[float, Share(closed=True)] = setting(0.8, "share of the chosen tokens that become [MASK]")
    random: Annotated[float, Share(closed=True)] = setting(
        0.1, "share of the chosen tokens that become a random token; the rest stays"
    )
    ngram: Annotated[int, AtLeast(1)] = setting(3, "masking=ngram: longest n-gram, in words")
    partial: Annotated[int, AtLeast(1)] = setting(6, "masking=permutation: one token in this many is predicted")
    spans: Annotated[int, AtLeast(1)] = setting(5, "masking=permutation: longest span of targets, in words")
    backward: bool = setting(False, "half of the lanes run through the text from its end")
    reuse: Annotated[float, Share()] = setting(0.5, "lanes+pairs: share of a segment that continues the step before")

    @property
    def in_lanes(self) -> bool:
        """Whether each step continues the text of the one before it."""
        return self.format in LANES

    @property
    def paired(self) -> bool:
        """Whether lanes have pairs."""
        return self.format == "lanes+pairs"


@dataclass(frozen=True)
class PretrainingRunSettings(RunSettings):
    """How a run is computed, watched and saved, and how long it takes."""

    minutes: Annotated[float, AtLeast(0), AtMost(10_000_000)] = setting(
        0.0,
        "time budget: the steps of all phases and the warm-up are multiplied by one factor, which is measured at the "
        "start; 0: as many steps as there are",
    )
    # None: no; it is not written, as in recipes from before there was this setting.
    at_most: bool | None = setting(None, "minutes only makes the run shorter, never longer")


@dataclass(frozen=True)
class DistillSettings:
    """Distillation on text. Weights of terms: 0 leaves one out; that of the true tokens is objective.mlm."""

    teacher: str = setting("", "folder of a model with an MLM head or, for vector, with sentence vectors")
    ce: Annotated[float, AtLeast(0)] = setting(5.0, "weight of the teacher's distribution at the masked tokens")
    cos: Annotated[float, AtLeast(0)] = setting(1.0, "weight of the direction of its last hidden states")
    hidden: Annotated[float, AtLeast(0)] = setting(0.0, "weight of the hidden states of its layers in between")
    relation: Annotated[float, AtLeast(0)] = setting(
        0.0, "weight of how its queries, keys and values relate tokens (MiniLM)"
    )
    # None: 0; it is not written, as in recipes from before there was this setting.
    vector: Annotated[float | None, AtLeast(0)] = setting(None, "weight of the direction of its sentence vectors")
    temperature: Annotated[float, Above(0)] = setting(2.0, "of the distributions of ce")
    everywhere: bool = setting(False, "ce at every token instead of the masked ones")
    start: Annotated[str, OneOf(("teacher", "random"))] = setting(
        "teacher", "the student's initial weights: some of the teacher's layers, or random"
    )
    layers: str = setting("", 'the layers it starts from, counted from 1: "1,3,5"; none: evenly spread from the first')
    match: str = setting(
        "", "the teacher's layer that each of the student's is compared with; none: evenly spread up to the last"
    )
    relation_layer: Annotated[int, AtLeast(0)] = setting(0, "the teacher's layer that relation reads; 0: the last")
    relation_heads: Annotated[int, AtLeast(0)] = setting(
        0, "heads of relation; 0: the teacher's attention heads, or fewer where the widths need it"
    )
    cache: str = setting("", "folder that keeps the teacher's likeliest tokens, so that other students need not run it")
    top_k: Annotated[int, AtLeast(1)] = setting(32, "likeliest tokens that the cache keeps")

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the terms that need the teacher."""
        weights = {"ce": self.ce, "cos": self.cos, "hidden": self.hidden, "relation": self.relation}
        return weights | {"vector": self.vector or 0.0}
