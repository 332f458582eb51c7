"""Pairs in lanes: text that continues, then A [SEP] B [SEP] [CLS]; the mirror image in backward lanes."""

import numpy as np
import pytest

from bertree.batch import Batch
from bertree.data import example_index
from bertree.data.lane_stream import LaneStream
from bertree.errors import UserError
from tests.support.corpora import CLS, FIRST, SEP, Corpus, corpus
from tests.support.memory_store import memory_store

SHAPE = [[7, 5, 9, 4], [3, 8], [11, 2, 9], [12], [6, 6, 6], [30, 3, 5], [4, 8]] * 6
LENGTH, REUSED, ROOM = 24, 12, 9


@pytest.fixture(scope="module")
def sample() -> Corpus:
    """A corpus whose index has many chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_index, "CHUNK_TOKENS", 120)
        patch.setattr("bertree.data.sequences.token_line.EXAMPLE_LENGTH", 16)
        yield corpus(SHAPE, shards=3)


def pairs(sample: Corpus, **settings: object) -> LaneStream:
    options = {"lanes": 4, "length": LENGTH, "masking": "permutation", "backward": True, "reuse": 0.5}
    return LaneStream(sample.store, **(options | settings))


def read(batch: Batch, row: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Reused text, A, B and the segments of a sequence, in the order in which its lane reads: the mirror image of a
    backward one."""
    ids, segments = batch.split(batch.ids)[row].tolist(), batch.split(batch.segments)[row].tolist()
    if batch.continuation.backward[row]:
        ids, segments = ids[::-1], segments[::-1]
    assert ids[-1] == CLS
    assert ids[-2] == SEP
    first = REUSED + segments[REUSED:].index(1) - 1  # of the separators
    assert ids[first] == SEP
    return ids[:REUSED], ids[REUSED:first], ids[first + 1 : -2], segments


def test_layout(sample: Corpus) -> None:
    stream = pairs(sample)
    whole = stream.line.read(0, 0, stream.line.tokens).ids.tolist()
    share = stream.line.tokens // 4
    labels = []
    for step, batch in enumerate(stream.one_epoch()):
        assert batch.lengths.tolist() == [LENGTH] * 4
        assert batch.continuation.kept.tolist() == [REUSED] * 4
        assert batch.continuation.fresh.tolist() == [step == 0] * 4
        assert (batch.ids[batch.summary] == CLS).all()
        for lane in range(4):
            mine = whole[lane * share : (lane + 1) * share]
            mine = mine[::-1] if lane % 2 else mine
            reused, a, b, segments = read(batch, lane)
            assert segments == [0] * (REUSED + len(a) + 1) + [1] * (len(b) + 1) + [2]
            assert len(a) + len(b) == ROOM
            assert min(len(a), len(b)) >= 1
            low = step * REUSED
            assert [*reused, *a] == mine[low : low + REUSED + len(a)]
            follows = b == mine[low + REUSED + len(a) : low + REUSED + ROOM]
            label = int(batch.labels.pairs[lane])
            assert follows if label == 0 else True
            labels.append((label, follows))
    random = [follows for label, follows in labels if label]
    assert 0.3 < len(random) / len(labels) < 0.7
    assert np.mean(random) < 0.2, "a random text is another one"


def test_texts_meet_where_a_sentence_starts(sample: Corpus) -> None:
    """Where one starts in them: else in the middle."""
    stream = pairs(sample)
    sentence = sample.sentence_of
    borders = middles = 0
    for batch in stream.one_epoch():
        for lane in range(4):
            _, a, b, _ = read(batch, lane)
            if int(batch.labels.pairs[lane]):
                continue
            earlier, later = (b[0], a[-1]) if lane % 2 else (a[-1], b[0])  # in the order of the text
            if SEP in (earlier, later) or sentence[earlier - FIRST] != sentence[later - FIRST]:
                borders += 1
            else:
                assert len(a) in (ROOM // 2, ROOM - ROOM // 2)
                inner = [*a, *b][::-1] if lane % 2 else [*a, *b]
                assert len({int(sentence[token - FIRST]) for token in inner if token >= FIRST}) == 1
                middles += 1
    assert borders > middles


def test_reused_text_never_sees_the_pair_and_the_pair_sees_all_of_it(sample: Corpus) -> None:
    stream = pairs(sample)
    for batch in stream.one_epoch():
        order = batch.permutation
        assert order.cu_queries.tolist() == [0, 4, 8, 12, 16], "24 // 6 of each"
        for lane in range(4):
            ranks = batch.split(order.ranks)[lane].tolist()
            ranks = ranks[::-1] if lane % 2 else ranks
            assert max(ranks[:REUSED]) < min(ranks[REUSED:])
            low = lane * LENGTH
            queries = [place - low for place in order.queries.tolist() if low <= place < low + LENGTH]
            queries = [LENGTH - 1 - place for place in queries] if lane % 2 else queries
            assert sum(place < REUSED for place in queries) == 2
        assert (batch.labels.targets >= FIRST).all()


def test_a_store_without_cls() -> None:
    bare = memory_store([[[3] * 90]], vocab_size=5, special={"sep": 0})
    with pytest.raises(UserError, match="no cls token, which lanes\\+pairs needs"):
        LaneStream(bare, lanes=1, length=24, masking="permutation", reuse=0.5)
