"""Sentences: split where a person would, and nothing lost."""

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from bertree.text import sentence_splitter
from bertree.text.cleaning import clean
from bertree.text.sentence_splitter import MAX_CALL, split_sentences


def bare(text: str) -> str:
    return "".join(text.split())


def test_splits_where_a_person_would() -> None:
    text = "Dr. Smith paid $3.50. Was it much? No!\nA new line 今日は。元気？"
    assert split_sentences(text) == ["Dr. Smith paid $3.50.", "Was it much?", "No!", "A new line 今日は。", "元気？"]


@given(st.lists(st.integers(0, 0xD7FF).map(chr) | st.sampled_from('. ?!\n"(1a。'), max_size=60).map("".join))
def test_loses_nothing_but_white_space(text: str) -> None:
    sentences = split_sentences(text)
    assert bare("".join(sentences)) == bare(text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@given(
    st.lists(
        st.sampled_from(["Mr. ", "end. ", '"Quote." ', "1. ", "word ", "。", "…", "(a. ", "\n", "é"]),
        max_size=60,
    )
)
def test_long_lines_lose_nothing_either(parts: list[str]) -> None:
    text = clean("".join(parts) * 200)
    assert bare("".join(split_sentences(text))) == bare(text)


def test_windows_cut_no_sentence_that_fits() -> None:
    sentence = "This sentence has exactly eight words in it."
    assert split_sentences(" ".join([sentence] * 1000)) == [sentence] * 1000


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["x", "word ", "a. ", "你好。", "Mr. ", '"Yes." ', "1. ", "( "])
def test_the_library_gets_short_pieces_and_no_text_many_times(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is quadratic in the length of a text."""
    segment, calls = sentence_splitter._segment, []

    def counted(language: str, text: str) -> list[str]:
        calls.append(len(text))
        return segment(language, text)

    monkeypatch.setattr(sentence_splitter, "_segment", counted)
    text = unit * (100_000 // len(unit))
    split_sentences(text)
    assert max(calls) <= MAX_CALL
    assert len(text) <= sum(calls) < 2.5 * len(text)


def test_a_panic_in_the_library_keeps_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(language: str, text: str) -> list[str]:
        raise PanicException

    monkeypatch.setattr(sentencex, "segment", panic)
    assert split_sentences("One. Two.") == ["One. Two."]
    monkeypatch.setattr(sentencex, "segment", lambda language, text: [text[:3]])
    assert split_sentences("One. Two.") == ["One. Two."]
    assert MAX_CALL > 1000
