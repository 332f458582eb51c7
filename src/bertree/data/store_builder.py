"""Raw text -> token store: documents, sentences, tokens, shards.

The corpus is divided into chunks of documents that depend on the input alone; shards end where a chunk ends. So the
store has the same bytes for any engine, for any number of workers and after any interruption: a run that finds a
journal keeps the finished shards and resumes the corpus after them. Memory holds only a few chunks.

Chunks are tokenized by the workers of an engine. Results come back in the order of the input.
"""

import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from bertree.console import renamed
from bertree.data.document_tokenizer import TokenizedDocuments, TokenizerSettings, single_threaded, start_tokenizer
from bertree.data.store import Store
from bertree.data.store_files import HEADER, JOURNAL, SPECIAL, TOKENIZER
from bertree.data.store_writer import (
    DIGESTS,
    PARTIAL,
    CodeTable,
    PrepareProgress,
    ShardWriter,
    append_digests,
    disk_errors,
    load_journal,
    read_digests,
    remove_journal,
    save_journal,
    write_header,
)
from bertree.engines.engine import HERE, Engine, map_in_order
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, make_folder, sync
from bertree.files.formats import Json
from bertree.keyed_random import Ints
from bertree.text.corpus import Corpus, Position, describe_counts
from bertree.text.identity import tokenizer_hash, word_starts
from bertree.text.tokenizer import Tokenizer

CHUNK_CHARACTERS = 1 << 18  # per task of a worker: a fraction of a second
SHARD_TOKENS = 1 << 25  # 64 MiB: what an interruption can cost, about half a minute on two cores


@dataclass(kw_only=True)
class Chunk:
    """Documents, and the state of the corpus after them."""

    documents: list[str]
    labels: list[tuple[str, str]]  # control code of each document and its given text; "": it has none
    position: Position
    counts: Json
    digests: list[bytes]
    consumed: int  # bytes read so far


def read_chunks(corpus: Corpus) -> Iterator[Chunk]:
    """Yield the corpus in chunks, each with the state after its last document."""
    documents: list[str] = []
    labels: list[tuple[str, str]] = []
    size = 0

    def close() -> Chunk:
        nonlocal documents, labels, size
        digests, corpus.digests = corpus.digests, []
        chunk = Chunk(
            documents=documents,
            labels=labels,
            position=corpus.position,
            counts=asdict(corpus.counts),
            digests=digests,
            consumed=corpus.consumed,
        )
        documents, labels, size = [], [], 0
        return chunk

    for document in corpus.documents():
        documents.append(document)
        labels.append((corpus.code, corpus.given))
        size += len(document)
        if size >= CHUNK_CHARACTERS:
            yield close()
    yield close()  # possibly without documents, but with the final counts


def tokenize(
    chunks: Iterable[Chunk], tokenizer: Tokenizer, language: str, engine: Engine
) -> Generator[tuple[Chunk, TokenizedDocuments], None, None]:
    """Yield each chunk with its tokens, in order; only a few chunks are in memory at once."""
    settings = TokenizerSettings.of(tokenizer, language)
    with single_threaded(), engine.start(start_tokenizer, settings) as workers:
        yield from map_in_order(workers, chunks, lambda chunk: chunk.documents)


def build_store(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: Path,
    engine: Engine = HERE,
    *,
    language: str = "en",
    shard_tokens: int = SHARD_TOKENS,
    tokenizer_name: str = "the tokenizer",
    advance: Callable[[int, int], None] = lambda consumed, tokens: None,
) -> Store:
    """Build the store of a corpus in the folder `out`, or resume an interrupted build.

    `engine`: where chunks are tokenized. `tokenizer_name` is for messages. `advance` is called with the
    bytes read and tokens written so far.
    """
    special = {kind: token for kind in SPECIAL if (token := tokenizer.id_of(kind)) is not None}
    if "sep" not in special and tokenizer.end_id is not None:
        special["sep"] = tokenizer.end_id  # GPT-2 has no separator, but a token that ends a text
    job: Json = {
        "tokenizer": tokenizer_hash(tokenizer),
        "vocab_size": tokenizer.size,
        "options": asdict(corpus.options),
        "language": language,
        "shard_tokens": shard_tokens,
        "corpus": [[renamed(source.path), source.size, source.modified] for source in corpus.sources],
    }
    if out.exists():
        _check_folder(out)
    created = not out.exists()
    with disk_errors(out):
        make_folder(out)
        with exclusive_lock(out):
            _check_folder(out)  # again: another run may have finished in between
            progress = load_journal(out, job)
            if not (out / HEADER).is_file():  # otherwise only the clean-up was interrupted
                with _removed_if_empty(out, progress, created):
                    _start_or_resume(out, job, progress, corpus, tokenizer)
                    stream = tokenize(read_chunks(corpus), tokenizer, language, engine)
                    _ShardedWriter(job, progress, tokenizer, out, advance).write(stream)
                    summary = asdict(corpus.counts) | {"tokenless": progress.tokenless}
                    if not progress.shards:
                        reasons = "; ".join(describe_counts(summary)) or "it is empty"
                        hint = f"; {tokenizer_name} does not fit this text" if progress.tokenless else ""
                        raise UserError(f"{corpus.sources[0].path}: no text to store in this corpus ({reasons}){hint}")
                    write_header(
                        out,
                        progress.shards,
                        vocab_size=tokenizer.size,
                        special=special,
                        word_start=word_starts(tokenizer),
                        tokenizer_hash=job["tokenizer"],
                        summary=summary,
                        controls=progress.controls,
                        cls_last=tokenizer.cls_last,
                    )
            remove_journal(out)
    return Store.open(out)


