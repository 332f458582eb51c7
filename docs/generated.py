"""What pages of the site take from code and rows: figures, tables of studies, presets and axes.

A page marks the place by a comment of its own line, which readers of the repository do not see:

    <!-- figure: albert -->              a figure, drawn by docs/*_figures.py or docs/family_map.py
    <!-- study: albert-sop -->           the table of a study: our figures with the published ones
    <!-- study: albert-sop mlm mnli -->  the same, of these columns
    <!-- studies: bert-size bert-glue -->  the published tables of studies, folded
    <!-- claims: albert-sop -->          the claims of a study: our difference beside the published one
    <!-- presets: albert-base ... -->    shapes and parameters, and how they differ from their parents
    <!-- design-space -->                every axis, and the presets that use it
"""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from docs import concept_figures, family_figures, family_map, growth_figures

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MARKER = re.compile(r"^<!-- (figure|studies|study|claims|presets|design-space):?([^\n]*?) -->$", re.MULTILINE)
FIGURES = family_map.FIGURES | family_figures.FIGURES | concept_figures.FIGURES | growth_figures.FIGURES
# Axes of sizes: a table of presets shows them, so they are no difference in kind.
SHAPE = ("layers", "width", "heads", "ffn_width", "embedding_width", "vocab_size", "max_positions")


def fill(text: str, page: Path, places: dict[Path, str]) -> str:
    """Return the text of a page with the content of its markers. `places` are the files of the site."""

    def replace(match: re.Match[str]) -> str:
        kind, words = match[1], match[2].split()
        if kind == "figure":
            return _with_links(FIGURES[words[0]](), page, places)
        writers: dict[str, Callable[..., list[str]]] = {
            "study": _study,
            "studies": _studies,
            "claims": _claims,
            "presets": _presets,
            "design-space": _design_space,
        }
        return "\n".join(writers[kind](page, *words))

    return MARKER.sub(replace, text)


def named(text: str, kinds: Sequence[str] = ("study", "studies", "claims")) -> set[str]:
    """Return what the markers of these kinds name in a page. What follows the name of a study are its columns."""
    marked = [(kind, words.split()) for kind, words in MARKER.findall(text) if kind in kinds]
    return {word for kind, words in marked for word in (words[:1] if kind == "study" else words)}


def _with_links(figure: str, page: Path, places: dict[Path, str]) -> str:
    """Return a figure whose links, pages below docs/, lead to their places in the site."""
    here = Path(places[page]).parent
    return re.sub(
        r'href="([^"]+\.md)"',
        lambda match: f'href="{os.path.relpath(places[DOCS / match[1]], here)}"'.replace(".md", ".html"),
        figure,
    )


def table(rows: Sequence[Sequence[object]], numbers: bool = False) -> list[str]:
    """Return a table in Markdown; the first row is its head."""
    lines = [f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in row)} |" for row in rows]
    rule = ["---", *(("--:" if numbers else "---") for _ in rows[0][1:])]
    return [lines[0], f"| {' | '.join(rule)} |", *lines[1:]]


def folder_of(name: str) -> Path:
    """Return the folder of a study's committed rows; those of size tiny only if there are no others."""
    folder, tiny = ROOT / "studies" / name, ROOT / "studies" / f"{name}-tiny"
    return tiny if tiny.is_dir() and not folder.is_dir() else folder


@functools.cache
def results(name: str) -> Any:
    """Return the results of a study from its committed rows, or the study alone if there are none."""
    from bertree.study.load import load_study
    from bertree.study.results import StudyResults, read_results

    if (folder_of(name) / "rows.jsonl").is_file():
        return read_results(folder_of(name))
    return StudyResults(study=load_study(name), size="", rows=())


def _study(page: Path, name: str, *columns: str) -> list[str]:
    measured = results(name)
    if not measured.rows:
        return [f"**{measured.study.title}** (`{name}`). {measured.study.question}", "", *_published(name)]
    link = os.path.relpath(folder_of(name) / "table.md", page.parent)
    rows = _own(name, columns)
    way = "median" if measured.study.median else "mean"
    spread = f", {way} ± standard deviation over the seeds" if "±" in "".join(rows) else ", computed exactly"
    probe = " †: by a linear probe, because the model was not trained for it." if "†" in "".join(rows) else ""
    return [
        f"**[{measured.study.title}]({link})** (`{name}`). {measured.study.question}",
        "",
        *rows,
        "",
        f"In brackets: {measured.study.paper}. Ours: size {measured.size}{spread}.{probe} {measured.sentence}",
    ]


def _own(name: str, columns: Sequence[str]) -> list[str]:
    """Return the table of our figures with the published ones in brackets."""
    from bertree.study.report import figure_with_published

    measured = results(name)
    shown = [column for column in measured.study.columns if not columns or column.name in columns]
    assert len(shown) == (len(columns) or len(shown)), f"{name}: no such columns: {columns}"
    rows = [[measured.study.varied, *(column.label or column.name for column in shown)]]
    rows += [
        [cell.name, *(figure_with_published(measured, cell, column) for column in shown)]
        for cell in measured.study.cells
    ]
    return table(rows, numbers=True)


