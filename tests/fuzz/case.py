"""A case: samples, changes of their files, a command, and what is expected of it."""

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tests.fuzz.running import Result, Runner

OUT = "out"  # where a command of a case writes


class Change(NamedTuple):
    """One change in the folder of a case: the file, the change in words, and the function that makes it."""

    file: str
    what: str
    make: Callable[[Path], None]  # gets the path of the file


class Check(Protocol):
    """Compares an accepted result with what it should be; returns what is wrong, or nothing."""

    def __call__(self, case: "Case", folder: Path, result: "Result", runner: "Runner") -> str: ...


@dataclass
class Case:
    """One case. `samples` maps folders and files of the case to those of the session."""

    samples: dict[str, str]
    changes: list[Change]
    command: list[str]
    names: tuple[str, ...] = ()  # an error may name these too, beside the changed files and their folders
    check: Check | None = None  # of a result that was accepted
    writes: tuple[str, ...] = (OUT,)  # what the command may write
    codes: tuple[int, ...] = (0, 2)
    stop_after: int | None = None  # steps of training: what a changed file asks for may take for ever
    kind: str = ""
    number: int = 0
    notes: dict[str, str] = field(default_factory=dict)  # for checks

    def build(self, samples: Path, folder: Path) -> None:
        """Write the folder of the case."""
        folder.mkdir(parents=True)
        for name, source in self.samples.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copy(samples / source, folder / name)
        for change in self.changes:
            # A change may not apply to what an earlier one, or the shrinking, has left.
            with contextlib.suppress(
                OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, sqlite3.Error
            ):
                change.make(folder / change.file)

    def culprits(self) -> set[str]:
        """Return the words of which an error line must contain one."""
        names = set(self.names)
        for change in self.changes:
            path = Path(change.file)
            names |= {path.name, *(parent.as_posix() for parent in path.parents if parent.name)}
        return {word for word in names if word}


class Kind(NamedTuple):
    """One kind of input: how to draw a case of it."""

    name: str
    about: str
    draw: Callable[[Random], Case]


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder; links and pipes stay what they are."""
    mode = source.lstat().st_mode
    if stat.S_ISDIR(mode):
        target.mkdir()
        for entry in source.iterdir():
            copy(entry, target / entry.name)
    elif stat.S_ISLNK(mode):
        target.symlink_to(source.readlink())
    elif stat.S_ISFIFO(mode):
        os.mkfifo(target)
    else:
        shutil.copyfile(source, target)


def walk(folder: Path) -> Iterator[Path]:
    """Yield every file and folder below a folder, without following links."""
    for entry in sorted(folder.iterdir()):
        yield entry
        if entry.is_dir() and not entry.is_symlink():
            yield from walk(entry)
