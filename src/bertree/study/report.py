"""The tables of a study: table.md for texts, report.html for people; ours with the published figures beside them."""

from collections.abc import Sequence
from pathlib import Path

from bertree.console import showing
from bertree.files.atomic import write_atomically, write_json_lines
from bertree.report.formats import duration
from bertree.report.html import render, write_report
from bertree.report.tables import Block, Cell, PageTable, Piece, Section, Tile, one_line
from bertree.study.definition import Column, StudyCell
from bertree.study.plots import plots
from bertree.study.remarks import remarks
from bertree.study.results import HOLDS, REVERSED, ROWS, Estimate, StudyResults, Verdict, read_results

TABLE = "table.md"
KINDS = {HOLDS: "good", REVERSED: "bad"}


def study_report(folder: str | Path, *, progress: bool | None = None) -> StudyResults:
    """Read the results of a study's folder as far as they go, and write table.md and report.html again."""
    with showing(progress):
        results = read_results(folder)
        write_tables(Path(folder), results)
    return results


def write_tables(folder: Path, results: StudyResults) -> None:
    """Write rows.jsonl, table.md and report.html."""
    write_json_lines(folder / ROWS, results.rows)
    write_atomically(folder / TABLE, markdown_table(results) + "\n")
    write_report(folder, lambda: study_page(results))


def markdown_table(results: StudyResults) -> str:
    """Return the table, the published figures in brackets, and the verdicts."""
    study = results.study
    head = [study.varied, *(column.label or column.name for column in study.columns)]
    lines = [f"# {study.title}", "", study.question, "", f"Published: {study.paper}. Size: {results.size}.", ""]
    lines += [_row(head), _row(["---", *("--:" for _ in study.columns)])]
    for cell in study.cells:
        figures = []
        for column in study.columns:
            figures.append(f"{_estimate(results.estimate(cell.name, column), column)}{_published(cell, column)}")
        lines.append(_row([cell.name, *figures]))
    second = f" After a semicolon: {study.second_source}." if study.second_source else ""
    lines += ["", f"In brackets: published.{second}"]
    if verdicts := results.verdicts():
        lines += ["", results.sentence, "", _row(["claim", "difference", "published", ""]), _row(["---"] * 4)]
        lines += [_row([verdict.pattern.claim, *_verdict_figures(verdict), verdict.state]) for verdict in verdicts]
    problems = [f"- {cell.name}: {problem}" for cell in study.cells for problem in results.problems(cell.name)]
    lines += ["", *problems] if problems else []
    lines += ["", *(f"- {remark}" for remark in noted)] if (noted := remarks(results)) else []
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _estimate(estimate: Estimate | None, column: Column) -> str:
    if estimate is None:
        return "–"
    spread = "" if estimate.deviation is None or estimate.seeds == 1 else f" ± {estimate.deviation:.{column.digits}f}"
    return f"{estimate.value:.{column.digits}f}{spread}{' †' if estimate.probe else ''}"


def _published(cell: StudyCell, column: Column) -> str:
    """Return the published figures in brackets: of the paper, and of a second source."""
    sources = [cell.published.get(column.name), cell.also_published.get(column.name)]
    if sources == [None, None]:
        return ""
    figures = ["–" if figure is None else f"{figure:.{column.digits}f}" for figure in sources]
    return f" ({'; '.join(figures if sources[1] is not None else figures[:1])})"


def _verdict_figures(verdict: Verdict) -> list[str]:
    error = "" if verdict.error is None else f" ± {verdict.error:.2f}"
    ours = "–" if verdict.difference is None else f"{verdict.difference:+.2f}{error}"
    return [ours, "–" if verdict.published is None else f"{verdict.published:+.2f}"]


def study_page(results: StudyResults) -> str:
    """Return the page of a study."""
    study, verdict = results.study, results.verdict
    return render(
        "study",
        title=f"{study.title} · {study.name}",
        heading=study.title,
        under=study.question,
        state=(verdict, KINDS.get(verdict, "")) if study.patterns else None,
        tiles=_tiles(results),
        sections=[*_patterns(results), *_tables(results), *plots(results), *_conditions(results)],
    )


def _tiles(results: StudyResults) -> list[Tile]:
    seeds = len({row["seed"] for row in results.rows})
    cells = len({row["cell"] for row in results.rows})
    return [
        ("study", results.study.name, results.study.paper),
        ("size", results.size, f"{cells} cells, {seeds} seed{'s' if seeds != 1 else ''}"),
        ("steps", f"{len({row['folder'] for row in results.rows}):,}", f"{duration(60 * results.minutes)} in all"),
    ]


def _tables(results: StudyResults) -> list[Section]:
    study = results.study
    head: list[Cell] = ["", *(column.label or column.name for column in study.columns)]
    ours: list[list[Cell]] = []
    published: list[list[Cell]] = []
    for cell in study.cells:
        name: Cell = [[Piece(cell.name, "strong")], *([[Piece(cell.note, "small")]] if cell.note else [])]
        if cell.run:
            figures: list[Cell] = [_estimate(results.estimate(cell.name, column), column) for column in study.columns]
            ours.append([name, *figures])
            ours += [
                [one_line(Piece(problem, "bad")), *("" for _ in study.columns)]
                for problem in results.problems(cell.name)
            ]
        for source in (cell.published, cell.also_published):
            if source:
                figures = [f"{source[c.name]:.{c.digits}f}" if c.name in source else "–" for c in study.columns]
                published.append([name, *figures])
    numbers = range(1, len(study.columns) + 1)
    way = "median" if study.median else "mean"
    tables: list[Block] = [
        PageTable(
            head, ours, numbers=numbers, kind="study", title="Here", under=f"{way} ± standard deviation over the seeds"
        )
    ]
    if published:
        also = (
            f"; where two rows have one name, the second is from {study.second_source}" if study.second_source else ""
        )
        tables.append(
            PageTable(head, published, numbers=numbers, kind="study", title="Published", under=f"{study.paper}{also}")
        )
    return [Section("Tables", blocks=tables)]


def _patterns(results: StudyResults) -> list[Section]:
    if not results.study.patterns:
        return []
    rows: list[list[Cell]] = []
    for verdict in results.verdicts():
        state = one_line(Piece(verdict.state, KINDS.get(verdict.state, "")))
        rows.append([verdict.pattern.claim, *_verdict_figures(verdict), state])
    table = PageTable(["claim", "difference here", "published", ""], rows, numbers=[1, 2])
    return [Section("Does the pattern hold?", blocks=[results.sentence, table])]


def _conditions(results: StudyResults) -> list[Section]:
    """Return what was varied and what was held equal."""
    study = results.study
    lines = [f"Varied: {study.varied}."]
    lines += [f"Held equal: {study.held_equal}."] if study.held_equal else []
    lines += remarks(results)
    lines += [f"Computed once and shared: {shared}." for shared in results.shared]
    lines += [f"{cell.name}: only published figures." for cell in study.cells if not cell.run]
    return [Section("Conditions", blocks=lines)]