def _published(name: str) -> list[str]:
    """Return the published figures of a study that was not run, its claims, and how to run it."""
    from bertree.study.report import published_table

    how = f"`bertree study run {name} --size small --store my-store --tasks glue --out {name}`"
    title_and_question = 4  # lines, which the page has already
    return [
        *published_table(results(name).study).split("\n")[title_and_question:],
        "",
        f"We have no result yet: {how}.",
    ]


def _studies(page: Path, *names: str) -> list[str]:
    lines = ["Open a study for its published table and the command that computes it:", ""]
    for name in names:
        measured = results(name)
        title = f"{measured.study.title} ({name})".replace('"', "'")
        content = _published(name)
        if measured.rows:
            link = os.path.relpath(folder_of(name) / "table.md", page.parent)
            content = [*_study(page, name)[2:], "", f"[The whole study]({link})"]
        lines += [f'??? note "{title}"', "", f"    {measured.study.question}", ""]
        lines += [f"    {line}" if line else "" for line in content]
        lines += [""]
    return lines


def _claims(page: Path, name: str) -> list[str]:
    from bertree.study.report import claim_rows

    link = os.path.relpath(folder_of(name) / "table.md", page.parent)
    return [*table(claim_rows(results(name))), "", f"From the rows of [{name}]({link}), size {results(name).size}."]


def _value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`" if text else "empty"


def _presets(page: Path, *names: str) -> list[str]:
    from bertree.model import cost
    from bertree.model.presets import preset

    rows = [["preset", "layers", "width", "heads", "E", "vocabulary", "longest", "parameters", "published"]]
    for name in names:
        point = preset(name)
        axes = point.architecture.axes()
        heads = axes["heads"] if point.architecture.body == "transformer" else "–"
        shape = [axes["layers"], axes["width"], heads, axes["embedding_width"]]
        sizes = [f"{axes['vocab_size']:,}", f"{axes['max_positions']:,}"]
        count = f"{cost.parameters(point.architecture).total / 1e6:,.1f}M"
        rows.append([f"`{name}`", *shape, *sizes, count, point.published or "–"])
    lines = [*table(rows, numbers=True), "", "Parameters: without the MLM or LM head, each shared tensor once."]
    for point in map(preset, names):
        if point.parent is not None:
            lines += _differences(page, point.name, point.parent)
    return lines


def _differences(page: Path, name: str, parent: str) -> list[str]:
    """Return the axes in which a preset differs from its parent, without those of size."""
    from bertree.model.architecture import MEANING
    from bertree.model.presets import preset

    pairs = preset(name).architecture.differences(preset(parent).architecture)
    changed = {axis: pair for axis, pair in pairs.items() if axis not in SHAPE and axis in MEANING}
    if not changed:
        return []
    # The first words of a meaning; the design space has the rest.
    short = {axis: re.match(r"(?:\([^)]*\)|[^(:;])*", MEANING[axis])[0] for axis in changed}  # type: ignore[index]
    rows = [[f"`{axis}`", _value(now), _value(before), short[axis]] for axis, (before, now) in changed.items()]
    space = os.path.relpath(DOCS / "design-space.md", page.parent)
    how = f"How `{name}` differs from `{parent}`, sizes aside ([all axes]({space})):"
    return ["", how, "", *table([["axis", name, parent, "meaning"], *rows])]


def members() -> dict[str, Path]:
    """Return the page of the member that each preset belongs to: the one that shows it."""
    pages = sorted((DOCS / "family").glob("*.md"))
    return {name: page for page in pages for name in sorted(named(page.read_text(encoding="utf-8"), ["presets"]))}


def _design_space(page: Path) -> list[str]:
    """Return the axes that members differ in, with the members, and those that no preset changes."""
    from bertree.model.architecture import AXES, MEANING
    from bertree.model.presets import PRESETS

    def linked(names: Sequence[str]) -> str:
        pages = dict.fromkeys(pages_of[name] for name in names)
        links = [f"[{_title(one)}]({os.path.relpath(one, page.parent)})" for one in pages]
        return ", ".join(links)

    pages_of = members()
    points = {name: PRESETS[name].architecture.axes() for name in pages_of}
    usual = points["bert-base"]
    used, unused = [["axis", "in BERT-base", "meaning", "members that differ"]], [["axis", "value", "meaning"]]
    for axis, meaning in MEANING.items():
        default = usual.get(axis, AXES[axis].default if axis in AXES else "")
        values: dict[Any, list[str]] = {}
        for name, axes in points.items():
            if axis in axes and axes[axis] != default:
                values.setdefault(axes[axis], []).append(name)
        if not values:
            unused.append([f"`{axis}`", _value(default), meaning])
            continue
        if axis in SHAPE:
            low, high = min((*values, default)), max((*values, default))
            shown = f"{low:,} to {high:,}"
        else:
            shown = "; ".join(f"{_value(value)}: {linked(names)}" for value, names in values.items())
        used.append([f"`{axis}`", _value(default), meaning, shown])
    return [
        "## Axes in which members differ",
        "",
        *table(used),
        "",
        "## Axes that no member changes",
        "",
        *table(unused),
    ]


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
