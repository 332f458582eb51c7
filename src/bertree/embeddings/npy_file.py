"""A .npy file of vectors that grows while it is written, and can be resumed after any kind of stop.

Rows go to OUT.part. After each block of rows they are flushed to the disk, and OUT.journal records their number and
what was embedded. The first blocks are small, so that a stop soon after the start loses little. A block depends on its
first row alone, and batches are formed within a block. So a resumed run asks the model for the same batches as one that
was not stopped, and both write the same bytes.

The texts are identified by a running hash, not by the date of the file: they are read again up to the point of
resuming. That is cheap compared with the model, works for a pipe, and detects a changed file.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from bertree.errors import UserError
from bertree.files.atomic import make_folder, remove_leftovers, sync, write_atomically
from bertree.files.formats import Json, check_regular, npy_header, read_json
from bertree.inference.embedding import Vectors

HEADER = 128  # bytes
VERSION = 1
EXISTS = "{}: exists already; remove it, or give another `out`"
DTYPES = {"float32": "<f4", "float16": "<f2"}


def check(out: Path, dtype: str) -> None:
    """Refuse a target that cannot be written."""
    if dtype not in DTYPES:
        raise UserError(f"`dtype={dtype}`: unknown; known: {', '.join(DTYPES)}")
    if out.exists() and not _journal(out).exists():
        raise UserError(EXISTS.format(out))


def _journal(out: Path) -> Path:
    return out.with_name(out.name + ".journal")


class Fingerprint:
    """A running hash of texts whose every state can be saved."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, text: str) -> None:
        """Add a text."""
        data = text.encode("utf-8")
        self._hash.update(len(data).to_bytes(8, "little") + data)

    def __str__(self) -> str:
        return self._hash.hexdigest()


class VectorFile:
    """A .npy file being written. `job` holds what must not change between two runs that write one file."""

    def __init__(self, out: Path, job: Json, dimension: int, dtype: str) -> None:
        check(out, dtype)
        self.out, self.job, self.dimension, self.dtype = out, job, dimension, dtype
        self.part, self.journal = out.with_name(out.name + ".part"), _journal(out)
        self.rows = 0
        self.texts = ""  # the fingerprint of those embedded
        self._file: IO[bytes] | None = None

    @property
    def _width(self) -> int:
        return self.dimension * np.dtype(DTYPES[self.dtype]).itemsize

    def finished(self) -> bool:
        """Return whether an earlier run finished the file for this job. Cleans up after a kill."""
        if not self.out.exists():
            return False
        if self.journal.is_file() and not self.part.exists() and read_json(self.journal).get("job") == self.job:
            self.journal.unlink()  # killed between the last two steps
            remove_leftovers([self.journal])
            return True
        raise UserError(EXISTS.format(self.out))

    @contextmanager
    def writing(self) -> Iterator["VectorFile"]:
        """Open the unfinished file, or start one."""
        try:
            make_folder(self.out.parent)
            with open(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
                self._lock(file)
                remove_leftovers([self.journal])
                self._file = file
                self._resume()
                try:
                    yield self
                except BaseException:
                    if not self.rows:  # nothing to resume
                        self.part.unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise UserError(f"{error.filename or self.out}: cannot be written ({error.strerror})") from None
        finally:
            self._file = None

    def _lock(self, file: IO[bytes]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{self.part}: another run is writing here; wait for it, or give another `out`") from None
        if not self.part.exists() or not os.path.samestat(os.fstat(file.fileno()), os.stat(self.part)):
            raise UserError(f"{self.out}: another run has just ended here; look at its result")

    def _resume(self) -> None:
        assert self._file is not None
        if self.journal.is_file():
            journal = read_json(self.journal)
            begun = journal.get("job")
            if not isinstance(begun, dict) or journal.get("version") != VERSION:
                raise UserError(f"{self.journal}: is not one of this version; remove it and {self.part}")
            if begun != self.job:
                differ = next((key for key in self.job if begun.get(key) != self.job[key]), "settings")
                raise UserError(
                    f"{self.part}: was begun with another {differ}; run it with that, or remove it and {self.journal}"
                )
            self.rows, self.texts = _row_count(journal.get("rows"), self.journal), str(journal.get("texts"))
        size = os.fstat(self._file.fileno()).st_size
        if size < HEADER + self.rows * self._width and self.rows:
            raise UserError(f"{self.part}: is cut off; remove it and {self.journal}, and begin again")
        if not self.rows:
            self._file.truncate(0)
            self._file.write(npy_header(0, self.dimension, DTYPES[self.dtype]))
        self._file.truncate(HEADER + self.rows * self._width)  # what a killed run wrote after its last entry
        self._file.seek(0, os.SEEK_END)

    def add(self, vectors: Vectors, texts: str) -> None:
        """Append and sync a window; `texts` is the fingerprint of all texts up to here."""
        assert self._file is not None
        assert vectors.shape[1] == self.dimension
        self._file.write(np.ascontiguousarray(vectors, DTYPES[self.dtype]).tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(vectors)
        self.texts = texts
        self._save()

    def _save(self) -> None:
        state = {"version": VERSION, "job": self.job, "rows": self.rows, "texts": self.texts}
        write_atomically(self.journal, json.dumps(state, indent=1) + "\n")

    def finish(self) -> None:
        """Write the header, give the file its name and remove the journal."""
        assert self._file is not None
        self._file.seek(0)
        self._file.write(npy_header(self.rows, self.dimension, DTYPES[self.dtype]))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self.part, self.out)
        sync(self.out.resolve().parent)
        self.journal.unlink(missing_ok=True)


def _row_count(value: Any, path: Path) -> int:
    if type(value) is not int or value < 0:
        raise UserError(f"{path}: is damaged; remove it and begin again")
    return value


def load(path: Path, rows: int | None = None) -> Vectors:
    """Read and check the vectors of a .npy file."""
    check_regular(path)
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except Exception:  # a header is read as Python's literals, which fail in many ways
        raise UserError(f"{path}: is not a .npy file of numbers") from None
    if mapped.ndim != 2 or mapped.dtype.kind != "f":
        raise UserError(f"{path}: must hold vectors as rows x numbers, of floating point")
    if rows is not None and len(mapped) != rows:
        raise UserError(f"{path}: has {len(mapped):,} vectors for {rows:,} texts; were they made from another file?")
    vectors: Vectors = np.asarray(mapped, np.float32)
    good = np.isfinite(vectors).all(1)
    if not good.all():
        raise UserError(f"{path}: row {int(good.argmin()) + 1}: holds NaN or infinity; embed the texts again")
    return vectors
