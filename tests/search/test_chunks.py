"""Passages: every word is in one, none is too long, and each stands in its document where it says."""

import random
import string
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.errors import UserError
from bertree.search.chunks import CharSpan, Chunking, choose_chunking, split_passages
from bertree.text import tokenizer_training
from bertree.text.tokenizer import Tokenizer
from tests.support.quick import example_count

STORY = (
    "The lamp on the quay went out at nine. Nobody saw it but the ferryman, who was mending a net and did not look up "
    "twice. “It will come back,” he said.\n\nIt did not come back. In the morning there was a boat that nobody knew; "
    "its sails were grey, and its name had been painted over. Mrs. Dale counted the ropes. There were eleven.\n"
)


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return tokenizer_training.train(lambda: [STORY * 3], request.param, 300)


def counted(text: str, tokenizer: Tokenizer | None) -> int:
    if tokenizer is None:
        return len(text.split())
    return len(tokenizer.backend.encode(text, add_special_tokens=False).ids)


def check(document: str, spans: list[CharSpan], how: Chunking, tokenizer: Tokenizer | None) -> None:
    covered = 0
    for start, end in spans:
        assert 0 <= start < end <= len(document)
        text = document[start:end]
        assert text.strip() == text != "", "a passage begins and ends with something to read"
        assert counted(text, tokenizer) <= how.tokens or end - start == 1
        assert not document[covered:start].strip(), "nothing is left out"
        covered = max(covered, end)
    assert not document[covered:].strip()
    assert [s.start for s in spans] == sorted({s.start for s in spans}), "each begins later than the one before"
    assert [s.end for s in spans] == sorted({s.end for s in spans})


@pytest.mark.parametrize(("tokens", "overlap"), [(40, 8), (40, 0), (64, 30), (15, 3), (3, 1)])
def test_passages_cover_the_document_with_every_tokenizer(tokenizer: Tokenizer, tokens: int, overlap: int) -> None:
    how = Chunking(tokens, overlap)
    for document in (STORY, STORY * 20, STORY.replace(". ", " "), "é" + STORY.upper() + "日本語のテキスト。"):
        check(document, split_passages(document, how, tokenizer), how, tokenizer)


def test_ends_with_sentences_and_repeats_some(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    document = " ".join(f"Sentence number {n} tells of the harbour at dusk." for n in range(200))
    how = Chunking(100, 25)
    spans = split_passages(document, how, tokenizer)
    check(document, spans, how, tokenizer)
    for span in spans:
        assert document[span.start : span.end].startswith("Sentence")
        assert document[span.end - 1] == "."
    for earlier, later in pairwise(spans):
        repeated = document[later.start : earlier.end]
        assert 1 <= repeated.count("Sentence") <= 3, "whole sentences, no more than the overlap"
        assert counted(repeated, tokenizer) <= how.overlap
    assert all(counted(document[a:b], tokenizer) > 60 for a, b in spans[:-1]), "they are filled"


def test_short_text_is_one_passage(minilm: Path) -> None:
    assert split_passages("  A line.\n", Chunking(), Tokenizer.load(minilm)) == [CharSpan(2, 9)]
    assert split_passages(" \n\t ", Chunking()) == []


def test_megabytes_without_a_space_are_divided(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    for document in ("x" * 1_000_000, "猫" * 40_000, "no-end " * 15_000):
        how = Chunking()
        spans = split_passages(document, how, tokenizer)
        check(document, spans, how, tokenizer)
        assert max(end - start for start, end in spans) <= 8 * how.tokens, "also where all of it is one unknown token"


@example_count(150)
@given(
    st.text(alphabet=st.sampled_from(string.ascii_letters[:8] + " .\n\t!é猫\u3000"), max_size=400), st.integers(1, 30)
)
def test_passages_cover_any_text(document: str, tokens: int) -> None:
    how = Chunking(tokens, random.Random(tokens).randrange(tokens))
    check(document, split_passages(document, how), how, None)


def test_a_passage_does_not_span_a_desert_of_spaces(minilm: Path) -> None:
    """All of it would be given to the tokenizer, and stored."""
    document = "One sentence." + " " * 1_000_000 + "Another. A third." + "\n" * 300 + "A fourth."
    for tokenizer in (None, Tokenizer.load(minilm)):
        spans = split_passages(document, Chunking(64, 8), tokenizer)
        assert spans == [CharSpan(0, 13), CharSpan(1_000_013, len(document))]


def test_sizes_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(UserError, match=r"overlap .*between 0 and"):
        Chunking(10, 10)
    with pytest.raises(UserError, match=r"chunk .*at least 1 token"):
        Chunking(0, 0)
    with pytest.raises(UserError, match=r"chunk 200: .*126 tokens"):
        choose_chunking(200, None, 126)
    assert choose_chunking(None, None, 126) == Chunking(126, 25)
    assert choose_chunking(None, None, 510) == Chunking(256, 51)
    assert choose_chunking(50, 0, None) == Chunking(50, 0)
