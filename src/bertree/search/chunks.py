"""Long documents -> passages of so many tokens, with their places in the document.

A passage ends where a sentence does, and begins with the last sentences of the one before it, as far as these fit
into the overlap: what stands around a border is then found from both sides. Only a sentence that is too long for a
passage is cut, at white space where there is any. `document[start:end]` is the passage, always.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from bertree.errors import UserError
from bertree.text import sentence_splitter
from bertree.text.tokenizer import Tokenizer

TOKENS, SHARE = 256, 0.2  # of a passage; of it, repeated from the one before
PIECE = 8  # characters a token at most: a "word" of a megabyte is one unknown token
AT_ONCE = 1024  # texts given to the tokenizer together
WORD = re.compile(r"\w+|[^\w\s]")


class CharSpan(NamedTuple):
    """A place in a document, in characters."""

    start: int
    end: int


@dataclass(frozen=True)
class Chunking:
    """How long passages are and how much of one the next repeats, in tokens without the special ones."""

    tokens: int = TOKENS
    overlap: int = math.floor(TOKENS * SHARE)
    language: str = "en"

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UserError(f"chunk {self.tokens}: a passage must have room for at least one token")
        if not 0 <= self.overlap < self.tokens:
            raise UserError(f"overlap {self.overlap}: must lie between 0 and {self.tokens - 1}, less than a passage")


def choose_chunking(tokens: int | None, overlap: int | None, room: int | None, language: str = "en") -> Chunking:
    """What was asked for, or what suits a model that has `room` for so many tokens of text; None: any number."""
    if tokens is not None and room is not None and tokens > room:
        raise UserError(f"chunk {tokens}: the model reads {room} tokens of text at most; give that or less")
    tokens = tokens if tokens is not None else min(TOKENS, room or TOKENS)
    return Chunking(tokens, math.floor(tokens * SHARE) if overlap is None else overlap, language)


def split_passages(document: str, how: Chunking, tokenizer: Tokenizer | None = None) -> list[CharSpan]:
    """The passages of a document in order; together they hold every character but white space.

    Without a tokenizer, words and signs are counted.
    """
    units = list(_split_units(document, how, tokenizer))
    passages = [
        (units[first].span.start, units[last - 1].span.end, first, last) for first, last in _pack_units(units, how)
    ]
    counts = _count_tokens([document[start:end] for start, end, *_ in passages], tokenizer)
    found: list[CharSpan] = []
    for (start, end, first, last), count in zip(passages, counts, strict=True):
        if count <= how.tokens or last - first == 1:
            found.append(CharSpan(start, end))
        else:  # together they give more tokens than one by one: a byte-level word knows the space before it
            found += _split_in_half(document, units[first:last], how, tokenizer)
    kept: list[CharSpan] = []
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        if not kept or span.end > kept[-1].end:  # else a half that its neighbour repeats whole
            kept.append(span)
    return kept


class _Unit(NamedTuple):
    """What is never divided between passages: a sentence, or a piece of one that is too long."""

    span: CharSpan
    tokens: int

    @classmethod
    def from_tokens(cls, start: int, end: int, tokens: int) -> "_Unit":
        """Of so many tokens; as many as its characters should have had, where it hides them in an unknown one."""
        return cls(CharSpan(start, end), max(tokens, math.ceil((end - start) / PIECE)))


def _pack_units(units: Sequence[_Unit], how: Chunking) -> Iterator[tuple[int, int]]:
    """Runs of units, each as long as fits, each beginning with as much of the one before as the overlap holds."""
    first = 0
    while first < len(units):
        size, last = 0, first
        while last < len(units) and (size + units[last].tokens <= how.tokens or last == first):
            size += units[last].tokens
            last += 1
        yield first, last
        if last == len(units):
            return
        back, repeated = last, 0
        while back - 1 > first and (more := repeated + units[back - 1].tokens) <= how.overlap:
            if more + units[last].tokens > how.tokens:
                break
            back, repeated = back - 1, more
        first = back


def _split_in_half(document: str, units: Sequence[_Unit], how: Chunking, tokenizer: Tokenizer | None) -> list[CharSpan]:
    span = CharSpan(units[0].span.start, units[-1].span.end)
    if len(units) == 1 or _count_tokens([document[span.start : span.end]], tokenizer)[0] <= how.tokens:
        return [span]
    middle = len(units) // 2
    return [s for half in (units[:middle], units[middle:]) for s in _split_in_half(document, half, how, tokenizer)]


def _split_units(document: str, how: Chunking, tokenizer: Tokenizer | None) -> Iterator[_Unit]:
    spans = iter(_sentence_spans(document, how))
    while some := list(islice(spans, AT_ONCE)):
        texts = [document[start:end] for start, end in some]
        for span, text, places in zip(some, texts, _token_offsets(texts, tokenizer), strict=True):
            if len(places) <= how.tokens:
                yield _Unit.from_tokens(*span, len(places))
            else:
                yield from _cut_sentence(span, text, places, how, tokenizer)


def _sentence_spans(document: str, how: Chunking) -> Iterator[CharSpan]:
    """Where the sentences are, one that has too many characters in pieces."""
    at = 0
    longest = PIECE * how.tokens
    for sentence in sentence_splitter.split_sentences(document, how.language):
        start = document.index(sentence, at)
        at = end = start + len(sentence)
        while end - start > longest:
            border = _cut_point(document, start, start + longest)
            yield CharSpan(start, border)
            start = _skip_space(document, border, end)
        yield CharSpan(start, end)


def _cut_point(text: str, start: int, end: int) -> int:
    """Where to cut at the latest: behind the last word that is whole, if that leaves half of the piece."""
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
    span: CharSpan, text: str, places: list[tuple[int, int]], how: Chunking, tokenizer: Tokenizer | None
) -> Iterator[_Unit]:
    """A sentence of too many tokens in pieces small enough to be repeated as the overlap."""
    size = how.overlap or max(1, how.tokens * 3 // 4)  # a piece read alone may have a token more
    starts = [start for start, _ in places]
    at = 0
    while at < len(text):
        token = bisect_right(starts, at) - 1 if at else 0
        end = starts[token + size] if token + size < len(starts) else len(text)
        end = _cut_point(text, at, end) if at < end < len(text) else end
        end = end if end > at else at + 1  # several tokens of one character: it is not divided
        yield _Unit.from_tokens(span.start + at, span.start + end, _count_tokens([text[at:end]], tokenizer)[0])
        at = _skip_space(text, end, len(text))


def _token_offsets(texts: Sequence[str], tokenizer: Tokenizer | None) -> list[list[tuple[int, int]]]:
    """Where each token of each text is, by characters."""
    if tokenizer is None:
        return [[match.span() for match in WORD.finditer(text)] for text in texts]
    return [given.offsets for given in tokenizer.backend.encode_batch(list(texts), add_special_tokens=False)]


def _count_tokens(texts: Sequence[str], tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        return [len(WORD.findall(text)) for text in texts]
    counts: list[int] = []
    for at in range(0, len(texts), AT_ONCE):
        some = list(texts[at : at + AT_ONCE])
        counts += [len(given.ids) for given in tokenizer.backend.encode_batch_fast(some, add_special_tokens=False)]
    return counts
