"""The order of tokens for attention over chunks: a line of slots, cut into chunks.

In every round the tokens of a sequence lie side by side, sorted by bucket and then by place, from the start of a chunk;
slots behind a sequence's last token are empty. The chunks of a sequence in a round are a ring: the first follows the
last. A chunk sees itself and its neighbours in the ring, each of them once; a sequence of one chunk sees all of itself.
Where keys count each time they are met, the rounds of a sequence are one ring, as in Hugging Face's implementation.

Sizes depend on the number of tokens and sequences alone, so that nothing is read on the host: a round has as many
chunks as sequences of any lengths could need, and those at its end may be empty.

Shape letters: t tokens, s sequences, n heads, a lines (n, or 1 for all heads), r rounds, c chunks of all rounds, l
slots of all rounds, w chunks that a chunk sees.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bertree.model.kernels.chunks import triton_line

EMPTY = triton_line.EMPTY_PLACE  # the place of an empty slot: behind every token


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
    places_al: Tensor  # int32: its place in its sequence; EMPTY in empty ones
    slots_art: Tensor  # int64: the slot of each token in each round
    neighbours_cw: Tensor  # int64: the chunks that a chunk sees, itself first; -1: none

    @property
    def rounds(self) -> int:
        """Rounds of hashing."""
        return self.slots_art.shape[1]


class Rings(NamedTuple):
    """Where the tokens of packed sequences lie in a line of one round."""

    sequence_ids_t: Tensor
    places_t: Tensor
    slots_t: Tensor  # of the tokens as they lie in the stream
    neighbours_cw: Tensor  # of all rounds
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
        places_t = stream_t - starts[ids_t]
        chunks_s = (starts.diff() + length - 1) // length
        ends_s = chunks_s.cumsum(0)
        first_s = ends_s - chunks_s
        chunks = (tokens + count * (length - 1)) // length
        chunk_c = torch.arange(chunks, device=device)
        owner_c = torch.searchsorted(ends_s, chunk_c, right=True)
        is_used_c, owner_c = owner_c < count, owner_c.clamp(max=max(0, count - 1))
        size_c = torch.where(is_used_c, chunks_s[owner_c], 1)
        neighbours_cw = _neighbours(chunk_c - first_s[owner_c], size_c, settings, rounds)
        return cls(ids_t, places_t, places_t + first_s[ids_t] * length, neighbours_cw, count)


def _neighbours(place_c: Tensor, size_c: Tensor, settings: ChunkSettings, rounds: int) -> Tensor:
    """Return the chunks that a chunk sees (c x w), from its place among those of its sequence and their number."""
    before, joined = settings.before, not settings.counts_once
    chunk_c = torch.arange(len(place_c), device=place_c.device)
    round_c = torch.arange(rounds, device=place_c.device).repeat_interleave(len(place_c))
    first_c, place_c, size_c = (x_c.repeat(rounds) for x_c in (chunk_c - place_c, place_c, size_c))
    ring_c = torch.where(size_c > 1, size_c * rounds, 1) if joined else size_c
    columns = []
    for step in (*range(0, -before - 1, -1), *range(1, settings.after + 1)):
        if joined:
            turned_c = (round_c * size_c + place_c + step) % (size_c * rounds)
            seen_c = turned_c // size_c * len(chunk_c) + first_c + turned_c % size_c
        else:
            seen_c = round_c * len(chunk_c) + first_c + (place_c + step) % size_c
        is_new_c = (-step if step <= 0 else step + before) < ring_c  # no other step leads to this chunk
        columns.append(torch.where(is_new_c, seen_c, -1) if step else round_c * len(chunk_c) + chunk_c.repeat(rounds))
    return torch.stack(columns, 1)


def text_order(rings: Rings, length: int) -> ChunkOrder:
    """Return the order of the text, the same for all heads."""
    stream_t = torch.arange(len(rings.slots_t), device=rings.slots_t.device)
    return _order(rings, stream_t[None, None], length)


def bucket_order(rings: Rings, buckets_nrt: Tensor, most: int, length: int) -> ChunkOrder:
    """Return the order by buckets, of which there are at most `most` in a sequence."""
    if buckets_nrt.is_cuda and not triton_line.MISSING:
        size = len(rings.neighbours_cw) // buckets_nrt.shape[1] * length
        line = triton_line.line(buckets_nrt, *rings[:3], rings.sequences, most, size)
        return ChunkOrder(*line, rings.neighbours_cw)
    sorted_nrt = (rings.sequence_ids_t * most + buckets_nrt).argsort(dim=-1, stable=True)
    return _order(rings, sorted_nrt, length)


def _order(rings: Rings, sorted_art: Tensor, length: int) -> ChunkOrder:
    """Put tokens, sorted within their sequences, into slots."""
    lines, rounds = sorted_art.shape[:2]
    size = len(rings.neighbours_cw) // rounds * length  # slots of a round
    tokens_arl = sorted_art.new_zeros(lines, rounds, size).index_copy_(2, rings.slots_t, sorted_art)
    places_arl = torch.full((lines, rounds, size), EMPTY, dtype=torch.int32, device=sorted_art.device)
    places_arl.index_copy_(2, rings.slots_t, rings.places_t.to(torch.int32)[sorted_art])
    offset_r1 = torch.arange(rounds, device=sorted_art.device)[:, None] * size
    slots_art = torch.empty_like(sorted_art).scatter_(2, sorted_art, (rings.slots_t + offset_r1).expand_as(sorted_art))
    return ChunkOrder(tokens_arl.flatten(1), places_arl.flatten(1), slots_art, rings.neighbours_cw)
