"""A disk after a power cut: which states a file system may leave when only what was synced is certain.

POSIX promises little: the content of a file survives if the file was synced, its name if its folder was. Of what was
not synced, any part may survive: a rename without the data, the second of two renames without the first, some sectors
of a write. A rename and an exchange of names are atomic.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tests.crash.recording import Operation

SECTOR = 512
DATA = ("old", "new", "zeros", "cut", "mixed")
State = dict[str, bytes | None]  # path -> content; None: a folder


@lru_cache(256)
def _content(path: Path) -> bytes:
    return path.read_bytes()


@dataclass(eq=False)
class File:
    """A file: its content on the disk, and what was written since."""

    durable: bytes = b""
    current: bytes = b""
    shortest: int = 0  # size that it had since it was synced

    def content(self, kind: str, chance: random.Random) -> bytes:
        """Return a content that a power cut may leave."""
        if kind == "new" or self.durable == self.current:
            return self.current
        size = len(self.current)
        if kind == "old":
            return self.durable
        if kind == "zeros":  # the size is there, the data not
            return self.durable[:size].ljust(size, b"\0")
        sectors = range(0, max(size, 1), SECTOR)
        if kind == "cut":
            cut = chance.choice([*sectors, size])
            return (self.current[:cut] + self.durable[cut:size])[: chance.choice([size, max(cut, self.shortest)])]
        old = self.durable[:size].ljust(size, b"\0")
        return b"".join(chance.choice((old, self.current))[at : at + SECTOR] for at in sectors)

    def write(self, data: bytes) -> None:
        """Change the content."""
        self.current, self.shortest = data, min(self.shortest, len(data))

    def sync(self) -> None:
        """Put the content on the disk."""
        self.durable, self.shortest = self.current, len(self.current)


@dataclass(eq=False)
class Folder:
    """A folder: its names, and those that are on the disk."""

    names: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)


Node = File | Folder
Change = list[tuple[Folder, str, Node | None]]  # names that change together


class Disk:
    """A folder with its files, and the changes of names that are not synced."""

    def __init__(self, source: Path, contents: Path) -> None:
        self.root, self._contents = Folder(), contents
        self.changes: list[Change] = []
        self.source: State = {}
        for path in sorted(source.rglob("*")):
            if path.is_dir():
                node: Node = Folder()
            else:
                node = File()
                node.write(path.read_bytes())
                node.sync()
            folder, name = self._place(str(path.relative_to(source)))
            folder.names[name] = folder.durable[name] = node
            self.source[str(path.relative_to(source))] = node.current if isinstance(node, File) else None

    def _place(self, path: str) -> tuple[Folder, str]:
        *parents, name = path.split("/")
        folder = self.root
        for parent in parents:
            below = folder.names[parent]
            assert isinstance(below, Folder)
            folder = below
        return folder, name

    def _node(self, path: str) -> Node:
        if not path:
            return self.root
        folder, name = self._place(path)
        return folder.names[name]

    def apply(self, operation: Operation) -> None:
        """Do what was recorded."""
        kind, path, *rest = operation
        if kind == "database":
            self._set_database(path, rest[0])
        elif kind == "data":
            node = self._node(path)
            assert isinstance(node, File)
            node.write(self._read(rest[0]))
        elif kind == "sync":
            self._sync(self._node(path))
        elif kind in ("file", "folder"):
            self._change([(*self._place(path), File() if kind == "file" else Folder())])
        elif kind == "remove":
            self._change([(*self._place(path), None)])
        else:
            node, other = self._node(path), self._node(rest[0]) if kind == "exchange" else None
            self._change([(*self._place(path), other), (*self._place(rest[0]), node)])

    def _read(self, digest: str) -> bytes:
        return _content(self._contents / digest)

    def _change(self, change: Change) -> None:
        _apply(change, {folder: folder.names for folder, _, _ in change})
        self.changes.append(change)

    def _sync(self, node: Node) -> None:
        if isinstance(node, File):
            node.sync()
            return
        node.durable = dict(node.names)
        for change in self.changes:  # of a rename between two folders both names are there then
            if any(folder is node for folder, _, _ in change):
                _apply(change, {folder: folder.durable for folder, _, _ in change if folder is not node})
        self.changes = [change for change in self.changes if all(folder is not node for folder, _, _ in change)]

    def _set_database(self, path: str, parts: dict[str, str]) -> None:
        """SQLite syncs its own files."""
        try:
            folder = self._node(path)
        except KeyError:  # it was removed with its folder
            return
        assert isinstance(folder, Folder)
        for names in (folder.names, folder.durable):
            for name in [name for name in names if name.startswith("index.sqlite")]:
                del names[name]
        for name, digest in parts.items():
            file = File()
            file.write(self._read(digest))
            file.sync()
            folder.names[name] = folder.durable[name] = file

    def state(self, kept: Sequence[bool], data: str, chance: random.Random) -> State:
        """Return the state after a power cut: which of the changes of names survive, and what of the data (a word of
        DATA, or "any": another for each file)."""
        names: dict[Folder, dict[str, Node]] = {}
        for change, keep in zip(self.changes, kept, strict=True):
            if keep:
                for folder, _, _ in change:
                    names.setdefault(folder, dict(folder.durable))
                _apply(change, names)
        state: State = {}

        def walk(folder: Folder, prefix: str) -> None:
            for name, node in sorted(names.get(folder, folder.durable).items()):
                if isinstance(node, Folder):
                    state[prefix + name] = None
                    walk(node, f"{prefix}{name}/")
                else:
                    state[prefix + name] = node.content(chance.choice(DATA) if data == "any" else data, chance)

        walk(self.root, "")
        return state

    def cuts(self, chance: random.Random, more: int) -> Iterator[State]:
        """Yield states after a power cut now: the extreme ones, those of a file system that keeps the order of names,
        and `more` at random."""
        count = len(self.changes)
        for survive in sorted({0, count, *(chance.randrange(count + 1) for _ in range(more))}):
            kept = [number < survive for number in range(count)]
            for data in ("old", "zeros", "new") if survive in (0, count) else ("any",):
                yield self.state(kept, data, chance)
        for _ in range(more):
            share = chance.random()
            yield self.state([chance.random() < share for _ in range(count)], "any", chance)


def _apply(change: Change, names: dict[Folder, dict[str, Node]]) -> None:
    for folder, name, node in change:
        if folder in names:
            if node is None:
                names[folder].pop(name, None)
            else:
                names[folder][name] = node


def difference(state: State, source: State) -> tuple[State, list[str]]:
    """Return what is new or other than in the source, and what is gone."""
    other = {name: content for name, content in state.items() if name not in source or content is not source[name]}
    return other, [name for name in source if name not in state]


def digest(state: State, source: State) -> bytes:
    """Return a digest of how a state differs from the source."""
    total = hashlib.sha256()
    other, gone = difference(state, source)
    for name, content in sorted(other.items()):
        total.update(f"{name}\0{'folder' if content is None else len(content)}\0".encode() + (content or b""))
    total.update("\0\0".join(sorted(gone)).encode())
    return total.digest()


def below(state: State, name: str) -> State:
    """Return a file or a folder with everything in it."""
    return {path: content for path, content in state.items() if path == name or path.startswith(f"{name}/")}
