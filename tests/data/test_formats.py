"""Input formats: hand-checked examples, and what holds for any corpus."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.data import example_index
from bertree.data.formats import Format
from bertree.data.stream import Stream
from tests.support.corpora import CLS, FIRST, FORMATS, PAIRED, SEP, SPECIAL, Corpus, corpus, sequences, shapes
from tests.support.memory_store import memory_store
from tests.support.quick import example_count

TINY = [
    [[10, 11, 12], [13, 14], [15]],
    [[20, 21], [22, 23, 24, 25]],
    [[30]],
]


def examples(documents: list[list[list[int]]], format: str | Format, max_length: int, epoch: int = 0) -> list:
    """(ids, segments, label) of every example in the order of the corpus."""
    store = memory_store(documents, vocab_size=100, special=SPECIAL)
    stream = Stream(store, format=format, masking=None, batch_tokens=1000, max_length=max_length)
    read = [stream.example(number, epoch) for number in range(stream.examples)]
    labels = [None if e.labels.pairs is None else int(e.labels.pairs[0]) for e in read]
    return [(e.ids.tolist(), e.segments.tolist(), label) for e, label in zip(read, labels, strict=True)]


def ids(documents: list[list[list[int]]], format: str | Format, max_length: int) -> list[list[int]]:
    return [example[0] for example in examples(documents, format, max_length)]


def test_full_sentences_cross_documents_with_a_separator() -> None:
    assert ids(TINY, "full-sentences", 10) == [
        [2, 10, 11, 12, 13, 14, 15, 3],  # the next document's first sentence would make 11
        [2, 20, 21, 22, 23, 24, 25, 3, 30, 3],
    ]


def test_doc_sentences_never_cross() -> None:
    assert ids(TINY, "doc-sentences", 10) == [
        [2, 10, 11, 12, 13, 14, 15, 3],
        [2, 20, 21, 22, 23, 24, 25, 3],
        [2, 30, 3],
    ]


def test_sentences_over_the_limit_are_cut_at_it() -> None:
    long = [[list(range(10, 31)), [31, 32, 33]]]
    assert ids(long, "doc-sentences", 10) == [
        [2, *range(10, 18), 3],
        [2, *range(18, 26), 3],
        [2, *range(26, 34), 3],  # the rest, and the sentence after it
    ]


def test_stream_ends_documents_with_a_separator() -> None:
    assert ids(TINY, "stream", 5) == [[10, 11, 12, 13, 14], [15, 3, 20, 21, 22], [23, 24, 25, 3, 30], [3]]


def test_sentence_pairs() -> None:
    assert examples(TINY, "sentence-pair", 10) == [
        ([2, 10, 11, 12, 3, 13, 14, 3], [0, 0, 0, 0, 0, 1, 1, 1], None),
        ([2, 15, 3], [0, 0, 0], None),  # no sentence is left for it
        ([2, 20, 21, 3, 22, 23, 24, 25, 3], [0, 0, 0, 0, 1, 1, 1, 1, 1], None),
        ([2, 30, 3], [0, 0, 0], None),
    ]


def test_segment_pairs_divide_anew_in_every_epoch() -> None:
    seen = {tuple(examples(TINY, Format("segment-pair", short=0), 10, epoch)[0][0]) for epoch in range(30)}
    assert seen == {(2, 10, 11, 12, 3, 13, 14, 15, 3), (2, 10, 11, 12, 13, 14, 3, 15, 3)}


def test_two_separators_between_segments() -> None:
    pair = Format("sentence-pair", separators=2)
    assert examples(TINY, pair, 10)[0] == (
        [2, 10, 11, 12, 3, 3, 13, 14, 3],
        [0, 0, 0, 0, 0, 0, 1, 1, 1],
        None,
    )


def test_a_pair_that_does_not_fit_goes_on_in_the_next_example() -> None:
    wide = [[[10, 11, 12, 13, 14], [15, 16, 17, 18, 19], [20, 21]]]
    assert ids(wide, "sentence-pair", 10) == [
        [2, 10, 11, 12, 13, 14, 3, 15, 16, 3],
        [2, 17, 18, 19, 3, 20, 21, 3],
    ]


def test_a_sentence_longer_than_a_pair_is_cut_into_equal_parts() -> None:
    assert ids([[list(range(10, 20)), [20, 21]]], "sentence-pair", 10) == [
        [2, 10, 11, 3, 12, 13, 14, 3],  # 10 tokens in four parts of at most 7 // 2
        [2, 15, 16, 3, 17, 18, 19, 3],
        [2, 20, 21, 3],
    ]


def test_no_single_sentence_is_left_over() -> None:
    document = [[[10, 11], [12, 13], [14, 15], [16]]]  # room for 6: the third would leave the fourth alone
    [first, second] = ids(document, Format("segment-pair", short=0), 9)
    assert first == [2, 10, 11, 3, 12, 13, 3]
    assert second == [2, 14, 15, 3, 16, 3]


def test_sop_swaps() -> None:
    whole, swapped = [2, 20, 21, 3, 22, 23, 24, 25, 3], [2, 22, 23, 24, 25, 3, 20, 21, 3]
    seen = [examples(TINY, "sentence-pair+sop", 10, epoch)[2] for epoch in range(40)]
    in_order, other = (whole, [0, 0, 0, 0, 1, 1, 1, 1, 1], 0), (swapped, [0] * 6 + [1] * 3, 1)
    assert all(example in (in_order, other) for example in seen)
    assert 10 <= seen.count(other) <= 30
    assert examples(TINY, "sentence-pair+sop", 10)[3] == ([2, 30, 3], [0, 0, 0], -100)


def test_nsp_exchanges_second_segments() -> None:
    # The lengths of the two pairs leave one way to exchange within the limit.
    seen = [[e for e in examples(TINY, "sentence-pair+nsp", 12, epoch) if e[2] != -100] for epoch in range(40)]
    apart = [[2, 10, 11, 12, 3, 22, 23, 24, 25, 3], [2, 20, 21, 3, 13, 14, 3]]
    together = [[2, 10, 11, 12, 3, 13, 14, 3], [2, 20, 21, 3, 22, 23, 24, 25, 3]]
    for epoch in seen:
        labels = [label for _, _, label in epoch]
        assert [e[0] for e in epoch] == (apart if labels == [1, 1] else together)
        assert labels in ([0, 0], [1, 1])
    assert 10 <= sum(epoch[0][2] for epoch in seen) <= 30


# What holds for any corpus.


def whole(corpus: Corpus, format: Format, max_length: int, seed: int, epoch: int = 0) -> list[tuple]:
    """(ids, segments, label) of all sequences of an epoch, none of them torn."""
    with mock.patch.object(example_index, "CHUNK_TOKENS", 64), mock.patch("bertree.data.stream.GROUP_CHUNKS", 3):
        stream = Stream(
            corpus.store,
            format=format,
            masking=None,
            batch_tokens=100 * max_length,
            max_length=max_length,
            seed=seed,
        )
        collected = []
        for batch in stream.one_epoch(epoch):
            labels = [None] * (len(batch.cu_seqlens) - 1) if batch.labels.pairs is None else batch.labels.pairs.tolist()
            kinds = [kinds.tolist() for kinds in batch.split(batch.segments)]
            collected += zip(sequences(batch), kinds, labels, strict=True)
    return collected


def segments_of(ids: list[int], kinds: list[int]) -> list[np.ndarray]:
    """The texts of an example as places in the corpus, one for each segment."""
    texts = [[i - FIRST for i, k in zip(ids, kinds, strict=True) if k == kind and i >= FIRST] for kind in (0, 1)]
    return [np.array(text) for text in texts if text]


any_format = st.builds(
    lambda name, separators, short: Format(*Format.parse(name).name.split("+"), separators=separators, short=short),
    st.sampled_from(FORMATS),
    st.integers(1, 2),
    st.sampled_from([0.0, 0.1, 1.0]),
)


@example_count(150)
@given(shapes, any_format, st.integers(8, 64), st.integers(0, 3), st.integers(1, 3))
def test_every_format(shape: list[list[int]], format: Format, max_length: int, seed: int, shards: int) -> None:
    sample = corpus(shape, shards)
    read = whole(sample, format, max_length, seed, epoch=seed)
    seen = np.concatenate([np.array(ids) for ids, _, _ in read])
    assert sorted(seen[seen >= FIRST]) == list(range(FIRST, FIRST + sample.store.tokens)), "every token once"
    for ids, kinds, label in read:
        texts = segments_of(ids, kinds)
        assert len(ids) <= max_length
        assert all((np.diff(text) == 1).all() for text in texts), "texts are contiguous"
        if format.kind == "stream":
            continue
        assert ids[0] == CLS
        assert ids[-1] == SEP
        crossed = sum(len(set(sample.document_of[text])) - 1 for text in texts)
        if format.kind != "full-sentences":
            assert crossed == 0, "one document a segment"
        if format.paired:
            assert ids.count(SEP) == (1 + format.separators if len(texts) == 2 else 1)
            assert kinds == sorted(kinds)
            check_pair(sample, texts, label, format)
        else:
            assert set(kinds) == {0}
            assert ids.count(SEP) == 1 + crossed, "a separator between documents"


def check_pair(sample: Corpus, texts: list[np.ndarray], label: int | None, format: Format) -> None:
    """What a pair's label promises."""
    if len(texts) == 1:
        assert label in (None, -100)
        return
    first, second = texts
    documents = sample.document_of[first[0]], sample.document_of[second[0]]
    if label in (None, 0):
        assert second[0] == first[-1] + 1
        assert documents[0] == documents[1]
    elif format.objective == "sop":
        assert first[0] == second[-1] + 1
        assert documents[0] == documents[1]
    else:
        assert documents[0] != documents[1]


