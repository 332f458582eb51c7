"""The file operations of this process, numbered, and a fault at one of them.

`watch` replaces the functions that change files by ones that count: creating, writing, syncing, renaming, truncating
and removing, commits of SQLite, and the writers of libraries. The fault comes before the operation, or in its middle:
half of a write is in the file then, and a created file is empty. It is a SIGKILL, a pause (SIGSTOP), or an error of the
system, by its name: a full disk and a read-only one stay so, other errors happen once.
"""

import builtins
import errno
import io
import itertools
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bertree.files import atomic

NAMED = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "truncate", "link", "symlink")
BY_HANDLE = ("fsync", "fdatasync", "ftruncate")
LIBRARIES = (("safetensors.torch", "serialize_file", 1), ("safetensors.numpy", "serialize_file", 1))
LIBRARIES += (("faiss", "write_index", 1),)
KILL, PAUSE = "SIGKILL", "SIGSTOP"
LASTING = {"ENOSPC": {"unlink", "remove", "rmdir", "truncate"}, "EROFS": set[str]()}  # what is still possible
FREE = {"created", "opened", "committed"}  # moments after an operation: they cannot fail
_open, _os_open, _truncate = io.open, os.open, os.truncate


class Operations:
    """Counts operations on files below `roots`; number `fatal` meets the fault; writes each down in `log`."""

    def __init__(self, roots: tuple[Path, ...], fatal: int, log: Path | None, fault: str = KILL) -> None:
        self.roots = tuple(os.path.realpath(root) for root in roots)
        self.fatal, self.process, self.fault = fatal, os.getpid(), fault
        self.numbers = itertools.count(1)
        self.log = None if log is None else _os_open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lock = threading.Lock()

    def watches(self, file: Any) -> str | None:
        """Return the path of a file, or of an open one, if it is one of those that count."""
        try:
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(file)
        except OSError:
            return None
        path = os.path.join(os.path.realpath(os.path.dirname(os.fsdecode(path))), os.path.basename(os.fsdecode(path)))
        return path if path.startswith(self.roots) and os.getpid() == self.process else None

    def meets_fault(self, name: str, path: str) -> bool:
        """Count an operation; return whether it is to fail. A pause is over when this returns."""
        with self.lock:
            number = next(self.numbers)
        if self.log is not None:
            base = next(root for root in self.roots if path.startswith(root))
            os.write(self.log, f"{name}\t{os.path.relpath(path, os.path.dirname(base))}\n".encode())
        if number == self.fatal and self.fault == PAUSE:
            os.kill(os.getpid(), signal.SIGSTOP)
            return False
        if self.fault != KILL and name in FREE:
            return False
        lasts = self.fatal and number > self.fatal and self.fault in LASTING and name not in LASTING[self.fault]
        return number == self.fatal or bool(lasts)

    def fail(self, path: str) -> None:
        """Kill this process, or raise the error."""
        if self.fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # the signal may take a moment
        code = getattr(errno, self.fault)
        raise OSError(code, os.strerror(code), path)

    def before(self, name: str, file: Any) -> None:
        """Fail before an operation, if it is to fail."""
        path = self.watches(file)
        if path is not None and self.meets_fault(name, path):
            self.fail(path)


def watch(roots: tuple[Path, ...], fatal: int = 0, log: Path | None = None, fault: str = KILL) -> None:
    """Count the operations of this process from now on."""
    operations = Operations(roots, fatal, log, fault)
    for name in (*NAMED, *BY_HANDLE):
        setattr(os, name, _counted(operations, name, getattr(os, name)))
    os.open = _counted_os_open(operations)
    opener = _counted_open(operations)
    for module in (builtins, io, sys.modules["_io"]):
        vars(module)["open"] = opener
    sqlite3.connect = _counted_connect(operations)
    for where, name, argument in LIBRARIES:
        if where in sys.modules:
            inner = getattr(sys.modules[where], name)
            setattr(sys.modules[where], name, _counted_writer(operations, name, inner, argument))
    atomic._exchange = _counted_exchange(operations)


