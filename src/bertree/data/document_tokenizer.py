"""Documents -> sentences -> token ids, as a token store holds them: the work of one worker.

A worker has one thread: threads would wait for the interpreter lock while they split sentences and collect ids.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from bertree.data.store_files import dtype_for
from bertree.text.identity import is_byte_level
from bertree.text.sentence_splitter import split_sentences
from bertree.text.tokenizer import CANNOT_ENCODE, Tokenizer
from bertree.text.tokenizer_checks import LibraryErrors

THREADS_VARIABLE = "TOKENIZERS_PARALLELISM"


class TokenizedDocuments(NamedTuple):
    """Documents as a store holds them."""

    tokens: NDArray[Any]
    sentences: NDArray[np.int64]  # tokens in each, never 0
    documents: NDArray[np.int64]  # sentences in each, never 0
    kept: NDArray[np.bool_]  # which documents have any token; the others are left out


class TokenizerSettings(NamedTuple):
    """What another process needs to create a `DocumentTokenizer`."""

    backend: str  # tokenizer.json
    vocab_size: int
    spaced: bool  # sentences after the first begin with a space, as in running text
    language: str
    name: str  # of the tokenizer, for messages

    @classmethod
    def of(cls, tokenizer: Tokenizer, language: str) -> "TokenizerSettings":
        """Return the settings for a tokenizer and a language."""
        text = tokenizer.backend.to_str()
        steps = json.dumps(json.loads(text).get("pre_tokenizer"))
        spaced = is_byte_level(tokenizer) and '"add_prefix_space": true' not in steps
        return cls(text, tokenizer.size, spaced, language, tokenizer.name)


class DocumentTokenizer:
    """Turns documents into ids. Special tokens that occur in the text are read as text."""

    def __init__(self, settings: TokenizerSettings) -> None:
        self.settings = settings
        with LibraryErrors(settings.name, "cannot be read"):
            self.backend = Backend.from_str(settings.backend)
        self.backend.encode_special_tokens = True
        self.dtype = dtype_for(settings.vocab_size)

    def __call__(self, documents: list[str]) -> TokenizedDocuments:
        """Return the ids and lengths of documents; a sentence or document without tokens is left out."""
        texts: list[str] = []
        counts: list[int] = []
        for document in documents:
            sentences = split_sentences(document, self.settings.language)
            if self.settings.spaced:
                sentences[1:] = [" " + sentence for sentence in sentences[1:]]
            texts += sentences
            counts.append(len(sentences))
        with LibraryErrors(self.settings.name, CANNOT_ENCODE):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens = np.fromiter(ids, self.dtype, int(lengths.sum()))
        owners = np.repeat(np.arange(len(documents)), np.array(counts, np.int64))
        kept = np.bincount(owners[lengths > 0], minlength=len(documents))
        return TokenizedDocuments(tokens, lengths[lengths > 0], kept[kept > 0], kept > 0)


def start_tokenizer(settings: TokenizerSettings) -> DocumentTokenizer:
    """Create the tokenizer of a worker, on one thread."""
    os.environ[THREADS_VARIABLE] = "false"
    return DocumentTokenizer(settings)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run the tokenizer library on one thread."""
    before = os.environ.get(THREADS_VARIABLE)
    os.environ[THREADS_VARIABLE] = "false"
    try:
        yield
    finally:
        os.environ.pop(THREADS_VARIABLE)
        if before is not None:
            os.environ[THREADS_VARIABLE] = before
