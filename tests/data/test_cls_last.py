"""Stores whose tokenizer puts [CLS] last (XLNet): A [SEP] B [SEP] [CLS], [CLS] in a segment of its own."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from bertree.batch import IGNORED
from bertree.data.masking import Masking
from bertree.data.prepare import prepare, train_tokenizer
from bertree.data.store import Store
from bertree.data.stream import Stream
from tests.support.corpora import CLS, PAIRED, SEP, corpus, shapes
from tests.support.quick import example_count
from tests.support.shared import suite_has

SINGLE = ("full-sentences", "doc-sentences")


def streams(shape: list[list[int]], format: str, fixed: bool = False) -> tuple[Stream, Stream]:
    """The examples of BERT's layout, and of XLNet's."""
    store = corpus([*shape, [3, 3], [4, 2]]).store
    settings = {"format": format, "masking": None, "batch_tokens": 128, "max_length": 32, "fixed": fixed}
    return Stream(store, **settings), Stream(replace(store, cls_last=True), **settings)


@pytest.mark.parametrize("format", suite_has([*PAIRED[::2], *SINGLE[:1]], [*PAIRED, *SINGLE]))
@example_count(15)
@given(shape=shapes)
def test_the_same_texts_with_cls_behind_them(format: str, shape: list[list[int]]) -> None:
    first, last = streams(shape, format)
    for number in range(first.examples):
        left, right = first.example(number), last.example(number)
        ids, segments = left.ids.tolist(), left.segments.tolist()
        assert ids[0] == CLS
        assert right.ids.tolist() == [*ids[1:], CLS]
        assert right.segments.tolist() == [*segments[1:], 2]
        if left.labels.pairs is not None:
            assert left.labels.pairs.tolist() == right.labels.pairs.tolist()


def test_only_whole_pairs_are_asked_for() -> None:
    shape = [[7, 5, 9], [8, 8], [3, 11, 6]] * 6
    _, stream = streams(shape, "segment-pair+nsp", fixed=True)
    whole = cut = 0
    for batch in stream.one_epoch():
        for ids, label in zip(batch.split(batch.ids), batch.labels.pairs.tolist(), strict=True):
            if label == IGNORED:
                cut += 1
            else:
                assert int(ids[-1]) == CLS
                assert ids.tolist().count(SEP) == 2
                whole += 1
    assert min(whole, cut) > 3


def test_streams_have_no_cls() -> None:
    first, last = streams([[7, 5], [9]] * 3, "stream")
    for left, right in zip(first.one_epoch(), last.one_epoch(), strict=True):
        assert left.ids.tolist() == right.ids.tolist()
        assert not right.segments.any()


def test_from_text_to_xlnet(tmp_path: Path) -> None:
    lines = [f"The {n} captain Went down. To the {n % 7} sea he went again." for n in range(90)]
    (tmp_path / "text.txt").write_text("\n\n".join(lines))
    trained = train_tokenizer(tmp_path / "text.txt", tmp_path / "words", kind="xlnet", vocab_size=120)
    store = prepare(tmp_path / "text.txt", tmp_path / "words", tmp_path / "store", workers=1).store
    assert store.cls_last
    assert Store.open(tmp_path / "store").cls_last
    tokenizer = trained.tokenizer
    stream = Stream(store, format="segment-pair+nsp", masking=Masking("permutation"), batch_tokens=64, max_length=32)
    pair = next(e for n in range(stream.examples) if int((e := stream.example(n)).labels.pairs[0]) != IGNORED)
    cls, sep = tokenizer.id_of("cls"), tokenizer.id_of("sep")
    assert pair.ids.tolist()[-2:] == [sep, cls]
    assert set(pair.segments.tolist()) == {0, 1, 2}
    assert (pair.labels.targets >= 9).all(), "special tokens are not predicted"
