"""Locality-sensitive hashing: similar vectors are likely to share a bucket (Reformer).

A vector's bucket is the axis, of some random ones, that it lies nearest to; an axis and its opposite are two buckets.
Many buckets are made of two factors, each hashed with rotations of its own, so that there are fewer axes than buckets.
Nothing is read on the host.

Shape letters: t tokens, s sequences, n heads, d head width, r rounds, x axes (half of the buckets), f factors.
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
    """Return the buckets of sequences of such lengths, the longest of which the host knows.

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

    Every number has a counter of its own: the rotations of fewer axes, rounds or heads are part of those of more.
    """
    found = []
    for factor, count in enumerate(axes):
        sizes = (heads, width, rounds, count)
        head, component, turn, axis = torch.meshgrid([torch.arange(size) for size in sizes], indexing="ij")
        counters = ((axis * 2**10 + turn) * 2**14 + head) * 2**16 + component
        key = random_key(seed, depth, factor, "rotations")
        found.append(torch.from_numpy(normal(key, counters.numpy())))
    return tuple(found)


def hash_buckets(qk_tnd: Tensor, rotations: tuple[Tensor, ...], counts: BucketCounts, sequence_ids_t: Tensor) -> Tensor:
    """Return the bucket of each token in each round (n x r x t, int64)."""
    if not triton_line.refusal(qk_tnd):
        return triton_line.hash_buckets(qk_tnd, rotations, counts.of_s, sequence_ids_t)
    found: Tensor = _hash_buckets(qk_tnd.detach(), list(rotations), list(counts.of_s), sequence_ids_t)
    return found


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
