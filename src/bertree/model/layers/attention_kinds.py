"""The attention of the layers, by the axes `attention` and `shared_qk`."""

from collections.abc import Callable
from typing import NamedTuple

from bertree.model.architecture import Transformer
from bertree.model.kernels.chunks.order import ChunkSettings
from bertree.model.layers.attention import Attention
from bertree.model.layers.lsh import ChunkedAttention, Hashing, LshAttention, SharedQueryKeyAttention
from bertree.model.layers.positions import Positions, build_attention_positions
from bertree.model.masks import Causal, CausalButSelf, Full, FullButSelf, Mask, SlidingWindow


class Slot(NamedTuple):
    """The index of an attention among those that are stored, and its positions."""

    depth: int
    positions: Positions | None


def _plain(a: Transformer, mask: Mask, slot: Slot) -> Attention:
    return Attention(a.width, a.heads, a.attention_dropout, mask, slot.positions, a.attention_bias, a.head_width)


def _shared(a: Transformer, mask: Mask, slot: Slot) -> Attention:
    return SharedQueryKeyAttention(
        a.width, a.heads, a.attention_dropout, mask, slot.positions, a.attention_bias, a.head_width
    )


def _full(a: Transformer, slot: Slot) -> Attention:
    return _shared(a, FullButSelf(), slot) if a.shared_qk else _plain(a, Full(), slot)


def _causal(a: Transformer, slot: Slot) -> Attention:
    if a.shared_qk:
        return _shared(a, CausalButSelf(), slot)
    return _plain(a, SlidingWindow(a.memory - 1, 0) if a.same_length else Causal(), slot)


def _local(a: Transformer, slot: Slot) -> Attention:
    return _plain(a, SlidingWindow(a.window, a.window if a.look_ahead else 0), slot)


def _chunked(a: Transformer, slot: Slot) -> Attention:
    settings = ChunkSettings(a.chunk_length, a.chunks_before, a.chunks_after, not a.look_ahead)
    return ChunkedAttention(
        settings, a.width, a.heads, a.attention_dropout, slot.positions, a.attention_bias, a.head_width
    )


def _lsh(a: Transformer, slot: Slot) -> Attention:
    settings = ChunkSettings(
        a.lsh_chunk_length,
        a.lsh_chunks_before,
        a.lsh_chunks_after,
        causal=not a.look_ahead,
        hides_self=True,
        counts_once=a.duplicates == "once",
    )
    buckets = None if a.buckets == "0" else tuple(int(count) for count in a.buckets.split(","))
    hashing = Hashing(a.hashes, a.eval_hashes or a.hashes, buckets, a.hash_seed, slot.depth)
    return LshAttention(
        settings, hashing, a.width, a.heads, a.attention_dropout, slot.positions, a.attention_bias, a.head_width
    )


# What is built for each value of the axis `attention` (architecture.ATTENTION); a new kind also has a row in cost.KEYS.
KINDS: dict[str, Callable[[Transformer, Slot], Attention]] = {
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
    positions = build_attention_positions(a, kinds)
    return [KINDS[kind](a, Slot(depth, positions[depth])) for depth, kind in enumerate(kinds)]
