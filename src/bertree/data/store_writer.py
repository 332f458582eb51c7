"""Write a store shard by shard, with a journal from which an interrupted run resumes.

A shard grows under a temporary name and is renamed when it is complete and on the disk; the header follows after the
last shard. A killed run leaves either complete shards or `.part` files.

The journal is rewritten after every finished shard: it lists the finished shards, the position in the input after them
and the counts at that position. It also describes the job, because resuming with other files or settings would give a
store that cannot be reproduced.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.data.store_files import (
    CLS_LAST,
    CONTROLS,
    FORMAT,
    GIVEN,
    HEADER,
    JOURNAL,
    PARTS,
    VERSION,
    WORDS,
    ControlCode,
    ShardFile,
    dtype_for,
    encode_lengths,
    header_hash,
    label_parts,
    read_control_codes,
    read_shard_files,
    shard_file_name,
)
from bertree.errors import UserError
from bertree.files.atomic import AtomicFile, sync
from bertree.files.formats import Json, check_regular, read_json
from bertree.keyed_random import Ints
from bertree.text.cleaning import DIGEST
from bertree.text.corpus import Position
from bertree.text.framing import control_prefix, given_tokens
from bertree.text.tokenizer import Tokenizer

PARTIAL = ".part"  # suffix of unfinished files
DIGESTS, JOURNAL_VERSION = "seen.bin", 2
MAX_CODES = 1 << 16  # control codes of a store


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Report a full or failing disk in one line."""
    kept = "finished shards are kept: make room and run the same command again to resume"
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else f"cannot be written ({error.strerror or error})"
        raise UserError(f"{folder}: {what}; {kept}") from None


def atomic_file(path: Path) -> AtomicFile:
    """Return a file of a store, with the temporary name that the next run removes."""
    return AtomicFile(path, path.with_name(path.name + PARTIAL))


def write_json(path: Path, value: Json) -> None:
    """Write JSON in one fixed form, completely or not at all."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


class ShardWriter:
    """Writes one shard. Tokens go to the disk at once; lengths take a byte each and stay in memory."""

    def __init__(self, folder: Path, number: int, vocab_size: int, labels: Sequence[str] = ()) -> None:
        """`labels`: files with control codes and given texts (`label_parts`)."""
        self.folder, self.number = folder, number
        self.dtype = dtype_for(vocab_size)
        self.tokens = 0
        parts = ("sentences", "documents", *labels)
        self._lengths = {part: bytearray() for part in parts}
        self._counts = dict.fromkeys(parts, 0)
        self._digest = hashlib.sha256()
        self._size = 0
        self._out = atomic_file(folder / shard_file_name("tokens", number))

    def add(
        self, tokens: NDArray[Any], sentences: NDArray[Any], documents: NDArray[Any], *labels: NDArray[Any]
    ) -> None:
        """Add whole documents: ids, tokens in each sentence, sentences in each document, numbers of the labels."""
        assert int(sentences.sum()) == tokens.size, "sentences must fill the tokens"
        assert int(documents.sum()) == sentences.size, "documents must fill the sentences"
        assert int(sentences.min(initial=1)) > 0, "empty sentences are never stored"
        assert int(documents.min(initial=1)) > 0, "empty documents are never stored"
        data = np.ascontiguousarray(tokens, dtype=self.dtype).tobytes()
        self._out.file.write(data)
        self._digest.update(data)
        self._size += len(data)
        self.tokens += tokens.size
        for part, values in zip(self._lengths, (sentences, documents, *labels), strict=True):
            self._lengths[part] += encode_lengths(values)
            self._counts[part] += values.size

    def close(self) -> dict[str, ShardFile]:
        """Put the shard in place and return the description of its files."""
        parts = {"tokens": ShardFile(self.tokens, self._size, self._digest.hexdigest())}
        for part, data in self._lengths.items():
            with atomic_file(self.folder / shard_file_name(part, self.number)) as file:
                file.write(data)
            parts[part] = ShardFile(self._counts[part], len(data), hashlib.sha256(data).hexdigest())
        self._out.commit()
        return parts

    def abandon(self) -> None:
        """Remove the unfinished shard."""
        self._out.discard()


def shard_entry(parts: Mapping[str, ShardFile]) -> Json:
    """Return a shard's entry in the header or the journal."""
    return {part: asdict(file) for part, file in parts.items()}


def write_header(
    folder: Path,
    shards: Sequence[Mapping[str, ShardFile]],
    *,
    vocab_size: int,
    special: Mapping[str, int],
    word_start: NDArray[np.bool_],
    tokenizer_hash: str,
    summary: Json,
    controls: Sequence[ControlCode] = (),
    cls_last: bool = False,
) -> None:
    """Write the word table, then the header: from here on the folder is a store."""
    words = word_start.astype(np.uint8).tobytes()
    assert len(words) == vocab_size, "one entry a token"
    with atomic_file(folder / WORDS) as file:
        file.write(words)
    header: Json = {
        "format": FORMAT,
        "version": VERSION,
        "vocab_size": vocab_size,
        "dtype": dtype_for(vocab_size).name,
        "special": dict(special),
        "tokenizer": tokenizer_hash,
        "words": hashlib.sha256(words).hexdigest(),
        **{part: sum(parts[part].count for parts in shards) for part in PARTS},
        "summary": summary,
        **({CONTROLS: list(map(asdict, controls))} if controls else {}),
        **({GIVEN[-1]: True} if GIVEN[-1] in shards[0] else {}),
        **({CLS_LAST: True} if cls_last else {}),
        "shards": [shard_entry(parts) for parts in shards],
    }
    header["sha256"] = header_hash(header)
    write_json(folder / HEADER, header)


