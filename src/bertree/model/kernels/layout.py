"""The inputs of an attention kernel, and the description of what a kernel supports.

Shape letters: t tokens, s sequences, n heads, d head width, q queries, k keys, x distances.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.masks import NAMES, Mask


class Ranks(NamedTuple):
    """An order of the keys: of the keys that the mask allows, a query sees those whose rank is below its bound."""

    bounds_t: Tensor  # int32
    ranks_k: Tensor  # int32


class Layout(NamedTuple):
    """Boundaries of the sequences in the streams of queries and keys, and what a query sees.

    A sequence's last query and last key are at the same position, unless `positions` says where queries are. If both
    boundaries are one tensor, queries, keys and values come from the same tokens. Rows of keys and values behind
    cu_k[-1] belong to no sequence.
    """

    cu_q: Tensor  # s + 1, int32: the queries of sequence i are cu_q[i] : cu_q[i + 1]
    cu_k: Tensor  # s + 1, int32
    max_q: int  # the longest sequence, on the host
    max_k: int
    mask: Mask
    ranks: Ranks | None = None  # None: a query sees what the mask says
    positions: Tensor | None = None  # t, int32: of each query among the keys of its sequence, rising within a sequence
    # s, int32: the position of each sequence's first query, where the positions of the others follow from it
    starts: Tensor | None = None

    @classmethod
    def of(cls, batch: Batch, mask: Mask) -> "Layout":
        """Return the layout of a batch whose tokens see each other."""
        return cls(batch.cu_seqlens, batch.cu_seqlens, batch.max_seqlen, batch.max_seqlen, mask)

    @property
    def separate_keys(self) -> bool:
        """True if keys and values come from other tokens than queries."""
        return self.cu_k is not self.cu_q

    @property
    def ranked(self) -> bool:
        """True if an order restricts what queries see, or queries are not at the last keys."""
        return self.ranks is not None or self.positions is not None


class SegmentScores(NamedTuple):
    """Scores by segment, as in XLNet: added, before the division by sqrt(d), where query and key are in different
    segments. Equal segments need no score: adding a constant to all keys does not change the softmax."""

    apart_tn: Tensor
    of_t: Tensor  # int32: the segment of each query
    of_k: Tensor  # int32


class RelativeScores(NamedTuple):
    """Scores by distance, as Transformer-XL has them: ((q + u) k + (q + v) r[position of q - position of k]) / sqrt(d).

    `r_xnd` has a row for every distance at which a query sees a key.
    """

    r_xnd: Tensor  # row i belongs to the distance `lowest` + i
    u_nd: Tensor
    v_nd: Tensor
    lowest: int  # 0 where no token sees those after it; negative otherwise
    segments: SegmentScores | None = None  # None: no scores by segment

    def add_to(self, q_tnd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q + u, q + v and r, in the precision of the queries."""
        r_xnd, u_nd, v_nd = (x.to(q_tnd.dtype) for x in self[:3])
        return q_tnd + u_nd, q_tnd + v_nd, r_xnd

    def of_queries(self, queries: slice) -> "RelativeScores":
        """Return the scores of some of the queries."""
        if self.segments is None:
            return self
        apart_tn, of_t, of_k = self.segments
        return self._replace(segments=SegmentScores(apart_tn[queries], of_t[queries], of_k))


class Attend(Protocol):
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""

    def __call__(
        self,
        q_tnd: Tensor,
        k_tnd: Tensor,
        v_tnd: Tensor,
        layout: Layout,
        dropout: float,
        relative: RelativeScores | None,
    ) -> Tensor: ...


class Case(NamedTuple):
    """One call, as far as the choice of a kernel depends on it."""

    device: str
    dtype: torch.dtype
    head_width: int
    longest: int
    mask: type[Mask]
    dropout: bool = False
    separate_keys: bool = False
    relative: bool = False
    ranked: bool = False
    segments: bool = False


@dataclass(frozen=True)
class Supports:
    """What a kernel can compute. None: no limit."""

    device: str | None
    masks: tuple[type[Mask], ...]
    dtypes: tuple[torch.dtype, ...] | None = None
    head_widths: tuple[int, ...] | None = None
    widest_head: int | None = None
    longest: int | None = None
    dropout: bool = False
    separate_keys: bool = False
    relative: bool = False
    ranked: bool = False  # an order of the keys, or queries at positions of their own
    segments: bool = False  # scores by segment
    plain: bool = True  # scores without distances
    missing: str = ""  # what this installation lacks for it

    def refusal(self, case: Case) -> str:
        """Return why a call is not supported; empty if it is."""
        if self.device is not None and case.device != self.device:
            return f"needs {self.device}"
        if self.missing:
            return self.missing
        if self.dtypes is not None and case.dtype not in self.dtypes:
            return "needs half precision"
        if self.head_widths is not None and case.head_width not in self.head_widths:
            return "not for heads of this width"
        if self.widest_head is not None and case.head_width > self.widest_head:
            return f"only for heads up to a width of {self.widest_head}"
        if case.mask not in self.masks:
            return f"has no {NAMES[case.mask]} mask"
        if case.dropout and not self.dropout:
            return "has no dropout"
        if case.separate_keys and not self.separate_keys:
            return "needs keys from the same tokens"
        if case.relative and not self.relative:
            return "has no scores by distance"
        if case.ranked and not self.ranked:
            return "has no order of the keys"
        if case.segments and not self.segments:
            return "has no scores by segment"
        if not (case.relative or self.plain):
            return "only for scores by distance"
        if self.longest is not None and case.longest > self.longest:
            return f"only up to {self.longest} tokens"
        return ""


@dataclass(frozen=True)
class Kernel:
    """One way to compute attention. `attend_fused` takes queries, keys and values as one tensor (t x 3 x n x d)."""

    name: str
    about: str
    supports: Supports
    attend: Attend
    attend_fused: Callable[[Tensor, Layout], Tensor] | None = None
