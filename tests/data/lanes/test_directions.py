"""Lanes that run backwards, and lanes in which tokens are predicted in a random order or masked."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from bertree.batch import Batch
from bertree.data import example_index
from bertree.data.lane_stream import LaneStream
from bertree.data.masking import Masking
from bertree.errors import UserError
from tests.support.corpora import FIRST, MASK, SEP, Corpus, corpus, same

SHAPE = [[7, 5], [3], [11, 2, 9], [1], [6, 6, 6], [30], [4, 8]] * 4


@pytest.fixture(scope="module")
def small_chunks() -> Corpus:
    """A corpus whose index has many chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_index, "CHUNK_TOKENS", 60)
        patch.setattr("bertree.data.sequences.token_line.EXAMPLE_LENGTH", 16)
        yield corpus(SHAPE, shards=3)


def permuted(sample: Corpus, **settings: object) -> LaneStream:
    return LaneStream(sample.store, **({"lanes": 4, "length": 12, "masking": "permutation"} | settings))


def line(stream: LaneStream, epoch: int = 0) -> list[int]:
    return stream.line.read(epoch, 0, stream.line.tokens).ids.tolist()


@pytest.mark.parametrize("documents", [False, True])
def test_every_second_lane_reads_its_text_from_the_end(small_chunks: Corpus, documents: bool) -> None:
    stream = permuted(small_chunks, backward=True, documents=documents)
    for epoch in (0, 1):
        read: list[list[int]] = [[] for _ in range(4)]
        for batch in stream.one_epoch(epoch):
            continuation = batch.continuation
            assert continuation.backward.tolist() == [lane % 2 == 1 for lane in continuation.lanes.tolist()]
            assert (continuation.lanes.diff() >= 0).all()
            for lane, ids in zip(continuation.lanes.tolist(), batch.split(batch.ids), strict=True):
                read[lane] = [*ids.tolist(), *read[lane]] if lane % 2 else [*read[lane], *ids.tolist()]
        whole, share = line(stream, epoch), stream.epoch_tokens // 4
        assert read == [whole[lane * share : (lane + 1) * share] for lane in range(4)]


def test_a_backward_sequence_goes_on_before_the_one_its_lane_read_last(small_chunks: Corpus) -> None:
    """With documents: not fresh means that its last token stands before the first of the one before it."""
    stream = permuted(small_chunks, backward=True, documents=True)
    whole = line(stream)
    after = {token: following for token, following in pairwise(whole) if token >= FIRST}
    place: list[int | None] = [None] * 4
    seen = {True: 0, False: 0}
    for batch in stream.one_epoch():
        rows = zip(
            batch.split(batch.ids), batch.continuation.lanes.tolist(), batch.continuation.fresh.tolist(), strict=True
        )
        for ids, lane, fresh in rows:
            if lane % 2 == 0:
                continue
            seen[fresh] += 1
            assert SEP not in ids.tolist()[:-1]
            if not fresh:
                assert int(ids[-1]) != SEP, "the text goes on after the sequence"
                assert after[int(ids[-1])] == place[lane]
            elif place[lane] is not None and int(ids[-1]) >= FIRST:
                documents = small_chunks.document_of
                ends = int(ids[-1]) - FIRST
                assert after[int(ids[-1])] != SEP
                assert ends + 1 >= len(documents) or after[int(ids[-1])] != int(ids[-1]) + 1
            place[lane] = int(ids[0])
    assert min(seen.values()) > 5


@pytest.mark.parametrize("spans", [1, 5])
def test_every_segment_has_as_many_targets(small_chunks: Corpus, spans: int) -> None:
    stream = permuted(small_chunks, backward=True, fixed=True, masking=Masking("permutation", partial=5, spans=spans))
    shapes = set()
    for step in range(2 * stream.steps_per_epoch):
        batch = stream[step]
        order = batch.permutation
        assert order.cu_queries.tolist() == [0, 2, 4, 6, 8]
        assert order.max_queries == 2
        assert batch.labels.masked.tolist() == list(range(48, 56)), "rows behind the tokens"
        assert torch.equal(batch.labels.targets, batch.ids[order.queries])
        assert (batch.labels.targets >= FIRST).all()
        shapes.add(tuple(getattr(leaf, "shape", leaf) for leaf in batch.leaves()))
    assert len(shapes) == 1


