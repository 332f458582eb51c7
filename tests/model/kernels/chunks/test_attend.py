"""Attention over chunks against its dense definition."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bertree.model.kernels.chunks import attend
from bertree.model.kernels.chunks.attend import attend_chunks
from bertree.model.kernels.chunks.order import ChunkOrder, ChunkSettings
from tests.support.attention import with_gradients
from tests.support.chunks import as_written, bounds, definition, hashed, unit_keys
from tests.support.shared import suite_has

RAGGED = [7, 33, 1, 64, 0, 16, 17, 90]
WINDOWS = [(1, 0), (0, 0), (1, 1), (2, 0), (0, 2), (3, 4)]


def random_qkv(tokens: int, heads: int = 2, width: int = 8, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(tokens, heads, width, generator=draw, dtype=torch.float64) for _ in range(3)]


# Rounds, and numbers of a group: one chunk at a time, some, all.
GROUPED = [(1, 2**11), (1, 2**18), (2, 2**6), (4, 2**11), (4, 2**18)]


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("rounds", "group"), suite_has([(1, 2**18), (2, 2**6)], GROUPED))
def test_hashed_attention_and_its_gradients_equal_the_dense_definition(
    rounds: int, group: int, causal: bool, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend, "GROUP", group)
    settings = ChunkSettings(16, 1, 0, causal, hides_self=True, counts_once=once)
    q, k, v = random_qkv(sum(RAGGED))
    order, buckets = hashed(q, RAGGED, settings, rounds)
    ours = with_gradients(lambda *qkv: attend_chunks(*qkv, order, settings), [q, k, v])
    dense = with_gradients(lambda *qkv: definition(*qkv, RAGGED, buckets, settings), [q, k, v])
    for mine, theirs in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(("before", "after"), WINDOWS)
def test_a_chunk_sees_each_of_its_neighbours_once(before: int, after: int, once: bool) -> None:
    settings = ChunkSettings(4, before, after, hides_self=True, counts_once=once)
    lengths = [1, 4, 5, 8, 12, 13, 40]
    q, k, v = random_qkv(sum(lengths))
    order, buckets = hashed(q, lengths, settings, rounds=2, buckets=(4,))
    expected = definition(q, k, v, lengths, buckets, settings)
    torch.testing.assert_close(attend_chunks(q, k, v, order, settings), expected)
    for seen in order.neighbors_cw.tolist():
        chunks = [chunk for chunk in seen if chunk >= 0]
        assert len(chunks) == len(set(chunks))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("before", "after"), WINDOWS)
def test_attention_over_chunks_of_the_text_equals_the_dense_definition(before: int, after: int, causal: bool) -> None:
    settings = ChunkSettings(16, before, after, causal)
    q, k, v = random_qkv(sum(RAGGED))
    order, buckets = as_written(RAGGED, settings)
    ours = with_gradients(lambda *qkv: attend_chunks(*qkv, order, settings), [q, k, v])
    dense = with_gradients(lambda *qkv: definition(*qkv, RAGGED, buckets.expand(2, -1, -1), settings), [q, k, v])
    for mine, theirs in zip(ours, dense, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_one_bucket_and_one_window_for_all_is_exact_attention() -> None:
    settings = ChunkSettings(8, 7, 0, hides_self=False)
    q, k, v = random_qkv(50)
    order, _ = hashed(q, [50], settings, rounds=3, buckets=(4, 2))
    exact = torch.einsum("nqk,knd->qnd", (torch.einsum("qnd,knd->nqk", q, k) / 8**0.5).softmax(-1), v)
    torch.testing.assert_close(attend_chunks(q, k, v, order, settings), exact)


@pytest.mark.slow
def test_gradients_by_differences() -> None:
    settings = ChunkSettings(4, 1, 0, causal=True, hides_self=True)
    qk, v, _ = random_qkv(13, heads=1, width=3)
    order, _ = hashed(qk, [3, 10], settings, rounds=2)
    torch.autograd.gradcheck(
        lambda qk, v: attend_chunks(qk, unit_keys(qk), v, order, settings),
        (qk.requires_grad_(), v.requires_grad_()),
    )


@pytest.mark.parametrize("once", [True, False])
def test_sequences_of_a_batch_do_not_mix(once: bool) -> None:
    settings = ChunkSettings(16, 1, 1, hides_self=True, counts_once=once)
    q, k, v = random_qkv(sum(RAGGED))
    together = attend_chunks(q, k, v, hashed(q, RAGGED, settings, 3)[0], settings)
    for size, (start, end) in zip(RAGGED, pairwise(bounds(RAGGED).tolist()), strict=True):
        of = slice(start, end)
        alone = attend_chunks(q[of], k[of], v[of], hashed(q[of], [size], settings, 3)[0], settings)
        torch.testing.assert_close(together[of], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 4])
def test_the_first_token_sees_itself_alone_and_exactly(rounds: int) -> None:
    for once in (True, False):
        settings = ChunkSettings(4, 1, 0, causal=True, hides_self=True, counts_once=once)
        q, k, v = (x.float() for x in random_qkv(30))
        order, _ = hashed(q, [30], settings, rounds)
        v = v.requires_grad_()
        mixed = attend_chunks(q, k, v, order, settings)
        torch.testing.assert_close(mixed[0], v[0], rtol=1e-6, atol=1e-6)
        mixed[0].sum().backward()
        torch.testing.assert_close(v.grad[0], torch.ones(2, 8), rtol=1e-6, atol=1e-6)
        assert not v.grad[1:].any()


def test_no_token_sees_itself_beside_others() -> None:
    settings = ChunkSettings(4, 1, 0, hides_self=True)
    q, k, v = (x.float() for x in random_qkv(30))
    order, _ = hashed(q, [30], settings, 3)
    for token in (0, 11, 29):
        key = torch.zeros_like(v)
        key[token] = 1.0
        assert not attend_chunks(q * 10, k, key, order, settings)[token].any()


def test_half_precision_is_near() -> None:
    settings = ChunkSettings(16, 1, 0, causal=True, hides_self=True)
    q, k, v = random_qkv(200)
    order, buckets = hashed(q, [200], settings, 2)
    exact = with_gradients(lambda *qkv: definition(*qkv, [200], buckets, settings), [q, k, v])
    half = [x.to(torch.bfloat16) for x in (q, k, v)]
    for mine, theirs in zip(
        with_gradients(lambda *qkv: attend_chunks(*qkv, order, settings), half), exact, strict=True
    ):
        assert (mine - theirs).norm() / theirs.norm() < 0.02


def test_the_same_bytes_twice() -> None:
    settings = ChunkSettings(16, 1, 1, hides_self=True)
    inputs = [x.float() for x in random_qkv(300)]
    order, _ = hashed(inputs[0], [130, 170], settings, 4)
    first, second = (with_gradients(lambda *qkv: attend_chunks(*qkv, order, settings), inputs) for _ in range(2))
    assert all(torch.equal(left, right) for left, right in zip(first, second, strict=True))


@pytest.mark.slow
def test_dropout_keeps_the_mean_and_its_gradient_is_that_of_what_was_kept() -> None:
    settings = ChunkSettings(8, 1, 0, hides_self=True)
    q, k, v = random_qkv(40)
    order, _ = hashed(q, [40], settings, 2)

    def dropped(*qkv: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend_chunks(*qkv, order, settings, 0.3)

    assert not torch.equal(dropped(q, k, v), attend_chunks(q, k, v, order, settings))
    inputs = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_())
    torch.autograd.gradcheck(dropped, inputs, atol=1e-8, rtol=1e-5, fast_mode=True)
    with torch.no_grad():
        mean = torch.stack([attend_chunks(q, k, v, order, settings, 0.3) for _ in range(400)]).mean(0)
    assert (mean - attend_chunks(q, k, v, order, settings)).abs().max() < 0.25


def _kept(tokens: int, rounds: int) -> int:
    """Bytes that autograd keeps for the backward pass."""
    settings = ChunkSettings(16, 1, 0, hides_self=True)
    q, k, v = (x.float().requires_grad_() for x in random_qkv(tokens))
    order, _ = hashed(q.detach(), [tokens], settings, rounds)
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.data_ptr()] = x.numel() * x.element_size()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        attend_chunks(q, k, v, order, settings)
    return sum(kept.values())


def test_no_scores_are_kept_for_the_backward_pass() -> None:
    tokens, heads, width = 2048, 2, 8
    of_tokens = tokens * heads * (4 * width + 2) * 4  # queries, keys, values, mixed values; largest score and sum
    of_orders = [tokens * heads * rounds * (8 + 4 + 8) + tokens // 16 * rounds * 2 * 8 for rounds in (1, 4)]
    assert _kept(tokens, 1) <= of_tokens + of_orders[0]
    assert _kept(tokens, 4) <= of_tokens + of_orders[1]


def _scores(tokens: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Scores that are computed, forward and backward."""
    settings, counted = ChunkSettings(16, 1, 0, hides_self=True), []
    work = attend._Tile.scores
    with monkeypatch.context() as patch:
        patch.setattr(attend._Tile, "scores", lambda tile: counted.append(result := work(tile)) or result)
        q, k, v = (x.float().requires_grad_() for x in random_qkv(tokens))
        order, _ = hashed(q.detach(), [tokens], settings, rounds)
        attend_chunks(q, k, v, order, settings).sum().backward()
    assert max(count.numel() for count in counted) <= attend.GROUP
    return sum(count.numel() for count in counted)


@pytest.mark.parametrize("rounds", [1, 3])
def test_work_grows_with_the_tokens_not_their_square(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for tokens in (512, 1024, 4096):
        assert _scores(tokens, rounds, monkeypatch) == 2 * rounds * 2 * tokens * 32  # passes, rounds, heads, keys


def test_nothing_to_attend_to() -> None:
    settings = ChunkSettings(4, 1, 0)
    for lengths in ([], [0], [0, 0]):
        order, _ = as_written(lengths, settings)
        empty = torch.zeros(0, 2, 8)
        assert attend_chunks(empty, empty, empty, order, settings).shape == (0, 2, 8)


def test_chunks_that_no_sequence_needs_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, counted = ChunkSettings(16, 0, 0), []
    work = attend._Tile.scores
    monkeypatch.setattr(attend._Tile, "scores", lambda tile: counted.append(result := work(tile)) or result)
    order, _ = as_written([32] * 8, settings)
    assert isinstance(order, ChunkOrder)
    assert len(order.neighbors_cw) > 16
    q, k, v = random_qkv(256)
    attend_chunks(q, k, v, order, settings)
    assert sum(len(count) for count in counted) == 16
