"""Buckets by locality-sensitive hashing."""

import math

import pytest
import torch

from bertree.model.kernels.chunks.order import bucket_counts, draw_rotations, fixed_rotations, hash_buckets


def _automatic(length: int, chunk: int) -> list[int]:
    """Buckets from a length, written out as transformers has it (`_set_num_buckets`)."""
    power = max(1, (2 * (length // chunk)).bit_length() - 1)
    if 2**power <= 2 * chunk:
        return [2**power, 1]
    return [2 ** (power // 2), 2 ** (power - power // 2)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 16, 64])
def test_buckets_follow_from_each_sequences_own_length(chunk: int) -> None:
    lengths = [0, 1, *range(chunk - 1, 40 * chunk, chunk // 2 + 1), 1000, 5000, 70_000]
    counts = bucket_counts(torch.tensor(lengths), max(lengths), chunk)
    for s, length in enumerate(lengths):
        expected = _automatic(length, chunk)
        assert [int(of_s[s]) for of_s in counts.of_s] == expected
        assert all(count // 2 <= axes for count, axes in zip(expected, counts.axes, strict=True))
        alone = bucket_counts(torch.tensor([length]), length, chunk)
        assert [2 * axes for axes in alone.axes] == [count for count in expected if count > 1]
        assert math.prod(expected) <= alone.most <= counts.most


def test_a_bucket_is_the_nearest_axis_or_its_opposite() -> None:
    torch.manual_seed(0)
    qk = torch.randn(50, 3, 8)
    counts = bucket_counts(torch.tensor([50]), 50, 16, (6,))
    rotations = draw_rotations(3, 8, 2, counts.axes, qk)
    buckets = hash_buckets(qk, rotations, counts, torch.zeros(50, dtype=torch.int64))
    turned = torch.einsum("tnd,ndrx->nrtx", qk, rotations[0])
    assert torch.equal(buckets, torch.cat([turned, -turned], -1).argmax(-1))
    opposite = hash_buckets(-qk, rotations, counts, torch.zeros(50, dtype=torch.int64))
    assert torch.equal(opposite, (buckets + 3) % 6)
    assert torch.equal(hash_buckets(5 * qk, rotations, counts, torch.zeros(50, dtype=torch.int64)), buckets)


def test_factors_are_combined() -> None:
    torch.manual_seed(0)
    qk, ids = torch.randn(40, 2, 8), torch.zeros(40, dtype=torch.int64)
    both = bucket_counts(torch.tensor([40]), 40, 4, (4, 6))
    first, second = draw_rotations(2, 8, 3, both.axes, qk)
    parts = [
        hash_buckets(qk, (rotation,), bucket_counts(torch.tensor([40]), 40, 4, (count,)), ids)
        for rotation, count in ((first, 4), (second, 6))
    ]
    assert torch.equal(hash_buckets(qk, (first, second), both, ids), parts[0] + 4 * parts[1])


def test_buckets_of_a_sequence_do_not_depend_on_the_batch() -> None:
    lengths, chunk = [3, 9, 40, 100, 0, 17], 2
    torch.manual_seed(0)
    qk = torch.randn(sum(lengths), 2, 8)
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    counts = bucket_counts(torch.tensor(lengths), max(lengths), chunk)
    together = hash_buckets(qk, fixed_rotations(3, 1, 2, 8, 2, counts.axes), counts, ids)
    start = 0
    for length in lengths:
        alone = bucket_counts(torch.tensor([length]), length, chunk)
        rotations = fixed_rotations(3, 1, 2, 8, 2, alone.axes)
        part = qk[start : start + length]
        buckets = hash_buckets(part, rotations, alone, torch.zeros(length, dtype=torch.int64))
        assert torch.equal(buckets, together[:, :, start : start + length])
        start += length


def test_fixed_rotations_depend_on_seed_layer_and_factor_alone() -> None:
    few, more = fixed_rotations(0, 2, 2, 8, 1, (4,)), fixed_rotations(0, 2, 3, 8, 4, (16, 4))
    assert torch.equal(few[0], more[0][:2, :, :1, :4])
    for other in (fixed_rotations(1, 2, 2, 8, 1, (4,)), fixed_rotations(0, 3, 2, 8, 1, (4,)), more[1:]):
        assert not torch.equal(few[0], other[0][:2, :, :1, :4])
    many = fixed_rotations(0, 0, 8, 64, 4, (32,))[0].double()
    assert abs(many.mean()) < 0.02
    assert abs(many.std() - 1) < 0.02
    assert abs((many**4).mean() - 3) < 0.1


def test_similar_vectors_share_a_bucket_more_often() -> None:
    torch.manual_seed(0)
    a = torch.randn(2000, 1, 16)
    counts, ids = bucket_counts(torch.tensor([2000]), 2000, 64, (16,)), torch.zeros(2000, dtype=torch.int64)
    rotations = draw_rotations(1, 16, 4, counts.axes, a)
    shares = []
    for noise in (0.1, 0.5, 1.0, 3.0):
        b = a + noise * torch.randn_like(a)
        same = hash_buckets(a, rotations, counts, ids) == hash_buckets(b, rotations, counts, ids)
        shares.append(float(same.float().mean()))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.8
    assert 1 / 16 < shares[-1] < 0.3
