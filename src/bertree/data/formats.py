"""Input formats: what one example is made of, and where in the corpus each example starts.

    segment-pair    two segments of whole sentences of one document, filled to the limit; one example in
                    ten aims at a shorter, random length (BERT)
    sentence-pair   two single sentences of one document
    full-sentences  whole sentences filled to the limit, across documents with a separator between (RoBERTa)
    doc-sentences   the same, never across documents
    stream          contiguous tokens with a separator after each document, for language models

A pair format may ask a question about its pairs: "nsp" (is B the true next segment or one of another
document?) or "sop" (are A and B in order or swapped?). Written as one word: "segment-pair+nsp".

Examples tile the corpus: every token belongs to exactly one, and where BERT drops the tokens that do not
fit into a pair, here the next example goes on with them. So a sentence is split only where it is longer
than the limit, or where it and its neighbour do not fit into one pair together.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.data import counter_random
from bertree.data.counter_random import Ints
from bertree.data.store import Shard
from bertree.errors import UserError, suggest

PAIRS = ("segment-pair", "sentence-pair")
KINDS = (*PAIRS, "full-sentences", "doc-sentences", "stream")
QUESTIONS = ("nsp", "sop")
SHORT = 2  # BERT's shortest target


@dataclass(frozen=True)
class Format:
    """One input format."""

    kind: str = "full-sentences"
    question: str | None = None  # "nsp" or "sop", of a pair format
    separators: int = 1  # between A and B: BERT and ALBERT 1, RoBERTa 2
    short: float = 0.1  # share of segment pairs that aim at a shorter length

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"format '{self.kind}': unknown, {suggest(self.kind, KINDS)}")
        if self.question is not None and self.question not in QUESTIONS:
            raise UserError(f"format '{self.name}': unknown question, {suggest(self.question, QUESTIONS)}")
        if self.question is not None and not self.paired:
            raise UserError(f"format '{self.name}': {self.kind} has no pairs to ask about; use {PAIRS[0]}")
        if self.separators not in (1, 2):
            raise UserError(f"format '{self.name}': {self.separators} separators in a pair; give 1 or 2")
        if not 0 <= self.short <= 1:
            raise UserError(f"format '{self.name}': short = {self.short} is not a share; give 0 to 1")

    @classmethod
    def parse(cls, text: "str | Format") -> "Format":
        """From its name: "full-sentences", "segment-pair+nsp", "sentence-pair+sop"."""
        if isinstance(text, Format):
            return text
        kind, plus, question = text.partition("+")
        return cls(kind, question if plus else None)

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return self.kind + (f"+{self.question}" if self.question is not None else "")

    @property
    def paired(self) -> bool:
        """Does an example hold two segments?"""
        return self.kind in PAIRS

    @property
    def single_overhead(self) -> int:
        """Special tokens around an example of one segment."""
        return 0 if self.kind == "stream" else 2

    @property
    def full_overhead(self) -> int:
        """Special tokens around the fullest example."""
        return 2 + self.separators if self.paired else self.single_overhead

    def room(self, max_length: int) -> int:
        """Tokens of text in an example at most."""
        room = max_length - self.full_overhead
        if room < 4:
            raise UserError(
                f"max_length {max_length}: too short for {self.name}; give {self.full_overhead + 4} or more"
            )
        return room


@dataclass(frozen=True)
class Examples:
    """Where examples lie: end to end over the corpus, so their lengths say it all.

    Marks are offsets from an example's first token: in a pair format the places where A may end and B
    start, elsewhere the separators between documents, which are counted in the lengths."""

    contents: NDArray[Any]  # e: length of each example without its frame
    counts: NDArray[Any]  # e: marks in each
    marks: NDArray[Any]
    documents: NDArray[Any]  # e in a pair format, else none: document it lies in
    shards: Ints = field(default_factory=lambda: np.zeros(1, np.int64))  # shards + 1: first example of each

    @classmethod
    def join(cls, pieces: "list[Examples]", documents: list[int], max_length: int) -> "Examples":
        """The examples of consecutive shards with so many documents, in as few bytes as they need."""
        narrow = np.uint16 if max_length < 1 << 16 else np.uint32
        bases = counter_random.cumulative_offsets(np.array(documents))
        return cls(
            np.concatenate([piece.contents.astype(narrow) for piece in pieces]),
            np.concatenate([piece.counts.astype(narrow) for piece in pieces]),
            np.concatenate([piece.marks.astype(narrow) for piece in pieces]),
            np.concatenate([(p.documents + b).astype(np.uint32) for p, b in zip(pieces, bases, strict=False)]),
            counter_random.cumulative_offsets(np.array([piece.contents.size for piece in pieces])),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def cut_shard(format: Format, max_length: int, seed: int, shard: Shard, first_token: int) -> Examples:
    """The examples of one shard; tokens and documents are counted from the shard's own first."""
    sentences = np.asarray(shard.sentence_starts)
    documents = sentences[np.asarray(shard.document_starts)]
    room = format.room(max_length)
    if format.kind == "stream":
        return _cut_stream(documents, room)
    if format.paired:
        units = _cut_long_sentences(sentences, room, room // 2, even=True)
        return _cut_pairs(format, room, units, documents, counter_random.key(seed, "short"), first_token)
    units = _cut_long_sentences(sentences, room, room, even=False)
    return _cut_sentences(units, documents, room, crossing=format.kind == "full-sentences")


def _cut_stream(documents: Ints, room: int) -> Examples:
    separators = documents[1:] + np.arange(documents.size - 1)
    begins = np.arange(0, int(separators[-1]) + 1, room)
    ends = np.minimum(begins + room, separators[-1] + 1)
    before = np.searchsorted(separators, begins)
    offsets = np.append(before, separators.size)
    marks = separators - np.repeat(begins, np.diff(offsets))
    return Examples(ends - begins, np.diff(offsets), marks, before[:0])


def _cut_sentences(units: Ints, documents: Ints, room: int, crossing: bool) -> Examples:
    document = np.searchsorted(documents, units[:-1], "right") - 1
    if crossing:  # one more place for the separator before each further document
        begins, ends = units[:-1] + document, units[1:] + document
        after = np.searchsorted(ends, begins + room, "right")
    else:
        begins, ends = units[:-1], units[1:]
        last = np.searchsorted(units, documents[1:])[document]
        after = np.minimum(np.searchsorted(ends, begins + room, "right"), last)
    chosen = _follow_chain(after)
    final = np.append(chosen[1:], units.size - 1) - 1
    counts = document[final] - document[chosen] if crossing else np.zeros(chosen.size, np.int64)
    crossed = counter_random.concatenate_ranges(document[chosen], counts)
    marks = documents[crossed + 1] + crossed - np.repeat(begins[chosen], counts)
    return Examples(ends[final] - begins[chosen], counts, marks, document[:0])


def _cut_pairs(format: Format, room: int, units: Ints, documents: Ints, under: np.uint64, first_token: int) -> Examples:
    begins, ends = units[:-1], units[1:]
    number = np.arange(begins.size)
    document = np.searchsorted(documents, begins, "right") - 1
    last = np.searchsorted(units, documents[1:])[document]
    two = np.minimum(number + 2, last)
    fits = units[two] - begins <= room
    after = np.where(fits, two, number + 1)
    if format.kind == "segment-pair":
        random = counter_random.bits(under, begins + first_token)
        short = random < counter_random.threshold(format.short)
        aims = SHORT + counter_random.uniform_below(counter_random.bits(under, random), room + 1 - SHORT)
        target = np.where(short, aims, room)
        after = np.maximum(after, np.minimum(np.searchsorted(ends, begins + target, "right"), last))
        # No single sentence is left over at a document's end where the example before can spare one.
        spare = (last - after == 1) & (after - number >= 3) & (units[last] - units[after - 1] <= room)
        after -= spare
    least = max(1, room // 4)  # a smaller rest is no segment: such a sentence stays alone
    torn = ~fits & (after < last) & (ends - begins <= room - least)
    after[torn] = -1
    most = 2 if format.kind == "sentence-pair" else units.size
    starts = (
        _follow_split_chain(units, after, last, room, room - least, most) if torn.any() else units[_follow_chain(after)]
    )
    stops = np.append(starts[1:], units[-1])
    first = np.searchsorted(units, starts, "right")
    counts = np.searchsorted(units, stops, "left") - first
    marks = units[counter_random.concatenate_ranges(first, counts)] - np.repeat(starts, counts)
    owner = np.searchsorted(documents, starts, "right") - 1
    return Examples(stops - starts, counts, marks, owner)


def _cut_long_sentences(bounds: Ints, limit: int, piece: int, even: bool) -> Ints:
    """Bounds of sentences, those over the limit cut into pieces: equal ones, or full ones and a rest."""
    lengths = np.diff(bounds)
    if lengths.max(initial=0) <= limit:
        return bounds
    counts = np.where(lengths > limit, -(-lengths // piece), 1)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes, shares = np.repeat(lengths, counts), np.repeat(counts, counts)
    offsets = within * sizes // shares if even else within * piece
    return np.append(np.repeat(bounds[:-1], counts) + offsets, bounds[-1])


def _follow_chain(after: Ints) -> Ints:
    """0, after[0], after[after[0]], ...: the one step that no array operation does."""
    assert (after > np.arange(after.size)).all(), "an example has one unit at least"
    steps, size, place = np.ascontiguousarray(after).data, after.size, 0
    places = []
    while place < size:
        places.append(place)
        place = steps[place]
    return np.array(places, dtype=np.int64)


def _follow_split_chain(units: Ints, after: Ints, last: Ints, room: int, enough: int, most: int) -> Ints:
    """The same where some sentence and its neighbour do not fit into one pair (after < 0): the pair is
    filled to the limit and the next example goes on inside the sentence."""
    bounds, steps, ends = np.ascontiguousarray(units).data, after.data, last.data
    places, unit, size = [], 0, after.size
    while unit < size:
        places.append(bounds[unit])
        if steps[unit] >= 0:
            unit = steps[unit]
            continue
        place, unit = bounds[unit] + room, unit + 1
        while True:
            places.append(place)
            stop = min(bisect_right(bounds, place + room, unit + 1) - 1, ends[unit], unit + most)
            if stop - unit >= 2 or stop == ends[unit] or bounds[stop] - place > enough:
                unit = stop
                break
            place, unit = place + room, stop
    return np.array(places, dtype=np.int64)
