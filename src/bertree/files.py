"""Files that are whole or not there: atomic writes, and reads of untrusted JSON and TOML.

A write goes to a temporary name beside its target, is flushed to the disk, and is renamed into place. It is
locked meanwhile, so that the next writer of the same target knows what a killed process has left, and removes it.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertree.errors import UserError

Json = dict[str, Any]
MOST_TOML = 1 << 20  # characters: a file of settings is small


def check_regular(path: str | Path) -> None:
    """Raise an error for a pipe or a device, which may never end. What is not there is left to whoever opens it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a pipe or a device; give a file")


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    check_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None


def read_json(path: Path) -> Json:
    """Read a file that holds a JSON object."""
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return value


def read_json_lines(path: Path) -> Iterator[Json]:
    """Yield the JSON object of every line."""
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        value = parse_json(line, f"{path}: line {number}")
        if not isinstance(value, dict):
            raise UserError(f"{path}: line {number}: must hold a JSON object")
        yield value


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse untrusted JSON; what is not JSON, nested too deeply or a number of too many digits is a UserError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({_reason(error)})") from None


def read_toml(path: Path) -> Json:
    """Read a TOML file."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> Json:
    """Parse untrusted TOML; what is not TOML, nested too deeply or a number of too many digits is a UserError."""
    if len(text) > MOST_TOML:
        raise UserError(f"{where}: is not valid TOML (it has {len(text):,} characters; at most {MOST_TOML:,} are read)")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid TOML ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """Say why something cannot be parsed, in a few words."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError | tomllib.TOMLDecodeError | UnicodeDecodeError):
        return " ".join(str(error).split())
    return "a number has too many digits"


def toml_text(tree: Json) -> str:
    """Write plain values, tables of them and lists of tables as TOML; None is left out."""
    blocks, plain = [], []
    for name, value in tree.items():
        if isinstance(value, dict):
            blocks.append([f"[{name}]", *_toml_lines(value)])
        elif isinstance(value, list | tuple) and all(isinstance(entry, dict) for entry in value):
            blocks += [[f"[[{name}]]", *_toml_lines(entry)] for entry in value]
        else:
            plain += _toml_lines({name: value})
    return "\n".join("\n".join(block) + "\n" for block in (plain, *blocks) if block)


def _toml_lines(table: Json) -> list[str]:
    return [f"{key} = {_toml_value(value)}" for key, value in table.items() if value is not None]


def _toml_value(value: Any) -> str:
    """JSON's spelling, but for infinity, which it has no word for."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def remove_leftovers(targets: Iterable[Path]) -> None:
    """Remove the temporary files and folders that killed processes have left beside these targets."""
    for target in targets:
        with contextlib.suppress(OSError):  # no such folder, or not ours
            name = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}(?:\.old)?")
            for path in [Path(entry.path) for entry in os.scandir(target.parent) if name.fullmatch(entry.name)]:
                _remove_if_left(path, target)


def _remove_if_left(path: Path, target: Path) -> None:
    """Remove a temporary file or folder unless its writer lives, and so holds its lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.suffix == ".old" and not target.exists():
            path.rename(target)  # killed between two renames
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return
    finally:
        os.close(handle)


def _lock_temporary(path: Path, handle: int) -> bool:
    """Lock a new temporary file or folder; return False if another process has taken it for left over."""
    with contextlib.suppress(OSError):  # a file system without locks: then nobody removes anything
        fcntl.flock(handle, fcntl.LOCK_EX)
    return path.exists()


