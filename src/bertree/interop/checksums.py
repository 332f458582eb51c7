"""Checksums of the files of a model folder, kept in its `bertree.toml`.

A weight file has two: SHA-256, which takes seconds for a large file, and one that is read at the speed of the memory,
so that every `load` can compare it. The fast one finds any damage within eight bytes, and any other unless the sums of
all blocks stay the same: it is against accidents.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from bertree.errors import UserError
from bertree.files.formats import check_regular, file_hash

WEIGHTS = ".safetensors"
WORDS = 512  # 64-bit words of a block


@dataclass(frozen=True)
class FileChecksum:
    """A row of the table [[files]]."""

    name: str  # relative to the folder
    bytes: int
    sha256: str
    blocks: str = ""  # of a weight file: the fast checksum

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in self.name:
            raise UserError(f"files: {self.name!r} is not the name of a file in this folder")


def checksums(folder: Path) -> tuple[FileChecksum, ...]:
    """Return the checksums of all files in a folder."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        blocks = block_sums(path) if path.name.endswith(WEIGHTS) else ""
        name = path.relative_to(folder).as_posix()
        found.append(FileChecksum(name, path.stat().st_size, file_hash(path), blocks))
    return tuple(found)


def block_sums(path: Path) -> str:
    """Return the fast checksum: SHA-256 of the sum of each block's 64-bit words, and of the bytes after the last."""
    size = path.stat().st_size
    count = size // (8 * WORDS)
    digest = hashlib.sha256(str(size).encode())
    if count:
        words = np.memmap(path, "<u8", "r", shape=(count, WORDS))
        digest.update(np.add.reduce(words, axis=1))
    with path.open("rb") as file:
        file.seek(count * 8 * WORDS)
        digest.update(file.read())
    return digest.hexdigest()


def compare_weights(folder: Path, files: Iterable[FileChecksum]) -> None:
    """Compare the weight files with their fast checksums."""
    for file in files:
        if file.blocks:
            path = _existing(folder, file)
            if path.stat().st_size != file.bytes or block_sums(path) != file.blocks:
                raise _changed(folder, file)


def compare_files(
    folder: Path, files: Iterable[FileChecksum], advance: Callable[[int], None] = lambda count: None
) -> None:
    """Compare all files with their SHA-256; `advance` hears of the bytes that were read."""
    for file in files:
        if file_hash(_existing(folder, file), advance) != file.sha256:
            raise _changed(folder, file)


def _existing(folder: Path, file: FileChecksum) -> Path:
    path = folder / file.name
    check_regular(path)
    if not path.is_file():
        raise UserError(f"{path}: is missing, though bertree.toml lists it; copy it there, or {_give_up(file)}")
    return path


def _changed(folder: Path, file: FileChecksum) -> UserError:
    return UserError(
        f"{folder / file.name}: is damaged or was changed (its checksum differs from that in bertree.toml); copy it "
        f"again, or, if you changed it yourself, {_give_up(file)}"
    )


def _give_up(file: FileChecksum) -> str:
    return f"remove the entry '{file.name}' under [[files]] from bertree.toml"
