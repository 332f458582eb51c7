"""Write a store shard by shard.

A shard grows under a temporary name and is renamed only when it is complete and on the disk; the header follows when
all shards are there. A killed run leaves either complete shards or `.part` files.
"""

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.data import varint
from bertree.data.controls import ControlCode, code_entries
from bertree.data.store_header import (
    CLS_LAST,
    CONTROLS,
    FORMAT,
    HEADER,
    PARTS,
    VERSION,
    WORDS,
    ShardFile,
    dtype_for,
    header_hash,
    shard_file_name,
)
from bertree.errors import UserError
from bertree.files.atomic import AtomicFile
from bertree.files.formats import Json

PARTIAL = ".part"


@contextmanager
def disk_errors(folder: Path, advice: str = "") -> Iterator[None]:
    """Report a full or failing disk in one line."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else f"cannot be written ({error.strerror or error})"
        raise UserError(f"{folder}: {what}{advice}") from None


def atomic_file(path: Path) -> AtomicFile:
    """Return a file of a store, with the temporary name that the next run removes."""
    return AtomicFile(path, path.with_name(path.name + PARTIAL))


def write_json(path: Path, value: Json) -> None:
    """Write JSON in one fixed form, completely or not at all."""
    with atomic_file(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


class ShardWriter:
    """Writes one shard. Tokens go to the disk at once; lengths take a byte each and stay in memory."""

    def __init__(self, folder: Path, number: int, vocab_size: int, coded: bool = False) -> None:
        """`coded`: documents have control codes."""
        self.folder, self.number = folder, number
        self.dtype = dtype_for(vocab_size)
        self.tokens = 0
        parts = ("sentences", "documents", *([CONTROLS] if coded else []))
        self._lengths = {part: bytearray() for part in parts}
        self._counts = dict.fromkeys(parts, 0)
        self._digest = hashlib.sha256()
        self._size = 0
        self._out = atomic_file(folder / shard_file_name("tokens", number))

    def add(
        self, tokens: NDArray[Any], sentences: NDArray[Any], documents: NDArray[Any], codes: NDArray[Any] | None = None
    ) -> None:
        """Add whole documents: ids, tokens in each sentence, sentences in each document, number of its control code."""
        assert int(sentences.sum()) == tokens.size, "sentences must fill the tokens"
        assert int(documents.sum()) == sentences.size, "documents must fill the sentences"
        assert int(sentences.min(initial=1)) > 0, "empty sentences are never stored"
        assert int(documents.min(initial=1)) > 0, "empty documents are never stored"
        data = np.ascontiguousarray(tokens, dtype=self.dtype).tobytes()
        self._out.file.write(data)
        self._digest.update(data)
        self._size += len(data)
        self.tokens += tokens.size
        for part, values in zip(self._lengths, (sentences, documents, codes), strict=False):
            assert values is not None, "documents have control codes"
            self._lengths[part] += varint.encode(values)
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
        **({CONTROLS: code_entries(controls)} if controls else {}),
        **({CLS_LAST: True} if cls_last else {}),
        "shards": [shard_entry(parts) for parts in shards],
    }
    header["sha256"] = header_hash(header)
    write_json(folder / HEADER, header)
