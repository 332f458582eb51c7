"""Which tokens the model must predict, and what it sees instead of them.

Each token, word or n-gram of words is masked by its own random draw, so the rate and the n-gram lengths are as
configured for any sequence; if no draw of a sequence succeeds, the closest one is masked. (BERT fixes the number of
masks instead: less variance, but long words and n-grams are then masked less often than short ones, and it needs a
sort.) A draw is a hash of the token's position in the corpus and the epoch: masks do not depend on the batches.

N-grams are fixed before the draws: the words between two special tokens are divided into runs of 1 to `ngram` words
with p(n) = (1/n) / sum 1/k. The end of the text may shorten the last run.

"next" masks nothing: every token predicts the next one, for causal models. [SEP] is predicted like any other token,
since texts end; [CLS], [PAD] and [UNK] never are. "permutation" masks nothing either: some tokens are predicted in a
random order (`permutation.py`).
"""

import re
from dataclasses import KW_ONLY, dataclass
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

    unit: str = "token"  # one of UNITS
    _: KW_ONLY
    rate: float = 0.15
    mask: float = 0.8  # share of the chosen tokens that become [MASK]
    random: float = 0.1  # share that becomes a random token; the rest is unchanged
    duplicates: int = 0  # 0: new masks in every epoch; n: epoch e repeats epoch e mod n
    ngram: int = 3  # longest n-gram, in words
    partial: int = 6  # permutation: one token in this many is predicted
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
            raise UserError(f"masking: partial {self.partial}: one token in this many is predicted; give 1 or more")
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
        if not (match := re.fullmatch(r"static(\d{0,6})", rest)):
            raise UserError(
                f"masking '{text}': expected 'static' or a number such as 'static4' after the '+', not '{rest}'"
            )
        return cls(unit, duplicates=int(match[1] or DUPLICATES))

    def ngram_chances(self) -> NDArray[np.float64]:
        """Return p(1), p(2), ..."""
        inverse: NDArray[np.float64] = 1 / np.arange(1, self.ngram + 1)
        chances: NDArray[np.float64] = inverse / inverse.sum()
        return chances


class TargetMaker(Protocol):
    """Chooses the prediction targets of a packed batch."""

    def apply(
        self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64, is_code: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Ints]:
        """Change packed ids in place; return the positions that predict, and the target of each.

        `bounds` are those of the sequences. `counters` numbers the tokens for their random draws with `key`. Tokens of
        control codes (`is_code`) are never predicted.
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
        self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64, is_code: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Ints]:
        """Return the targets; nothing is changed, and the last token of a sequence predicts nothing."""
        follows = self.predicted.take(ids)
        first = bounds[:-1]
        follows[first[first < ids.size]] = False
        if is_code is not None:
            follows &= ~is_code
        predicted = np.flatnonzero(follows)
        return predicted - 1, ids[predicted]


class Masker:
    """Masks tokens, words or n-grams, for the vocabulary of a store."""

    def __init__(self, masking: Masking, store: Store) -> None:
        if "mask" not in store.special:
            raise UserError(f"{store.name}: the vocabulary has no mask token; use masking 'none'")
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
        self, ids: Ints, bounds: Ints, counters: Ints, key: np.uint64, is_code: NDArray[np.bool_] | None = None
    ) -> tuple[Ints, Ints]:
        """Mask packed ids in place; return the masked positions and their original ids."""
        maskable = self.maskable.take(ids)
        candidates = np.flatnonzero(maskable if is_code is None else maskable & ~is_code)
        if self.masking.unit == "token":
            chosen = self._choose(candidates, bounds, counters.take(candidates), key)
            masked = candidates[chosen]
        else:
            starts = self.span_starts(ids, candidates, bounds, counters, key)
            first = candidates[starts]
            chosen = self._choose(first, bounds, counters.take(first), key)
            lengths = np.diff(np.append(starts, candidates.size))[chosen]
            masked = candidates[keyed_random.concatenate_ranges(starts[chosen], lengths)]
        targets = ids[masked]
        ids[masked] = self._replace(targets, counters[masked], key)
        return masked, targets

    def span_starts(self, ids: Ints, candidates: Ints, bounds: Ints, counters: Ints, key: np.uint64) -> Ints:
        """Return the first token (an index into `candidates`) of each word or n-gram."""
        if not candidates.size:
            return candidates
        breaks = np.empty(candidates.size, np.bool_)  # the token does not directly follow the one before
        breaks[0] = True
        np.not_equal(np.diff(candidates), 1, out=breaks[1:])
        heads = np.searchsorted(candidates, bounds[:-1])
        breaks[heads[heads < candidates.size]] = True
        words = np.flatnonzero(breaks | self.word_start.take(ids.take(candidates)))
        if self.masking.unit == "word":
            return words
        texts = np.flatnonzero(breaks.take(words))  # first word of each text between special tokens
        random = keyed_random.bits(keyed_random.key(int(key), "ngram"), counters.take(candidates.take(words)))
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
        """Return what the model sees: by default 80 % [MASK], 10 % a random ordinary token, 10 % unchanged."""
        action = keyed_random.bits(keyed_random.key(int(key), "action"), counters)
        seen = targets.copy()
        unmasked = np.flatnonzero(action >= keyed_random.threshold(self.masking.mask))
        to_random = unmasked[action[unmasked] < keyed_random.threshold(self.masking.mask + self.masking.random)]
        seen[action < keyed_random.threshold(self.masking.mask)] = self.mask_id
        random = keyed_random.bits(keyed_random.key(int(key), "random"), counters[to_random])
        seen[to_random] = self.ordinary[keyed_random.uniform_below(random, self.ordinary.size)]
        return seen