def _counted_exchange(operations: Operations) -> Callable[[Path, Path], bool]:
    """The system call without a name in Python."""
    inner = atomic._exchange

    def call(first: Path, second: Path) -> bool:
        operations.before("exchange", first)
        return inner(first, second)

    return call


def _counted(operations: Operations, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(file: Any, *arguments: Any, **named: Any) -> Any:
        folder = named.get("dir_fd")
        where = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), file) if isinstance(folder, int) else file
        operations.before(name, where)
        return inner(file, *arguments, **named)

    return call


def _counted_os_open(operations: Operations) -> Callable[..., int]:
    def call(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        writes = bool(flags & (os.O_CREAT | os.O_TRUNC)) and named.get("dir_fd") is None
        if writes:
            operations.before("create", path)
        handle = _os_open(path, flags, *arguments, **named)
        if writes:
            operations.before("created", path)
        return handle

    return call


def _counted_writer(operations: Operations, name: str, inner: Callable[..., Any], argument: int) -> Callable[..., Any]:
    """Fail before, or with half of the file written."""

    def call(*arguments: Any, **named: Any) -> Any:
        path = operations.watches(arguments[argument])
        if path is not None and operations.meets_fault(name, path):
            _fail_in_library(operations, name, path)
        result = inner(*arguments, **named)
        if path is not None and operations.meets_fault(f"half {name}", path):
            _truncate(path, os.stat(path).st_size // 2)
            _fail_in_library(operations, name, path)
        return result

    return call


def _fail_in_library(operations: Operations, name: str, path: str) -> None:
    """Fail with the library's own error."""
    try:
        operations.fail(path)
    except OSError as error:
        raise (RuntimeError if name == "write_index" else SafetensorError)(f"{path}: {error}") from None


class _Torn:
    """A buffered file that may fail with half of a piece written."""

    operations: Operations

    def write(self, data: Any) -> int:
        path = self.operations.watches(self.fileno())  # type: ignore[attr-defined]
        if path is not None and self.operations.meets_fault("write", path):
            some = bytes(data)
            super().write(some[: len(some) // 2])
            self.flush()  # type: ignore[attr-defined]
            self.operations.fail(path)
        return super().write(data)


class _Writer(_Torn, io.BufferedWriter):
    pass


class _Random(_Torn, io.BufferedRandom):
    pass


def _counted_open(operations: Operations) -> Callable[..., Any]:
    _Torn.operations = operations

    def call(
        file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
        newline: str | None = None, closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        path = operations.watches(file) if set(mode) & set("wax+") and buffering != 0 else None
        if path is None:
            return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if operations.meets_fault("open", path):
            operations.fail(path)
        raw = io.FileIO(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if operations.meets_fault("opened", path):
            operations.fail(path)
        buffer: Any = _Random(raw) if "+" in mode else _Writer(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline, buffering == 1)

    return call


def _fail_in_database(operations: Operations, path: str) -> None:
    """Fail as SQLite does."""
    try:
        operations.fail(path)
    except OSError as error:
        message = "database or disk is full" if error.errno == errno.ENOSPC else "disk I/O error"
        raise sqlite3.OperationalError(message) from None


def _counted_connect(operations: Operations) -> Callable[..., Any]:
    inner = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> Any:
            if statement.upper().startswith("COMMIT"):
                path = self._path
                if path is not None and operations.meets_fault("commit", path):
                    _fail_in_database(operations, path)
                result = super().execute(statement, *arguments)
                if path is not None and operations.meets_fault("committed", path):
                    _fail_in_database(operations, path)
                return result
            return super().execute(statement, *arguments)

        @property
        def _path(self) -> str | None:
            (_, _, path), *_rest = super().execute("PRAGMA database_list").fetchall()
            return operations.watches(path) if path else None

    def call(*arguments: Any, **named: Any) -> Any:
        return inner(*arguments, factory=Connection, **named)

    return call
