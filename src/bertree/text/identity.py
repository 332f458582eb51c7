"""The identity of a tokenizer, independent of its files: a hash of its behavior, and which tokens start a word."""

import hashlib
import json
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from tokenizers import models

from bertree.text.tokenizer import Tokenizer
from bertree.text.tokenizer_trial import TEXTS

BYTE_SPACES = tuple("ĠĊĉčċČ")  # space, line feed, tab, carriage return, vertical tab, form feed
_HASHES: dict[bytes, str] = {}  # cached for this process: hashing a large tokenizer takes a second


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return the sha256 of the vocabulary and of the ids given to difficult texts and to the vocabulary's own tokens.

    Two sets of files that turn text into the same ids have the same hash, whatever their format or library version; a
    hash of the files would reject a store because of a changed blank.
    """
    content = hashlib.sha256(tokenizer.backend.to_str().encode()).digest()
    if content not in _HASHES:
        _HASHES[content] = _hash_behavior(tokenizer)
    return _HASHES[content]


def _hash_behavior(tokenizer: Tokenizer) -> str:
    vocabulary = sorted(
        tokenizer.backend.get_vocab(with_added_tokens=True).items(), key=lambda item: (item[1], item[0])
    )
    texts = [*TEXTS, *(token for token, _ in vocabulary)]
    numbers: list[int] = []
    for encoding in tokenizer.encode_plain(texts):
        ids = encoding.ids
        numbers.append(len(ids))
        numbers += ids
    digest = hashlib.sha256(json.dumps(vocabulary).encode())
    digest.update(np.array(numbers, dtype="<u4").tobytes())
    return digest.hexdigest()


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return, for each id, whether the token starts a word.

    WordPiece marks what continues a word (`##ing`), so punctuation is a word of its own. Byte-level BPE and Unigram
    mark what follows a space (`Ġthe`, `▁the`), so punctuation belongs to the word before it. Special tokens start a
    word, and so does every token of a vocabulary without marks.
    """
    starts = np.ones(tokenizer.size, dtype=np.bool_)
    backend = tokenizer.backend
    special = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
    continues = _continuation_test(tokenizer)
    for token, token_id in backend.get_vocab(with_added_tokens=True).items():
        if token_id not in special and continues(token):
            starts[token_id] = False
    return starts


def token_bytes(tokenizer: Tokenizer, starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the bytes of text that each id stands for, with the space before a word; `starts`: which start a word."""
    byte_level, sizes = is_byte_level(tokenizer), np.zeros(tokenizer.size, np.int64)
    for token, token_id in tokenizer.backend.get_vocab(with_added_tokens=True).items():
        if byte_level:  # a character for each byte; the space is one of them
            sizes[token_id] = len(token)
            continue
        continues = not starts[token_id]
        text = token.removeprefix("##") if continues else token.removeprefix("▁")
        sizes[token_id] = len(text.encode()) + (not continues)
    return sizes


def _continuation_test(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Return a function that says whether a token of this vocabulary continues a word."""
    model = tokenizer.backend.model
    if isinstance(model, models.WordPiece):
        prefix: str = model.continuing_subword_prefix
        return lambda token: bool(prefix) and token.startswith(prefix)
    marks = ("▁",) if isinstance(model, models.Unigram) or not is_byte_level(tokenizer) else BYTE_SPACES
    if not any(token.startswith(marks) for token in tokenizer.backend.get_vocab(with_added_tokens=False)):
        return lambda token: False
    return lambda token: not token.startswith(marks)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return whether this is a byte-level BPE, such as GPT-2's and RoBERTa's."""
    return "ByteLevel" in str(json.loads(tokenizer.backend.to_str()).get("pre_tokenizer"))
