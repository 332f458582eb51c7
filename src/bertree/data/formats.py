"""Input formats: what one example is made of, and where in the corpus each example starts (for example_index.py).

    segment-pair    two segments of complete sentences of one document, filled to the limit; one example in ten
                    has a shorter, random target length (BERT)
    sentence-pair   two single sentences of one document
    full-sentences  complete sentences filled to the limit, across documents with a separator between (RoBERTa)
    doc-sentences   the same, never across documents
    stream          contiguous tokens with a separator after each document, if the vocabulary has one, for language
                    models

A pair format may have a sentence objective: "nsp" (is B the true next segment or one of another document?) or "sop"
(are A and B in order or swapped?). Written as one word: "segment-pair+nsp".

Examples tile the corpus: every token belongs to exactly one, and where BERT drops the tokens that do not fit into a
pair, here the next example continues with them. So a sentence is split only if it is longer than the limit, or if it
does not fit into one pair with the next one.

In a store with control codes an example begins with the code of its document, and ends where the document does. Formats
whose examples cross documents or have two segments do not support such stores.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.data.store import Shard
from bertree.errors import UserError, suggest
from bertree.keyed_random import Ints

PAIRS = ("segment-pair", "sentence-pair")
KINDS = (*PAIRS, "full-sentences", "doc-sentences", "stream")
CODED = ("stream", "doc-sentences")  # kinds that support stores with control codes
OBJECTIVES = ("nsp", "sop")
SHORTEST = 2  # BERT's shortest random target length


@dataclass(frozen=True)
class Format:
    """One input format."""

    kind: str = "full-sentences"
    objective: str | None = None  # "nsp" or "sop", of a pair format
    separators: int = 1  # between A and B: BERT and ALBERT 1, RoBERTa 2
    short: float = 0.1  # share of segment pairs with a shorter, random target length

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"format '{self.kind}': unknown, {suggest(self.kind, KINDS)}")
        if self.objective is not None and self.objective not in OBJECTIVES:
            raise UserError(f"format '{self.name}': unknown objective, {suggest(self.objective, OBJECTIVES)}")
        if self.objective is not None and not self.paired:
            raise UserError(f"format '{self.name}': {self.kind} has no pairs; use {PAIRS[0]}")
        if self.separators not in (1, 2):
            raise UserError(f"format '{self.name}': {self.separators} separators in a pair; give 1 or 2")
        if not 0 <= self.short <= 1:
            raise UserError(f"format '{self.name}': short = {self.short} is not a share; give 0 to 1")

    @classmethod
    def parse(cls, text: "str | Format") -> "Format":
        """Parse a name: "full-sentences", "segment-pair+nsp", "sentence-pair+sop"."""
        if isinstance(text, Format):
            return text
        kind, plus, objective = text.partition("+")
        return cls(kind, objective if plus else None)

    @property
    def name(self) -> str:
        """The name as written on the command line."""
        return self.kind + (f"+{self.objective}" if self.objective is not None else "")

    @property
    def paired(self) -> bool:
        """Whether an example has two segments."""
        return self.kind in PAIRS

    @property
    def single_overhead(self) -> int:
        """Number of special tokens of an example with one segment."""
        return 0 if self.kind == "stream" else 2

    @property
    def full_overhead(self) -> int:
        """Largest number of special tokens of an example."""
        return 2 + self.separators if self.paired else self.single_overhead

    def room(self, max_length: int, prefix: int = 0) -> int:
        """Return how many tokens of text fit into an example; `prefix`: tokens of the longest control code."""
        overhead = prefix + self.closed if prefix else self.full_overhead
        if max_length - overhead < 4:
            code = " with control codes" if prefix else ""
            raise UserError(f"max_length {max_length}: too short for {self.name}{code}; give {overhead + 4} or more")
        return max_length - overhead

    @property
    def closed(self) -> int:
        """Number of separators after an example of one segment."""
        return 0 if self.kind == "stream" else 1


@dataclass(frozen=True)
class Examples:
    """Where examples start and end: they tile the corpus, so their lengths are enough.

    Marks are offsets from an example's first token: in a pair format the positions where A may end and B start, in
    other formats the separators between documents, which are counted in the lengths.
    """

    contents: NDArray[Any]  # length of each example without its special tokens
    counts: NDArray[Any]  # number of marks of each example
    marks: NDArray[Any]
    documents: NDArray[Any]  # document of each example in a pair format and with control codes, else empty
    shards: Ints = field(default_factory=lambda: np.zeros(1, np.int64))  # shards + 1: first example of each

    @classmethod
    def join(cls, pieces: "list[Examples]", documents: list[int], max_length: int) -> "Examples":
        """Join the examples of consecutive shards (with `documents` each), in as few bytes as they need."""
        narrow = np.uint16 if max_length < 1 << 16 else np.uint32
        bases = keyed_random.cumulative_offsets(np.array(documents))
        return cls(
            np.concatenate([piece.contents.astype(narrow) for piece in pieces]),
            np.concatenate([piece.counts.astype(narrow) for piece in pieces]),
            np.concatenate([piece.marks.astype(narrow) for piece in pieces]),
            np.concatenate([(p.documents + b).astype(np.uint32) for p, b in zip(pieces, bases, strict=False)]),
            keyed_random.cumulative_offsets(np.array([piece.contents.size for piece in pieces])),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def cut_shard(
    shard: Shard, format: Format, max_length: int, *, seed: int, first_token: int, prefix: int, separated: bool
) -> Examples:
    """Return the examples of one shard; tokens and documents are counted from the start of the shard.

    `prefix`: tokens of the longest control code; 0: documents have no codes. `separated`: the vocabulary has a
    separator, which a stream contains after each document.
    """
    sentences = shard.load_sentence_starts()
    documents = sentences[shard.document_starts]
    room = format.room(max_length, prefix)
    if format.kind == "stream":
        if prefix:
            return _cut_documents(documents, room, separated)
        return _cut_stream(documents, room) if separated else _cut_evenly(int(documents[-1]), room)
    if format.paired:
        units = cut_long_ranges(sentences, room, room // 2, even=True)
        return _cut_pairs(format, room, units, documents, keyed_random.key(seed, "short"), first_token)
    units = cut_long_ranges(sentences, room, room, even=False)
    return _cut_sentences(units, documents, room, format.kind == "full-sentences", owned=prefix > 0)


def _cut_stream(documents: Ints, room: int) -> Examples:
    separators = documents[1:] + np.arange(documents.size - 1)
    begins = np.arange(0, int(separators[-1]) + 1, room)
    ends = np.minimum(begins + room, separators[-1] + 1)
    before = np.searchsorted(separators, begins)
    offsets = np.append(before, separators.size)
    marks = separators - np.repeat(begins, np.diff(offsets))
    return Examples(ends - begins, np.diff(offsets), marks, before[:0])


def _cut_evenly(tokens: int, room: int) -> Examples:
    bounds = np.append(np.arange(0, tokens, room), tokens)
    return Examples(np.diff(bounds), np.zeros(bounds.size - 1, np.int64), bounds[:0], bounds[:0])


def _cut_documents(documents: Ints, room: int, separated: bool) -> Examples:
    """Cut each document, with the separator after it, into equal pieces."""
    bounds = documents + np.arange(documents.size) * separated
    units = cut_long_ranges(bounds, room, room, even=True)
    document = np.searchsorted(bounds, units[:-1], "right") - 1
    contents, counts = np.diff(units), (separated & (units[1:] == bounds[document + 1])).astype(np.int64)
    return Examples(contents, counts, contents[counts > 0] - 1, document)


def _cut_sentences(units: Ints, documents: Ints, room: int, crossing: bool, owned: bool) -> Examples:
    """Fill examples with whole sentences; `owned`: the document of each is recorded."""
    document = np.searchsorted(documents, units[:-1], "right") - 1
    if crossing:  # one more position for the separator before each further document
        begins, ends = units[:-1] + document, units[1:] + document
        after = np.searchsorted(ends, begins + room, "right")
    else:
        begins, ends = units[:-1], units[1:]
        last = np.searchsorted(units, documents[1:])[document]
        after = np.minimum(np.searchsorted(ends, begins + room, "right"), last)
    chosen = _follow_chain(after)
    final = np.append(chosen[1:], units.size - 1) - 1
    counts = document[final] - document[chosen] if crossing else np.zeros(chosen.size, np.int64)
    crossed = keyed_random.concatenate_ranges(document[chosen], counts)
    marks = documents[crossed + 1] + crossed - np.repeat(begins[chosen], counts)
    return Examples(ends[final] - begins[chosen], counts, marks, document[chosen] if owned else document[:0])


def _cut_pairs(format: Format, room: int, units: Ints, documents: Ints, key: np.uint64, first_token: int) -> Examples:
    begins, ends = units[:-1], units[1:]
    number = np.arange(begins.size)
    document = np.searchsorted(documents, begins, "right") - 1
    last = np.searchsorted(units, documents[1:])[document]
    two = np.minimum(number + 2, last)
    fits = units[two] - begins <= room
    after = np.where(fits, two, number + 1)
    if format.kind == "segment-pair":
        random = keyed_random.bits(key, begins + first_token)
        short = random < keyed_random.threshold(format.short)
        aims = SHORTEST + keyed_random.uniform_below(keyed_random.bits(key, random), room + 1 - SHORTEST)
        target = np.where(short, aims, room)
        after = np.maximum(after, np.minimum(np.searchsorted(ends, begins + target, "right"), last))
        # Avoid a single sentence at the end of a document if the example before can spare one.
        spare = (last - after == 1) & (after - number >= 3) & (units[last] - units[after - 1] <= room)
        after -= spare
    shortest = max(1, room // 4)  # a shorter rest is not used as a segment: such a sentence stays single
    split = ~fits & (after < last) & (ends - begins <= room - shortest)
    after[split] = -1
    most = 2 if format.kind == "sentence-pair" else units.size
    starts = (
        _follow_split_chain(units, after, last, room, room - shortest, most)
        if split.any()
        else units[_follow_chain(after)]
    )
    stops = np.append(starts[1:], units[-1])
    first = np.searchsorted(units, starts, "right")
    counts = np.searchsorted(units, stops, "left") - first
    marks = units[keyed_random.concatenate_ranges(first, counts)] - np.repeat(starts, counts)
    owner = np.searchsorted(documents, starts, "right") - 1
    return Examples(stops - starts, counts, marks, owner)


def cut_long_ranges(bounds: Ints, limit: int, piece: int, even: bool) -> Ints:
    """Return bounds, of sentences or documents, with ranges over the limit cut into equal pieces, or into full pieces
    and a rest."""
    lengths = np.diff(bounds)
    if lengths.max(initial=0) <= limit:
        return bounds
    counts = np.where(lengths > limit, -(-lengths // piece), 1)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    sizes, shares = np.repeat(lengths, counts), np.repeat(counts, counts)
    offsets = within * sizes // shares if even else within * piece
    return np.append(np.repeat(bounds[:-1], counts) + offsets, bounds[-1])


def _follow_chain(after: Ints) -> Ints:
    """Return 0, after[0], after[after[0]] ...: the one step that is a Python loop, as no array operation does it."""
    assert (after > np.arange(after.size)).all(), "an example has at least one unit"
    steps, size, unit = np.ascontiguousarray(after).data, after.size, 0
    chain = []
    while unit < size:
        chain.append(unit)
        unit = steps[unit]
    return np.array(chain, dtype=np.int64)


def _follow_split_chain(units: Ints, after: Ints, last: Ints, room: int, enough: int, most: int) -> Ints:
    """Return the starts of the examples where some sentence and the next do not fit into one pair (after < 0).

    Such a pair is filled to the limit, and the next example continues inside the sentence.
    """
    bounds, steps, ends = np.ascontiguousarray(units).data, after.data, last.data
    starts, unit, size = [], 0, after.size
    while unit < size:
        starts.append(bounds[unit])
        if steps[unit] >= 0:
            unit = steps[unit]
            continue
        start, unit = bounds[unit] + room, unit + 1
        while True:
            starts.append(start)
            stop = min(bisect_right(bounds, start + room, unit + 1) - 1, ends[unit], unit + most)
            if stop - unit >= 2 or stop == ends[unit] or bounds[stop] - start > enough:
                unit = stop
                break
            start, unit = start + room, stop
    return np.array(starts, dtype=np.int64)
