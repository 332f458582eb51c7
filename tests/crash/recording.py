"""The file operations of a process, written down so that a power cut can be replayed at any of them.

What must be known exactly is patched: syncing, renaming, exchanging. All else is seen by comparing the folder with what
it was at the operation before: files that native code writes, mapped ones, and those of other processes too. Writes
between two operations are one write then: the replay tears and reorders it anyway.

SQLite's files are recorded as they are, together: that a commit survives is SQLite's own promise (`synchronous=FULL`).
"""

import builtins
import hashlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertree.files import atomic
from bertree.search.database import DATABASE

RENAMING = ("replace", "rename")
SYNCING = ("fsync", "fdatasync")
OTHERS = ("unlink", "remove", "rmdir", "mkdir", "truncate", "ftruncate", "link", "symlink", "open")
RECENT = 50_000_000  # nanoseconds: the clock of the file system is coarse, so younger files are read again
PARTS = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-journal")
_open, _listdir, _isdir = io.open, os.scandir, os.path.isdir
Operation = list[Any]  # its name, paths relative to the root, the digest of a content


class Recorder:
    """Writes operations below `root` as lines of JSON into `log`, and contents into the folder beside it."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root, self.process = os.path.realpath(root), os.getpid()
        self.log, self.contents = log, contents_folder(log)
        self.contents.mkdir(parents=True, exist_ok=True)
        self.lock = threading.RLock()
        self.files: dict[str, tuple[int, int, str]] = {}  # time, size, digest; of a folder zeros
        self.databases: dict[str, dict[str, str]] = {}
        self._out = _open(log, "a", encoding="utf-8")
        self.scan()
        self._out.truncate(0)  # what was there before is no operation

    def relative(self, file: Any) -> str | None:
        """Return the path of a file, or of an open one, if it is below the root; "" is the root."""
        try:
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(file)
        except OSError:
            return None
        path = os.path.join(os.path.realpath(os.path.dirname(os.fsdecode(path))), os.path.basename(os.fsdecode(path)))
        if os.getpid() != self.process or not f"{path}/".startswith(f"{self.root}/"):
            return None
        return path[len(self.root) + 1 :]

    def scan(self, certain: str = "") -> None:
        """Write down how the folder differs from what it was. `certain`: a file that is read in any case."""
        now, paths = time.time_ns(), set()
        databases: dict[str, dict[str, str]] = {}
        for name, entry in _walk(self.root):
            folder, _, last = name.rpartition("/")
            if last.startswith(DATABASE):
                if last in PARTS:
                    databases.setdefault(folder, {})[last] = self._store(entry.path)
                continue
            paths.add(name)
            if entry.is_dir(follow_symlinks=False):
                if name not in self.files:
                    self.files[name] = (0, 0, "")
                    self._write("folder", name)
                continue
            try:
                status = os.stat(entry.path)
            except OSError:  # it is gone meanwhile
                paths.discard(name)
                continue
            before = self.files.get(name)
            stamp = (status.st_mtime_ns, status.st_size)
            if before is None:
                self._write("file", name)
                before = (0, 0, hashlib.sha256().hexdigest())
            if stamp != before[:2] or now - status.st_mtime_ns < RECENT or name == certain:
                digest = self._store(entry.path)
                if digest != before[2]:
                    self._write("data", name, digest)
                before = (*stamp, digest)
            self.files[name] = before
        for name in sorted(self.files.keys() - paths, reverse=True):  # what is in a folder goes before it
            del self.files[name]
            self._write("remove", name)
        for folder in databases.keys() | self.databases.keys():
            if (parts := databases.get(folder, {})) != self.databases.get(folder, {}):
                self._write("database", folder, parts)
        self.databases = {folder: parts for folder, parts in databases.items() if parts}

    def moved(self, kind: str, first: str, second: str) -> None:
        """Write down a rename or an exchange of names."""
        self._write(kind, first, second)
        names = {first: second} | ({second: first} if kind == "exchange" else {})
        if kind == "rename":
            self.files.pop(second, None)

        def rename(name: str) -> str:
            for old, new in names.items():
                if name == old or name.startswith(f"{old}/"):
                    return new + name[len(old) :]
            return name

        self.files = {rename(name): entry for name, entry in self.files.items()}
        self.databases = {rename(name): entry for name, entry in self.databases.items()}

    def _write(self, *operation: Any) -> None:
        self._out.write(json.dumps(operation) + "\n")
        self._out.flush()

    def _store(self, path: str) -> str:
        try:
            with _open(path, "rb") as file:
                data = file.read()
        except OSError:
            data = b""
        digest = hashlib.sha256(data).hexdigest()
        if not (self.contents / digest).exists():
            with _open(self.contents / digest, "wb") as file:
                file.write(data)
        return digest


def _walk(folder: str, prefix: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        entries = sorted(_listdir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        yield prefix + entry.name, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, f"{prefix}{entry.name}/")


def contents_folder(log: Path) -> Path:
    """The folder with the contents of files, by digest."""
    return log.with_name(f"{log.name}-contents")


def record(root: Path, log: Path) -> Recorder:
    """Record the operations of this process from now on; call `scan` at its end."""
    recorder = Recorder(root, log)

    def patched(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *arguments: Any, **named: Any) -> Any:
            if name == "open" and not arguments[0] & (os.O_CREAT | os.O_TRUNC):
                return inner(file, *arguments, **named)
            with recorder.lock:
                path = recorder.relative(file) if named.get("dir_fd") is None else ""
                if path is None:
                    return inner(file, *arguments, **named)
                target = recorder.relative(arguments[0]) if name in RENAMING else None
                recorder.scan(path)
                result = inner(file, *arguments, **named)
                if name in RENAMING and target is not None:
                    recorder.moved("rename", path, target)
                elif name in SYNCING:
                    recorder._write("sync", path)
                recorder.scan()
                return result

        return call

    for name in (*RENAMING, *SYNCING, *OTHERS):
        setattr(os, name, patched(name, getattr(os, name)))
    exchange = atomic._exchange

    def exchanged(first: Path, second: Path) -> bool:
        with recorder.lock:
            recorder.scan()
            done = exchange(first, second)
            source, target = recorder.relative(first), recorder.relative(second)
            if done and source is not None and target is not None:
                recorder.moved("exchange", source, target)
            return done

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or recorder.relative(file) is None:
            return _open(file, mode, *arguments, **named)
        with recorder.lock:
            recorder.scan()
            result = _open(file, mode, *arguments, **named)
            recorder.scan()
            return result

    atomic._exchange = exchanged
    for module in (builtins, io, sys.modules["_io"]):
        vars(module)["open"] = opened
    return recorder


def read_recording(log: Path) -> list[Operation]:
    """Read what was recorded."""
    return [json.loads(line) for line in log.read_text().splitlines()]
