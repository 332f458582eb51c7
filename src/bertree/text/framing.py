"""A tokenizer's special tokens around ids that are already there.

Texts that repeat (a passage under each of its questions, the words of a language) are tokenised once; what stands
around them is learned once by letting the tokenizer's own template frame a probe. That rests on a pair being its
two texts side by side, which holds for every tokenizer of the family.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tokenizers import Encoding

from bertree.errors import UserError
from bertree.text.cleaning import replace_surrogates
from bertree.text.tokenizer import Encoded, Tokenizer

Ids = Sequence[int]
_AT_ONCE = 4096  # texts: beyond it the library's objects, far larger than the ids, would fill the memory
_PROBES = ("a", "the", "0", ".")


class _FramePiece(NamedTuple):
    text: int | None  # 0 or 1: the ids of that text; None: the special tokens below
    ids: list[int]
    segment: int


class Frame:
    """What a tokenizer puts around one text or a pair."""

    def __init__(self, tokenizer: Tokenizer, pair: bool) -> None:
        backend = tokenizer.backend
        probe = next((text for text in _PROBES if backend.encode(text, add_special_tokens=False).ids), None)
        if probe is None:
            raise UserError("the tokenizer makes no token of plain English text; it cannot be used for this task")
        framed = backend.encode(probe, probe if pair else None)
        self._pieces: list[_FramePiece] = []
        for token, text, segment in zip(framed.ids, framed.sequence_ids, framed.type_ids, strict=True):
            last = self._pieces[-1] if self._pieces else None
            if last is None or last.text != text or last.segment != segment:
                last = _FramePiece(text, [], segment)
                self._pieces.append(last)
            if text is None:
                last.ids.append(token)
        if [piece.text for piece in self._pieces if piece.text is not None] != [0, 1][: 1 + pair]:
            raise UserError("the tokenizer does not encode a pair of texts one after the other; this task needs that")
        self._pair, self._marks = pair, any(framed.type_ids)  # whether segments tell the texts apart
        self._shared: dict[tuple[int, ...], list[int]] = {}
        self._special = sum(len(piece.ids) for piece in self._pieces)

    def room(self, max_length: int, least: int = 1) -> int:
        """Tokens of text that fit; `least` must."""
        if max_length - self._special < least:
            raise UserError(f"max_length {max_length}: leaves no room for text beside the special tokens")
        return max_length - self._special

    def start(self, *before: int) -> int:
        """Where a text begins, behind texts of these lengths: the first, or the second behind the first."""
        own = next(at for at, piece in enumerate(self._pieces) if piece.text == len(before))
        return sum(before) + sum(len(piece.ids) for piece in self._pieces[:own])

    def wrap(self, *texts: Ids, dropped: int = 0) -> Encoded:
        """The framed sequence; its segments are given for a pair only."""
        ids: list[int] = []
        for piece in self._pieces:
            ids += piece.ids if piece.text is None else texts[piece.text]
        if not self._pair:
            return Encoded(ids, None, dropped)
        second = 0 if self._marks or not texts[1] else self.start(len(texts[0]))
        return Encoded(ids, self._segments(*map(len, texts)), dropped, second)

    def _segments(self, *lengths: int) -> list[int]:
        """Sequences whose texts are equally long share theirs, which halves what a large task holds in memory."""
        if lengths not in self._shared:
            counts = [len(piece.ids) if piece.text is None else lengths[piece.text] for piece in self._pieces]
            pairs = zip(self._pieces, counts, strict=True)
            self._shared[lengths] = [piece.segment for piece, count in pairs for _ in range(count)]
        return self._shared[lengths]


def encode_distinct(
    texts: Iterable[str], tokenizer: Tokenizer, offsets: bool = False
) -> Iterator[tuple[str, Encoding]]:
    """Each distinct text and what the tokenizer makes of it, without special tokens; offsets cost time."""
    distinct = list(dict.fromkeys(texts))
    encode = tokenizer.backend.encode_batch if offsets else tokenizer.backend.encode_batch_fast
    for start in range(0, len(distinct), _AT_ONCE):
        some = distinct[start : start + _AT_ONCE]
        yield from zip(some, encode([replace_surrogates(text) for text in some], add_special_tokens=False), strict=True)


def tokenize_distinct(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The ids of each distinct text, without special tokens."""
    return {text: encoding.ids for text, encoding in encode_distinct(texts, tokenizer)}
