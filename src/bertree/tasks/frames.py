"""A tokenizer's special tokens around ids that are already there.

Texts that repeat (a passage under each of its questions, the words of a language) are tokenised once; what stands
around them is learned once by letting the tokenizer's own template frame a probe.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bertree.errors import UserError
from bertree.text.tokenizer import Encoded, Tokenizer

Ids = Sequence[int]
_AT_ONCE = 4096  # texts: beyond it the library's objects, far larger than the ids, would fill the memory
_PROBES = ("a", "the", "0", ".")


class _Piece(NamedTuple):
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
        self._pieces: list[_Piece] = []
        for token, text, segment in zip(framed.ids, framed.sequence_ids, framed.type_ids, strict=True):
            last = self._pieces[-1] if self._pieces else None
            if last is None or last.text != text or last.segment != segment:
                last = _Piece(text, [], segment)
                self._pieces.append(last)
            if text is None:
                last.ids.append(token)
        self._pair = pair
        self._shared: dict[tuple[int, ...], list[int]] = {}
        self.special = sum(len(piece.ids) for piece in self._pieces)
        texts = [piece.text for piece in self._pieces]
        self.before = sum(len(piece.ids) for piece in self._pieces[: texts.index(0)])  # tokens before the first text

    def room(self, max_length: int) -> int:
        """Tokens of text that fit."""
        if max_length <= self.special:
            raise UserError(f"max_length {max_length}: leaves no room for text beside the special tokens")
        return max_length - self.special

    def around(self, *texts: Ids, dropped: int = 0) -> Encoded:
        """The framed sequence; its segments are given for a pair only."""
        ids: list[int] = []
        for piece in self._pieces:
            ids += piece.ids if piece.text is None else texts[piece.text]
        return Encoded(ids, self._segments(*map(len, texts)) if self._pair else None, dropped)

    def _segments(self, *lengths: int) -> list[int]:
        """Sequences whose texts are equally long share theirs, which halves what a large task holds in memory."""
        if lengths not in self._shared:
            counts = [len(piece.ids) if piece.text is None else lengths[piece.text] for piece in self._pieces]
            pairs = zip(self._pieces, counts, strict=True)
            self._shared[lengths] = [piece.segment for piece, count in pairs for _ in range(count)]
        return self._shared[lengths]


def tokenised(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The ids of each distinct text, without special tokens."""
    distinct = list(dict.fromkeys(texts))
    found: dict[str, list[int]] = {}
    for start in range(0, len(distinct), _AT_ONCE):
        some = distinct[start : start + _AT_ONCE]
        encodings = tokenizer.backend.encode_batch_fast(some, add_special_tokens=False)
        found.update((text, encoding.ids) for text, encoding in zip(some, encodings, strict=True))
    return found
