"""Find and open input files: paths, folders, globs and standard input, plain or compressed.

Everything that reads texts uses it: corpora, tables of tasks, documents to index, texts to embed. All names are
resolved to a sorted list of files before anything is read, so that the order of the documents, and with it every later
result, does not depend on the file system.
"""

import glob
import gzip
import io
import lzma
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

from bertree.errors import UserError, install_hint
from bertree.files.formats import check_regular

FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
COMPRESSED = (".gz", ".xz", ".zst")
STANDARD_INPUT = "-"
NO_EXTRA: Mapping[str, str] = {}
LISTED = 5  # kinds of files that a note on skipped files lists
BUFFER = 1 << 18  # bytes of uncompressed text that are read ahead


@dataclass(frozen=True)
class Source:
    """One file, its format, and its size and time, which tell whether it has changed."""

    path: str
    format: str
    size: int
    modified: int  # modification time in nanoseconds

    @property
    def compression(self) -> str:
        """Suffix of the compression: ".gz", ".xz", ".zst", or ""."""
        suffix = Path(self.path).suffix.lower()
        return suffix if suffix in COMPRESSED else ""


def find_sources(names: Sequence[str], format: str | None = None, extra: Mapping[str, str] = NO_EXTRA) -> list[Source]:
    """Return the files named by paths, folders (recursively, without hidden files), globs and "-".

    `format`: of all files; None: by their suffixes. `extra`: more suffixes than `FORMATS` has, with their formats.
    """
    if format is not None and format not in FORMATS.values():
        raise UserError(f"format '{format}': unknown; known: {', '.join(sorted(set(FORMATS.values())))}")
    by_path: dict[str, Source] = {}
    for name in names:
        for source in _resolve(name, format, extra):
            by_path.setdefault(source.path, source)
    if not by_path:
        raise UserError("no corpus given; name a file, a folder, a glob or - for standard input")
    return list(by_path.values())


def _resolve(name: str, format: str | None, extra: Mapping[str, str]) -> Iterator[Source]:
    if name == STANDARD_INPUT:
        yield Source(name, format or "text", 0, 0)
        return
    suffixes = ", ".join((*FORMATS, *extra))
    if os.path.isdir(name):
        paths = sorted(
            path for path in _files_below(name) if os.path.isfile(path) and (format or format_of(path, extra))
        )
        if not paths:
            raise UserError(f"{name}: no text files in this folder (known: {suffixes}, each also .gz, .xz or .zst)")
    elif os.path.exists(name):
        paths = [name]
    elif glob.has_magic(name):
        paths = sorted(path for path in _match(name) if os.path.isfile(path))
        if not paths:
            raise UserError(f"{name}: no file matches this pattern")
    else:
        raise UserError(f"{name}: no such file or folder")
    for path in paths:
        check_regular(path)
        kind = format or format_of(path, extra)
        if kind is None:
            hint = "" if extra else ", or give `format=text`"
            raise UserError(f"{path}: unknown kind of file; known: {suffixes}{hint}")
        try:
            status = os.stat(path)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        yield Source(path, kind, status.st_size, status.st_mtime_ns)


def describe_skipped(names: Sequence[str], extra: Mapping[str, str] = NO_EXTRA) -> str:
    """Describe in one line the files in these folders that are not read; "" if all of them are."""
    below = (path for name in names if os.path.isdir(name) for path in _files_below(name))
    kinds = Counter(
        (Path(path).suffix.lower() or "without a suffix")
        if os.path.isfile(path)
        else "broken links and other special files"
        for path in below
        if not (format_of(path, extra) and os.path.isfile(path))
    )
    if not kinds:
        return ""
    listed = ", ".join(f"{kind} ({count:,})" for kind, count in kinds.most_common(LISTED))
    return f"{kinds.total():,} left out: files of other kinds, {listed}{', ...' if len(kinds) > LISTED else ''}"


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield this folder and those below it, sorted, each with the sorted names of its files; none of them is hidden.

    Links to folders are followed, after everything else. No folder is read twice, and none that a link is inside of.
    """

    def unreadable(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    seen: set[str] = set()
    waiting = [folder]
    for top in waiting:  # grows
        for root, folders, files in os.walk(top, onerror=unreadable):
            real = os.path.realpath(root)
            folders[:] = sorted(name for name in folders if not name.startswith(".")) if real not in seen else []
            if real in seen:
                continue
            seen.add(real)
            links = (path for name in folders if os.path.islink(path := os.path.join(root, name)))
            waiting += (link for link in links if not _is_inside(real, os.path.realpath(link)))
            yield root, sorted(name for name in files if not name.startswith("."))


def _match(pattern: str) -> Iterator[str]:
    """Yield the paths that a pattern matches; `**` stands for folders as `walk` finds them."""
    parts = pattern.split("/")
    if "**" not in parts:
        return glob.iglob(pattern)
    above, below = "/".join(parts[: parts.index("**")]), "/".join(parts[parts.index("**") + 1 :])
    folders = glob.iglob(above) if above else ["/" if pattern.startswith("/") else "."]
    paths = (path.removeprefix("" if above else "./") for folder in folders for path in _files_below(folder))
    return (path for path in paths if PurePath(path).match(below or "*"))


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def _files_below(folder: str) -> Iterator[str]:
    return (os.path.join(root, name) for root, names in walk(folder) for name in names)


def format_of(path: str, extra: Mapping[str, str] = NO_EXTRA) -> str | None:
    """Return the format that a file's name stands for, compressed or not; None if unknown."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in COMPRESSED:
        suffix = os.path.splitext(stem)[1]
    return FORMATS.get(suffix) or extra.get(suffix)


@contextmanager
def open_source(source: Source) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a source; yield its uncompressed bytes and the file below, whose position tells how far reading has come."""
    if source.path == STANDARD_INPUT:
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    check_regular(source.path)
    broken: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
    library: Any = None
    if source.compression == ".zst":
        library = import_zstandard(source.path)
        broken = (EOFError, library.ZstdError)
    try:
        with open(source.path, "rb") as file:
            if library is not None:
                yield io.BufferedReader(_ZstdReader(file, library), BUFFER), file
            elif source.compression:
                unpacked = gzip.GzipFile(fileobj=file) if source.compression == ".gz" else lzma.LZMAFile(file)  # noqa: SIM115
                yield io.BufferedReader(unpacked, BUFFER), file
            else:
                yield file, file
    except broken as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{source.path}: is damaged or cut off ({reason}); fetch it or compress it again") from None
    except OSError as error:
        raise UserError(f"{source.path}: cannot be read ({error.strerror or error})") from None


class _ZstdReader(io.RawIOBase):
    """Read zstd frames. The library's own reader accepts a truncated file as complete."""

    # Small: a few bytes of input can expand to 128 KiB of output, and one piece is held at a time.
    PIECE = 2048

    def __init__(self, file: IO[bytes], library: Any) -> None:
        self._file, self._library = file, library
        self._frame: Any = None
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting and (data := self._file.read(self.PIECE)):
            self._waiting = memoryview(self._unpack(data))
        if not self._waiting and self._frame is not None:
            raise EOFError("the last frame has no end")
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def _unpack(self, data: bytes) -> bytes:
        pieces = []
        while data:
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            pieces.append(self._frame.decompress(data))
            data = b""
            if self._frame.eof:
                data, self._frame = self._frame.unused_data, None
        return b"".join(pieces)


def import_zstandard(path: str) -> Any:
    """Import zstandard, or say how to install it."""
    try:
        import zstandard as library
    except ImportError:
        raise UserError(f"{path}: reading .zst needs zstandard; {install_hint('zstd')}") from None
    return library
