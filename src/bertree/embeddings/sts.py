"""Read sets of sentence pairs with gold similarities, in the layouts of their releases (for evaluate.py).

STS12 to STS16 are folders of parts, `STS.input.PART.txt` beside `STS.gs.PART.txt`; blank lines are pairs without a gold
score. The STS benchmark is a tab-separated table without a header, named .csv; GLUE's copy has a header, and no gold in
its test file; SICK has a header and, in one release, all splits in one file. Everything else is a table whose columns
are named. The name of a set does not depend on its folder unless two sets share it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertree.console import renamed
from bertree.errors import UserError, suggest
from bertree.tasks.columns import Columns, HeaderlessLayout
from bertree.text.records import location, read_lines, suffix_of
from bertree.text.sources import format_of, walk
from bertree.text.tables import read_table

SPLITS = ("test", "dev", "train", "all")
INPUT, GOLD = "STS.input.", "STS.gs."
BENCHMARK = re.compile(r"sts-?(?:b-)?(train|dev|test)[\w-]*\.(?:csv|tsv)(?:\.\w+)?", re.IGNORECASE)
GLUE = re.compile(r"(train|dev|test)\.tsv(?:\.\w+)?", re.IGNORECASE)
ROWS = re.compile(r"(train|dev|validation|test)\.(?:jsonl|parquet)", re.IGNORECASE)
SPLIT_NAMES = {"trial": "dev", "validation": "dev"}  # other names of a split -> ours
SICK = re.compile(r"SICK(?:_(train|trial|test)\w*|_annotated)?\.(?:txt|tsv)(?:\.\w+)?", re.IGNORECASE)
SICK_SPLIT_COLUMN = "SemEval_set"
TEXTS = ("sentence1", "sentence_A", "text1", "text", "first", "question1")
PAIRS = ("sentence2", "sentence_B", "text2", "pair", "second", "question2")
LABELS = ("score", "relatedness_score", "similarity", "gold", "label")
# The STS benchmark, 7 to 9 columns: genre, file, year, number, score, the sentences, their sources.
BENCHMARK_LAYOUT = HeaderlessLayout(7, 9, text=5, pair=6, label=4)


@dataclass(frozen=True, kw_only=True)
class PairPart:
    """One part of a set: pairs from one source."""

    name: str
    file: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: NDArray[np.float64]
    lines: tuple[int, ...]
    skipped: int = 0  # pairs without gold


@dataclass(frozen=True)
class PairSet:
    """One set, of one part or several."""

    name: str
    parts: tuple[PairPart, ...]
    folder: str = ""  # tells two sets of one name apart
    notes: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """Number of pairs with a gold score."""
        return sum(len(part.gold) for part in self.parts)

    @property
    def skipped(self) -> int:
        """Number of pairs without a gold score."""
        return sum(part.skipped for part in self.parts)


@dataclass(frozen=True)
class PairColumns:
    """The names of columns; None: the usual names."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None

    @property
    def any_named(self) -> bool:
        """Whether any column is named."""
        return any((self.text, self.pair, self.label))

    def columns(self, released: bool) -> Columns:
        """Return how a file is read; `released`: as a benchmark's own file, in which a quote is a character."""
        return Columns(
            text=(self.text,) if self.text else TEXTS,
            pair=(self.pair,) if self.pair else PAIRS,
            label=(self.label,) if self.label else LABELS,
            headless=() if self.any_named else (BENCHMARK_LAYOUT,),
            quoting="none" if released else "auto",
            labeled=True,
        )


def find(paths: Sequence[Path], named: PairColumns = PairColumns(), split: str = "test") -> list[PairSet]:  # noqa: B008
    """Read every set that the paths name, in their order; the sets below a folder are sorted by name."""
    if split not in SPLITS:
        raise UserError(f"split '{split}': unknown, {suggest(split, SPLITS)}")
    all_sets: list[PairSet] = []
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder")
        sets = list(_find_below(path, named, split)) if path.is_dir() else [_read_file(path, named, split)]
        if not sets:
            names = "STS.input.*.txt, sts-test.csv, dev.tsv, SICK*.txt; for tables of your own, `text`, `pair`, `label`"
            raise UserError(f"{path}: holds no known set of pairs ({names})")
        all_sets += sets
    return _make_names_unique(all_sets)