class _ShardedWriter:
    """Writes chunks into shards, and finished shards into the journal."""

    def __init__(
        self, job: Json, progress: PrepareProgress, tokenizer: Tokenizer, out: Path, advance: Callable[[int, int], None]
    ) -> None:
        self.out, self.job, self.progress, self.advance = out, job, progress, advance
        self.writer: ShardWriter | None = None
        self.digests: list[bytes] = []
        self.written = sum(parts["tokens"].count for parts in progress.shards)
        self.last: Chunk | None = None
        self.tokenless = 0  # since the last shard
        given = bool(job["options"]["given"])
        self.table = CodeTable(tokenizer, progress.controls, given) if job["options"]["control"] else None

    def write(self, stream: Generator[tuple[Chunk, TokenizedDocuments], None, None]) -> None:
        """Write all chunks of a stream; close it, and remove an unfinished shard after an error."""
        try:
            for chunk, tokenized in stream:
                self._add(chunk, tokenized)
            self._close_shard()
        finally:
            stream.close()
            if self.writer is not None:
                self.writer.abandon()

    def _add(self, chunk: Chunk, tokenized: TokenizedDocuments) -> None:
        """Write a chunk, and close the shard when it is full."""
        self.last = chunk
        self.digests += chunk.digests
        self.tokenless += int((~tokenized.kept).sum())
        if tokenized.tokens.size:
            if self.writer is None:
                number = len(self.progress.shards)
                parts = self.table.parts if self.table else ()
                self.writer = ShardWriter(self.out, number, self.job["vocab_size"], parts)
            labels = self._number_labels(chunk.labels, tokenized)
            self.writer.add(tokenized.tokens, tokenized.sentences, tokenized.documents, *labels)
            self.written += tokenized.tokens.size
        self.advance(chunk.consumed, self.written)
        if self.writer is not None and self.writer.tokens >= self.job["shard_tokens"]:
            self._close_shard()

    def _number_labels(self, labels: list[tuple[str, str]], tokenized: TokenizedDocuments) -> list[Ints]:
        """Return what the files of a shard hold of the documents' control codes and given texts."""
        if self.table is None:
            return []
        ends = np.cumsum(tokenized.sentences)[np.cumsum(tokenized.documents) - 1]
        return self.table.number([*compress(labels, tokenized.kept)], np.diff(ends, prepend=0))

    def _close_shard(self) -> None:
        """Close the open shard, if there is one, and record everything so far in the journal."""
        if self.last is None:
            return
        progress = self.progress
        if self.writer is not None:
            progress.shards.append(self.writer.close())
            self.writer = None
        if self.job["options"]["deduplicate"]:
            append_digests(self.out, progress.seen, self.digests)
            progress.seen += len(self.digests)
            self.digests = []
        progress.position, progress.counts = self.last.position, self.last.counts
        progress.tokenless += self.tokenless
        self.tokenless = 0
        progress.controls = self.table.codes.copy() if self.table else []
        self.last = None
        save_journal(self.out, self.job, progress)


def _check_folder(out: Path) -> None:
    if not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")
    if (out / HEADER).is_file() and not (out / JOURNAL).is_file():
        raise UserError(f"{out}: is already a finished store; remove it or give another folder")
    # A run that was killed before it wrote its journal may have left these files.
    leftovers = all(path.name.endswith(PARTIAL) or path.name in (DIGESTS, TOKENIZER) for path in out.iterdir())
    if not (out / JOURNAL).is_file() and not leftovers:
        raise UserError(f"{out}: contains other files; give an empty or a new folder")


def _start_or_resume(out: Path, job: Json, progress: PrepareProgress, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Resume the corpus from the progress of an earlier run, or start a journal."""
    if not progress.shards:
        shutil.rmtree(out / TOKENIZER, ignore_errors=True)  # of a run that finished no shard
        save_journal(out, job, progress)
    else:
        corpus.resume(progress.position, progress.counts, read_digests(out, progress.seen))
    for leftover in out.glob(f"*{PARTIAL}"):
        leftover.unlink()
    folder = out / TOKENIZER
    folder.mkdir(exist_ok=True)
    tokenizer.save(folder)
    for file in (*folder.iterdir(), folder):
        sync(file)


@contextmanager
def _removed_if_empty(out: Path, progress: PrepareProgress, created: bool) -> Iterator[None]:
    """After an error, remove everything from the folder if no shard is finished, and the folder if it is new."""
    try:
        yield
    except BaseException:
        if not progress.shards:
            shutil.rmtree(out / TOKENIZER, ignore_errors=True)
            remove_journal(out)
            if created:
                out.rmdir()
        raise
