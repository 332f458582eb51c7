"""Results at a Python prompt: short tables, whatever is in them."""

import dataclasses
import inspect

import bertree
from bertree.model.architecture import Architecture
from bertree.pretraining.recipe import Recipe
from bertree.result_table import ResultTable, ShownAsTable, figure_rows

PLAIN = (str, int, float, bool, type(None))


def test_columns_are_aligned_and_numbers_are_flush_right() -> None:
    table = ResultTable("two", [("default", "1,234.5", "-3"), ("other one", "7", "12")], ("model", "count", "change"))
    assert str(table) == "two\nmodel        count  change\ndefault    1,234.5      -3\nother one        7      12"


def test_long_tables_and_cells_are_cut_and_every_cell_is_one_printable_line() -> None:
    table = ResultTable("a\nb\x1b[31m", [("<b>\x00", "x" * 500)] * 45)
    title, *rows, rest = str(table).splitlines()
    assert title == "a b\ufffd[31m"
    assert len(rows) == 20
    assert max(map(len, rows)) < 120
    assert rest == "... (45 in all)"
    page = table.html()
    assert page.count("<tr>") == 20
    assert "x" * 500 in page
    assert "<th>&lt;b&gt;\ufffd</th>" in page
    assert "(45 in all)" in page
    assert str(ResultTable("nothing", [])) == "nothing"


def test_figures_have_their_intervals() -> None:
    figures = {
        "accuracy": 0.91234,
        "examples": 1200,
        "task": "x",
        "tuned": True,
        "intervals": {"accuracy": (0.9, 0.92)},
    }
    assert figure_rows(figures) == [("accuracy", "0.9123 (0.9 to 0.92)"), ("examples", "1,200")]


def test_the_results_of_all_functions_are_short() -> None:
    """A result with lists or nested values shows a table; one of a few plain values may show its fields."""
    checked = 0
    for name in bertree.__all__:
        function = inspect.unwrap(getattr(bertree, name))
        if not inspect.isfunction(function):
            continue
        returned = function.__annotations__["return"]
        if not dataclasses.is_dataclass(returned) or returned in (Recipe, Architecture):
            continue
        kinds = [field.type for field in dataclasses.fields(returned)]
        has_room = sum(kind not in PLAIN and "Path" not in str(kind) for kind in kinds) <= 2
        assert issubclass(returned, ShownAsTable) or has_room, name
        if issubclass(returned, ShownAsTable):
            assert returned.__repr__ is ShownAsTable.__repr__, f"{name}: the dataclass has a repr of its own"
            checked += 1
    assert checked >= 14