def test_orders_differ_between_steps_lanes_epochs_and_seeds(small_chunks: Corpus) -> None:
    every_second = Masking("permutation", partial=2)
    stream = permuted(small_chunks, fixed=True, masking=every_second)
    orders = [ranks for step in (0, 1, stream.steps_per_epoch) for ranks in stream[step].permutation.ranks.split(12)]
    orders += permuted(small_chunks, fixed=True, seed=1, masking=every_second)[0].permutation.ranks.split(12)
    assert len({tuple(ranks.tolist()) for ranks in orders}) == len(orders)


@pytest.mark.parametrize("settings", [{"backward": True, "documents": True}, {"backward": True}, {"reuse": 0.4}])
def test_a_batch_is_a_function_of_seed_and_step(small_chunks: Corpus, settings: dict[str, object]) -> None:
    steps = range(2 * permuted(small_chunks, **settings).steps_per_epoch)
    forwards, other = permuted(small_chunks, **settings), permuted(small_chunks, **settings)
    expected = [forwards[step] for step in steps]
    assert all(same(other[step], expected[step]) for step in reversed(steps))


@pytest.mark.parametrize("world", [2, 3])
def test_micro_batches_read_the_whole_batch_between_them(small_chunks: Corpus, world: int) -> None:
    stream = permuted(small_chunks, backward=True)
    parts = [permuted(small_chunks, backward=True, rank=rank, world=world) for rank in range(world)]
    for step in range(3):
        batch, pieces = stream[step], [part[step] for part in parts]
        assert torch.equal(batch.permutation.ranks, torch.cat([piece.permutation.ranks for piece in pieces]))
        assert torch.equal(batch.labels.targets, torch.cat([piece.labels.targets for piece in pieces]))


def test_lanes_may_be_masked(small_chunks: Corpus) -> None:
    """Masks on the architecture of XLNet: the ablation of the objective."""
    stream = permuted(small_chunks, backward=True, masking=Masking("word", rate=0.3, mask=1.0, random=0.0))
    share = []
    for batch in stream.one_epoch():
        assert batch.permutation is None
        assert (batch.ids[batch.labels.masked] == MASK).all()
        share.append(batch.labels.masked.numel() / batch.ids.numel())
    assert 0.2 < np.mean(share) < 0.45


def test_control_codes_are_context() -> None:
    sample = corpus([[9, 9], [14], [20]] * 3, prefixes=[[5, 6], [7, 8]])
    stream = LaneStream(sample.store, lanes=2, length=10, masking="permutation")
    codes = {5, 6, 7, 8}
    for batch in stream.one_epoch():
        first = batch.split(batch.permutation.ranks)
        for ids, ranks in zip(batch.split(batch.ids), first, strict=True):
            if int(ids[0]) in codes and len(ids) > 3:
                assert ranks[:2].tolist() == [0, 0]
        assert (batch.labels.targets >= 0).sum() > 0


def test_what_cannot_be_read(small_chunks: Corpus) -> None:
    sample = small_chunks
    coded = corpus([[9, 9], [14]], prefixes=[[5], [6]])
    for settings, message in (
        ({"masking": "next", "backward": True}, "only predicts forwards"),
        ({"masking": "permutation+static"}, r"'\+static' has no effect in lanes"),
        ({"length": 400}, "too few for 4 lanes of more than 400"),
        ({"reuse": 0.5, "documents": True}, "do not start at documents"),
        ({"reuse": 1.0}, "share of a segment"),
        ({"reuse": 0.9}, "reuse 0.9: .* leaves no room for a pair; give a smaller share"),
    ):
        with pytest.raises(UserError, match=message):
            permuted(sample, **settings)
    with pytest.raises(UserError, match="control codes"):
        LaneStream(coded.store, lanes=1, length=8, masking="permutation", backward=True)


def test_batches_move_and_keep_their_order(small_chunks: Corpus) -> None:
    batch: Batch = permuted(small_chunks, backward=True)[0]
    assert same(batch.to("cpu"), batch)
