"""Lanes: batch k + 1 continues batch k, lane by lane, and any batch is found without those before it."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from bertree.batch import Batch
from bertree.data import example_index
from bertree.data.lane_stream import LaneStream
from bertree.errors import UserError
from tests.support.corpora import FIRST, SEP, Corpus, corpus, same

SHAPE = [[7, 5], [3], [11, 2, 9], [1], [6, 6, 6], [30], [4, 8]] * 4
SETTINGS = [(1, 16), (3, 10), (4, 7), (5, 1)]


@pytest.fixture(scope="module")
def small_chunks() -> Corpus:
    """A corpus whose index has many chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_index, "CHUNK_TOKENS", 60)
        patch.setattr("bertree.data.sequences.token_line.EXAMPLE_LENGTH", 16)
        sample = corpus(SHAPE, shards=3)
        assert LaneStream(sample.store, lanes=1, length=4).index.totals.size > 5
        yield sample


def lanes_of(batch: Batch) -> list[list[int]]:
    """The tokens that a batch reads of each lane."""
    assert batch.continuation is not None
    lanes: list[list[int]] = [[] for _ in range(batch.continuation.count)]
    for lane, ids in zip(batch.continuation.lanes.tolist(), batch.split(batch.ids), strict=True):
        lanes[lane] += ids.tolist()
    return lanes


def line(stream: LaneStream, epoch: int = 0) -> list[int]:
    """An epoch's tokens in the order in which one lane reads them."""
    alone = LaneStream(stream.store, lanes=1, length=16, seed=stream.seed)
    return [token for batch in alone.one_epoch(epoch) for token in batch.ids.tolist()]


def test_the_line_holds_every_document_with_a_separator(small_chunks: Corpus) -> None:
    stream = LaneStream(small_chunks.store, lanes=1, length=16)
    ids = line(stream)
    words = [token for token in ids if token >= FIRST]
    assert sorted(words) == list(range(FIRST, FIRST + len(small_chunks.document_of)))
    assert ids.count(SEP) == len(SHAPE)
    assert len(ids) == stream.epoch_tokens
    documents = small_chunks.document_of
    jumps = 0
    for earlier, later in pairwise(ids):
        if earlier >= FIRST and later == SEP:
            assert earlier - FIRST + 1 == len(documents) or documents[earlier - FIRST] != documents[earlier - FIRST + 1]
        elif earlier >= FIRST and later != earlier + 1:
            jumps += 1
    assert jumps < stream.index.totals.size, "the order of the corpus is left only between chunks"
    assert ids != line(stream, 1)
    assert ids != line(LaneStream(small_chunks.store, lanes=1, length=16, seed=1))


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(("lanes", "length"), SETTINGS)
def test_each_lane_continues(small_chunks: Corpus, lanes: int, length: int, documents: bool) -> None:
    stream = LaneStream(small_chunks.store, lanes=lanes, length=length, documents=documents)
    for epoch in (0, 2):
        read: list[list[int]] = [[] for _ in range(lanes)]
        batches = list(stream.one_epoch(epoch))
        assert len(batches) == stream.steps_per_epoch
        for batch in batches:
            for lane, ids in zip(read, lanes_of(batch), strict=True):
                lane += ids
        whole, share = line(stream, epoch), stream.epoch_tokens // lanes
        assert read == [whole[n * share : (n + 1) * share] for n in range(lanes)]
        assert {len(ids) for batch in batches[:-1] for ids in lanes_of(batch)} == {length}


@pytest.mark.parametrize(("lanes", "length"), SETTINGS)
def test_targets_are_the_next_tokens_of_the_line(small_chunks: Corpus, lanes: int, length: int) -> None:
    stream = LaneStream(small_chunks.store, lanes=lanes, length=length)
    whole, share = line(stream), stream.epoch_tokens // lanes
    for step, batch in enumerate(stream.one_epoch()):
        size = batch.ids.numel() // lanes
        expected = []
        for lane in range(lanes):
            at = lane * share + step * length
            expected += [(lane * size + n, whole[at + n + 1]) for n in range(size) if at + n + 1 < len(whole)]
        assert list(zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True)) == expected


