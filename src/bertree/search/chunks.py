"""Divide long documents into passages of a number of tokens, with their positions in the document.

A passage ends at the end of a sentence and begins with the last sentences of the passage before, as far as these fit
into the overlap: text around a border is then found from both sides. Only a sentence that is too long for a passage is
cut, at white space if possible. `document[start:end]` is always the passage.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple

from bertree.errors import UserError
from bertree.text import sentence_splitter
from bertree.text.tokenizer import Tokenizer

TOKENS, SHARE = 256, 0.2  # tokens of a passage, and the share of them repeated from the one before
PIECE = 8  # characters per token at most: a "word" of a megabyte is one unknown token
BATCH = 1024  # texts per call of the tokenizer
WORD = re.compile(r"\w+|[^\w\s]")


class CharSpan(NamedTuple):
    """A range of characters in a document."""

    start: int
    end: int


@dataclass(frozen=True)
class Chunking:
    """Length of a passage and overlap with the one before, in tokens without special tokens."""

    tokens: int = TOKENS
    overlap: int = math.floor(TOKENS * SHARE)
    language: str = "en"

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UserError(f"chunk {self.tokens}: must be at least 1 token")
        if not 0 <= self.overlap < self.tokens:
            raise UserError(f"overlap {self.overlap}: must lie between 0 and {self.tokens - 1}")


def choose_chunking(tokens: int | None, overlap: int | None, longest: int | None, language: str = "en") -> Chunking:
    """Return the chunking for these settings (None: the default) and a model that reads at most `longest` tokens of
    text (None: any number)."""
    if tokens is not None and longest is not None and tokens > longest:
        raise UserError(f"chunk {tokens}: the model reads at most {longest} tokens of text; give that or less")
    tokens = tokens if tokens is not None else min(TOKENS, longest or TOKENS)
    return Chunking(tokens, math.floor(tokens * SHARE) if overlap is None else overlap, language)


def split_passages(document: str, chunking: Chunking, tokenizer: Tokenizer | None = None) -> list[CharSpan]:
    """Return the passages of a document in order; together they cover every character but white space.

    Without a tokenizer, words and punctuation marks are counted.
    """
    units = list(_split_units(document, chunking, tokenizer))
    passages = [
        (units[first].span.start, units[last - 1].span.end, first, last) for first, last in _pack_units(units, chunking)
    ]
    counts = _count_tokens([document[start:end] for start, end, *_ in passages], tokenizer)
    spans: list[CharSpan] = []
    for (start, end, first, last), count in zip(passages, counts, strict=True):
        if count <= chunking.tokens or last - first == 1:
            spans.append(CharSpan(start, end))
        else:  # more tokens together than separately: a byte-level word includes the space before it
            spans += _split_in_half(document, units[first:last], chunking, tokenizer)
    kept: list[CharSpan] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not kept or span.end > kept[-1].end:  # otherwise its neighbour contains it
            kept.append(span)
    return kept


class _Unit(NamedTuple):
    """A part that is never divided between passages: a sentence, or a piece of one that is too long."""

    span: CharSpan
    tokens: int

    @classmethod
    def from_tokens(cls, start: int, end: int, tokens: int) -> "_Unit":
        """Return a unit with its number of tokens, estimated from its characters if one unknown token hides many."""
        return cls(CharSpan(start, end), max(tokens, math.ceil((end - start) / PIECE)))


def _pack_units(units: Sequence[_Unit], chunking: Chunking) -> Iterator[tuple[int, int]]:
    """Yield runs of units, each as long as fits, each beginning with as much of the one before as the overlap
    allows. White space as long as a passage ends a run."""
    longest = PIECE * chunking.tokens
    gaps = [n for n in range(1, len(units)) if units[n].span.start - units[n - 1].span.end > longest]
    for first, end in pairwise([0, *gaps, len(units)]):
        while first < end:
            size, last = 0, first
            while last < end and (size + units[last].tokens <= chunking.tokens or last == first):
                size += units[last].tokens
                last += 1
            yield first, last
            if last == end:
                break
            back, repeated = last, 0
            while back - 1 > first and (more := repeated + units[back - 1].tokens) <= chunking.overlap:
                if more + units[last].tokens > chunking.tokens:
                    break
                back, repeated = back - 1, more
            first = back


def _split_in_half(
    document: str, units: Sequence[_Unit], chunking: Chunking, tokenizer: Tokenizer | None
) -> list[CharSpan]:
    span = CharSpan(units[0].span.start, units[-1].span.end)
    if len(units) == 1 or _count_tokens([document[span.start : span.end]], tokenizer)[0] <= chunking.tokens:
        return [span]
    middle = len(units) // 2
    return [s for half in (units[:middle], units[middle:]) for s in _split_in_half(document, half, chunking, tokenizer)]


def _split_units(document: str, chunking: Chunking, tokenizer: Tokenizer | None) -> Iterator[_Unit]:
    spans = iter(_sentence_spans(document, chunking))
    while batch := list(islice(spans, BATCH)):
        texts = [document[start:end] for start, end in batch]
        for span, text, offsets in zip(batch, texts, _token_offsets(texts, tokenizer), strict=True):
            if len(offsets) <= chunking.tokens:
                yield _Unit.from_tokens(*span, len(offsets))
            else:
                yield from _cut_sentence(span, text, offsets, chunking, tokenizer)


def _sentence_spans(document: str, chunking: Chunking) -> Iterator[CharSpan]:
    """Yield the sentences; one with too many characters in pieces."""
    at = 0
    longest = PIECE * chunking.tokens
    for sentence in sentence_splitter.split_sentences(document, chunking.language):
        start = document.index(sentence, at)
        at = end = start + len(sentence)
        while end - start > longest:
            border = _cut_point(document, start, start + longest)
            yield CharSpan(start, border)
            start = _skip_space(document, border, end)
        yield CharSpan(start, end)


def _cut_point(text: str, start: int, end: int) -> int:
    """Return where to cut at the latest: after the last complete word, if that leaves half of the piece."""
    at = end
    while at > start + (end - start) // 2 and not text[at].isspace():
        at -= 1
    if not text[at].isspace():
        return end
    while text[at - 1].isspace() and at > start + 1:
        at -= 1
    return at


def _skip_space(text: str, at: int, end: int) -> int:
    while at < end and text[at].isspace():
        at += 1
    return at


def _cut_sentence(
    span: CharSpan, text: str, offsets: list[tuple[int, int]], chunking: Chunking, tokenizer: Tokenizer | None
) -> Iterator[_Unit]:
    """Yield a sentence of too many tokens in pieces small enough to be repeated as the overlap."""
    size = chunking.overlap or max(1, chunking.tokens * 3 // 4)  # a piece on its own may have one token more
    starts = [start for start, _ in offsets]
    at = 0
    while at < len(text):
        token = bisect_right(starts, at) - 1 if at else 0
        end = starts[token + size] if token + size < len(starts) else len(text)
        end = _cut_point(text, at, end) if at < end < len(text) else end
        end = end if end > at else at + 1  # several tokens of one character, which is not divided
        yield _Unit.from_tokens(span.start + at, span.start + end, _count_tokens([text[at:end]], tokenizer)[0])
        at = _skip_space(text, end, len(text))


def _token_offsets(texts: Sequence[str], tokenizer: Tokenizer | None) -> list[list[tuple[int, int]]]:
    """Return the character range of each token of each text."""
    if tokenizer is None:
        return [[match.span() for match in WORD.finditer(text)] for text in texts]
    return [encoding.offsets for encoding in tokenizer.encode_plain(texts, offsets=True)]


def _count_tokens(texts: Sequence[str], tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        return [len(WORD.findall(text)) for text in texts]
    counts: list[int] = []
    for at in range(0, len(texts), BATCH):
        batch = list(texts[at : at + BATCH])
        counts += [len(encoding.ids) for encoding in tokenizer.encode_plain(batch)]
    return counts
