"""The tables of results in README, docs and the model card are those of the rows in benchmarks/results/."""

import json
import re
from datetime import date
from pathlib import Path

import pytest

from benchmarks import tables

FILES = sorted(tables.RESULTS.glob("*.jsonl"))


def test_tables_equal_their_rows() -> None:
    built = tables.build_tables()
    for path in tables.PAGES:
        page = path.read_text(encoding="utf-8")
        assert tables.filled(page, built, path) == page, f"{path.name}: run python -m benchmarks.tables"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_are_complete(path: Path) -> None:
    """Every measurement names its command, commit, date, machine, versions and figures."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert set(row) <= {
            *("name", "figures", "command", "commit", "commit_inferred", "dirty", "date", "machine", "versions", "note")
        }
        assert re.fullmatch(r"[0-9a-f]{7,40}", row["commit"]), row["name"]
        assert row["command"]
        assert row["machine"]
        assert row["versions"]
        assert date.fromisoformat(row["date"])
        assert row["figures"], row["name"]
        assert all(isinstance(value, int | float | str) for value in row["figures"].values()), row["name"]


def test_cells_show_deviations_and_leave_out_missing_figures() -> None:
    row = {"score_percent": 85.72, "score_percent_deviation": 0.21, "low_lowest": 1, "low_highest": 3, "low": 2}
    assert tables.cell("{score_percent:.1f±} %", row) == "85.7 ± 0.2 %"
    assert tables.cell("{score_percent:.0f}", row) == "86"
    assert tables.cell("{low:d±}", row) == "2 (1 to 3)"
    assert tables.cell("{nothing:.1f} %", row) == ""