def test_a_batch_is_a_function_of_seed_and_step(small_chunks: Corpus) -> None:
    def make() -> LaneStream:
        return LaneStream(small_chunks.store, lanes=3, length=10, documents=True)

    steps = range(2 * make().steps_per_epoch + 3)
    forwards, other = make(), make()
    expected = [forwards[step] for step in steps]
    assert all(same(other[step], expected[step]) for step in reversed(steps))
    assert all(same(make()[step], expected[step]) for step in (0, 5, len(steps) - 1))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_micro_batches_read_the_whole_batch_between_them(small_chunks: Corpus, world: int) -> None:
    settings = {"lanes": 5, "length": 7, "documents": True}
    stream = LaneStream(small_chunks.store, **settings)
    parts = [LaneStream(small_chunks.store, **settings, rank=rank, world=world) for rank in range(world)]
    assert sum(part.lanes for part in parts) == 5
    for step in range(stream.steps_per_epoch + 1):
        batch, pieces = stream[step], [part[step] for part in parts]
        assert lanes_of(batch) == [ids for piece in pieces for ids in lanes_of(piece)]
        assert batch.continuation.fresh.tolist() == [f for piece in pieces for f in piece.continuation.fresh.tolist()]
        assert torch.equal(batch.labels.targets, torch.cat([piece.labels.targets for piece in pieces]))


def test_lanes_are_fresh_at_the_start_of_an_epoch_alone(small_chunks: Corpus) -> None:
    stream = LaneStream(small_chunks.store, lanes=3, length=10)
    for step in range(2 * stream.steps_per_epoch + 1):
        continuation = stream[step].continuation
        assert continuation.lanes.tolist() == [0, 1, 2]
        assert continuation.fresh.tolist() == [step % stream.steps_per_epoch == 0] * 3


def test_nothing_crosses_a_document_if_asked(small_chunks: Corpus) -> None:
    """A sequence that is not fresh goes on in the document (and chunk) its lane was in; no other may."""
    stream = LaneStream(small_chunks.store, lanes=3, length=10, documents=True)
    place = [None] * 3
    cut = 0
    for step in range(2 * stream.steps_per_epoch):
        batch = stream[step]
        targets = dict(zip(batch.labels.masked.tolist(), batch.labels.targets.tolist(), strict=True))
        starts = batch.cu_seqlens.tolist()
        sizes = np.bincount(batch.continuation.lanes.numpy())
        cut += int((sizes > 1).sum())
        rows = zip(
            batch.split(batch.ids), batch.continuation.lanes.tolist(), batch.continuation.fresh.tolist(), strict=True
        )
        for number, (ids, lane, fresh) in enumerate(rows):
            words = [token for token in ids.tolist() if token != SEP]
            assert words == list(range(words[0], words[0] + len(words))) if words else True
            assert SEP not in ids.tolist()[:-1], "a separator ends a sequence"
            if step % stream.steps_per_epoch and not fresh:
                assert place[lane] != SEP
                assert not words or words[0] == place[lane] + 1
            assert batch.positions[starts[number]] == 0
            for at in range(starts[number], starts[number + 1] - 1):
                assert targets[at] == int(batch.ids[at + 1])
            if int(ids[-1]) == SEP:
                assert starts[number + 1] - 1 not in targets, "a new document is not predicted"
            place[lane] = int(ids[-1])
    assert cut > 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lanes": 400}, "too few for 400 lanes"),
        ({"lanes": 1, "world": 2}, "give 2 lanes or more"),
        ({"lanes": 4, "world": 2, "rank": 2}, "rank 2 of 2"),
    ],
)
def test_impossible_lanes_are_refused(small_chunks: Corpus, settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LaneStream(small_chunks.store, length=16, **settings)


def test_steps_before_the_first_are_refused(small_chunks: Corpus) -> None:
    with pytest.raises(IndexError):
        LaneStream(small_chunks.store, lanes=4, length=16)[-1]
