"""Files of texts to compare: NLI, STS, pairs, triplets, and the user's own columns.

The released files of SNLI, MultiNLI and the STS benchmark are read as the tasks of those names read them. For other
tables, usual names of columns are known and others can be given. A row without an answer is skipped and counted if
other rows have one.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertree.console import note
from bertree.errors import BertreeWarning, UserError
from bertree.objectives.embedding_losses import ROWS
from bertree.tasks import glue
from bertree.tasks.columns import TextExample
from bertree.tasks.files import WORDS, find_splits
from bertree.tasks.task import Splits
from bertree.text.records import first_cells, location, read_records, suffix_of
from bertree.text.sources import FORMATS
from bertree.text.tables import Table, read_table

TEXT = ("sentence1", "premise", "question1", "#1 String", "sentence_A", "anchor", "query", "question", "text1", "text")
PAIR = (
    *("sentence2", "hypothesis", "question2", "#2 String", "sentence_B", "positive", "answer", "passage"),
    *("text2", "pair"),
)
SCORE = ("score", "similarity_score", "similarity", "relatedness_score")
LABEL = ("label", "gold_label", "is_duplicate", "Quality", "entailment_judgment")
NEGATIVE = "negative"  # what names of columns with negatives begin with
PREFIXES = ("snli_1.0_", "multinli_1.0_", "sts-", "msr_paraphrase_")
BENCHMARK = (7, 9)  # fields of a line of the STS benchmark
NUMBERED = 3  # and of a file without header that holds two texts and the number of their class


class SentenceExample(NamedTuple):
    """Two texts to compare, or an anchor, its positive and negatives, or a single text."""

    texts: tuple[str, ...]
    gold: str | float | None = None  # a class, a score; of triplets and pairs, the order says it
    file: str = ""
    line: int = 0

    @property
    def where(self) -> str:
        """The file and line, which messages begin with."""
        return location(Path(self.file), self.line) if self.file else f"'{self.texts[0]:.40}'"

    @property
    def kind(self) -> str:
        """The kind of row, see ROWS."""
        if self.gold is not None:
            return "label" if isinstance(self.gold, str) else "score"
        if len(self.texts) == 1:
            return "text"
        return "triplet" if len(self.texts) > 2 else "pair"


@dataclass(frozen=True)
class ColumnNames:
    """Columns the user has named, and how a column is read that could hold labels or scores."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    negatives: tuple[str, ...] = ()
    wants: str | None = None  # label or score, where a column could be either; text: that alone

    @property
    def identity(self) -> str:
        """The text that enters the identity of a run; it must stay as it is, so that earlier runs can be resumed."""
        return f"Named({', '.join(f'{key}={value!r}' for key, value in asdict(self).items())})"

    @property
    def any(self) -> bool:
        """True if a column was named."""
        return bool(self.text or self.pair or self.label or self.negatives)


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns, or the cells of its first line."""
    return _top(path)[0]


def find(data: Path) -> Splits:
    """Return the files of each split in a folder; a single file is the training file."""
    if not data.exists():
        raise UserError(f"{data}: no such file or folder")
    if data.is_file():
        return {"train": (data,)}
    return find_splits(data, ("snli", "sts-b", "mnli"), PREFIXES, WORDS, (*FORMATS, ".json"))


def read(paths: Sequence[Path], named: ColumnNames) -> list[SentenceExample]:
    """Read the rows of files, all of one kind."""
    examples: list[SentenceExample] = []
    for path in paths:
        of_file = _file(path, named)
        if examples and of_file[0].kind != examples[0].kind:
            raise UserError(f"{path}: holds {ROWS[of_file[0].kind]}, but {paths[0]} {ROWS[examples[0].kind]}")
        examples += of_file
    return examples


def _file(path: Path, named: ColumnNames) -> list[SentenceExample]:
    release = None if named.any or named.wants == "text" else _release(path)
    if release is not None:
        task = glue.glue_task(release)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BertreeWarning)  # about training; our own note is below
            rows = [_from_task(example) for example in task.read([path])]
        kept = [row for row in rows if row.gold is not None]
    else:
        rows = _table(path, named)
        kinds = {row.kind for row in rows}
        # All rows need a label or score, or none; the number of texts may differ.
        answered = bool(kinds & {"label", "score"})
        kept = [row for row in rows if row.gold is not None] if answered else rows
    if not kept:
        raise UserError(f"{path}: no row has a label or a score")
    if len(kept) < len(rows):
        note(f"{path}: {len(rows) - len(kept):,} of {len(rows):,} rows have no answer and are skipped")
    if any(row.kind == "triplet" for row in kept) and (alone := next((r for r in kept if len(r.texts) < 3), None)):
        note(f"{path}: {alone.where.removeprefix(f'{path}: ')} and others have no negative; they are pairs")
        kept.sort(key=lambda row: len(row.texts) < 3)  # the first row decides the kind of the file
    return kept


def _from_task(example: TextExample) -> SentenceExample:
    assert example.pair is not None
    return SentenceExample((example.text, example.pair), example.gold, example.file, example.line)


def _release(path: Path) -> str | None:
    """Return the task whose released files look like this one, by its columns, or None."""
    names, fields = _top(path)
    folded = {name.casefold() for name in names}
    if "gold_label" in folded or {"premise", "hypothesis"} <= folded:
        answered = folded & {"gold_label", "label"}
        return "snli" if answered and not folded & set(SCORE) else None
    if {"genre", "sentence1", "sentence2", "score"} <= folded:
        return "sts-b"
    if folded & {name.casefold() for name in (*TEXT, *PAIR)} or not fields:
        return None
    if BENCHMARK[0] <= len(fields) <= BENCHMARK[1] and _number(fields[4]) is not None:
        return "sts-b"
    labels = (*glue.INFERENCE, "-", "0", "1", "2")
    return "snli" if len(fields) == NUMBERED and fields[2].strip() in labels else None


def _top(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of the columns, or the cells of the first line; and the fields of a text file's first line."""
    if not path.is_file():
        raise UserError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
    if suffix_of(path) in (".jsonl", ".json", ".parquet"):
        return [str(name) for name in next(iter(read_records(path)), (0, {}))[1]], []
    fields = first_cells(path)
    return [field.strip() for field in fields], fields