@example_count(100)
@given(shapes, st.sampled_from(FORMATS[:-1]), st.integers(8, 64))
def test_sentences_are_split_only_where_they_must(shape: list[list[int]], name: str, max_length: int) -> None:
    sample = corpus(shape)
    format = Format.parse(name)
    room = format.room(max_length)
    starts = np.cumsum(sample.lengths) - sample.lengths
    stops = starts + sample.lengths
    heads = {0}
    for ids, kinds, _ in whole(sample, Format(format.kind), max_length, 0):  # in order: no exchange
        heads |= {int(text[0]) for text in segments_of(ids, kinds)}
    for place in heads - set(starts.tolist()):
        sentence = sample.sentence_of[place]
        length = sample.lengths[sentence]
        around = [s for s in (sentence - 1, sentence + 1) if 0 <= s < len(starts)]
        near = [sample.lengths[s] for s in around if sample.document_of[starts[s]] == sample.document_of[place]]
        assert length > room or (format.paired and length + max(near) > room), (starts, stops, place)


@example_count(100)
@given(shapes, st.sampled_from(["full-sentences", "doc-sentences"]), st.integers(8, 64))
def test_sentences_are_filled_to_the_limit(shape: list[list[int]], name: str, max_length: int) -> None:
    sample = corpus(shape)
    read = sorted(whole(sample, Format(name), max_length, 0), key=lambda example: example[0][1])
    for (ids, _, _), (after, _, _) in itertools.pairwise(read):
        here, next_document = sample.document_of[ids[-2] - FIRST], sample.document_of[after[1] - FIRST]
        if name == "doc-sentences" and here != next_document:
            continue
        following = sample.lengths[sample.sentence_of[after[1] - FIRST]]
        assert len(ids) + following + (here != next_document) > max_length