class CodeTable:
    """The codes met so far, numbered in the order of the corpus. `given`: texts follow them that are not predicted."""

    def __init__(self, tokenizer: Tokenizer, codes: Sequence[ControlCode] = (), given: bool = False) -> None:
        self._tokenizer, self._given = tokenizer, given
        self.parts = label_parts(True, given)
        self.codes = list(codes)
        self._numbers = {code.code: number for number, code in enumerate(self.codes)}
        self._prefixes = {code.prefix: code.code for code in self.codes}

    def number(self, labels: Sequence[tuple[str, str]], tokens: NDArray[Any]) -> list[Ints]:
        """Return what the files of `parts` hold of documents with these codes and given texts, and count the documents
        with their tokens."""
        numbers = np.array([self._number_of(code) for code, _ in labels], np.int64)
        documents = np.bincount(numbers, minlength=len(self.codes))
        sums = np.bincount(numbers, tokens, len(self.codes))
        for number in np.flatnonzero(documents).tolist():
            code = self.codes[number]
            self.codes[number] = replace(
                code,
                documents=code.documents + int(documents[number]),
                tokens=code.tokens + int(sums[number]),
            )
        if not self._given:
            return [numbers]
        given = given_tokens(self._tokenizer, [text for _, text in labels])
        ids = np.array([token for text in given for token in text], np.int64)
        return [numbers, np.array([*map(len, given)], np.int64), ids]

    def _number_of(self, code: str) -> int:
        if code in self._numbers:
            return self._numbers[code]
        prefix = tuple(control_prefix(self._tokenizer, code))
        if prefix in self._prefixes:
            raise UserError(f"control codes '{self._prefixes[prefix]}' and '{code}': have the same tokens; rename one")
        if len(self.codes) == MAX_CODES:
            raise UserError(f"control code '{code}': is one more than the {MAX_CODES:,} that a store may have")
        self._prefixes[prefix] = code
        self._numbers[code] = len(self.codes)
        self.codes.append(ControlCode(code, prefix))
        return self._numbers[code]


@dataclass(kw_only=True)
class PrepareProgress:
    """What is finished; a resumed run repeats all later work."""

    shards: list[dict[str, ShardFile]] = field(default_factory=list)
    position: Position = field(default_factory=Position)
    counts: Json = field(default_factory=dict)  # of the corpus
    tokenless: int = 0  # documents that gave no token
    seen: int = 0  # digests in seen.bin
    controls: list[ControlCode] = field(default_factory=list)  # codes of the documents in the shards


def load_journal(folder: Path, job: Json) -> PrepareProgress:
    """Return the progress of an earlier run of the same job."""
    path = folder / JOURNAL
    if not path.is_file():
        return PrepareProgress()
    journal = read_json(path)
    earlier = journal.get("job")
    if not isinstance(earlier, dict) or journal.get("version") != JOURNAL_VERSION:
        raise UserError(f"{path}: is not a journal of this version; remove {folder} and start again")
    if journal.get("shards") == []:
        return PrepareProgress()
    if earlier != job:
        differ = next((key for key in job if earlier.get(key) != job[key]), "version")
        raise UserError(
            f"{folder}: was started with other settings ({differ}); use the same settings, or remove it and start again"
        )
    try:
        width, options = dtype_for(job["vocab_size"]).itemsize, job["options"]
        labels = label_parts(bool(options["control"]), bool(options["given"]))
        progress = PrepareProgress(
            shards=[read_shard_files(entry, width, labels) for entry in journal["shards"]],
            position=Position(**journal["position"]),
            counts={str(key): int(value) for key, value in journal["counts"].items()},
            tokenless=int(journal["tokenless"]),
            seen=int(journal["seen"]),
            controls=list(read_control_codes(journal["controls"], job["vocab_size"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: is damaged ({error}); remove {folder} and start again") from None
    for number, parts in enumerate(progress.shards):
        for part, expected in parts.items():
            name = folder / shard_file_name(part, number)
            if not name.is_file() or name.stat().st_size != expected.size:
                raise UserError(f"{name}: is missing or cut off; remove {folder} and start again")
    return progress


def save_journal(folder: Path, job: Json, progress: PrepareProgress) -> None:
    """Write the journal."""
    write_json(
        folder / JOURNAL,
        {
            "version": JOURNAL_VERSION,
            "job": job,
            "shards": [shard_entry(parts) for parts in progress.shards],
            "position": asdict(progress.position),
            "counts": progress.counts,
            "tokenless": progress.tokenless,
            "seen": progress.seen,
            "controls": list(map(asdict, progress.controls)),
        },
    )


def append_digests(folder: Path, before: int, digests: list[bytes]) -> None:
    """Write digests after the first `before`, which the journal already counts."""
    with (folder / DIGESTS).open("r+b" if before else "wb") as file:
        file.truncate(before * DIGEST)
        file.seek(before * DIGEST)
        file.write(b"".join(digests))
        file.flush()
        os.fsync(file.fileno())


def read_digests(folder: Path, count: int) -> Iterator[bytes]:
    """Yield the first `count` digests."""
    if not count:
        return
    check_regular(folder / DIGESTS)
    with (folder / DIGESTS).open("rb") as file:
        for _ in range(count):
            key = file.read(DIGEST)
            if len(key) != DIGEST:
                raise UserError(f"{folder / DIGESTS}: is cut off; remove {folder} and start again")
            yield key


def remove_journal(folder: Path) -> None:
    """Remove the files that only an unfinished store needs; the journal last."""
    for name in (DIGESTS, JOURNAL):  # synced each: a power cut must not leave the first without the second
        if (folder / name).exists():
            (folder / name).unlink()
            sync(folder)
