"""Control codes: every sequence begins with its document's, also after a cut, and none of their tokens is predicted."""

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.batch import Batch, PretrainingLabels
from bertree.data import example_index
from bertree.data.held_out import split_held_out
from bertree.data.lane_stream import LaneStream
from bertree.data.stream import Stream
from bertree.errors import UserError
from tests.support.corpora import CLS, FIRST, MASK, SEP, Corpus, corpus, same, sequences, shapes
from tests.support.quick import example_count

SHORT, LONG = [CLS, FIRST + 1, SEP], [CLS, FIRST + 2, FIRST, SEP]
PREFIXES = [SHORT, LONG]
settings_of_streams = st.fixed_dictionaries(
    {
        "format": st.sampled_from(("stream", "doc-sentences")),
        "masking": st.sampled_from(("next", "token", "word+static2")),
        "max_length": st.integers(9, 48),
        "fixed": st.booleans(),
        "seed": st.integers(0, 3),
    }
)


def coded(shape: list[list[int]], shards: int = 1) -> Corpus:
    """A corpus of documents with two codes, whose tokens occur in the text as well."""
    return corpus(shape, shards, prefixes=PREFIXES)


def stream(sample: Corpus, budget: int, **options: object) -> Stream:
    """A stream over many small windows."""
    with mock.patch.object(example_index, "CHUNK_TOKENS", 64), mock.patch("bertree.data.stream.GROUP_CHUNKS", 2):
        return Stream(sample.store, batch_tokens=budget * options["max_length"], **options)


def prefix_of(sample: Corpus, token: int) -> list[int]:
    """The prefix of the document that a token is of."""
    return PREFIXES[sample.document_of[token - FIRST] % 2]


def restored(batch: Batch) -> Batch:
    """The ids before masking."""
    masked, targets = PretrainingLabels.of(batch).predicted
    ids = batch.ids.clone()
    ids[masked] = targets
    return Batch(ids, batch.positions, batch.segments, batch.cu_seqlens, batch.max_seqlen)


def check(sample: Corpus, batch: Batch, masking: str, first: bool = True) -> list[int]:
    """Check every sequence of a batch; return its tokens of text. `first`: the first of a text is predicted too."""
    masked, targets = PretrainingLabels.of(batch).predicted
    predicted, text, low = set(masked.tolist()), [], 0
    whole = batch if masking == "next" else restored(batch)
    for ids in sequences(whole):
        prefix = next((p for p in PREFIXES if ids[: len(p)] == p), None)
        if prefix is None:  # cut inside its code, and the rest lies in the next batch
            assert any(ids == p[: len(ids)] for p in PREFIXES)
            assert not predicted & set(range(low, low + len(ids)))
        else:
            rest = ids[len(prefix) :]
            words = [token for token in rest if token != SEP]
            assert all(prefix_of(sample, token) == prefix for token in words)
            assert SEP not in rest[:-1]
            assert words == list(range(words[0], words[0] + len(words))) if words else True
            prefix_places = set(range(low, low + len(prefix)))
            if masking == "next":
                answers = [
                    targets[masked.tolist().index(place)] for place in sorted(predicted) if place in prefix_places
                ]
                assert answers == rest[:1] or not first, "only the first token of the text is predicted from the code"
                assert len(answers) <= 1
            else:
                assert not predicted & prefix_places
            text += words
        low += len(ids)
    return text


@example_count(30)
@given(shapes, settings_of_streams, st.integers(1, 6), st.integers(1, 3))
def test_every_sequence_begins_with_its_code(shape, setting, budget, shards) -> None:
    sample = coded(shape, shards)
    batches = stream(sample, budget, **setting)
    text: list[int] = []
    for batch in batches.one_epoch():
        assert batch.ids.numel() <= batches.batch_tokens
        assert batch.max_seqlen <= setting["max_length"]
        text += check(sample, batch, setting["masking"])
    assert len(set(text)) == len(text), "no token is read twice"
    lost = sample.store.tokens - len(text)
    assert lost <= batches.steps_per_epoch * len(LONG) * 2, "only the first tokens after a cut are left out"
    other = stream(sample, budget, **setting)
    assert all(same(batches[step], other[step]) for step in (3, 0, 7))