def _number(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _table(path: Path, named: ColumnNames) -> list[SentenceExample]:
    table = read_table(path)
    names_of = {"text": [named.text] if named.text else TEXT, "pair": [named.pair] if named.pair else PAIR}
    names_of |= {"label": [named.label]} if named.label else {}
    missing = {role: names[:1] for role, names in names_of.items() if table.find(names) is None}
    if len(missing) > 1 and named.wants != "text":
        raise table.lacks(missing)
    text = table.column([named.text] if named.text else TEXT, "text")
    if named.wants == "text":
        cells = zip(table.lines, table.values(text), strict=True)
        return [SentenceExample(_texts(table, line, [cell]), None, str(path), line) for line, cell in cells]
    pair = table.column([named.pair] if named.pair else [name for name in PAIR if name != table.names[text]])
    if named.negatives:
        negatives = [table.column([name]) for name in named.negatives]
    else:
        negatives = [n for n, name in enumerate(table.names) if name.casefold().startswith(NEGATIVE)]
    columns = [table.values(column) for column in (text, pair, *negatives)]
    rows = [
        SentenceExample(_texts(table, line, cells), None, str(path), line)
        for line, *cells in zip(table.lines, *columns, strict=True)
    ]
    answered = not negatives or named.label or named.wants == "score"  # of a triplet, how much better the positive is
    answer = _answer(table, named, (text, pair)) if answered else None
    return rows if answer is None else _answered(table, rows, answer, named)


def _texts(table: Table, line: int, cells: Sequence[Any]) -> tuple[str, ...]:
    """Return one or two texts that must be there, and negatives, whose cells may be empty, or lists."""
    several = chain.from_iterable(cell if isinstance(cell, list) else [cell] for cell in cells[2:])
    kept = [cell for cell in several if cell not in (None, "")]
    required = zip(("first text", "second text"), cells, strict=False)
    for name, cell in (*required, *(("negative", cell) for cell in kept)):
        if not isinstance(cell, str) or not cell.strip():
            what = "is empty" if cell is None or isinstance(cell, str) else f"is {cell!r:.40}, not text"
            raise UserError(f"{location(table.path, line)}: the {name} {what}; a text is needed")
    return tuple(str(cell).strip() for cell in (*cells[:2], *kept))


def _answer(table: Table, named: ColumnNames, text_columns: Sequence[int]) -> int | None:
    """Return the column with the label or score."""
    if named.label:
        return table.column([named.label])
    orders = (LABEL, SCORE) if named.wants == "label" else (SCORE, LABEL)
    candidates = (table.find(names) for names in orders)
    return next((number for number in candidates if number is not None and number not in text_columns), None)


def _answered(table: Table, rows: Sequence[SentenceExample], answer: int, named: ColumnNames) -> list[SentenceExample]:
    """Return the rows with their answers. They are scores if the column is named so, if that is wanted, or if all are
    numbers and some are not whole; otherwise labels."""
    cells = [None if cell in (None, "", "-") else cell for cell in table.values(answer)]
    numbers = [None if cell is None else _number(cell) for cell in cells]
    plain = all(number is not None for number, cell in zip(numbers, cells, strict=True) if cell is not None)
    name = table.names[answer]
    called = name.casefold() in SCORE and not named.label
    broken = any(number is not None and not number.is_integer() for number in numbers)
    if named.wants == "score" or called or (plain and broken and named.wants != "label"):
        for row, number, cell in zip(rows, numbers, cells, strict=True):
            if cell is not None and number is None:
                raise UserError(f"{row.where}: '{name}' is {str(cell)!r:.40}, not a number")
        return [row._replace(gold=number) for row, number in zip(rows, numbers, strict=True)]
    return [row._replace(gold=_label(cell)) for row, cell in zip(rows, cells, strict=True)]


def _label(cell: Any) -> str | None:
    if cell is None:
        return None
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return str(cell).strip()
