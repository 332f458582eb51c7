"""The order of tokens for attention over chunks: buckets by locality-sensitive hashing, and a line of slots.

A vector's bucket is the axis, of some random ones, that it is nearest to; an axis and its opposite are two buckets, so
similar vectors are likely to share a bucket (Reformer). Many buckets are made of two factors, each hashed with
rotations of its own, so that there are fewer axes than buckets.

In every round the tokens of a sequence lie side by side, sorted by bucket and then by position, from the start of a
chunk; slots behind a sequence's last token are empty. The chunks of a sequence in a round are a ring: the first follows
the last. A chunk sees itself and its neighbors in the ring, each of them once; a sequence of one chunk sees all of
itself. Where keys count each time they are met, the rounds of a sequence are one ring, as in Hugging Face's
implementation.

Sizes depend on the number of tokens and sequences alone, so that nothing is read on the host: a round has as many
chunks as sequences of any lengths could need, and those at its end may be empty.

Shape letters: t tokens, s sequences, n heads, d head width, a lines (n, or 1 for all heads), r rounds, x axes (half of
the buckets), f factors, c chunks of all rounds, l slots of all rounds, w chunks that a chunk sees.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from bertree.keyed_random import key as random_key
from bertree.keyed_random import normal
from bertree.model.kernels.chunks import triton_line
from bertree.model.kernels.operators import fake_of, operator

_BLOCK = 2**18  # numbers that are hashed at a time


class BucketCounts(NamedTuple):
    """How many buckets the tokens of each sequence fall into, factor by factor."""

    of_s: tuple[Tensor, ...]  # f x s, int64: even; 1 where a sequence does not have this factor
    axes: tuple[int, ...]  # f: half of the most buckets, on the host

    @property
    def most(self) -> int:
        """No sequence has more buckets."""
        return math.prod([2 * count for count in self.axes])


def bucket_counts(
    lengths_s: Tensor, longest: int, chunk_length: int, buckets: tuple[int, ...] | None = None
) -> BucketCounts:
    """Return the buckets of sequences of these lengths. `longest`: the longest, known on the host.

    `buckets`: the factors of all sequences. None: the power of two at or below twice a sequence's chunks, at least 2,
    in two factors if it is above twice the chunk length.
    """
    if buckets is not None:
        of_s = tuple(torch.full_like(lengths_s, count, dtype=torch.int64) for count in buckets)
        return BucketCounts(of_s, tuple(count // 2 for count in buckets))
    most = max(1, (2 * (longest // chunk_length)).bit_length() - 1)
    powers = 2 ** torch.arange(2, most + 1, device=lengths_s.device)
    exponent_s = 1 + (2 * (lengths_s.long() // chunk_length)[:, None] >= powers).sum(-1)
    split = max(1, chunk_length.bit_length())  # the largest exponent of a count that is not above twice the length
    if most <= split:
        return BucketCounts((2**exponent_s,), (2**most // 2,))
    is_split_s = exponent_s > split
    first_s = 2 ** torch.where(is_split_s, exponent_s // 2, exponent_s)
    second_s = torch.where(is_split_s, 2 ** (exponent_s - exponent_s // 2), 1)
    # Where there are several sequences, some may be short enough to have all of their buckets in one factor.
    first = most // 2 if len(lengths_s) == 1 else max(split, most // 2)
    return BucketCounts((first_s, second_s), (2**first // 2, 2 ** (most - most // 2) // 2))


def draw_rotations(heads: int, width: int, rounds: int, axes: tuple[int, ...], like: Tensor) -> tuple[Tensor, ...]:
    """Draw the rotations of each factor (n x d x r x axes) from PyTorch's generator of the device."""
    return tuple(torch.randn(heads, width, rounds, count, device=like.device) for count in axes)


def fixed_rotations(
    seed: int, depth: int, heads: int, width: int, rounds: int, axes: tuple[int, ...]
) -> tuple[Tensor, ...]:
    """Return the rotations of each factor (n x d x r x axes) for a seed and a layer.

    Every number has a counter of its own: the rotations of fewer axes, rounds or heads are a subset of those of more.
    """
    rotations = []
    for factor, count in enumerate(axes):
        sizes = (heads, width, rounds, count)
        head, component, turn, axis = torch.meshgrid([torch.arange(size) for size in sizes], indexing="ij")
        counters = ((axis * 2**10 + turn) * 2**14 + head) * 2**16 + component
        key = random_key(seed, depth, factor, "rotations")
        rotations.append(torch.from_numpy(normal(key, counters.numpy())))
    return tuple(rotations)


