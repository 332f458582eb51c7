"""The tables of a study: table.md for texts, report.html for people; ours with the published figures beside them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from bertree.console import showing
from bertree.errors import counted
from bertree.files.atomic import write_atomically, write_json_lines
from bertree.files.formats import Json
from bertree.report.formats import duration
from bertree.report.html import render, write_report
from bertree.report.tables import Block, Cell, PageTable, Piece, Section, Tile, one_line
from bertree.study.definition import ALONE, Column, Study, StudyCell
from bertree.study.measures import PROBE
from bertree.study.plots import plots
from bertree.study.results import HOLDS, REVERSED, ROWS, Estimate, StudyResults, read_results

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
    study, columns = results.study, results.columns
    head = [study.varied, *(column.label or column.name for column in columns)]
    lines = [*_heading(results.study), f"Published: {study.paper}. Size: {results.size}.", ""]
    lines += [_row(head), _row(["---", *("--:" for _ in columns)])]
    for cell in results.cells:
        figures = []
        for column in columns:
            figures.append(figure_with_published(results, cell, column))
        lines.append(_row([cell.name, *figures]))
    second = f" After a semicolon: {study.second_source}." if study.second_source else ""
    lines += ["", f"In brackets: published.{second}"] if any(cell.published for cell in study.cells) else []
    if claims := claim_rows(results):
        lines += ["", results.sentence, "", _row(claims[0]), _row(["---"] * len(claims[0])), *map(_row, claims[1:])]
    problems = [f"- {cell.name}: {problem}" for cell in study.cells for problem in results.problems(cell.name)]
    lines += ["", *problems] if problems else []
    lines += ["", *(f"- {remark}" for remark in noted)] if (noted := remarks(results)) else []
    if settings := _settings(results):
        lines += ["", f"Settings at size {results.size}:", ""]
        lines += [
            f"- {name}: {'; '.join(f'{step} `{texts}`' for step, texts in by_step)}" for name, by_step in settings
        ]
    return "\n".join(lines)


def published_table(study: Study) -> str:
    """Return what is known of a study before it is run: the published figures, and the claims that are checked."""
    empty = StudyResults(study=study, size="", rows=())
    columns = empty.columns
    lines = [*_heading(study), f"Published: {study.paper}.", ""]
    if columns:
        lines += [_row([study.varied, *(column.label or column.name for column in columns)])]
        lines += [_row(["---", *("--:" for _ in columns)])]
        lines += [_row([cell.name, *(_published(cell, column) or "–" for column in columns)]) for cell in empty.cells]
        lines += [f"\nAfter a semicolon: {study.second_source}."] if study.second_source else []
    rest = [column.label or column.name for column in study.columns if column not in columns]
    lines += ["", f"Also computed: {', '.join(rest)}."] if columns and rest else []
    lines += [f"No figures are published. Computed: {', '.join(rest)}."] if not columns else []
    lines += ["", "Claims that are checked:", ""]
    labels = {column.name: column.label or column.name for column in study.columns}
    for verdict in empty.verdicts():
        pattern, difference = verdict.pattern, verdict.published
        published = "" if difference is None else f" (published: {difference:+z.2f})"
        figure = f"{labels[pattern.column]} of {pattern.better} against {pattern.worse}"
        lines.append(f"- {pattern.claim}: {figure}{published}")
    return "\n".join(lines)


def _heading(study: Study) -> list[str]:
    return [f"# {study.title}", "", study.question, ""]


def figure_with_published(results: StudyResults, cell: StudyCell, column: Column) -> str:
    """Return the figure of a cell in a column, with the published one in brackets."""
    published = f" ({text})" if (text := _published(cell, column)) else ""
    return f"{_estimate(results.estimate(cell.name, column), column)}{published}"


def _row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]  # |u-v| is no border
    return f"| {' | '.join(escaped)} |"


def _estimate(estimate: Estimate | None, column: Column) -> str:
    if estimate is None:
        return "–"
    counted = column.figure.startswith(("info.", "plan."))  # the same with every seed
    no_spread = counted or estimate.deviation is None or estimate.seeds == 1
    spread = "" if no_spread else f" ± {estimate.deviation:.{column.digits}f}"
    return f"{estimate.value:.{column.digits}f}{spread}{' †' if estimate.probe else ''}"


def _published(cell: StudyCell, column: Column) -> str:
    """Return the published figures: of the paper, and of a second source."""
    sources = [cell.published.get(column.name), cell.also_published.get(column.name)]
    if sources == [None, None]:
        return ""
    figures = ["–" if figure is None else f"{figure:.{column.digits}f}" for figure in sources]
    return "; ".join(figures if sources[1] is not None else figures[:1])


def claim_rows(results: StudyResults) -> list[list[str]]:
    """Return a table of the claims, its head first: the differences here and as published, and whether each holds."""
    verdicts = results.verdicts()
    published = any(verdict.published is not None for verdict in verdicts)
    rows = [["claim", "difference here", *(["published"] if published else []), ""]]
    for verdict in verdicts:
        error = "" if verdict.error is None else f" ± {verdict.error:.2f}"
        ours = "–" if verdict.difference is None else f"{verdict.difference:+z.2f}{error}"
        theirs = "–" if verdict.published is None else f"{verdict.published:+z.2f}"
        state = verdict.state if verdict.difference is not None else "no figures"
        rows.append([verdict.pattern.claim, ours, *([theirs] if published else []), state])
    return rows if verdicts else []


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
    study, columns = results.study, results.columns
    ours: list[list[Cell]] = []
    published: list[list[Cell]] = []
    for cell in results.cells:
        name: Cell = [[Piece(cell.name, "strong")], *([[Piece(cell.note, "small")]] if cell.note else [])]
        if cell.run:
            figures: list[Cell] = [_estimate(results.estimate(cell.name, column), column) for column in columns]
            ours.append([name, *figures])
            ours += [
                [one_line(Piece(problem, "bad")), *("" for _ in columns)] for problem in results.problems(cell.name)
            ]
        for source in (cell.published, cell.also_published):
            if source:
                figures = [f"{source[c.name]:.{c.digits}f}" if c.name in source else "–" for c in columns]
                published.append([name, *figures])
    way = "median" if study.median else "mean"
    tables: list[Block] = [_table(columns, ours, "Here", f"{way} ± standard deviation over the seeds")]
    if published:
        second = f"; where two rows have one name, the second is from {study.second_source}"
        under = f"{study.paper}{second if study.second_source else ''}"
        tables.append(_table(columns, published, "Published", under))
    return [Section("Tables", blocks=tables)]


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], title: str, under: str) -> PageTable:
    """Return a table without the columns that have no figure in it."""
    kept = [(n, column) for n, column in enumerate(columns, 1) if any(row[n] not in ("–", "") for row in rows)]
    head = ["", *(column.label or column.name for _, column in kept)]
    figures = [[row[0], *(row[n] for n, _ in kept)] for row in rows]
    return PageTable(head, figures, numbers=range(1, len(head)), kind="study", title=title, under=under)


def _patterns(results: StudyResults) -> list[Section]:
    if not (claims := claim_rows(results)):
        return []
    head, *lines = claims
    rows: list[list[Cell]] = [[*line, one_line(Piece(state, KINDS.get(state, "")))] for *line, state in lines]
    table = PageTable(head, rows, numbers=range(1, len(head) - 1), kind="study")
    return [Section("Does the pattern hold?", blocks=[results.sentence, table])]


def _conditions(results: StudyResults) -> list[Section]:
    """Return what was varied and what was held equal."""
    study = results.study
    lines = [f"Varied: {study.varied}."]
    lines += [f"Held equal: {study.held_equal}."] if study.held_equal else []
    lines += remarks(results)
    lines += [f"Computed once and shared: {shared}." for shared in results.shared]
    lines += [f"{cell.name}: only published figures." for cell in study.cells if not cell.run]
    blocks: list[Block] = [*lines]
    rows: list[list[Cell]] = [
        [name, [[Piece(f"{step}: {texts}")] for step, texts in by_step]] for name, by_step in _settings(results)
    ]
    if rows:
        title = f"Settings at size {results.size}"
        blocks.append(PageTable(["", "changes to the recipes"], rows, title=title))
    return [Section("Conditions", blocks=blocks)]


def _settings(results: StudyResults) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return how the size and each cell change the recipes of their steps."""
    study = results.study
    changes = [("all cells", study.size(results.size).set)]
    changes += [(cell.name, cell.at.get(results.size, cell.set)) for cell in results.cells if cell.run]
    replaced = {"pretrain", *(step.key for step in study.steps if step.do == "pretrain")} if results.model else set()
    by_step = [
        (name, [(step, " ".join(texts)) for step, texts in settings.items() if texts and step not in replaced])
        for name, settings in changes
    ]
    return [(name, texts) for name, texts in by_step if texts]