class AtomicFile:
    """A file that is written under a temporary name and renamed when it is complete and on the disk.

    As a context manager it yields the open file, commits it at the end of the block, and discards it after an error.
    `partial`: a fixed temporary name, for a folder with one writer, where the next run replaces what a kill has left.
    """

    def __init__(self, path: Path, partial: Path | None = None) -> None:
        self.path = path
        if partial is not None:
            self.partial, self.file = partial, partial.open("wb")
            return
        remove_leftovers([path])
        while True:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            self.partial, self.file = Path(name), os.fdopen(handle, "wb")
            if _lock_temporary(self.partial, handle):
                break
            self.file.close()
        os.fchmod(handle, 0o644)

    def commit(self) -> None:
        """Sync the file and give it its name."""
        self.file.flush()
        os.fsync(self.file.fileno())
        os.replace(self.partial, self.path)
        self.file.close()
        sync(self.path.parent)

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # of what is still to be flushed to a full disk
            self.file.close()
        self.partial.unlink(missing_ok=True)

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()


def write_text(path: Path, text: str | bytes) -> None:
    """Write a file and flush it to the disk."""
    with path.open("wb") as file:
        file.write(_encode(text))
        file.flush()
        os.fsync(file.fileno())


def _encode(text: str | bytes) -> bytes:
    return text.encode(errors="backslashreplace") if isinstance(text, str) else text


def write_atomically(path: Path, text: str | bytes) -> None:
    """Replace a file, completely or not at all."""
    try:
        with AtomicFile(path) as file:
            file.write(_encode(text))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def npy_header(rows: int, columns: int, dtype: str) -> bytes:
    """Return the header of a .npy file of a matrix. It has 128 bytes for any size, so that it can be written last."""
    from numpy.lib import format

    header = io.BytesIO()
    format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": (rows, columns)})
    return header.getvalue()


def file_hash(path: Path, advance: Callable[[int], None] = lambda count: None) -> str:
    """sha256 of a file, read in pieces; `advance` hears of each."""
    check_regular(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                advance(len(block))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder that something else wrote."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def new_folder(target: Path, ours: Collection[str]) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends well, and vanishes when it does not.

    An existing target is replaced only if everything in it has a name in `ours`: what else a user keeps
    there is not ours to delete.
    """
    try:
        target = target.resolve()
        others = sorted({path.name for path in target.iterdir()} - set(ours)) if target.is_dir() else []
        is_file = target.exists() and not target.is_dir()
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror})") from None
    if is_file:
        raise UserError(f"{target}: is a file; give the path of a folder to write")
    if others:
        raise UserError(f"{target}: holds other files ({others[0]}); give an empty or a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers([target])
        work, handle = _temporary_folder(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror})") from None
    try:
        yield work
        os.chmod(work, 0o755)
        for file in (*work.rglob("*"), work):
            sync(file)
        _replace_folder(work, target)
        sync(target.parent)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        os.close(handle)
        shutil.rmtree(work, ignore_errors=True)  # what was there before has this name now


def _temporary_folder(target: Path) -> tuple[Path, int]:
    """Create a folder beside the target, and return it with the handle that keeps it locked."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        handle = os.open(work, os.O_RDONLY)
        if _lock_temporary(work, handle):
            return work, handle
        os.close(handle)


def _replace_folder(work: Path, target: Path) -> None:
    """Give a folder the name of the target; what was there gets the name of the folder."""
    if not target.exists():
        work.rename(target)
    elif not _exchange(work, target):
        old = work.with_name(f"{work.name}.old")
        target.rename(old)
        try:
            work.rename(target)
        except OSError:
            old.rename(target)
            raise
        old.rename(work)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return False where the system cannot."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is None:
        return False
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(exchange(here, os.fsencode(one), here, os.fsencode(other), flag) == 0)


@contextmanager
def exclusive_lock(out: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder while the block runs."""
    handle = os.open(out, os.O_RDONLY)  # the lock is on the folder itself: it leaves no file behind
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"{out}: another run is writing here; wait for it, or give another --out") from None
    finally:
        os.close(handle)


def write_json_lines(path: Path, lines: Iterable[Json]) -> None:
    """Write one JSON object per line."""
    write_into_folder(path, "".join(json_text(line) + "\n" for line in lines))


def json_text(value: Json, indent: int | None = None) -> str:
    """Return JSON; numbers that are not finite become null."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_into_folder(path: Path, text: str) -> None:
    """Write a file atomically, and create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