@pytest.mark.slow
@example_count(20)
@given(shapes, st.integers(1, 4), st.integers(9, 24), st.integers(0, 2), st.integers(1, 3))
def test_every_lane_reads_the_code_again_and_goes_on(shape, lanes, length, epoch, shards) -> None:
    sample = coded([*shape, [30], [50]], shards)
    with mock.patch.object(example_index, "CHUNK_TOKENS", 64):
        if sample.store.tokens // lanes < 2 * length:
            return
        batches = LaneStream(sample.store, lanes=lanes, length=length)
        text: list[list[int]] = [[] for _ in range(lanes)]
        for batch in batches.one_epoch(epoch):
            assert batch.ids.numel() <= batches.batch_tokens
            assert batch.continuation is not None
            check(sample, batch, "next", first=False)
            rows = zip(batch.continuation.lanes.tolist(), batch.continuation.fresh.tolist(), strict=True)
            for (lane, fresh), ids in zip(rows, sequences(batch), strict=True):
                prefix = next((p for p in PREFIXES if ids[: len(p)] == p), None)
                words = [token for token in ids[len(prefix) :] if token != SEP] if prefix else []
                if words:
                    new = (
                        words[0] == FIRST
                        or sample.document_of[words[0] - FIRST] != sample.document_of[words[0] - FIRST - 1]
                    )
                    first_of_epoch = not text[lane]
                    assert fresh == (new or first_of_epoch)
                    assert new or first_of_epoch or words[0] == text[lane][-1] + 1, "a lane goes on where it was"
                text[lane] += words
        assert len({token for tokens in text for token in tokens}) == sum(map(len, text))
        assert sum(map(len, text)) >= sample.store.tokens - lanes * (lanes + len(LONG))
        again = LaneStream(sample.store, lanes=lanes, length=length)
        assert all(same(batches[step], again[step]) for step in (2, 0, 5))


def test_lanes_predict_every_token_of_the_text_once() -> None:
    sample = coded([[7, 5], [30], [1], [6, 6, 6], [40]])
    batches = LaneStream(sample.store, lanes=1, length=10)
    answers = [token for batch in batches.one_epoch() for token in PretrainingLabels.of(batch).predicted[1].tolist()]
    assert sorted(token for token in answers if token != SEP) == list(range(FIRST, FIRST + sample.store.tokens))
    assert answers.count(SEP) == sample.store.documents


def test_a_golden_batch() -> None:
    sample = coded([[3, 2], [4]])
    batch = Stream(sample.store, format="stream", masking="next", batch_tokens=64, max_length=9)[0]
    rows = {tuple(ids) for ids in sequences(batch)}
    a, b = FIRST, FIRST + 5
    assert {(*SHORT, a, a + 1, a + 2), (*SHORT, a + 3, a + 4, SEP), (*LONG, b, b + 1, b + 2, b + 3, SEP)} <= rows


def test_held_out_documents_keep_their_codes() -> None:
    sample = coded([[4, 4]] * 40, shards=2)
    train, held = split_held_out(sample.store, 0.1)
    for part in (train, held):
        assert [code.code for code in part.controls] == ["code 0", "code 1"]
        assert sum(code.documents for code in part.controls) == part.documents
        assert sum(code.tokens for code in part.controls) == part.tokens
        for batch in Stream(part, format="stream", masking="next", batch_tokens=64, max_length=16).one_epoch():
            check(sample, batch, "next")


@pytest.mark.parametrize("name", ["full-sentences", "segment-pair", "segment-pair+nsp", "sentence-pair+sop"])
def test_formats_across_documents_are_refused(name: str) -> None:
    with pytest.raises(
        UserError, match=f"has control codes, which {name.replace('+', '.')} does not support; use format"
    ):
        Stream(coded([[4, 4]] * 4).store, format=name, batch_tokens=64, max_length=16)


def test_a_length_without_room_for_text_is_refused() -> None:
    store = coded([[4, 4]] * 40).store
    with pytest.raises(UserError, match="max_length 7: too short for stream with control codes; give 8 or more"):
        Stream(store, format="stream", masking="next", batch_tokens=64, max_length=7)
    with pytest.raises(UserError, match="its longest control code has 4 tokens; give a length over 8"):
        LaneStream(store, lanes=2, length=8)


def test_a_mask_never_hides_a_code() -> None:
    sample = coded([[8] * 4] * 20)
    batches = Stream(sample.store, format="doc-sentences", masking="token", batch_tokens=256, max_length=16)
    for step in range(10):
        for ids in sequences(batches[step]):
            assert MASK not in ids[: len(SHORT)]


@pytest.mark.parametrize("prefixes", [(), ([FIRST + 1], [FIRST + 2, FIRST])])
def test_a_vocabulary_without_separator_has_streams_too(prefixes: tuple[list[int], ...]) -> None:
    sample = corpus([[3, 2], [4], [9, 30]], prefixes=prefixes)
    store = replace(sample.store, special={"unk": 1})
    batches = list(Stream(store, format="stream", masking="next", batch_tokens=64, max_length=8).one_epoch())
    read = [ids for batch in batches for ids in sequences(batch)]
    if prefixes:
        lengths = [next(len(p) for p in prefixes if ids[: len(p)] == p) for ids in read]
        read = [ids[length:] for ids, length in zip(read, lengths, strict=True)]
    text = [token for ids in read for token in ids]
    assert sorted(text) == list(range(FIRST, FIRST + store.tokens))
    assert all(ids == list(range(ids[0], ids[0] + len(ids))) for ids in read)
    if prefixes:
        with pytest.raises(UserError, match="no token that ends a text, so lanes cannot start at documents"):
            LaneStream(store, lanes=1, length=8)
    else:
        lanes = LaneStream(store, lanes=1, length=8).one_epoch()
        assert [token for batch in lanes for token in batch.ids.tolist()] == list(range(FIRST, FIRST + store.tokens))
