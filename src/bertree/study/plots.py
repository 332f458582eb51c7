"""The plots of a study: curves over the steps of its runs, one column over another, and differences in
every column."""

from collections.abc import Sequence

import numpy as np

from bertree.report.curves import Series, curve_svg
from bertree.report.history import Floats
from bertree.report.scales import Axis
from bertree.report.svg import Dot, differences_svg
from bertree.report.tables import Block, Section
from bertree.study.definition import Plot
from bertree.study.results import StudyResults

LABELS = {"steps": "step", "tokens": "tokens", "seconds": "seconds of training"}
KEYS = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}


def plots(results: StudyResults) -> list[Section]:
    """Return the plots that the study names, then a chart of each column."""
    charts: list[Block] = []
    for plot in results.study.plots:
        charts += _curves(results, plot) if plot.kind == "line" else _scatter(results, plot)
    charts += (columns := _columns(results))
    legend = ["Lines through the dots reach two standard errors over the seeds to each side."] if columns else []
    return [Section("Plots", charts, legend)] if charts else []


def _curves(results: StudyResults, plot: Plot) -> list[Block]:
    """Draw a line for each cell: the mean over its seeds."""
    kind, _, figure = plot.y.rpartition(".")
    series = []
    for cell in results.study.cells:
        rows = [row for row in results.rows if row["cell"] == cell.name and row["step"] == plot.step]
        runs = [row["curve"][kind or "eval"] for row in rows if "curve" in row]
        key = KEYS[plot.x]
        points = [[(entry[key], entry[figure]) for entry in run if figure in entry] for run in runs]
        if points := [run for run in points if run]:
            x, y = mean_curve([np.array(run, dtype=float) for run in points])
            series.append(Series(name=cell.name, x=x, y=y))
    if not series:
        return []
    title = plot.title or f"{figure} over {plot.x}"
    return [curve_svg(title, series, x_label=LABELS[plot.x], y=Axis(log=None))]


def mean_curve(runs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return the mean of several curves (points x 2) at the positions of the first, as far as all of them go."""
    end = min(run[-1, 0] for run in runs)
    x = runs[0][:, 0]
    x = x[x <= end] if (x <= end).any() else x[:1]
    return x, np.mean([np.interp(x, run[:, 0], run[:, 1]) for run in runs], axis=0)


def _scatter(results: StudyResults, plot: Plot) -> list[Block]:
    """Draw a point for each cell: one column over another, ours and the published figures."""
    labels = {column.name: column.label or column.name for column in results.study.columns}
    points: dict[str, list[tuple[float, float]]] = {}
    for cell in results.study.cells:
        line = next((line for line in plot.lines if cell.name.startswith(line)), "")
        both = [results.estimate(cell.name, name) for name in (plot.x, plot.y)]
        if both[0] is not None and both[1] is not None:
            points.setdefault(line or "here", []).append((both[0].value, both[1].value))
        if plot.x in cell.published and plot.y in cell.published:
            published = (cell.published[plot.x], cell.published[plot.y])
            points.setdefault(f"{line}, published".lstrip(", "), []).append(published)
    series = _dots(points)
    title = plot.title or f"{labels[plot.y]} over {labels[plot.x]}"
    axis = Axis(log=True if plot.log else None)
    return [curve_svg(title, series, x_label=labels[plot.x], x=axis, y=Axis())] if series else []


def _columns(results: StudyResults) -> list[Block]:
    """Return one chart for each column: how far each cell is from the first one, here and as published.

    A column that is the horizontal axis of a plot has none."""
    charts: list[Block] = []
    axes = {plot.x for plot in results.study.plots if plot.kind == "scatter"}
    for column in results.study.columns:
        if column.name in axes:
            continue
        label = column.label or column.name
        first, *others = [cell for cell in results.study.cells if cell.run]
        base, published_base = results.estimate(first.name, column), first.published.get(column.name)
        rows: list[tuple[str, dict[str, Dot]]] = []
        for cell in others:
            dots = {}
            estimate, published = results.estimate(cell.name, column), cell.published.get(column.name)
            if base is not None and estimate is not None:
                errors = [base.squared_error, estimate.squared_error]
                spread = 0.0 if None in errors else sum(error or 0.0 for error in errors) ** 0.5
                dots["here"] = Dot(estimate.value - base.value, 2 * spread)
            if published is not None and published_base is not None:
                dots["published"] = Dot(published - published_base)
            if dots:
                rows.append((cell.name, dots))
        if any("here" in dots for _, dots in rows):
            charts.append(differences_svg(label, rows, f"difference from {first.name}"))
    return charts


def _dots(points: dict[str, list[tuple[float, float]]]) -> list[Series]:
    series = []
    for name, values in points.items():
        x, y = np.array(sorted(values), dtype=float).T
        series.append(Series(name=name, x=x, y=y, style="dots"))
    return series
