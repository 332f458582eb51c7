"""Put a tokenizer's special tokens around ids that were encoded without them.

Texts that repeat (a passage with each of its questions, the words of a language) are tokenized once. The special tokens
around them are derived once, by encoding a probe text with the tokenizer's own template. This requires that a pair is
its two texts in order, which holds for every tokenizer of the family.

Left-to-right models need a special token before a text, between the texts of a pair, and at the end, where the hidden
state has seen all other tokens (Radford et al. 2018). Most tokenizers add such tokens ([CLS] and [SEP]). Those of GPT
add none, so new tokens are added to the vocabulary, and to the template in tokenizer.json.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tokenizers import Encoding, processors
from tokenizers import Tokenizer as Backend

from bertree.errors import UserError
from bertree.text import tokenizer_checks
from bertree.text.cleaning import replace_surrogates
from bertree.text.sentencepiece import add_special
from bertree.text.tokenizer import KINDS, Encoded, Tokenizer

Ids = Sequence[int]
_BATCH = 4096  # texts at once: the library's encodings are far larger than the ids
_PROBES = ("a", "the", "0", ".")
START, DELIMITER, EXTRACT = TASK_TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")  # around texts and pairs


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
        self._ends_in_summary = not self.start() and framed.ids[-1] == tokenizer.id_of("cls")
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

    def summary(self, *lengths: int) -> int:
        """Return the position of the token that stands for the whole sequence, given the lengths of its texts: the
        special token in front; <cls> at the end, if it is there; or else the first token after the first text."""
        if self.start():
            return 0
        return self._special + sum(lengths) - 1 if self._ends_in_summary else sum(lengths[:-1])

    def wrap(self, *texts: Ids, dropped: int = 0) -> Encoded:
        """Return the sequence with its special tokens; segments are given for a pair, and where special tokens of a
        single text have one of their own."""
        ids: list[int] = []
        for piece in self._pieces:
            ids += piece.ids if piece.text is None else texts[piece.text]
        if not self._pair:
            return Encoded(ids, self._segments(*map(len, texts)) if self._has_segments else None, dropped)
        second = 0 if self._has_segments or not texts[1] else self.start(len(texts[0]))
        return Encoded(ids, self._segments(*map(len, texts)), dropped, second)

    def _segments(self, *lengths: int) -> list[int]:
        """Return the segments. Texts of equal lengths share them, which halves the memory of a large task."""
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
        batch = distinct[start : start + _BATCH]
        encodings = tokenizer.encode_plain([replace_surrogates(text) for text in batch], offsets)
        yield from zip(batch, encodings, strict=True)


def tokenize_distinct(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, list[int]]:
    """Return the ids of each distinct text, without special tokens."""
    return {text: tokenizer.ids_of(encoding, text) for text, encoding in encode_distinct(texts, tokenizer)}


def frames_texts(tokenizer: Tokenizer) -> bool:
    """Return whether a special token comes before, between and after the texts of a pair, and around one text."""
    single, pair = tokenizer.backend.encode(_PROBES[0]), tokenizer.backend.encode(_PROBES[0], _PROBES[0])
    texts = [text for text, before in zip(pair.sequence_ids, [-1, *pair.sequence_ids], strict=False) if text != before]
    around = single.sequence_ids
    return texts == [None, 0, None, 1, None] and around[0] is None and around[-1] is None


def add_task_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that writes start, delimiter and extract, which are new tokens, around every text."""
    with tokenizer_checks.LibraryErrors(tokenizer.name, "cannot be changed"):
        backend = Backend.from_str(tokenizer.backend.to_str())
        add_special(backend, TASK_TOKENS)
        template = processors.TemplateProcessing(
            single=f"{START} $A {EXTRACT}",
            pair=f"{START}:0 $A:0 {DELIMITER}:0 $B:0 {EXTRACT}:0",
            special_tokens=[(token, backend.token_to_id(token)) for token in TASK_TOKENS],
        )
        plain = backend.post_processor is not None and not backend.num_special_tokens_to_add(True)
        backend.post_processor = processors.Sequence([backend.post_processor, template]) if plain else template
    roles = {"cls_token": START, "sep_token": DELIMITER}
    return Tokenizer(backend, {**tokenizer.config, **roles}, name=tokenizer.name)


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of all special tokens."""
    added = tokenizer.backend.get_added_tokens_decoder().items()
    roles = (tokenizer.id_of(kind) for kind in KINDS)
    return frozenset({i for i, token in added if token.special} | {i for i in roles if i is not None})


def control_prefix(tokenizer: Tokenizer, code: str, given: str = "") -> list[int]:
    """Return the tokens before a text of this code: [CLS], those of the code, [SEP], and those of the given text.

    A tokenizer without [CLS] or [SEP] leaves them out.
    """
    ids = tokenizer.encode_plain([code])[0].ids
    cls, sep = tokenizer.id_of("cls"), tokenizer.id_of("sep")
    if not ids:
        raise UserError(f"control code '{code}': gives no token; choose a code that the tokenizer can read")
    if {cls, sep, tokenizer.id_of("unk")} & set(ids):
        raise UserError(f"control code '{code}': gives an unknown or special token; choose a code of plain words")
    return [
        *([] if cls is None else [cls]),
        *ids,
        *([] if sep is None else [sep]),
        *given_tokens(tokenizer, [given])[0],
    ]


def given_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of texts that follow a control code and are not predicted, each with a [SEP] if there is one;
    none of an empty text."""
    sep = tokenizer.id_of("sep")
    close = [] if sep is None else [sep]
    return [[*encoding.ids, *close] if encoding.ids else [] for encoding in tokenizer.encode_plain(texts)]