def hash_buckets(qk_tnd: Tensor, rotations: tuple[Tensor, ...], counts: BucketCounts, sequence_ids_t: Tensor) -> Tensor:
    """Return the bucket of each token in each round (n x r x t, int64)."""
    if not triton_line.refusal(qk_tnd):
        return triton_line.hash_buckets(qk_tnd, rotations, counts.of_s, sequence_ids_t)
    buckets_nrt: Tensor = _hash_buckets(qk_tnd.detach(), list(rotations), list(counts.of_s), sequence_ids_t)
    return buckets_nrt


@operator("bertree::hash_buckets")
def _hash_buckets(qk_tnd: Tensor, rotations: list[Tensor], counts: list[Tensor], sequence_ids_t: Tensor) -> Tensor:
    tokens, heads, width = qk_tnd.shape
    rounds = rotations[0].shape[2]
    buckets_nrt = torch.zeros(heads, rounds, tokens, dtype=torch.int64, device=qk_tnd.device)
    times_t: Tensor | int = 1  # buckets of the factors before
    for rotation_ndrx, count_s in zip(rotations, counts, strict=True):
        axes = rotation_ndrx.shape[3]
        half_t = count_s[sequence_ids_t] // 2
        axes_x = torch.arange(axes, device=qk_tnd.device)
        step = max(1, _BLOCK // (rounds * axes))
        for start in range(0, tokens, step):
            block = slice(start, start + step)
            is_other_tx = axes_x >= half_t[block, None].clamp(min=1)
            for head in range(heads):
                rotation = rotation_ndrx[head].reshape(width, -1).to(qk_tnd.dtype)
                turned_trx = (qk_tnd[block, head] @ rotation).unflatten(-1, (rounds, axes))
                nearest_tr1 = turned_trx.abs().masked_fill_(is_other_tx[:, None], -1.0).argmax(-1, keepdim=True)
                is_opposite_tr = turned_trx.gather(-1, nearest_tr1)[..., 0] < 0
                bucket_tr = nearest_tr1[..., 0] + is_opposite_tr * half_t[block, None]
                if len(rotations) > 1:
                    bucket_tr = torch.where(half_t[block, None] > 0, bucket_tr, 0)
                    bucket_tr = bucket_tr * (times_t if isinstance(times_t, int) else times_t[block, None])
                buckets_nrt[head, :, block] += bucket_tr.T
        times_t = times_t * count_s[sequence_ids_t]
    return buckets_nrt


@fake_of("bertree::hash_buckets")
def _(qk_tnd: Tensor, rotations: list[Tensor], counts: list[Tensor], sequence_ids_t: Tensor) -> Tensor:
    shape = (qk_tnd.shape[1], rotations[0].shape[2], qk_tnd.shape[0])
    return qk_tnd.new_empty(shape, dtype=torch.int64)


EMPTY = triton_line.EMPTY_POSITION  # the position of an empty slot: behind every token


class ChunkSettings(NamedTuple):
    """How chunks are attended to."""

    length: int  # tokens of a chunk
    before: int  # chunks that a chunk sees before itself
    after: int
    causal: bool = False  # no token sees those after it in its sequence
    hides_self: bool = False  # a token sees itself only if it sees no other
    counts_once: bool = True  # a key that a query meets in several rounds counts once


class ChunkOrder(NamedTuple):
    """Which token is in which slot, and which chunks see each other.

    Chunks are numbered through all rounds; slots of chunk c are c * length ... (c + 1) * length - 1.
    """

    tokens_al: Tensor  # int64: the token in each slot; 0 in empty ones
    positions_al: Tensor  # int32: its position in its sequence; EMPTY in empty ones
    slots_art: Tensor  # int64: the slot of each token in each round
    neighbors_cw: Tensor  # int64: the chunks that a chunk sees, itself first; -1: none

    @property
    def rounds(self) -> int:
        """Rounds of hashing."""
        return self.slots_art.shape[1]


class Rings(NamedTuple):
    """Where the tokens of packed sequences lie in a line of one round."""

    sequence_ids_t: Tensor
    positions_t: Tensor
    slots_t: Tensor  # of the tokens in the order of the stream
    neighbors_cw: Tensor  # of all rounds
    sequences: int

    @classmethod
    def of(cls, cu_seqlens: Tensor, tokens: int, settings: ChunkSettings, rounds: int = 1) -> "Rings":
        """Return the rings of the sequences between the boundaries."""
        length = settings.length
        starts, device = cu_seqlens.long(), cu_seqlens.device
        count = len(starts) - 1
        stream_t = torch.arange(tokens, device=device)
        # All of the boundaries: PyTorch 2.11 cannot compile a search in a part of a tensor.
        ids_t = (torch.searchsorted(starts, stream_t, right=True) - 1).clamp(max=max(0, count - 1))
        positions_t = stream_t - starts[ids_t]
        chunks_s = (starts.diff() + length - 1) // length
        ends_s = chunks_s.cumsum(0)
        first_s = ends_s - chunks_s
        chunks = (tokens + count * (length - 1)) // length
        chunk_c = torch.arange(chunks, device=device)
        owner_c = torch.searchsorted(ends_s, chunk_c, right=True)
        is_used_c, owner_c = owner_c < count, owner_c.clamp(max=max(0, count - 1))
        size_c = torch.where(is_used_c, chunks_s[owner_c], 1)
        neighbors_cw = _neighbors(chunk_c - first_s[owner_c], size_c, settings, rounds)
        return cls(ids_t, positions_t, positions_t + first_s[ids_t] * length, neighbors_cw, count)


def _neighbors(position_c: Tensor, size_c: Tensor, settings: ChunkSettings, rounds: int) -> Tensor:
    """Return the chunks that a chunk sees (c x w), from its index among those of its sequence and their number."""
    before, joined = settings.before, not settings.counts_once
    chunk_c = torch.arange(len(position_c), device=position_c.device)
    round_c = torch.arange(rounds, device=position_c.device).repeat_interleave(len(position_c))
    first_c, position_c, size_c = (x_c.repeat(rounds) for x_c in (chunk_c - position_c, position_c, size_c))
    ring_c = torch.where(size_c > 1, size_c * rounds, 1) if joined else size_c
    columns = []
    for step in (*range(0, -before - 1, -1), *range(1, settings.after + 1)):
        if joined:
            turned_c = (round_c * size_c + position_c + step) % (size_c * rounds)
            seen_c = turned_c // size_c * len(chunk_c) + first_c + turned_c % size_c
        else:
            seen_c = round_c * len(chunk_c) + first_c + (position_c + step) % size_c
        is_new_c = (-step if step <= 0 else step + before) < ring_c  # no other step leads to this chunk
        columns.append(torch.where(is_new_c, seen_c, -1) if step else round_c * len(chunk_c) + chunk_c.repeat(rounds))
    return torch.stack(columns, 1)


def text_order(rings: Rings, length: int) -> ChunkOrder:
    """Return the order of the text, the same for all heads."""
    stream_t = torch.arange(len(rings.slots_t), device=rings.slots_t.device)
    return _order(rings, stream_t[None, None], length)


def bucket_order(rings: Rings, buckets_nrt: Tensor, most: int, length: int) -> ChunkOrder:
    """Return the order by buckets. `most`: the largest number of buckets of a sequence."""
    if buckets_nrt.is_cuda and not triton_line.MISSING:
        size = len(rings.neighbors_cw) // buckets_nrt.shape[1] * length
        line = triton_line.line(buckets_nrt, *rings[:3], rings.sequences, most, size)
        return ChunkOrder(*line, rings.neighbors_cw)
    sorted_nrt = (rings.sequence_ids_t * most + buckets_nrt).argsort(dim=-1, stable=True)
    return _order(rings, sorted_nrt, length)


def _order(rings: Rings, sorted_art: Tensor, length: int) -> ChunkOrder:
    """Put tokens, sorted within their sequences, into slots."""
    lines, rounds = sorted_art.shape[:2]
    size = len(rings.neighbors_cw) // rounds * length  # slots of a round
    tokens_arl = sorted_art.new_zeros(lines, rounds, size).index_copy_(2, rings.slots_t, sorted_art)
    positions_arl = torch.full((lines, rounds, size), EMPTY, dtype=torch.int32, device=sorted_art.device)
    positions_arl.index_copy_(2, rings.slots_t, rings.positions_t.to(torch.int32)[sorted_art])
    offset_r1 = torch.arange(rounds, device=sorted_art.device)[:, None] * size
    slots_art = torch.empty_like(sorted_art).scatter_(2, sorted_art, (rings.slots_t + offset_r1).expand_as(sorted_art))
    return ChunkOrder(tokens_arl.flatten(1), positions_arl.flatten(1), slots_art, rings.neighbors_cw)
