"""Rows in memory become the rows of a file: from lists, frames, Arrow tables and Datasets, none of them imported."""

import datetime
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pytest

from bertree.console import note
from bertree.errors import BertreeWarning, UserError
from bertree.text.memory import Rows, pair_fields, rows_of, takes_rows, task_fields

ROWS = [{"text": "a", "label": 1}, {"text": "b", "label": None}]


class PandasFrame:
    """As pandas: iterating gives the names of the columns."""

    columns = ("text", "label")

    def itertuples(self, index: bool, name: None) -> Iterator[tuple[str, float]]:
        return iter([("a", np.int64(1)), ("b", math.nan)])


class PolarsFrame:
    columns = ("text", "label")

    def iter_rows(self, named: bool) -> Iterator[Mapping[str, Any]]:
        return iter(ROWS)


class Dataset:
    """As Hugging Face's: classes are numbers, -1 is none, and a format may turn values into tensors."""

    column_names = ("text", "label", "tags")
    features: ClassVar[dict[str, Any]] = {
        "text": SimpleNamespace(dtype="string"),
        "label": SimpleNamespace(names=["no", "yes"], int2str=str),
        "tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B"], int2str=str)),
    }

    def with_format(self, kind: None) -> "list[dict[str, Any]]":
        return [{"text": "a", "label": 1, "tags": [0, 1]}, {"text": "b", "label": -1, "tags": []}]

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("it is read without its format")


@pytest.mark.parametrize(
    "rows",
    [
        ROWS, iter(ROWS), [("a", 1), ("b", None)], [["a", 1], np.array(["b", None])],
        {"text": ["a", "b"], "label": [1, None]},
        PandasFrame(), PolarsFrame(), SimpleNamespace(collect_schema=None, collect=PolarsFrame),
        pyarrow.Table.from_pylist(ROWS), pyarrow.RecordBatch.from_pylist(ROWS),
    ],
)  # fmt: skip
def test_rows_of_every_kind(rows: Rows) -> None:
    assert list(rows_of(rows, "data")) == ROWS


def test_classes_of_a_dataset_are_names() -> None:
    first = {"text": "a", "label": "yes", "tags": ["O", "B"]}
    assert list(rows_of(Dataset(), "data")) == [first, {"text": "b", "label": None, "tags": []}]


def test_fields_of_tuples_and_plain_texts() -> None:
    assert list(rows_of(pyarrow.chunked_array([["x"], ["y"]]), "data")) == [{"text": "x"}, {"text": "y"}]
    assert list(rows_of([("a", "b", 2)], "data", task_fields)) == [{"text": "a", "pair": "b", "label": 2}]
    assert list(rows_of([(["a", "b"], ["O", "B"])], "data")) == [{"words": ["a", "b"], "tags": ["O", "B"]}]
    assert list(rows_of([("a", "b", 0.5)], "data", pair_fields)) == [{"text": "a", "pair": "b", "label": 0.5}]
    (triplet,) = rows_of([("a", "b", "c", "d")], "data", pair_fields)
    assert triplet == {"text": "a", "pair": "b", "negative": "c", "negative_2": "d"}


def test_values_become_plain() -> None:
    values = {
        "f": np.float32(0.5),
        "n": np.array([1, 2]),
        "t": np.True_,
        "d": datetime.date(2026, 1, 2),
        "m": Decimal("1.5"),
    }
    (row,) = rows_of([values | {"u": "\ud800", 3: math.inf}], "data")
    assert row == {"f": 0.5, "n": [1, 2], "t": True, "d": "2026-01-02", "m": "1.5", "u": "\ufffd", "3": "inf"}


@takes_rows(data=task_fields, more=task_fields, several=["more"])
def read(data: str | Path | Rows, *, more: Rows = (), fail: bool = False) -> tuple[Any, Any]:
    """A function that reads files."""
    if isinstance(data, Path):
        note(f"{data}: was read")
        if fail:
            raise UserError(f"{data}: line 2: is wrong")
    files = sorted(data.iterdir()) if isinstance(data, Path) and data.is_dir() else [data]
    return [(Path(file).name, Path(file).stat().st_mtime_ns, Path(file).read_text()) for file in files], more


@pytest.mark.filterwarnings("ignore::bertree.errors.BertreeWarning")
def test_a_function_reads_rows_as_files(tmp_path: Path) -> None:
    (file := tmp_path / "a.txt").write_text("x")
    assert read(file)[0][0][0] == "a.txt"
    assert read(str(file), more=["b", "c"])[1] == ["b", "c"]
    ((name, modified, text),), _ = read(ROWS)
    assert (name, text) == ("data.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": null}\n')
    assert read(PandasFrame())[0] == [(name, modified, text)]  # equal rows are an equal file
    splits, _ = read({"train": ROWS, "validation": ROWS[:1]})
    assert [name for name, *_ in splits] == ["train.jsonl", "validation.jsonl"]
    _, (first, second) = read(ROWS, more=[file, PandasFrame()])
    assert first == file
    assert not second.exists()  # a temporary file


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (7, "data: must be a path, or rows in memory (a list of dicts"),
        (None, "data: must be a path, or rows in memory"),
        (b"x", "not bytes"),
        ([], "data: is empty; give at least one row"),
        ([7], "data: row 1: must be a dict, a tuple or a text, not int '7'"),
        ([("a", 1, 2, 3)], "data: row 1: is a tuple of 4, at most text, pair, label are read; give a dict"),
        ([{"text": "a"}, {"text": object()}], "data: row 2: 'text' holds object"),
        ({"text": ["a"], "label": []}, "columns of one length"),
        ({"train": ROWS, "other": ROWS}, "data: 'other' is no split; a mapping of splits has train, dev and test"),
        ({"train": ROWS, "dev": 3}, "data['dev']: must be a path, or rows"),
    ],
)
def test_what_is_refused(rows: Rows, message: str) -> None:
    with pytest.raises(UserError) as raised:
        read(rows)
    assert message in str(raised.value)


@pytest.mark.filterwarnings("ignore::bertree.errors.BertreeWarning")
def test_errors_name_the_argument_and_the_row() -> None:
    with pytest.raises(UserError, match=r"^data: row 2: is wrong$"):
        read(ROWS, fail=True)


def test_notes_name_the_argument() -> None:
    with pytest.warns(BertreeWarning, match="^data: was read$"):
        read(ROWS)
