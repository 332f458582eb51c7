"""More texts for a teacher to label, made from the training texts by rules, after Tang et al. 2019.

A student as small as a BiLSTM learns little from a few thousand examples, and unlabeled text of the right kind is
rare. So each text is altered many times: words are masked, words are replaced, and sometimes a short piece is kept.
The results are often nonsense, which does not matter, since the teacher labels them. The cost: one forward pass of the
teacher for each of them.

The paper replaces a word by another of the same part of speech, drawn by its frequency. There is no tagger here, so
the class of a word is guessed: short lists for the closed classes (a preposition is replaced by a preposition),
and for all other words their ending, their capitals and how frequent they are. The lists and endings are English; in
another language capitals, digits and frequency remain. A word is what is between spaces and punctuation marks.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bertree import keyed_random
from bertree.errors import UserError
from bertree.keyed_random import Ints

LONGEST = 5  # words of a piece that is kept in place of its text
BAND = 4  # words whose frequencies differ by less than about 2 ** BAND are alike
SIDES = ((0,), (1,), (0, 1))  # of a pair the first text is altered, or the second, or both, in turn
TOGETHER = 1 << 22  # words altered at once
_WORD = re.compile(r"(\s*)(['’]?\w+(?:['’-]\w+)*|[^\w\s])")
_CLOSED = {
    "determiner": "a an the this that these those each every some any no another such all both either neither",
    "pronoun": "i you he she it we they me him us them myself yourself himself herself itself ourselves themselves",
    "possessive": "my your his her its our their whose",
    "asking": "who whom what which when where why how whoever whatever whenever wherever however",
    "preposition": "of in on at by for with from to into onto about over under after before between through during "
    "without within against among across behind beyond near off out up down upon toward towards despite than as like",
    "conjunction": "and or but nor yet so because although though while if unless until since whether",
    "being": "is are was were am be been being 's 're 'm",
    "auxiliary": "have has had do does did 've 'd will would shall should can could may might must 'll ca wo",
    "negation": "not n't never cannot",
    "degree": "very too quite rather more most less least just only even also still again already almost always often",
    "number": "one two three four five six seven eight nine ten hundred thousand million first second third",
}
CLOSED = {word: kind for kind, words in _CLOSED.items() for word in words.split()}
# Endings, the most informative first; a stem of at least three letters comes before them.
ENDINGS = {
    "adverb": ("ly",),
    "quality": ("ness", "ment", "tion", "sion", "ity", "ism", "ance", "ence", "ship", "hood"),
    "plural quality": ("nesses", "ments", "tions", "sions", "ities", "isms", "ances", "ences"),
    "adjective": ("ous", "ful", "less", "able", "ible", "ive", "ish", "ical", "ic", "al"),
    "superlative": ("est",),
    "doing": ("ing",),
    "done": ("ed",),
    "doer": ("er", "or", "ist"),
    "plural": ("s",),
}
_BY_ENDING = sorted(((end, kind) for kind, ends in ENDINGS.items() for end in ends), key=lambda pair: -len(pair[0]))


def word_class(word: str) -> str:
    """Guess the class of words that could replace a word: its part of speech, and how it is written."""
    if not any(character.isalnum() for character in word):
        return "mark"
    if word.replace("-", "").replace("'", "").isdecimal():
        return f"digits {min(len(word), 5)}"
    lower = word.lower()
    capitals = "" if word == lower else " Capital" if word[1:] == lower[1:] else " CAPITALS"
    kind = CLOSED.get(lower.replace("’", "'"))
    if kind is None and capitals:
        kind = "name"  # or it begins a sentence; the endings of names carry little information
    elif kind is None:
        kind = next((k for end, k in _BY_ENDING if lower.endswith(end) and len(lower) > len(end) + 2), "other")
        kind = "other" if kind == "plural" and lower.endswith(("ss", "us", "is")) else kind
    return kind + capitals


class _Vocabulary:
    """All words of some texts, and the words that may replace each."""

    def __init__(self, words: Sequence[str], counts: Ints, mask: str) -> None:
        self.mask = len(words)
        self.written = np.array([form for word in (*words, mask) for form in (word, " " + word)], dtype=object)
        numbers: defaultdict[tuple[str, int], int] = defaultdict(lambda: len(numbers))
        kinds = np.array([numbers[self._kind(w, n)] for w, n in zip(words, counts.tolist(), strict=True)], np.int64)
        self._order = np.argsort(kinds, kind="stable")
        ends = keyed_random.cumulative_offsets(counts[self._order])  # every occurrence of a word is a place to be drawn
        self._ends = ends[1:]
        bounds = ends[np.searchsorted(kinds[self._order], np.arange(len(numbers) + 1))]
        self._first, self._places = bounds[:-1][kinds], np.diff(bounds)[kinds]

    @staticmethod
    def _kind(word: str, count: int) -> tuple[str, int]:
        kind = word_class(word)
        closed = kind.partition(" ")[0] in _CLOSED or kind == "mark"
        return kind, 0 if closed else count.bit_length() // BAND

    def replace(self, words: Ints, random: keyed_random.Bits) -> Ints:
        """Draw another word of the same class for each, by frequency."""
        drawn = self._first[words] + keyed_random.uniform_below(random, self._places[words])
        return self._order[np.searchsorted(self._ends, drawn, "right")]


class _Side(NamedTuple):
    """The first texts, or the second."""

    words: Ints  # of all texts, end to end
    spaced: Ints  # 1 where white space comes before a word
    starts: Ints  # of each text among them, and the end


class _Rates(NamedTuple):
    masking: float
    replacing: float
    ngram: float


def augment(
    texts: Sequence[tuple[str, ...]],
    copies: int,
    seed: int,
    *,
    mask: str,
    masking: float = 0.1,
    replacing: float = 0.1,
    ngram: float = 0.25,
) -> list[tuple[str, ...]]:
    """Make new texts, or new pairs from pairs: up to `copies` of each, in order, without duplicates or originals.

    Each word is masked (`mask`, as the tokenizer writes it) with probability `masking`, else replaced by one of its
    class with probability `replacing`; then, with probability `ngram`, one to five words in a row are all that is kept.
    A copy depends on the seed, the number of its text and its own number, and on which words all texts have.
    """
    for name, share in (("masking", masking), ("replacing", replacing), ("ngram", ngram)):
        if not 0 <= share <= 1:
            raise UserError(f"{name}: must lie between 0 and 1, not {share}")
    if masking + replacing > 1:
        raise UserError(f"masking, replacing: {masking} and {replacing} are more than 1 together")
    if copies < 0:
        raise UserError(f"copies: must not be negative, but is {copies}")
    assert all(1 <= len(text) <= 2 for text in texts), "an item is a text or a pair"
    sides, vocabulary = _read(texts, mask)
    rates = _Rates(masking, replacing, ngram)
    plain = [_join_words(side.words, side.spaced, np.diff(side.starts), vocabulary) for side in sides]
    seen = set(texts) | {tuple(parts[: len(text)]) for text, *parts in zip(texts, *plain, strict=True)}
    new_texts: list[tuple[str, ...]] = []
    for begin, end in _portions(sides, copies):
        among = range(len(sides))
        altered = [_alter(sides[n], n, vocabulary, begin, end, copies, seed, rates) for n in among]
        for row in range((end - begin) * copies):
            text, copy = divmod(row, copies)
            if len(texts[begin + text]) == 1:
                new: tuple[str, ...] = (altered[0][row],)
            else:
                changed = SIDES[copy % 3]
                new = tuple(altered[side][row] if side in changed else plain[side][begin + text] for side in (0, 1))
            if new not in seen:
                seen.add(new)
                new_texts.append(new)
    return new_texts


def _read(texts: Sequence[tuple[str, ...]], mask: str) -> tuple[list[_Side], _Vocabulary]:
    """Return the words of all texts as numbers."""
    numbers: defaultdict[str, int] = defaultdict(lambda: len(numbers))
    sides = []
    for number in range(max(map(len, texts), default=1)):
        words, spaced, lengths = list[int](), list[bool](), list[int]()
        for text in texts:
            pieces = _WORD.findall(text[number]) if number < len(text) else []
            words += [numbers[word] for _, word in pieces]
            spaced += [space != "" for space, _ in pieces]
            lengths.append(len(pieces))
        starts = keyed_random.cumulative_offsets(np.array(lengths, np.int64))
        sides.append(_Side(np.array(words, np.int64), np.array(spaced, np.int64), starts))
    all_words = np.concatenate([side.words for side in sides])
    counts = np.bincount(all_words, minlength=len(numbers)).astype(np.int64)
    return sides, _Vocabulary(list(numbers), counts, mask)


def _portions(sides: Sequence[_Side], copies: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of texts that are altered together: as many as keep the arrays small."""
    sizes = np.sum([side.starts for side in sides], 0) * copies
    count, begin = len(sizes) - 1, 0
    while copies and begin < count:
        end = max(begin + 1, int(np.searchsorted(sizes, sizes[begin] + TOGETHER, "right")) - 1)
        yield begin, end
        begin = end


