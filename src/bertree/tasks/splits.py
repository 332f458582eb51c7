"""Which file of a folder is the training set, which dev, which test.

By name, because every release names them so: `train.tsv`, `dev_matched.tsv`, `validation_10k.tsv`,
`train.half.tsv.xz`. A wrong guess here would be silent and would spoil every figure after it, so where two files
fit equally well nothing is guessed.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from bertree.errors import UserError
from bertree.tasks.task import Splits
from bertree.text.sources import FORMATS, PACKED, format_of

WORDS = {"train": "train", "dev": "dev", "validation": "dev", "valid": "dev", "val": "dev", "test": "test"}
BEHIND_PREFIX = 3
SHARD = re.compile(r"-\d{5}-of-0*([1-9]\d*)(?=\.)")  # train-00000-of-00003.parquet: one file in three pieces


def plain(name: str) -> str:
    """A name as it is compared: SST-2, sst_2 and sst2 are one."""
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def find_splits(
    folder: Path, names: Sequence[str] = (), prefixes: Sequence[str] = (), words: dict[str, str] = WORDS
) -> Splits:
    """The file of each split in a folder, or in the sub-folder of it that is named like the task.

    A file belongs to a split if its name begins with one of `words`, ended by '_', '-', '.' or nothing; one that
    goes on with "mismatched" makes a split of its own (`dev-mismatched`). `train.tsv` wins over `train_10k.tsv`.
    `prefixes` are what released files carry before that word (`snli_1.0_`); they come last, and where such a release
    has a split in two formats, they are the same examples and JSON is taken.
    """
    folder = inside(folder, names)
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in files_in(folder):
        if place := _place(path.name, prefixes, words):
            split, rank = place
            found.setdefault(split, []).append((rank, path))
    if not found:
        kinds = ", ".join(words)
        there = ", ".join(path.name for path in sorted(folder.iterdir())[:8]) or "nothing"
        raise UserError(f"{folder}: no file whose name begins with {kinds} ({' '.join(FORMATS)}); there is: {there}")
    return {split: _best(folder, split, found[split]) for split in sorted(found, key=_order)}


def inside(folder: Path, names: Sequence[str]) -> Path:
    """The sub-folder that is named like the task, if there is one; or else the folder itself."""
    if not folder.is_dir():
        raise UserError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    wanted = {plain(name) for name in names}
    try:
        below = sorted(path for path in folder.iterdir() if plain(path.name) in wanted and path.is_dir())
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None
    if len(below) > 1:
        raise UserError(f"{folder}: holds {' and '.join(path.name for path in below)}; give one of them")
    return below[0] if below else folder


def files_in(folder: Path) -> list[Path]:
    """The data files of a folder, hidden ones left out."""
    try:
        return sorted(p for p in folder.iterdir() if p.name[0] != "." and format_of(p.name) and p.is_file())
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror})") from None


def _place(name: str, prefixes: Sequence[str], words: dict[str, str]) -> tuple[str, int] | None:
    """The split a file is of and how well its name fits, 0 best."""
    stem = name.casefold()
    for suffix in PACKED:
        stem = stem.removesuffix(suffix)
    stem = stem.rpartition(".")[0]
    prefix = next((p for p in prefixes if stem.startswith(p.casefold())), "")
    stem = stem[len(prefix) :]
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    if not (match := re.match(rf"({alternatives})(?=$|[_.-])(.*)", stem)):
        return None
    rest = match[2]
    split = words[match[1]] + ("-mismatched" if "mismatched" in rest else "")
    if prefix:
        return split, BEHIND_PREFIX
    return split, 0 if not rest else 1 if rest[1:] in ("matched", "mismatched") else 2


def _best(folder: Path, split: str, found: list[tuple[int, Path]]) -> tuple[Path, ...]:
    rank = min(rank for rank, _ in found)
    equals = [path for r, path in found if r == rank]
    if rank == BEHIND_PREFIX and len(equals) > 1:
        equals = [path for path in equals if format_of(path.name) == "jsonl"] or equals
    shards = {match[1] if (match := SHARD.search(path.name)) else path.name for path in equals}
    if len(equals) > 1 and shards != {str(len(equals))}:
        those = ", ".join(path.name for path in equals)
        raise UserError(f"{folder}: several files could be {split}: {those}; give the file itself")
    return tuple(equals)


def _order(split: str) -> int:
    known = ["train", "dev", "dev-mismatched", "test", "test-mismatched"]
    return known.index(split) if split in known else len(known)
