"""Documents -> sentences -> tokens, in this process or in several.

Workers are spawned processes with one thread each: forking beside the tokenizer library's thread pool can hang, and
threads would wait for the interpreter lock while they split sentences and collect ids. Results come back in the order
of the input for any number of workers, so a store does not depend on it.
"""

import json
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from bertree.data.store_header import dtype_for
from bertree.errors import UserError
from bertree.text.identity import is_byte_level
from bertree.text.sentence_splitter import split_sentences
from bertree.text.tokenizer import CANNOT_ENCODE, Tokenizer
from bertree.text.tokenizer_checks import library_errors

Task = TypeVar("Task")
PARALLEL = "TOKENIZERS_PARALLELISM"


class TokenizedDocuments(NamedTuple):
    """Some documents as a store holds them."""

    tokens: NDArray[Any]
    sentences: NDArray[np.int64]  # tokens in each, never 0
    documents: NDArray[np.int64]  # sentences in each, never 0
    kept: NDArray[np.bool_]  # which documents have any token; the others are left out


class TokenizerSettings(NamedTuple):
    """Everything needed to make a `DocumentTokenizer` in another process."""

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
    """Turns documents into ids. Special tokens that occur in the text are text, not special."""

    def __init__(self, settings: TokenizerSettings) -> None:
        self.settings = settings
        with library_errors(settings.name, "cannot be read"):
            self.backend = Backend.from_str(settings.backend)
        self.backend.encode_special_tokens = True
        self.dtype = dtype_for(settings.vocab_size)

    def __call__(self, documents: list[str]) -> TokenizedDocuments:
        """Return ids and lengths of some documents; what gives no token is left out."""
        texts: list[str] = []
        counts: list[int] = []
        for document in documents:
            found = split_sentences(document, self.settings.language)
            if self.settings.spaced:
                found[1:] = [" " + sentence for sentence in found[1:]]
            texts += found
            counts.append(len(found))
        with library_errors(self.settings.name, CANNOT_ENCODE):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
        ids = chain.from_iterable(encoding.ids for encoding in encodings)
        tokens = np.fromiter(ids, self.dtype, int(lengths.sum()))
        owners = np.repeat(np.arange(len(documents)), np.array(counts, np.int64))
        kept = np.bincount(owners[lengths > 0], minlength=len(documents))
        return TokenizedDocuments(tokens, lengths[lengths > 0], kept[kept > 0], kept > 0)


_worker_tokenizer: DocumentTokenizer | None = None  # of a worker process


def _start_worker(settings: TokenizerSettings) -> None:
    """Set up a worker: one thread, SIGINT ignored (its parent handles it), gone when its parent is."""
    global _worker_tokenizer
    os.environ[PARALLEL] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    _worker_tokenizer = DocumentTokenizer(settings)


def _tokenize_in_worker(documents: list[str]) -> TokenizedDocuments:
    assert _worker_tokenizer is not None, "workers are started first"
    return _worker_tokenizer(documents)


@contextmanager
def single_threaded() -> Iterator[None]:
    """Run the tokenizer library on one thread."""
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLEL]
        else:
            os.environ[PARALLEL] = before


def tokenize(
    tasks: Iterable[Task],
    documents: Callable[[Task], list[str]],
    tokenizer: Tokenizer,
    language: str,
    workers: int,
) -> Generator[tuple[Task, TokenizedDocuments], None, None]:
    """Yield each task with its tokens, in order; only a few are in memory at once."""
    settings = TokenizerSettings.of(tokenizer, language)
    if workers == 1:
        tokenize_here = DocumentTokenizer(settings)
        with single_threaded():
            for task in tasks:
                yield task, tokenize_here(documents(task))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(settings,))
    try:
        waiting: deque[tuple[Task, Future[TokenizedDocuments]]] = deque()
        for task in tasks:
            waiting.append((task, pool.submit(_tokenize_in_worker, documents(task))))
            if len(waiting) > workers + 2:
                yield waiting[0][0], waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][0], waiting.popleft()[1].result()
    except BrokenProcessPool:
        raise UserError("a worker process died (out of memory?); run again, perhaps with fewer --workers") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
