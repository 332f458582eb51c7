"""Raw text -> token store: documents, sentences, tokens, shards.

The corpus is divided into chunks of documents that depend on the input alone; shards end where a chunk ends. So the
store has the same bytes for any engine, for any number of workers and after any interruption: a run that finds a
journal keeps the finished shards and resumes the corpus after them. Memory holds only a few chunks.
"""

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from bertree.data import journal
from bertree.data.controls import CodeTable
from bertree.data.journal import PrepareProgress
from bertree.data.store import Store
from bertree.data.store_header import HEADER, JOURNAL, SPECIAL, TOKENIZER
from bertree.data.tokenizing import TokenizedDocuments, tokenize
from bertree.data.writer import PARTIAL, ShardWriter, disk_errors, write_header
from bertree.engines.engine import HERE, Engine
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, sync
from bertree.files.formats import Json
from bertree.keyed_random import Ints
from bertree.text.corpus import Corpus, Position, describe_counts
from bertree.text.identity import tokenizer_hash, word_starts
from bertree.text.tokenizer import Tokenizer

CHUNK = 1 << 18  # characters per task of a worker: a fraction of a second
SHARD_TOKENS = 1 << 25  # 64 MiB: what an interruption can cost, about half a minute on two cores

KEPT = "; finished shards are kept: make room and run the same command again to resume"


@dataclass
class Chunk:
    """Documents, and the state of the corpus after them."""

    documents: list[str]
    codes: list[str]  # control code of each document; "": it has none
    position: Position
    counts: Json
    digests: list[bytes]
    consumed: int  # bytes read so far


def read_chunks(corpus: Corpus) -> Iterator[Chunk]:
    """Yield the corpus in chunks, each with the state after its last document."""
    documents: list[str] = []
    codes: list[str] = []
    size = 0

    def close() -> Chunk:
        nonlocal documents, codes, size
        digests, corpus.digests = corpus.digests, []
        chunk = Chunk(documents, codes, corpus.position, asdict(corpus.counts), digests, corpus.consumed)
        documents, codes, size = [], [], 0
        return chunk

    for document in corpus.documents():
        documents.append(document)
        codes.append(corpus.code)
        size += len(document)
        if size >= CHUNK:
            yield close()
    yield close()  # possibly without documents, but with the final counts


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: Path,
    engine: Engine = HERE,
    *,
    language: str = "en",
    shard_tokens: int = SHARD_TOKENS,
    advance: Callable[[int, int], None] = lambda consumed, tokens: None,
) -> Store:
    """Make the store of a corpus in the folder `out`, or resume making it.

    `engine`: where chunks are tokenized. `advance` is called with the bytes read and tokens written so far.
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
        "corpus": [[source.path, source.size, source.modified] for source in corpus.sources],
    }
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")
    if out.is_dir():
        _check_folder(out)
    created = not out.exists()
    with disk_errors(out, KEPT):
        out.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(out):
            _check_folder(out)  # again: another run may have finished in between
            progress = journal.load(out, job)
            if not (out / HEADER).is_file():  # otherwise only the clean-up was interrupted
                with _removed_if_empty(out, progress, created):
                    _start_or_resume(out, job, progress, corpus, tokenizer)
                    stream = tokenize(read_chunks(corpus), lambda chunk: chunk.documents, tokenizer, language, engine)
                    _write(stream, _ShardedWriter(out, job, progress, advance, tokenizer))
                    summary = asdict(corpus.counts) | {"tokenless": progress.tokenless}
                    if not progress.shards:
                        reasons = "; ".join(describe_counts(summary)) or "it is empty"
                        raise UserError(f"{corpus.sources[0].path}: no text to store in this corpus ({reasons})")
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
            journal.clear(out)
    return Store.open(out)


class _ShardedWriter:
    """Writes chunks into shards, and finished shards into the journal."""

    def __init__(
        self,
        out: Path,
        job: Json,
        progress: PrepareProgress,
        advance: Callable[[int, int], None],
        tokenizer: Tokenizer,
    ) -> None:
        self.out, self.job, self.progress, self.advance = out, job, progress, advance
        self.writer: ShardWriter | None = None
        self.digests: list[bytes] = []
        self.written = sum(parts["tokens"].count for parts in progress.shards)
        self.last: Chunk | None = None
        self.tokenless = 0  # since the last shard
        self.table = CodeTable(tokenizer, progress.controls) if job["options"]["control"] else None

    def add(self, chunk: Chunk, tokenized: TokenizedDocuments) -> None:
        """Write a chunk, and close the shard when it is full."""
        self.last = chunk
        self.digests += chunk.digests
        self.tokenless += int((~tokenized.kept).sum())
        if tokenized.tokens.size:
            if self.writer is None:
                number = len(self.progress.shards)
                self.writer = ShardWriter(self.out, number, self.job["vocab_size"], self.table is not None)
            self.writer.add(
                tokenized.tokens, tokenized.sentences, tokenized.documents, self._codes(chunk.codes, tokenized)
            )
            self.written += tokenized.tokens.size
        self.advance(chunk.consumed, self.written)
        if self.writer is not None and self.writer.tokens >= self.job["shard_tokens"]:
            self.close_shard()

    def _codes(self, codes: list[str], tokenized: TokenizedDocuments) -> Ints | None:
        """Return the number of each document's control code."""
        if self.table is None:
            return None
        ends = np.cumsum(tokenized.sentences)[np.cumsum(tokenized.documents) - 1]
        return self.table.number([*compress(codes, tokenized.kept)], np.diff(ends, prepend=0))

    def close_shard(self) -> None:
        """Close the open shard, if there is one, and record everything so far in the journal."""
        if self.last is None:
            return
        progress = self.progress
        if self.writer is not None:
            progress.shards.append(self.writer.close())
            self.writer = None
        if self.job["options"]["deduplicate"]:
            journal.add_seen(self.out, progress.seen, self.digests)
            progress.seen += len(self.digests)
            self.digests = []
        progress.position, progress.counts = self.last.position, self.last.counts
        progress.tokenless += self.tokenless
        self.tokenless = 0
        progress.controls = self.table.codes.copy() if self.table else []
        self.last = None
        journal.save(self.out, self.job, progress)


def _write(stream: Generator[tuple[Chunk, TokenizedDocuments], None, None], run: _ShardedWriter) -> None:
    try:
        for chunk, tokenized in stream:
            run.add(chunk, tokenized)
        run.close_shard()
    finally:
        stream.close()
        if run.writer is not None:
            run.writer.abandon()


def _check_folder(out: Path) -> None:
    if (out / HEADER).is_file() and not (out / JOURNAL).is_file():
        raise UserError(f"{out}: is already a finished store; remove it or give another folder")
    if not (out / JOURNAL).is_file() and not all(map(_is_leftover, out.iterdir())):
        raise UserError(f"{out}: contains other files; give an empty or a new folder")


def _is_leftover(path: Path) -> bool:
    """Whether a preparation that was killed before its journal was written may have left this file."""
    return path.name.endswith(PARTIAL) or path.name in (journal.SEEN, TOKENIZER)


def _start_or_resume(out: Path, job: Json, progress: PrepareProgress, corpus: Corpus, tokenizer: Tokenizer) -> None:
    """Resume the corpus from the progress of an earlier run, or start a journal."""
    if not progress.shards:
        shutil.rmtree(out / TOKENIZER, ignore_errors=True)  # of a run that finished no shard
        journal.save(out, job, progress)
    else:
        corpus.resume(progress.position, progress.counts, journal.read_seen(out, progress.seen))
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
            journal.clear(out)
            if created:
                out.rmdir()
        raise
