"""The attention of the layers, by the axes `attention` and `shared_qk`, and that of Reformer (Kitaev et al. 2020).

Reformer's queries are keys too, over hashed chunks; chunks of the text are another kind.

Shape letters: t tokens, n heads, d head width, h width, r rounds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.kernels.chunks.attend import attend_chunks, unit_length
from bertree.model.kernels.chunks.order import (
    ChunkSettings,
    Rings,
    bucket_counts,
    bucket_order,
    draw_rotations,
    fixed_rotations,
    hash_buckets,
    text_order,
)
from bertree.model.kernels.layout import Layout, RelativeScores
from bertree.model.kernels.table import attend
from bertree.model.layers.attention import Attention
from bertree.model.layers.positions import POSITIONS, Positions
from bertree.model.layers.stack import chosen
from bertree.model.masks import Causal, CausalButSelf, Chunks, Full, FullButSelf, SlidingWindow

MORE = 8  # components of queries and keys that are added for the first token of a sequence: kernels want multiples of 8
VERY_LOW = 2.0**14


class AttentionShape(TypedDict):
    """The arguments that attention of every kind is built with."""

    width: int
    heads: int
    dropout: float
    positions: Positions | None
    bias: bool
    head_width: int


class SharedQueryKeyAttention(Attention):
    """Attention whose queries are keys too, of unit length; a token sees itself only if it sees no other."""

    fuses = False

    def _add_projection(self, width: int, bias: bool) -> None:
        self.qv = nn.Linear(width, 2 * self.heads * self.head_width, bias=bias)

    def project(self, x_th: Tensor, source_kh: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of tokens (t x n x d)."""
        assert source_kh is None, "queries are keys of the same tokens"
        qv_t2nd = self.qv(x_th).unflatten(-1, (2, self.heads, self.head_width))
        q_tnd = qv_t2nd[:, 0]
        return q_tnd, unit_length(q_tnd), qv_t2nd[:, 1]

    def attend_within(
        self, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, relative: RelativeScores | None
    ) -> Tensor:
        """Queries, keys and values of a batch's tokens, changed by their positions -> mixed values (t x n x d)."""
        if q_tnd.is_cuda and isinstance(self.mask, CausalButSelf) and relative is None:
            return attend_to_earlier(q_tnd, k_tnd, v_tnd, batch, self._dropout_now)
        return super().attend_within(q_tnd, k_tnd, v_tnd, batch, relative)


def attend_to_earlier(q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, dropout: float = 0.0) -> Tensor:
    """Return what tokens mix of those before them, the first of a sequence of itself, by a kernel for causal attention.

    Keys and values are moved by one position. The first position then holds the first token's own, and a further
    component of queries and keys makes its score very low: only the first token, which sees nothing else, uses it.
    """
    width = q_tnd.shape[-1]
    is_first_t11 = torch.zeros(len(q_tnd) + 1, 1, 1, dtype=torch.bool, device=q_tnd.device)
    is_first_t11 = is_first_t11.index_fill_(0, batch.cu_seqlens[:-1].long(), True)[:-1]
    k_tnd, v_tnd = (torch.where(is_first_t11, x_tnd, x_tnd.roll(1, 0)) for x_tnd in (k_tnd, v_tnd))
    low_tn1 = (is_first_t11 * -VERY_LOW).to(k_tnd.dtype).expand(-1, k_tnd.shape[1], 1)
    q_tnd = nn.functional.pad(q_tnd * ((width + MORE) / width) ** 0.5, (0, MORE), value=1.0)
    k_tnd = nn.functional.pad(torch.cat([k_tnd, low_tn1], -1), (0, MORE - 1))
    v_tnd = nn.functional.pad(v_tnd, (0, MORE))
    return attend(q_tnd, k_tnd, v_tnd, Layout.of(batch, Causal()), dropout, None)[..., :width]


class ChunkedAttention(Attention):
    """Attention of each chunk of a sequence to itself and to its neighbors: Reformer's local attention."""

    fuses = False

    def __init__(self, settings: ChunkSettings, **shape: Unpack[AttentionShape]) -> None:
        super().__init__(mask=Chunks(*settings[:4]), **shape)
        self.settings = settings

    def attend_within(
        self, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, relative: RelativeScores | None
    ) -> Tensor:
        """Queries, keys and values of a batch's tokens, changed by their positions -> mixed values (t x n x d)."""
        assert relative is None, "attention over chunks has no scores by distance"
        rings = Rings.of(batch.cu_seqlens, len(q_tnd), self.settings)
        order = text_order(rings, self.settings.length)
        return attend_chunks(q_tnd, k_tnd, v_tnd, order, self.settings, self._dropout_now)


class Hashing(NamedTuple):
    """How the tokens of a layer are hashed."""

    rounds: int
    eval_rounds: int  # outside of training
    buckets: tuple[int, ...] | None  # factors; None: from the length of each sequence
    seed: int  # of the rotations outside of training
    depth: int  # the index of the attention among those that are stored