@example_count(60)
@given(shapes, st.sampled_from(PAIRED), st.integers(8, 64))
def test_pairs_waste_no_sentence(shape: list[list[int]], name: str, max_length: int) -> None:
    """A sentence stands alone only at a document's end or where its neighbour leaves no room."""
    sample = corpus(shape)
    format = Format.parse(name)
    room = format.room(max_length)
    for ids, kinds, _ in whole(sample, format, max_length, 0):
        texts = segments_of(ids, kinds)
        if len(texts) == 1:
            last = int(texts[0][-1])
            ends = last + 1 == sample.store.tokens or sample.document_of[last] != sample.document_of[last + 1]
            assert ends or len(texts[0]) > room - max(1, room // 4)


def test_one_segment_pair_in_ten_is_short() -> None:
    sample = corpus([[10] * 2000] * 10)
    lengths = [len(ids) for ids, _, _ in whole(sample, Format("segment-pair"), 103, 0)]
    short = np.mean(np.array(lengths) < 103)
    # All but one in a hundred of the random aims lie below the limit: 0.099, four sigmas of 2,100 pairs.
    assert abs(short - 0.099) < 0.026


@pytest.mark.parametrize(
    "shape",
    [
        [[12] * 30] * 40,
        [[12] * 600] + [[12] * 20] * 20,  # more than half in one document: the others are chosen more often
        [[12] * 300] * 2,
    ],
)
@pytest.mark.parametrize("name", ["segment-pair+nsp", "segment-pair+sop", "sentence-pair+nsp"])
def test_questions_are_half_and_half(shape: list[list[int]], name: str) -> None:
    stream = Stream(corpus(shape).store, format=name, masking=None, batch_tokens=6400, max_length=64)
    labels = np.concatenate([batch.labels.pairs.numpy() for epoch in range(4) for batch in stream.one_epoch(epoch)])
    assert abs(np.mean(labels[labels >= 0]) - 0.5) < 0.02


def test_nsp_seldom_divides_a_sentence() -> None:
    """Exchanged segments are whole sentences but for a few, where BERT truncates nearly every full pair."""
    random = np.random.default_rng(0)
    sample = corpus([[int(n) for n in np.clip(random.lognormal(3, 0.6, 25), 2, 60)] for _ in range(300)])
    stream = Stream(sample.store, format="segment-pair+nsp", masking=None, batch_tokens=12800, max_length=128)
    starts = set((np.cumsum(sample.lengths) - sample.lengths).tolist())
    heads = []
    for batch in stream.one_epoch():
        labels = batch.labels.pairs.tolist()
        for ids, kinds, label in zip(sequences(batch), batch.split(batch.segments), labels, strict=True):
            if label == 1:
                heads.append(int(segments_of(ids, kinds.tolist())[1][0]))
    assert len(heads) > 500
    assert np.mean([head not in starts for head in heads]) < 0.01