def remarks(results: StudyResults) -> list[str]:
    """Return what a reader of the figures must know: choices, probes, extrapolated times, steps side by side."""
    lines = dict.fromkeys(line for row in results.rows for line in _remarks_on(row))
    if results.model:
        lines[f"Nothing was pretrained: all cells begin with the model `{results.model}`."] = None
    if results.brief:
        lines[
            f"Only tried out, with {results.brief} steps of pretraining and few examples: the figures mean nothing."
        ] = None
    if results.study.median:
        lines["Figures are medians; the standard error of a median is taken as 1.25 times that of the mean."] = None
    jobs = max((session["jobs"] for session in results.sessions), default=1)
    if jobs > 1:
        lines[f"Up to {jobs} steps ran side by side, so the times of single steps cannot be compared."] = None
    if measured := [session for session in results.sessions if "minutes" in session]:
        machines = ", ".join(dict.fromkeys(f"{session['machine']} (torch {session['torch']})" for session in measured))
        line = f"Cost: {sum(session['minutes'] for session in measured):.1f} minutes of {machines}"
        if unmeasured := len(results.sessions) - len(measured):
            line += f", and {counted(unmeasured, 'call')} that ended without noting the time"
        lines[line + "."] = None
    return list(lines)


def _remarks_on(row: Json) -> Iterator[str]:
    figures, where = row["figures"], f"{row['cell']}, {row['step']}"
    if len(row.get("trials", ())) > 1:
        tried = ", ".join(f"{choice}: {value:.4g}" for choice, value in row["trials"].items())
        yield f"{where}: {row['chosen']}, chosen by {row['by'].removeprefix('-')} with the first seed ({tried})."
    if figures.get("timed_pairs", 0) < figures.get("pairs", 0) and row.get("do") == "pairs":
        timed, pairs = figures["timed_pairs"], figures["pairs"]
        yield f"{where}: {timed:,.0f} of {pairs:,.0f} pairs were timed, and the rest is extrapolated."
    if any(name.endswith(PROBE) for name in figures):
        yield "†: accuracy of a linear probe on frozen states, because the model was not trained with this objective."
    if row.get("do") in ALONE:
        yield "Nothing else ran beside the steps that measure time."
