"""The file operations of this process, numbered, and a SIGKILL at one of them.

`watch` replaces the functions that change files by ones that count: creating, writing, syncing, renaming, truncating
and removing, commits of SQLite, and the writers of libraries. The process dies before the operation, or in its middle:
half of a write is in the file then, and a created file is empty.
"""

import builtins
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

NAMED = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "truncate", "link", "symlink")
BY_HANDLE = ("fsync", "fdatasync", "ftruncate")
LIBRARIES = (("safetensors.torch", "serialize_file", 1), ("safetensors.numpy", "serialize_file", 1))
LIBRARIES += (("faiss", "write_index", 1),)
_open, _os_open, _unlink = io.open, os.open, os.unlink


class Operations:
    """Counts operations on files below `roots`; dies at number `fatal`; writes each down in `log`."""

    def __init__(self, roots: tuple[Path, ...], fatal: int, log: Path | None) -> None:
        self.roots = tuple(os.path.realpath(root) for root in roots)
        self.fatal, self.process = fatal, os.getpid()
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

    def is_last(self, name: str, path: str) -> bool:
        """Count an operation; return whether it is the one to die at."""
        with self.lock:
            number = next(self.numbers)
        if self.log is not None:
            base = next(root for root in self.roots if path.startswith(root))
            os.write(self.log, f"{name}\t{os.path.relpath(path, os.path.dirname(base))}\n".encode())
        return number == self.fatal

    def before(self, name: str, file: Any) -> None:
        """Die before an operation, if it is the last."""
        path = self.watches(file)
        if path is not None and self.is_last(name, path):
            die()


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal may take a moment


def watch(roots: tuple[Path, ...], fatal: int = 0, log: Path | None = None) -> None:
    """Count the operations of this process from now on."""
    operations = Operations(roots, fatal, log)
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


def _counted(operations: Operations, name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(file: Any, *given: Any, **named: Any) -> Any:
        folder = named.get("dir_fd")
        where = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), file) if isinstance(folder, int) else file
        operations.before(name, where)
        return inner(file, *given, **named)

    return call


def _counted_os_open(operations: Operations) -> Callable[..., int]:
    def call(path: Any, flags: int, *given: Any, **named: Any) -> int:
        writes = bool(flags & (os.O_CREAT | os.O_TRUNC)) and named.get("dir_fd") is None
        if writes:
            operations.before("create", path)
        handle = _os_open(path, flags, *given, **named)
        if writes:
            operations.before("created", path)
        return handle

    return call


def _counted_writer(operations: Operations, name: str, inner: Callable[..., Any], argument: int) -> Callable[..., Any]:
    """Die before, or with half of the file written."""

    def call(*given: Any, **named: Any) -> Any:
        path = operations.watches(given[argument])
        if path is not None and operations.is_last(name, path):
            die()
        result = inner(*given, **named)
        if path is not None and operations.is_last(f"half {name}", path):
            os.truncate(path, os.stat(path).st_size // 2)
            die()
        return result

    return call


class _Torn:
    """A buffered file that may die with half of a piece written."""

    operations: Operations

    def write(self, data: Any) -> int:
        path = self.operations.watches(self.fileno())  # type: ignore[attr-defined]
        if path is not None and self.operations.is_last("write", path):
            some = bytes(data)
            super().write(some[: len(some) // 2])
            self.flush()  # type: ignore[attr-defined]
            die()
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
        if operations.is_last("open", path):
            die()
        raw = io.FileIO(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if operations.is_last("opened", path):
            die()
        buffer: Any = _Random(raw) if "+" in mode else _Writer(raw)
        return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding, errors, newline, buffering == 1)

    return call


def _counted_connect(operations: Operations) -> Callable[..., Any]:
    inner = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *given: Any) -> Any:
            if statement.upper().startswith("COMMIT"):
                path = self._path
                if path is not None and operations.is_last("commit", path):
                    die()
                result = super().execute(statement, *given)
                if path is not None and operations.is_last("committed", path):
                    die()
                return result
            return super().execute(statement, *given)

        @property
        def _path(self) -> str | None:
            (_, _, path), *_rest = super().execute("PRAGMA database_list").fetchall()
            return operations.watches(path) if path else None

    def call(*given: Any, **named: Any) -> Any:
        return inner(*given, factory=Connection, **named)

    return call