class LshAttention(SharedQueryKeyAttention):
    """Attention of tokens that hash alike: sorted by their buckets, each chunk sees itself and its neighbors.

    In training new rotations are drawn at every step; otherwise they depend on seed and layer. A cache is attended to
    exactly, token by token.
    """

    def __init__(self, settings: ChunkSettings, hashing: Hashing, **shape: Unpack[AttentionShape]) -> None:
        super().__init__(mask=CausalButSelf() if settings.causal else FullButSelf(), **shape)
        self.settings, self.hashing = settings, hashing
        self.all_heads, self.own_heads = self.heads, slice(None)  # a layer may compute some heads of a larger one
        self._fixed: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}  # rotations outside of training

    def project_within(self, x_th: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, again queries, and values of tokens (t x n x d): keys are made where they are attended to."""
        q_tnd, v_tnd = self.qv(x_th).unflatten(-1, (2, self.heads, self.head_width)).unbind(1)
        return q_tnd, q_tnd, v_tnd

    def attend_within(
        self, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, relative: RelativeScores | None
    ) -> Tensor:
        """Queries, keys and values of a batch's tokens, changed by their positions -> mixed values (t x n x d)."""
        assert relative is None, "attention over chunks has no scores by distance"
        settings = self.settings
        counts = bucket_counts(batch.lengths, batch.max_seqlen, settings.length, self.hashing.buckets)
        rotations = self.rotations(counts.axes, q_tnd)
        rings = Rings.of(batch.cu_seqlens, len(q_tnd), settings, rotations[0].shape[2])
        buckets_nrt = chosen(lambda: hash_buckets(q_tnd, rotations, counts, rings.sequence_ids_t))
        order = bucket_order(rings, buckets_nrt, counts.most, settings.length)
        return attend_chunks(q_tnd, None, v_tnd, order, settings, self._dropout_now)

    def rotations(self, axes: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
        """Return the rotations of each factor of the buckets (n x d x r x axes)."""
        if self.training:
            drawn = draw_rotations(self.all_heads, self.head_width, self.hashing.rounds, axes, like)
            return tuple(rotation[self.own_heads] for rotation in drawn)
        # Not traced by the compiler, and not decorated: that imports the compiler, which takes seconds.
        fixed = (
            torch.compiler.disable(self._fixed_rotations) if torch.compiler.is_compiling() else self._fixed_rotations
        )
        return fixed(axes, like.device)

    def _fixed_rotations(self, axes: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
        if (axes, device) not in self._fixed:
            _, rounds, _, seed, depth = self.hashing
            drawn = fixed_rotations(seed, depth, self.all_heads, self.head_width, rounds, axes)
            self._fixed[axes, device] = tuple(rotation[self.own_heads].to(device) for rotation in drawn)
        return self._fixed[axes, device]


def _full(a: Transformer, shape: AttentionShape, depth: int) -> Attention:
    return SharedQueryKeyAttention(mask=FullButSelf(), **shape) if a.shared_qk else Attention(mask=Full(), **shape)


def _causal(a: Transformer, shape: AttentionShape, depth: int) -> Attention:
    if a.shared_qk:
        return SharedQueryKeyAttention(mask=CausalButSelf(), **shape)
    return Attention(mask=SlidingWindow(a.memory - 1, 0) if a.same_length else Causal(), **shape)


def _local(a: Transformer, shape: AttentionShape, depth: int) -> Attention:
    return Attention(mask=SlidingWindow(a.window, a.window if a.look_ahead else 0), **shape)


def _chunked(a: Transformer, shape: AttentionShape, depth: int) -> Attention:
    return ChunkedAttention(ChunkSettings(a.chunk_length, a.chunks_before, a.chunks_after, not a.look_ahead), **shape)


def _lsh(a: Transformer, shape: AttentionShape, depth: int) -> Attention:
    settings = ChunkSettings(
        a.lsh_chunk_length,
        a.lsh_chunks_before,
        a.lsh_chunks_after,
        causal=not a.look_ahead,
        hides_self=True,
        counts_once=a.duplicates == "once",
    )
    buckets = None if a.buckets == "0" else tuple(int(count) for count in a.buckets.split(","))
    hashing = Hashing(a.hashes, a.eval_hashes or a.hashes, buckets, a.hash_seed, depth)
    return LshAttention(settings, hashing, **shape)


# What is built for each value of the axis `attention` (architecture.ATTENTION); a new kind also has a row in cost.KEYS.
KINDS: dict[str, Callable[[Transformer, AttentionShape, int], Attention]] = {
    "full": _full,
    "causal": _causal,
    "local": _local,
    "chunked": _chunked,
    "lsh": _lsh,
}


def build_attention(a: Transformer) -> list[Attention]:
    """Build the attention of the layers; what layers share is built once."""
    kinds = list(
        dict(zip(a.sharing_indices("attention"), a.attention_kinds, strict=True)).values()
    )  # of each stored copy
    shapes = [
        AttentionShape(
            width=a.width,
            heads=a.heads,
            dropout=a.attention_dropout,
            positions=positions,
            bias=a.attention_bias,
            head_width=a.head_width,
        )
        for positions in POSITIONS[a.positions].attention(a, kinds)
    ]
    return [KINDS[kind](a, shape, depth) for depth, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))]
