"""Which tokens the model must predict, and what it sees in their place.

A token, a whole word or an n-gram of whole words is masked by a draw of its own, so the rate and the n-gram lengths are
exactly as configured for any sequence; if no draw of a sequence succeeds, the one closest to it does. (BERT fixes the
number of masks instead: less variance, but long words and n-grams are then masked less often than short ones, and it
takes a sort.) A draw is a hash of the token's place in the corpus and of the epoch: masks do not depend on how the
corpus is divided into batches.

N-grams are laid out beforehand: the words between two special tokens are divided into runs of 1 to `ngram` words with
p(n) = (1/n) / sum 1/k, and runs are masked. The last run may be shortened by the end of the text.

"next" masks nothing: every token predicts the next one, for a causal model. [SEP] is predicted like any other token,
since texts end; [CLS], [PAD] and [UNK] never are.

"permutation" masks nothing either: some tokens are predicted in a random order (`permutation.py`).

Shape letters: t tokens of the packed stream, m tokens that can be masked, w words, s sequences.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.data.store import Store
from bertree.errors import UserError, suggest
from bertree.keyed_random import Bits, Ints

UNITS = ("token", "word", "ngram", "next", "permutation")
UNMASKED = ("next", "permutation")  # units that leave the text as it is
DUPLICATES = 10  # BERT's


@dataclass(frozen=True)
class Masking:
    """What is masked, how much of it, and how."""

    unit: str = "token"
    rate: float = 0.15
    mask: float = 0.8  # share of the chosen tokens that become [MASK]
    random: float = 0.1  # share that becomes a random token; the rest is unchanged
    duplicates: int = 0  # 0: new masks in every epoch; n: epoch e repeats epoch e mod n
    ngram: int = 3  # longest n-gram, in words
    partial: int = 6  # permutation: one token in so many is predicted
    spans: int = 5  # permutation: longest span of targets, in words; 1: single tokens

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise UserError(f"masking '{self.unit}': unknown, {suggest(self.unit, UNITS)}")
        if not 0 < self.rate <= 1:
            raise UserError(f"masking: rate {self.rate} is not a share; give more than 0, at most 1")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1 + 1e-9:
            raise UserError(f"masking: mask {self.mask} and random {self.random} must be shares of at most 1")
        if self.duplicates < 0 or self.ngram < 1:
            raise UserError("masking: duplicates must be 0 or more and ngram 1 or more")
        if self.partial < 1:
            raise UserError(f"masking: partial {self.partial}: one token in so many is predicted; give 1 or more")
        if self.spans < 1:
            raise UserError(f"masking: spans {self.spans}: the longest span of targets; give 1 or more")
        if self.unit == "next" and self.duplicates:
            raise UserError("masking 'next': draws no masks, so '+static' has no effect; leave it out")

    @property
    def share(self) -> float:
        """Share of the tokens that are predicted."""
        return {"next": 1.0, "permutation": 1 / self.partial}.get(self.unit, self.rate)

    @classmethod
    def parse(cls, text: "str | Masking | None") -> "Masking | None":
        """Parse a name: "token", "word", "ngram", "next", "permutation", "none"; "word+static" has 10 duplicates,
        "+static4" 4."""
        if text is None or isinstance(text, Masking):
            return text
        unit, plus, rest = text.partition("+")
        if unit == "none" and not plus:
            return None
        if not plus:
            return cls(unit)
        if not (found := re.fullmatch(r"static(\d{0,6})", rest)):
            raise UserError(
                f"masking '{text}': expected 'static' or a number such as 'static4' after the '+', not '{rest}'"
            )
        return replace(cls(unit), duplicates=int(found[1] or DUPLICATES))

    def ngram_chances(self) -> NDArray[np.float64]:
        """Return p(1), p(2), ..."""
        inverse: NDArray[np.float64] = 1 / np.arange(1, self.ngram + 1)
        chances: NDArray[np.float64] = inverse / inverse.sum()
        return chances


class TargetMaker(Protocol):
    """Chooses the prediction targets of a packed stream."""

    def apply(
        self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64, given: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Ints]:
        """Change a packed stream in place; return the positions that predict, and the target of each.

        ids, counters, given: t; bounds: s + 1. `counters` numbers the tokens for their random draws with `key`; `given`
        tokens (control codes) are never predicted.
        """


def target_maker(masking: Masking, store: Store) -> TargetMaker:
    """Return the target maker of a masking, for the vocabulary of a store."""
    return NextTokenTargets(store) if masking.unit == "next" else Masker(masking, store)


class NextTokenTargets:
    """Every token predicts the next one of its sequence."""

    def __init__(self, store: Store) -> None:
        self.predicted = np.ones(store.vocab_size, np.bool_)
        self.predicted[list(store.special.values())] = False
        if "sep" in store.special:
            self.predicted[store.special["sep"]] = True

    def apply(
        self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64, given: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Ints]:
        """Return the targets; nothing is changed, and the last token of a sequence predicts nothing."""
        follows = self.predicted.take(ids)
        first = bounds[:-1]
        follows[first[first < ids.size]] = False
        if given is not None:
            follows &= ~given
        predicted = np.flatnonzero(follows)
        return predicted - 1, ids[predicted]


class Masker:
    """Masks tokens, words or n-grams, for the vocabulary of a store."""

    def __init__(self, masking: Masking, store: Store) -> None:
        if "mask" not in store.special:
            raise UserError(f"{store.folder or 'store'}: the vocabulary has no mask token; use masking 'none'")
        self.masking = masking
        self.mask_id = store.special["mask"]
        self.maskable = np.ones(store.vocab_size, np.bool_)
        self.maskable[list(store.special.values())] = False
        self.ordinary: Ints = np.flatnonzero(self.maskable)
        self.word_start: NDArray[np.bool_] = np.asarray(store.word_start, np.bool_)
        self.limit = keyed_random.threshold(masking.rate)
        chances = np.cumsum(masking.ngram_chances())[:-1]
        self.ngram_limits: Bits = np.array([keyed_random.threshold(chance) for chance in chances], dtype=np.uint64)

    def apply(
        self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64, given: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Ints]:
        """Mask a packed stream in place; return the masked positions and their original ids.

        ids, counters: t; bounds: s + 1. `counters` numbers the tokens for their random draws with `key`.
        """
        maskable = self.maskable.take(ids)
        places = np.flatnonzero(maskable if given is None else maskable & ~given)
        if self.masking.unit == "token":
            chosen = self._choose(places, bounds, counters.take(places), key)
            masked = places[chosen]
        else:
            starts = self.span_starts(ids, places, bounds, counters, key)
            first = places[starts]
            chosen = self._choose(first, bounds, counters.take(first), key)
            lengths = np.diff(np.append(starts, places.size))[chosen]
            masked = places[keyed_random.concatenate_ranges(starts[chosen], lengths)]
        targets = ids[masked]
        ids[masked] = self._replace(targets, counters[masked], key)
        return masked, targets

    def span_starts(self, ids: Ints, places: Ints, bounds: Ints, counters: Ints, key: np.uint64) -> Ints:
        """Return the first token (an index into `places`) of each word or n-gram."""
        if not places.size:
            return places
        breaks = np.empty(places.size, np.bool_)  # the token does not directly follow the one before
        breaks[0] = True
        np.not_equal(np.diff(places), 1, out=breaks[1:])
        heads = np.searchsorted(places, bounds[:-1])
        breaks[heads[heads < places.size]] = True
        words = np.flatnonzero(breaks | self.word_start.take(ids.take(places)))
        if self.masking.unit == "word":
            return words
        texts = np.flatnonzero(breaks.take(words))  # first word of each text between special tokens
        random = keyed_random.bits(keyed_random.key(int(key), "ngram"), counters.take(places.take(words)))
        drawn = np.ones(words.size, np.int64)
        for limit in self.ngram_limits:
            drawn += random >= limit
        before = np.cumsum(drawn) - drawn
        sizes = np.diff(np.append(texts, words.size))
        before -= np.repeat(before[texts] - texts, sizes)  # now the word each n-gram starts at
        grams: Ints = words[before[before < np.repeat(texts + sizes, sizes)]]
        return grams

    def _choose(self, first: Ints, bounds: Ints, counters: Ints, key: np.uint64) -> Ints:
        """Return the spans (by the position of their first token) that are drawn, at least one per sequence."""
        draws = keyed_random.bits(key, counters)
        chosen = draws < self.limit
        starts = np.searchsorted(first, bounds)
        filled = np.flatnonzero(starts[1:] > starts[:-1])
        if filled.size:
            smallest = np.minimum.reduceat(draws, starts[filled])
            empty = filled[smallest >= self.limit]
            sizes = starts[empty + 1] - starts[empty]
            spans = keyed_random.concatenate_ranges(starts[empty], sizes)
            chosen[spans[draws[spans] == np.repeat(smallest[smallest >= self.limit], sizes)]] = True
        return np.flatnonzero(chosen)

    def _replace(self, targets: Ints, counters: Ints, key: np.uint64) -> NDArray[Any]:
        """Return what the model sees: 80 % [MASK], 10 % a random ordinary token, 10 % unchanged (or as configured)."""
        action = keyed_random.bits(keyed_random.key(int(key), "action"), counters)
        seen = targets.copy()
        others = np.flatnonzero(action >= keyed_random.threshold(self.masking.mask))
        to_random = others[action[others] < keyed_random.threshold(self.masking.mask + self.masking.random)]
        seen[action < keyed_random.threshold(self.masking.mask)] = self.mask_id
        random = keyed_random.bits(keyed_random.key(int(key), "random"), counters[to_random])
        seen[to_random] = self.ordinary[keyed_random.uniform_below(random, self.ordinary.size)]
        return seen