def _make_names_unique(sets: Sequence[PairSet]) -> list[PairSet]:
    """Make names unique: by the folder, then by number."""
    count = Counter(pair_set.name for pair_set in sets)
    named = [replace(s, name=f"{s.name} ({s.folder})") if count[s.name] > 1 else s for s in sets]
    seen: Counter[str] = Counter()
    result = []
    for pair_set in named:
        seen[pair_set.name] += 1
        number = seen[pair_set.name]
        result.append(pair_set if number == 1 else replace(pair_set, name=f"{pair_set.name} {number}"))
    return result


def _find_below(folder: Path, named: PairColumns, split: str) -> Iterator[PairSet]:
    for root, names in walk(str(folder)):
        here = Path(root)
        if named.any_named:
            for name in names:
                if format_of(name) in ("csv", "tsv", "jsonl", "parquet") or suffix_of(Path(name)) == ".json":
                    yield _read_table(here / name, named, name)
        elif any(name.startswith(INPUT) for name in names):
            yield _read_parts(here)
        else:
            yield from _find_released(here, names, split)


def _find_released(folder: Path, names: Sequence[str], split: str) -> Iterator[PairSet]:
    """Find the files of a benchmark that belong to the split; if that has no gold scores, use dev and note it."""
    by_split: dict[str, list[Path]] = {}
    for name in names:
        if (match := BENCHMARK.fullmatch(name)) or ((match := GLUE.fullmatch(name)) and _has_gold(folder / name)):
            by_split.setdefault(match[1].lower(), []).append(folder / name)
        elif (match := SICK.fullmatch(name)) or (match := ROWS.fullmatch(name)):
            kind = (match[1] or split).lower()
            by_split.setdefault(SPLIT_NAMES.get(kind, kind), []).append(folder / name)
    wanted = sorted(by_split, key=SPLITS.index) if split == "all" else [split] if split in by_split else ["dev"]
    for kind in wanted:
        for path in by_split.get(kind, []):
            note = [] if split in ("all", kind) else [f"{folder}: has no gold for {split}, so {kind} is scored"]
            if ROWS.fullmatch(path.name):
                pairs = _read_table(path, PairColumns(), f"{folder.name} {kind}")
            else:
                pairs = _read_sick(path, split) if SICK.fullmatch(path.name) else _read_benchmark(path)
            yield replace(pairs, notes=(*pairs.notes, *note))


def _has_gold(path: Path) -> bool:
    """Return whether a file holds pairs with scores: every task of GLUE has a dev.tsv."""
    header = next((text.split("\t") for _, text in read_lines(path)), [])
    return {"sentence1", "sentence2", "score"} <= set(header)


def _read_file(path: Path, named: PairColumns, split: str) -> PairSet:
    """Read one file that was given by its path."""
    name = Path(renamed(str(path))).name
    if named.any_named:
        return _read_table(path, named, name)
    if name.startswith(INPUT):
        return PairSet(name.removeprefix(INPUT).split(".txt")[0], (_read_part(path),), path.parent.name)
    if BENCHMARK.fullmatch(name) or GLUE.fullmatch(name):
        return _read_benchmark(path)
    if SICK.fullmatch(name):
        return _read_sick(path, split)
    return _read_table(path, named, name)


def _read_benchmark(path: Path) -> PairSet:
    pairs = _read_table(path, PairColumns(), path.name, released=True)
    match = re.search("train|dev|test", path.name.lower())
    return replace(pairs, name=f"STS-B {match[0]}" if match else "STS-B")


def _read_sick(path: Path, split: str) -> PairSet:
    """Read SICK; `split` selects rows of the file that has all splits."""
    pairs = _read_table(path, PairColumns(), path.name, released=True)
    table = read_table(path, quoting="none")
    match = SICK.fullmatch(path.name)
    kind = (match[1] or split).lower() if match else split
    name = "SICK-R" if kind == "all" else f"SICK-R {SPLIT_NAMES.get(kind, kind)}"
    if kind == "all" or (column := table.find([SICK_SPLIT_COLUMN])) is None:
        return replace(pairs, name=name)
    part = pairs.parts[0]
    split_of = dict(zip(table.lines, (str(value).lower() for value in table.values(column)), strict=True))
    kept = [n for n, line in enumerate(part.lines) if SPLIT_NAMES.get(split_of[line], split_of[line]) == split]
    if not kept:
        raise UserError(f"{path}: has no rows of the split '{split}'")
    chosen = replace(
        part,
        first=tuple(part.first[n] for n in kept),
        second=tuple(part.second[n] for n in kept),
        gold=part.gold[kept],
        lines=tuple(part.lines[n] for n in kept),
    )
    return replace(pairs, name=name, parts=(chosen,))


