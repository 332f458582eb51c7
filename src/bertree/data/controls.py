"""The control codes of a store: which there are, and the tokens before a sequence of each (text/control.py)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.keyed_random import Ints, cumulative_offsets
from bertree.text.control import control_prefix
from bertree.text.tokenizer import Tokenizer

MOST = 1 << 16  # codes


@dataclass(frozen=True)
class ControlCode:
    """A code, the tokens that stand before its texts, and how much text has it."""

    code: str
    prefix: tuple[int, ...]
    documents: int = 0
    tokens: int = 0


class CodeTable:
    """The codes met so far, numbered in the order of the corpus."""

    def __init__(self, tokenizer: Tokenizer, codes: Sequence[ControlCode] = ()) -> None:
        self._tokenizer = tokenizer
        self.codes = list(codes)
        self._numbers = {known.code: number for number, known in enumerate(self.codes)}
        self._prefixes = {known.prefix: known.code for known in self.codes}

    def number(self, codes: Sequence[str], tokens: NDArray[Any]) -> Ints:
        """Return the number of each document's code, and count the documents with their tokens."""
        found = np.array([self._find(code) for code in codes], np.int64)
        documents = np.bincount(found, minlength=len(self.codes))
        sums = np.bincount(found, tokens, len(self.codes))
        for number in np.flatnonzero(documents).tolist():
            known = self.codes[number]
            self.codes[number] = replace(
                known,
                documents=known.documents + int(documents[number]),
                tokens=known.tokens + int(sums[number]),
            )
        return found

    def _find(self, code: str) -> int:
        if code in self._numbers:
            return self._numbers[code]
        prefix = tuple(control_prefix(self._tokenizer, code))
        if prefix in self._prefixes:
            raise UserError(f"control codes '{self._prefixes[prefix]}' and '{code}': have the same tokens; rename one")
        if len(self.codes) == MOST:
            raise UserError(f"control code '{code}': is one more than the {MOST:,} that a store may have")
        self._prefixes[prefix] = code
        self._numbers[code] = len(self.codes)
        self.codes.append(ControlCode(code, prefix))
        return self._numbers[code]


def code_entries(codes: Sequence[ControlCode]) -> list[Json]:
    """Return the codes as the header and the journal have them."""
    return [asdict(code) | {"prefix": list(code.prefix)} for code in codes]


def read_codes(entries: Any, vocab_size: int) -> tuple[ControlCode, ...]:
    """Parse the codes of a header or a journal; raise ValueError if they are invalid."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("control codes")
    found = tuple(ControlCode(**entry | {"prefix": tuple(entry["prefix"])}) for entry in entries)
    for known in found:
        if not isinstance(known.code, str) or not known.prefix:
            raise ValueError("a control code without tokens")
        if any(type(token) is not int or not 0 <= token < vocab_size for token in known.prefix):
            raise ValueError("a control code outside the vocabulary")
        if type(known.documents) is not int or type(known.tokens) is not int:
            raise ValueError("counts of a control code")
    if len({known.code for known in found}) != len(found):
        raise ValueError("a control code twice")
    return found


@dataclass(frozen=True)
class Prefixes:
    """The tokens before the texts of each code, one after the other."""

    ids: Ints
    bounds: Ints  # codes + 1

    @classmethod
    def of(cls, codes: Sequence[ControlCode]) -> "Prefixes":
        """Return the prefixes of these codes."""
        lengths = np.array([len(code.prefix) for code in codes], np.int64)
        return cls(np.array([token for code in codes for token in code.prefix], np.int64), cumulative_offsets(lengths))

    @property
    def lengths(self) -> Ints:
        """Number of tokens of each."""
        return np.diff(self.bounds)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest; 0 if there are no codes."""
        return int(self.lengths.max(initial=0))
