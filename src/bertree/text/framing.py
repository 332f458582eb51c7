"""Add a tokenizer's special tokens to ids that are already there.

Texts that repeat (a passage with each of its questions, the words of a language) are tokenized once. The special tokens
around them are found once, by encoding a probe text with the tokenizer's own template. This requires that a pair is its
two texts one after the other, which holds for every tokenizer of the family.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tokenizers import Encoding

from bertree.errors import UserError
from bertree.text.cleaning import replace_surrogates
from bertree.text.tokenizer import Encoded, Tokenizer

Ids = Sequence[int]
_BATCH = 4096  # texts at once: the library's encodings are far larger than the ids
_PROBES = ("a", "the", "0", ".")


class _FramePiece(NamedTuple):
    text: int | None  # 0 or 1: ids of that text; None: the special tokens `ids`
    ids: list[int]
    segment: int


class Frame:
    """The special tokens that a tokenizer puts around one text or a pair."""

    def __init__(self, tokenizer: Tokenizer, pair: bool) -> None:
        encodings = zip(_PROBES, tokenizer.encode_plain(_PROBES), strict=True)
        probe = next((text for text, encoding in encodings if encoding.ids), None)
        if probe is None:
            raise UserError(f"{tokenizer.name}: gives no token for plain English text; it cannot be used for this task")
        framed = tokenizer.backend.encode(probe, probe if pair else None)
        self._pieces: list[_FramePiece] = []
        for token, text, segment in zip(framed.ids, framed.sequence_ids, framed.type_ids, strict=True):
            last = self._pieces[-1] if self._pieces else None
            if last is None or last.text != text or last.segment != segment:
                last = _FramePiece(text, [], segment)
                self._pieces.append(last)
            if text is None:
                last.ids.append(token)
        if [piece.text for piece in self._pieces if piece.text is not None] != [0, 1][: 1 + pair]:
            raise UserError(f"{tokenizer.name}: does not encode a pair as two texts in order; this task needs that")
        self._pair, self._has_segments = pair, any(framed.type_ids)
        self._shared: dict[tuple[int, ...], list[int]] = {}
        self._special = sum(len(piece.ids) for piece in self._pieces)

    def room(self, max_length: int, min_tokens: int = 1) -> int:
        """Return how many tokens of text fit into `max_length`; at least `min_tokens` must."""
        if max_length - self._special < min_tokens:
            raise UserError(f"max_length {max_length}: leaves no room for text beside the special tokens")
        return max_length - self._special

    def start(self, *before: int) -> int:
        """Return the position of the first text, or of the second one given the length of the first."""
        own = next(at for at, piece in enumerate(self._pieces) if piece.text == len(before))
        return sum(before) + sum(len(piece.ids) for piece in self._pieces[:own])

    def wrap(self, *texts: Ids, dropped: int = 0) -> Encoded:
        """Return the sequence with its special tokens; segments are given for a pair only."""
        ids: list[int] = []
        for piece in self._pieces:
            ids += piece.ids if piece.text is None else texts[piece.text]
        if not self._pair:
            return Encoded(ids, None, dropped)
        second = 0 if self._has_segments or not texts[1] else self.start(len(texts[0]))
        return Encoded(ids, self._segments(*map(len, texts)), dropped, second)

    def _segments(self, *lengths: int) -> list[int]:
        """Return the segments of a pair. Pairs of equal lengths share them, which halves the memory of a large task."""
        if lengths not in self._shared:
            counts = [len(piece.ids) if piece.text is None else lengths[piece.text] for piece in self._pieces]
            pairs = zip(self._pieces, counts, strict=True)
            self._shared[lengths] = [piece.segment for piece, count in pairs for _ in range(count)]
        return self._shared[lengths]


def encode_distinct(
    texts: Iterable[str], tokenizer: Tokenizer, offsets: bool = False
) -> Iterator[tuple[str, Encoding]]:
    """Yield each distinct text with its encoding without special tokens. `offsets` costs time."""
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), _BATCH):
        some = distinct[start : start + _BATCH]
        yield from zip(some, tokenizer.encode_plain([replace_surrogates(text) for text in some], offsets), strict=True)


def tokenize_distinct(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Return the ids of each distinct text, without special tokens."""
    return {text: encoding.ids for text, encoding in encode_distinct(texts, tokenizer)}