def _read_table(path: Path, named: PairColumns, name: str, released: bool = False) -> PairSet:
    rows, skipped = named.columns(released).read(path)
    labeled = [row for row in rows if row.label not in (None, "")]
    if not labeled:
        raise UserError(f"{path}: has no gold score; name its column with `label`")
    part = PairPart(
        name=name,
        file=renamed(str(path)),
        first=tuple(row.text for row in labeled),
        second=tuple(row.pair or "" for row in labeled),
        gold=np.array([_number(row.label or "", location(Path(row.file), row.line)) for row in labeled]),
        lines=tuple(row.line for row in labeled),
        skipped=skipped + len(rows) - len(labeled),
    )
    return PairSet(name.partition(".")[0] or name, (part,), path.parent.name)


def _number(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        raise UserError(f"{where}: the gold score is {text!r:.40}, not a number") from None
    if not math.isfinite(score):
        raise UserError(f"{where}: the gold score is {text}, not a finite number")
    return score


def _read_parts(folder: Path) -> PairSet:
    """Read a folder of STS12 to STS16."""
    inputs = sorted(path for path in folder.iterdir() if path.name.startswith(INPUT))
    inputs = [path for path in inputs if ".ALL." not in path.name or len(inputs) == 1]  # a copy of the other files
    notes = [f"{path}: has no {_gold_file(path).name} beside it, and is left out" for path in inputs]
    missing = [note for path, note in zip(inputs, notes, strict=True) if not _gold_file(path).is_file()]
    parts = tuple(_read_part(path) for path in inputs if _gold_file(path).is_file())
    if not parts:
        raise UserError(f"{folder}: has {INPUT}*.txt but no {GOLD}*.txt with their scores")
    alone = [
        f"{path}: has no {INPUT}* beside it, and is left out"
        for path in sorted(folder.iterdir())
        if path.name.startswith(GOLD) and ".ALL." not in path.name
        if not (folder / path.name.replace(GOLD, INPUT, 1)).is_file()
    ]
    match = re.match(r"STS-?(?:20)?(\d\d)\b", folder.resolve().name, re.IGNORECASE)
    name = f"STS{match[1]}" if match else folder.resolve().name
    return PairSet(name, parts, folder.resolve().parent.name, (*missing, *alone))


def _gold_file(path: Path) -> Path:
    return path.with_name(path.name.replace(INPUT, GOLD, 1))


def _read_part(path: Path) -> PairPart:
    gold = _gold_file(path)
    if not gold.is_file():
        raise UserError(f"{gold}: no such file; the scores of {path.name} are expected there")
    texts, scores = list(read_lines(path)), list(read_lines(gold))
    while len(scores) < len(texts) and (not scores or scores[-1][1] == ""):  # blank last lines without a line break
        scores.append((len(scores) + 1, ""))
    if len(texts) != len(scores):
        raise UserError(f"{gold}: has {len(scores)} lines, {path.name} {len(texts)}: they do not belong together")
    first, second, values, numbers = [], [], [], []
    for (number, text), (_, score) in zip(texts, scores, strict=True):
        if not score.strip():
            continue
        cells = text.split("\t")
        if len(cells) < 2:
            raise UserError(f"{path}: line {number}: has no tab between two sentences")
        first.append(cells[0].strip())
        second.append(cells[1].strip())
        values.append(_number(score.strip(), f"{gold}: line {number}"))
        numbers.append(number)
    if not values:
        raise UserError(f"{gold}: has no score at all")
    name = path.name.removeprefix(INPUT).split(".txt")[0]
    return PairPart(
        name=name,
        file=str(path),
        first=tuple(first),
        second=tuple(second),
        gold=np.array(values),
        lines=tuple(numbers),
        skipped=len(texts) - len(values),
    )
