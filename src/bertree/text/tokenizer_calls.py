"""The interface of a tokenizer that users of transformers know: `tokenizer("text")`, `decode`, lookups, special tokens.

Names and results are those of transformers, where they exist here. Training and inference use `encode_batch`, which
gives no more than the ids and segments that a model reads.
"""

import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from bertree.errors import UserError, WrongArgument
from bertree.errors.arguments import methods_check_arguments
from bertree.files.formats import Json

SPECIAL = re.compile(r"(bos|eos|unk|sep|pad|cls|mask)_token(_id)?")
# Other special tokens than those that models need, and their usual names.
USUAL = {"bos": ("<s>", "<|endoftext|>"), "eos": ("</s>", "<eos>", "<|endoftext|>")}
ATTRIBUTES = {  # name of a result -> what the library calls it
    "input_ids": "ids",
    "token_type_ids": "type_ids",
    "attention_mask": "attention_mask",
    "special_tokens_mask": "special_tokens_mask",
    "offset_mapping": "offsets",
}

Text = str | tuple[str, str]


class Tokenized(dict[str, Any]):
    """What a tokenizer returns: `input_ids`, `attention_mask` and others, as keys and as attributes.

    Each is a list for one text, and a list of lists for several, or an array (`return_tensors`)."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"there is no '{name}' here; there are: {', '.join(self)}")


MOST_IDS = 1 << 32  # of the library


@methods_check_arguments
class TokenizerCalls:
    """Methods of `Tokenizer` in the manner of transformers."""

    backend: Backend
    config: Json
    special: dict[str, str]

    @abstractmethod
    def library_encodings(self, inputs: Sequence[Text], max_length: int | None, special: bool) -> list[Encoding]:
        """Return the library's encodings of texts or pairs, with offsets, truncated to `max_length`."""

    def __call__(
        self,
        text: str | Sequence[Text],
        pair: str | Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        max_length: int | None = None,
        truncation: bool = True,
        padding: bool | str = False,
        return_offsets_mapping: bool = False,
        return_special_tokens_mask: bool = False,
        return_tensors: str | None = None,
    ) -> Tokenized:
        """Tokenize a text, a pair of texts, or lists of them.

        `max_length` truncates (the longer text of a pair first). `padding`: True to the longest, "max_length" to
        `max_length`. `return_offsets_mapping` adds the characters (start, end) of each token. `return_tensors`: "np" or
        "pt" for one array instead of lists. To feed a model, `model.batch(texts)` needs no padding.

        >>> bertree.load("default").tokenizer("A text.").input_ids
        """
        single, inputs = _inputs(text, pair)
        encodings = self.library_encodings(inputs, max_length if truncation else None, add_special_tokens)
        if padding:
            self._pad(encodings, max_length if padding == "max_length" else None)
        wanted = {"token_type_ids": self._gives_segments, "special_tokens_mask": return_special_tokens_mask}
        wanted |= {"offset_mapping": return_offsets_mapping}
        columns = {
            key: [list(getattr(encoding, attribute)) for encoding in encodings]
            for key, attribute in ATTRIBUTES.items()
            if wanted.get(key, True)
        }
        if return_tensors is not None:
            return Tokenized({key: _as_array(rows, return_tensors) for key, rows in columns.items()})
        return Tokenized({key: rows[0] if single else rows for key, rows in columns.items()})

    def tokenize(self, text: str, pair: str | None = None, *, add_special_tokens: bool = False) -> list[str]:
        """Return the tokens of a text as the vocabulary has them: `["un", "##believ", "##able"]`."""
        (encoding,) = self.library_encodings(_inputs(text, pair)[1], None, add_special_tokens)
        return list(encoding.tokens)

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> Any:
        """Return the text of token ids; of several lists of ids, a list of texts."""
        if isinstance(ids, dict):
            ids = ids.get("input_ids")
        ids = getattr(ids, "ids", ids)
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        if isinstance(ids, str) or not isinstance(ids, int | np.integer | Iterable):
            raise UserError(f"decode: takes ids of tokens, or lists of ids, not {ids!r:.60}")
        ids = [ids] if isinstance(ids, int | np.integer) else list(ids)
        if ids and not isinstance(ids[0], int | np.integer):
            return [self.decode(row, skip_special_tokens=skip_special_tokens) for row in ids]
        size = self.backend.get_vocab_size()
        if wrong := [number for number in ids if not self._is_id(number)]:
            raise UserError(f"decode: {wrong[0]!r:.60} is not the id of a token; the vocabulary has {size:,} tokens")
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Iterable[Any], *, skip_special_tokens: bool = False) -> list[str]:
        """Return the text of each list of token ids."""
        return [self.decode(ids, skip_special_tokens=skip_special_tokens) for ids in sequences]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or the ids of several; a token that is not in the vocabulary has that of [UNK]."""
        if isinstance(tokens, str):
            token = self.backend.token_to_id(tokens)
            return self.unk_token_id if token is None else token
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """Return the token of an id, or the tokens of several."""
        if not isinstance(ids, int):
            return [self.convert_ids_to_tokens(int(token_id)) for token_id in ids]
        if not 0 <= ids < MOST_IDS:
            raise WrongArgument(f"ids: {ids} is not the id of a token")
        return self.backend.id_to_token(ids)

    def _is_id(self, number: object) -> bool:
        if not isinstance(number, int | np.integer) or not 0 <= number < MOST_IDS:
            return False
        return self.backend.id_to_token(int(number)) is not None

    def get_vocab(self) -> dict[str, int]:
        """Return every token with its id."""
        return self.backend.get_vocab()

    def __len__(self) -> int:
        """Number of tokens, added ones counted."""
        return self.backend.get_vocab_size()

    def __contains__(self, token: object) -> bool:
        return isinstance(token, str) and self.backend.token_to_id(token) is not None

    @property
    def vocab_size(self) -> int:
        """Number of tokens, without added ones."""
        return self.backend.get_vocab_size(with_added_tokens=False)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens by their names: `{"cls_token": "[CLS]", ...}`."""
        kinds = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
        return {f"{kind}_token": token for kind in kinds if (token := self._special_token(kind)) is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens."""
        return list(dict.fromkeys(self.special_tokens_map.values()))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens."""
        vocabulary = self.get_vocab()
        return [vocabulary[token] for token in self.all_special_tokens]

    def __getattr__(self, name: str) -> Any:
        """Return `mask_token`, `mask_token_id`, `pad_token` ...; None if there is no such token."""
        if not (match := SPECIAL.fullmatch(name)):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        token = self._special_token(match[1])
        return token if match[2] is None or token is None else self.backend.token_to_id(token)

    def _special_token(self, kind: str) -> str | None:
        if kind not in USUAL:
            return self.special.get(kind)
        named = self.config.get(f"{kind}_token")
        named = named.get("content") if isinstance(named, dict) else named
        candidates = (named,) if isinstance(named, str) else USUAL[kind]
        return next((token for token in candidates if token in self), None)

    @property
    def _gives_segments(self) -> bool:
        """Whether `token_type_ids` are among the results: as its files say, or if special tokens make two segments."""
        inputs = self.config.get("model_input_names")
        if isinstance(inputs, list):
            return "token_type_ids" in inputs
        return self.backend.num_special_tokens_to_add(True) > 0 and any(self.backend.encode("a", "a").type_ids)

    def _pad(self, encodings: Sequence[Encoding], length: int | None) -> None:
        if (pad := self.pad_token_id) is None:
            raise UserError("padding: this tokenizer has no padding token; `model.batch` needs none")
        longest = length or max((len(encoding) for encoding in encodings), default=0)
        side = "left" if self.config.get("padding_side") == "left" else "right"
        for encoding in encodings:
            encoding.pad(longest, direction=side, pad_id=pad, pad_token=self.pad_token)


def _inputs(text: Any, pair: Any) -> tuple[bool, list[Text]]:
    """Return whether one text or pair was given, and all of them as a list."""
    if isinstance(text, str):
        if not isinstance(pair, str | None):
            raise UserError(f"tokenizer: the second text must be a text, as the first is, not {type(pair).__name__}")
        return True, [text if pair is None else (text, pair)]
    if not isinstance(text, Iterable) or isinstance(text, bytes):
        raise UserError(f"tokenizer: must be a text or a list of texts, not {type(text).__name__} {str(text)[:40]!r}")
    texts = list(text)
    if pair is not None:
        if isinstance(pair, str) or len(pairs := list(pair)) != len(texts):
            raise UserError("tokenizer: two lists of texts must have the same length")
        texts = list(zip(texts, pairs, strict=True))
    texts = [tuple(item) if isinstance(item, list) else item for item in texts]
    for number, item in enumerate(texts, 1):
        parts = item if isinstance(item, tuple) else (item,)
        if len(parts) > 2 or not all(isinstance(part, str) for part in parts):
            raise UserError(f"tokenizer: text {number} must be a text or a pair of texts, not {str(item)[:60]!r}")
    return False, texts


def _as_array(rows: list[Any], kind: str) -> Any:
    if kind not in ("np", "pt"):
        raise UserError(f"return_tensors: must be 'np' or 'pt', not {kind!r}")
    if len({len(row) for row in rows}) > 1:
        raise UserError("return_tensors: the texts differ in length; add padding=True")
    array = np.array(rows, np.int64)
    if kind == "np":
        return array
    if (torch := sys.modules.get("torch")) is None:  # this package works without it
        raise UserError("return_tensors='pt': import torch first")
    return torch.from_numpy(array)
