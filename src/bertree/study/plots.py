"""The plots of a study: curves over the steps of its runs, one column over another, or every column on its own."""

from collections.abc import Sequence

import numpy as np

from bertree.report.curves import Series, curve_svg
from bertree.report.history import Floats
from bertree.report.scales import Axis
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
    charts += _columns(results)
    return [Section("Plots", charts)] if charts else []


def _curves(results: StudyResults, plot: Plot) -> list[Block]:
    """Draw a line for each cell: the mean over its seeds."""
    kind, _, figure = plot.y.rpartition(".")
    series = []
    for cell in results.study.cells:
        rows = [row for row in results.rows if row["cell"] == cell.name and row["step"] == plot.step]
        runs = [row["curve"][kind or "eval"] for row in rows if "curve" in row]
        key = KEYS[plot.x]
        points = [[(one[key], one[figure]) for one in run if figure in one] for run in runs]
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
    ours, published = [], []
    for cell in results.study.cells:
        both = [results.estimate(cell.name, name) for name in (plot.x, plot.y)]
        if both[0] is not None and both[1] is not None:
            ours.append((both[0].value, both[1].value))
        if plot.x in cell.published and plot.y in cell.published:
            published.append((cell.published[plot.x], cell.published[plot.y]))
    series = _dots({"here": ours, "published": published})
    title = plot.title or f"{labels[plot.y]} over {labels[plot.x]}"
    axis = Axis(log=True if plot.log else None)
    return [curve_svg(title, series, x_label=labels[plot.x], x=axis, y=Axis())] if series else []


def _columns(results: StudyResults) -> list[Block]:
    """Return one chart for each column: the cells in their order, ours and the published figures."""
    charts: list[Block] = []
    cells = [cell for cell in results.study.cells if cell.run]
    for column in results.study.columns:
        ours = [(index + 1.0, results.estimate(cell.name, column)) for index, cell in enumerate(cells)]
        here = [(x, estimate.value) for x, estimate in ours if estimate is not None]
        published = [(i + 1.0, c.published[column.name]) for i, c in enumerate(cells) if column.name in c.published]
        if len(here) > 1:
            label = column.label or column.name
            series = _dots({"here": here, "published": published})
            charts.append(curve_svg(label, series, x_label="cell, in the order of the table", y=Axis()))
    return charts


def _dots(points: dict[str, list[tuple[float, float]]]) -> list[Series]:
    series = []
    for name, values in points.items():
        if values:
            x, y = np.array(sorted(values), dtype=float).T
            series.append(Series(name=name, x=x, y=y, style="dots"))
    return series
