"""Make the tables of results in README, docs and the model card from the rows in benchmarks/results/.

    python -m benchmarks.tables            # write the tables into the pages
    python -m benchmarks.tables --check    # fail if a page differs from its rows

A page marks a table by `<!-- results: NAME -->` and `<!-- end -->`; what is between is replaced. benchmarks/tables.toml
declares each table in one of two forms:

    [NAME]
    rows = ["train/bert-*"]                # patterns of row names, in order; the last row of a name counts
    transpose = true                       # one column per row, one line per figure
    [NAME.columns]
    "tokens/s" = "{tokens_per_second:,}"   # a format string over the row's figures and {case}, {machine}, {commit} ...

    [NAME]
    head = ["what", "where", "figure"]
    [[NAME.lines]]
    cells = ["training", "{a.machine}", "{a.tokens_per_second:,} tokens/s"]
    a = "train/bert-base-128-full"         # the rows that the cells use, by letter

A format that ends in ± adds the deviation or the range where the row has one. A cell whose figure is missing is empty.
A table of lines gets a column with the commits that were measured; a table of columns a line below it with machine,
versions, date, commit and note of its rows. "(inferred)": the commit that added the figures, for results that were
recorded without one.
"""

import argparse
import json
import re
import string
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DECLARATIONS = ROOT / "benchmarks" / "tables.toml"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "src/bertree/default/README.md"]
MARKED = re.compile(r"(<!-- results: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Row = dict[str, Any]


def read_rows(folder: Path = RESULTS) -> dict[str, Row]:
    """Return the rows of all files by name; of several rows of a name the last."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in map(json.loads, lines)}


class CellFormatter(string.Formatter):
    """`str.format` with figures that carry a deviation or a range."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        """Return a figure together with its row, so that its deviation can be found."""
        letter, dot, key = field_name.partition(".")
        values = vars(kwargs[letter]) if dot else kwargs
        key = key if dot else letter
        if key not in values:
            raise MissingFigure(key)
        return (values[key], key, values), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return the figure, with its deviation or range if the format ends in ±."""
        figure, key, values = value
        plain = format_spec.removesuffix("±")
        text = format(figure, plain)
        if plain != format_spec and f"{key}_deviation" in values:
            return f"{text} ± {format(values[f'{key}_deviation'], plain)}"
        if plain != format_spec and f"{key}_lowest" in values:
            low, high = (format(values[f"{key}_{end}"], plain) for end in ("lowest", "highest"))
            return f"{text} ({low} to {high})"
        return text


class MissingFigure(LookupError):
    """A row does not have a figure that a cell shows."""


def cell(template: str, values: Mapping[str, Any]) -> str:
    """Return the text of a cell; empty if a figure is missing."""
    try:
        return CellFormatter().vformat(template, (), values).replace("|", "\\|")
    except MissingFigure:
        return ""


def fields(row: Row) -> dict[str, Any]:
    """Return what a cell of a row can show."""
    case = row["name"].partition("/")[2]
    about = {key: row[key] for key in ("name", "machine", "date")}
    parts = {"case": case, "part": case.partition("/")[2], "last": case.rpartition("/")[2]}
    return {**parts, **about, "commit": commit(row), **row["figures"]}


def commit(row: Row) -> str:
    """Return the commit of a row as tables show it."""
    marks = [mark for key, mark in (("dirty", "with changes"), ("commit_inferred", "inferred")) if row.get(key)]
    return f"{row['commit']} ({', '.join(marks)})" if marks else str(row["commit"])


def chosen(patterns: Sequence[str], rows: dict[str, Row]) -> list[Row]:
    """Return the rows whose names match, in the order of the patterns."""
    names = [[name for name in rows if name == pattern or fnmatchcase(name, pattern)] for pattern in patterns]
    for pattern, matching in zip(patterns, names, strict=True):
        if not matching:
            raise LookupError(f"no row is called {pattern!r}")
    return [rows[name] for name in dict.fromkeys(name for matching in names for name in matching)]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table without the columns that are empty."""
    kept = [number for number in range(len(head)) if not lines or any(line[number] for line in lines)]
    every = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(line[number] for number in kept) + " |\n" for line in every)


def table_of_columns(declaration: dict[str, Any], rows: dict[str, Row]) -> str:
    """Return a table with one line, or with `transpose` one column, per row."""
    selected = chosen(declaration["rows"], rows)
    head, templates = list(declaration["columns"]), list(declaration["columns"].values())
    lines = [[cell(template, fields(row)) for template in templates] for row in selected]
    if declaration.get("transpose"):
        head, *lines = [list(line) for line in zip(head, *lines, strict=True)]
        lines = [line for line in lines if any(line[1:])]
    return f"{markdown(head, lines)}\n{provenance(selected)}"


def provenance(rows: Sequence[Row]) -> str:
    """Return where the figures of a table come from, once for each run."""
    runs: dict[str, None] = {}
    for row in rows:
        versions = ", ".join(f"{name} {number}" for name, number in row["versions"].items())
        note = f" {row['note'].rstrip('.')}." if row.get("note") else ""
        runs[f"{row['machine']}; {versions}; {row['date']}; commit {commit(row)}.{note}"] = None
    return "\n".join(f"<sub>{run}</sub>\n" for run in runs)


def table_of_lines(declaration: dict[str, Any], rows: dict[str, Row]) -> str:
    """Return a table whose lines are written one by one, with a column of the commits that were measured."""
    lines = []
    for line in declaration["lines"]:
        used = {letter: chosen([name], rows)[0] for letter, name in line.items() if letter != "cells"}
        values = {letter: SimpleNamespace(**fields(row)) for letter, row in used.items()}
        commits = ", ".join(dict.fromkeys(row["commit"] for row in used.values()))
        cells = [cell(template, values) for template in line["cells"]]
        if not all(cells):
            raise LookupError(f"a figure of {line['cells']} is missing")
        lines.append([*cells, commits])
    return markdown([*declaration["head"], "commit"], lines)


def build_tables() -> dict[str, str]:
    """Return all declared tables by name."""
    rows, tables = read_rows(), {}
    for name, declaration in tomllib.loads(DECLARATIONS.read_text(encoding="utf-8")).items():
        build: Callable[[dict[str, Any], dict[str, Row]], str]
        build = table_of_lines if "lines" in declaration else table_of_columns
        try:
            tables[name] = build(declaration, rows)
        except (LookupError, ValueError) as error:
            raise SystemExit(f"benchmarks/tables.toml: {name}: {error}") from error
    return tables


def filled(page: str, tables: dict[str, str], path: Path) -> str:
    """Return a page with its tables."""

    def replacement(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise SystemExit(f"{path}: benchmarks/tables.toml declares no table {match[2]!r}")
        return f"{match[1]}{tables[match[2]]}{match[4]}"

    return MARKED.sub(replacement, page)


def main() -> None:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a table is not up to date")
    check = parser.parse_args().check
    tables, stale = build_tables(), []
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    used = {match[2] for page in pages.values() for match in MARKED.finditer(page)}
    if unused := sorted(set(tables) - used):
        raise SystemExit(f"benchmarks/tables.toml: no page has the table {unused[0]!r}")
    for path, page in pages.items():
        new = filled(page, tables, path)
        if new != page:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(new, encoding="utf-8")
    print(f"{len(tables)} tables; {'differ' if check else 'written'}: {', '.join(stale) or 'none'}")
    if check and stale:
        sys.exit("run: python -m benchmarks.tables")


if __name__ == "__main__":
    main()
