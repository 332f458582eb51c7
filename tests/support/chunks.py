"""Attention over chunks by its definition: who meets whom, and a dense softmax over it, in float64."""

import torch
from torch import Tensor

from bertree.model.kernels.chunks.order import (
    ChunkOrder,
    ChunkSettings,
    Rings,
    bucket_counts,
    bucket_order,
    fixed_rotations,
    hash_buckets,
    text_order,
)


def bounds(lengths: list[int]) -> Tensor:
    """The boundaries of sequences of these lengths."""
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)


def meetings(rounds: list[list[int]], settings: ChunkSettings) -> Tensor:
    """How often each query of a sequence meets each key; `rounds`: the buckets of its tokens in each round."""
    size = len(rounds[0])
    lines = [sorted(range(size), key=lambda place: (buckets[place], place)) for buckets in rounds]
    chunks = [[line[i : i + settings.length] for i in range(0, size, settings.length)] for line in lines]
    rings = chunks if settings.counts_once or len(chunks[0]) == 1 else [[chunk for line in chunks for chunk in line]]
    times = torch.zeros(size, size, dtype=torch.int64)
    for ring in rings:
        for i, chunk in enumerate(ring):
            window = range(i - settings.before, i + settings.after + 1) if len(chunks[0]) > 1 else (i,)
            for j in {place % len(ring) for place in window}:
                for query in chunk:
                    times[query, ring[j]] += 1
    return times


def visible(times: Tensor, settings: ChunkSettings) -> Tensor:
    """The meetings that count: not those with later tokens if causal, nor with itself unless there is no other."""
    if settings.causal:
        times = times.tril()
    if settings.hides_self:
        others = times.clone().fill_diagonal_(0)
        times = torch.where(others.any(-1, keepdim=True), others, times)
    return (times > 0).long() if settings.counts_once else times


def definition(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, lengths: list[int], buckets_nrt: Tensor, settings: ChunkSettings
) -> Tensor:
    """Mixed values, dense (t x n x d, float64)."""
    heads, start, mixed = q_tnd.shape[1], 0, []
    for size in lengths:
        of = slice(start, start + size)
        rows = []
        for head in range(heads):
            times = visible(meetings(buckets_nrt[head, :, of].tolist(), settings), settings)
            q, k, v = (x_tnd[of, head].double() for x_tnd in (q_tnd, k_tnd, v_tnd))
            scores = q @ k.T / q.shape[1] ** 0.5 + times.double().log()
            rows.append(scores.softmax(-1) @ v)
        mixed.append(torch.stack(rows, 1))
        start += size
    return torch.cat(mixed) if mixed else q_tnd.double()


def hashed(
    qk_tnd: Tensor,
    lengths: list[int],
    settings: ChunkSettings,
    rounds: int,
    buckets: tuple[int, ...] | None = None,
    rotations: tuple[Tensor, ...] | None = None,
) -> tuple[ChunkOrder, Tensor]:
    """The order by buckets, and the buckets (n x r x t)."""
    cu_seqlens, (tokens, heads, width) = bounds(lengths), qk_tnd.shape
    rings = Rings.of(cu_seqlens, tokens, settings, rounds)
    counts = bucket_counts(cu_seqlens.diff(), max(lengths, default=0), settings.length, buckets)
    if rotations is None:
        rotations = fixed_rotations(0, 0, heads, width, rounds, counts.axes)
    buckets_nrt = hash_buckets(qk_tnd, rotations, counts, rings.sequence_ids_t)
    return bucket_order(rings, buckets_nrt, counts.most, settings.length), buckets_nrt


def as_written(lengths: list[int], settings: ChunkSettings) -> tuple[ChunkOrder, Tensor]:
    """The order of the text, and one bucket for all tokens (1 x 1 x t)."""
    tokens = sum(lengths)
    rings = Rings.of(bounds(lengths), tokens, settings)
    return text_order(rings, settings.length), torch.zeros(1, 1, tokens, dtype=torch.int64)


def unit_keys(qk_tnd: Tensor) -> Tensor:
    """Queries as keys: of unit length once scores are divided by sqrt(d)."""
    return qk_tnd * (qk_tnd.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