def _join_words(words: Ints, spaced: Ints, lengths: Ints, vocabulary: _Vocabulary) -> list[str]:
    """Join words to texts of these lengths, with single spaces."""
    pieces = vocabulary.written[2 * words + spaced].tolist()
    return ["".join(pieces[a:b]).lstrip() for a, b in pairwise(keyed_random.cumulative_offsets(lengths).tolist())]


def _alter(
    side: _Side, number: int, vocabulary: _Vocabulary, begin: int, end: int, copies: int, seed: int, rates: _Rates
) -> list[str]:
    """Return every copy of the texts from `begin` to `end`, the copies of one text one after the other."""

    def random(counters: Ints, what: str) -> keyed_random.Bits:
        return keyed_random.bits(keyed_random.key(seed, "augment", number, what), counters)

    rows = np.arange(begin, end).repeat(copies)
    names = (rows << 38) + (np.tile(np.arange(copies), end - begin) << 22)  # of the copies; below are their words
    starts, lengths = side.starts[rows], side.starts[rows + 1] - side.starts[rows]
    # The piece is chosen first, which changes nothing but spares the words that are not in it.
    kept = np.minimum(1 + keyed_random.uniform_below(random(names, "length"), LONGEST), lengths)
    kept = np.where(random(names, "piece") < keyed_random.threshold(rates.ngram), kept, lengths)
    skipped = keyed_random.uniform_below(random(names, "place"), lengths - kept + 1)
    at = keyed_random.concatenate_ranges(starts + skipped, kept)
    words, counters = side.words[at], names.repeat(kept) + keyed_random.concatenate_ranges(skipped, kept)
    drawn = random(counters, "word")
    masked = drawn < keyed_random.threshold(rates.masking)
    replaced = np.flatnonzero(~masked & (drawn < keyed_random.threshold(rates.masking + rates.replacing)))
    words[replaced] = vocabulary.replace(words[replaced], random(counters[replaced], "other"))
    words[masked] = vocabulary.mask
    return _join_words(words, side.spaced[at], kept, vocabulary)
