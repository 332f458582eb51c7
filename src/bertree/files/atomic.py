"""Files and folders that are either complete or absent.

A write goes to a temporary name next to its target, is flushed to the disk, and is renamed into place. It is
locked meanwhile, so that the next writer of the same target finds the leftovers of a killed process and removes them.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bertree.errors import UserError
from bertree.files.formats import Json, json_text


def remove_leftovers(targets: Iterable[Path]) -> None:
    """Remove the temporary files and folders that killed processes have left next to these targets."""
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
    """Lock a new temporary file or folder; return False if another process has removed it as a leftover."""
    with contextlib.suppress(OSError):  # a file system without locks: then nobody removes anything
        fcntl.flock(handle, fcntl.LOCK_EX)
    return path.exists()


def _is_device(path: Path) -> bool:
    """Return whether a path is a device or a pipe, or the name of an open file in /dev."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return False
    return path.parent == Path("/dev") or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


class AtomicFile:
    """A file that is written under a temporary name and renamed when it is complete and on the disk.

    As a context manager it yields the open file, commits it at the end of the block, and discards it after an error.
    `partial`: a fixed temporary name, for a folder with one writer, where the next run replaces a leftover.
    A device or a pipe, such as /dev/null or /dev/stdout, is written as it is: a file must not take its place.
    """

    def __init__(self, path: Path, partial: Path | None = None) -> None:
        self.path = path
        self.is_direct = _is_device(path)
        if self.is_direct:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is an error, no wait
            os.set_blocking(handle, True)
            self.file = os.fdopen(handle, "wb")
            return
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
        if self.is_direct:
            return
        os.fsync(self.file.fileno())
        os.replace(self.partial, self.path)
        self.file.close()
        sync(self.path.parent)

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # of what is still to be flushed to a full disk
            self.file.close()
        if not self.is_direct:
            self.partial.unlink(missing_ok=True)

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()


def write_atomically(path: Path, text: str | bytes) -> None:
    """Replace a file, completely or not at all."""
    try:
        with AtomicFile(path) as file:
            file.write(_encode(text))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist, and flush their names to the disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


@contextmanager
def make_folders(*folders: Path) -> Iterator[None]:
    """Create folders and their parents; after a mistake of the user, those that are still empty are removed."""
    created: list[Path] = []
    try:
        for folder in folders:
            created += [path for path in (folder, *folder.parents) if not path.exists()]
            try:
                make_folder(folder)
            except OSError as error:
                raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
        yield
    except UserError:
        for path in sorted(created, key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def write_into_folder(path: Path, text: str | bytes) -> None:
    """Write a file atomically, and create its folder."""
    try:
        make_folder(path.parent)
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def write_json_lines(path: Path, lines: Iterable[Json]) -> None:
    """Write one JSON object per line."""
    write_into_folder(path, "".join(json_text(line) + "\n" for line in lines))


def write_text(path: Path, text: str | bytes) -> None:
    """Write a file and flush it to the disk."""
    with path.open("wb") as file:
        file.write(_encode(text))
        file.flush()
        os.fsync(file.fileno())


def _encode(text: str | bytes) -> bytes:
    return text.encode(errors="backslashreplace") if isinstance(text, str) else text


def sync(path: Path) -> None:
    """Flush a file or folder that something else wrote."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# What a folder is, by the files in it.
KINDS = {
    "a model": ("config.json", "bertree.toml", "model.onnx", "options.json"),
    "a run": ("checkpoints", "recipe.toml"),
    "a token store": ("store.json", "journal.json"),
    "an index": ("index.sqlite",),
}
MODEL_KIND, RUN_KIND = list(KINDS)[:2]


def refuse_other(target: Path, own: str = "", force: bool = True) -> None:
    """Raise an error if a path to write is a model, run, store or index, or a file of one.

    `own`: the kind that is written and may be replaced; without `force`, it may not."""
    folder = target if target.is_dir() else target.parent
    for kind, names in KINDS.items():
        if target.exists() and any((folder / name).exists() for name in names):
            if kind != own:
                what = "is" if folder is target else "is a file of"
                raise UserError(f"{target}: {what} {kind}; give another path, or remove it first")
            if not force:
                raise UserError(f"{target}: holds {kind} already; give another folder, or `force=True` to replace it")


@contextmanager
def new_folder(target: Path, ours: Collection[str], force: bool = True) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends well, and vanishes when it does not.

    An existing target is replaced only if everything in it has a name in `ours`, so that no file of a user is
    deleted; and, without `force`, only if it is no model.
    """
    refuse_other(target, MODEL_KIND, force)
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
        make_folder(target.parent)
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
        shutil.rmtree(work, ignore_errors=True)  # the previous folder has this name now


def _temporary_folder(target: Path) -> tuple[Path, int]:
    """Create a folder next to the target, and return it with the handle that keeps it locked."""
    while True:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        handle = os.open(work, os.O_RDONLY)
        if _lock_temporary(work, handle):
            return work, handle
        os.close(handle)


def _replace_folder(work: Path, target: Path) -> None:
    """Give a folder the name of the target; an existing target gets the name of the folder."""
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


def _exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; return False where the system cannot."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is None:
        return False
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(exchange(here, os.fsencode(first), here, os.fsencode(second), flag) == 0)


@contextmanager
def exclusive_lock(out: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder while the block runs."""
    handle = os.open(out, os.O_RDONLY)  # the lock is on the folder itself: it leaves no file behind
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"{out}: another run is writing here; wait for it, or give another `out`") from None
    finally:
        os.close(handle)
