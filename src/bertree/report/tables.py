"""The tables of a page as plain values, which templates/parts.html.j2 turns into HTML.

Shares are drawn as bars inside a table and confusions as a coloured one: tables wrap and scroll on small screens.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from bertree.report.formats import percent
from bertree.report.history import Floats
from bertree.report.scales import Axis
from bertree.report.svg.curves import Series, curve_svg

NAME = 40  # characters of a name


class Piece(NamedTuple):
    """Text in a cell. `kind` is its look: strong, small, number, inner, good, bad, missing, mark, gold, wrong."""

    text: str
    kind: str = ""
    hint: str = ""  # shown under the pointer
    link: str = ""


Lines = list[list[Piece]]
Cell = str | Lines
Tile = tuple[str, str, str]  # name, value, a few words more


@dataclass(frozen=True)
class PageTable:
    """Rows of cells; the columns in `numbers` are set flush right."""

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    numbers: Collection[int] = ()
    kind: str = ""
    title: Cell = ""
    under: str = ""


class BarRow(NamedTuple):
    """A name, shares from 0 to 1 that are drawn as bars, and values beside them."""

    name: str
    shares: Sequence[float]
    beside: Sequence[str]


@dataclass(frozen=True)
class BarTable:
    """Rows of bars, one below the other or, if `stacked`, end to end. `names` says what the bars of a row are."""

    title: str
    bars: Sequence[BarRow]
    under: str = ""
    names: Sequence[str] = ()
    head: Sequence[str] = ()  # of the values beside the bars
    stacked: bool = False


@dataclass(frozen=True)
class ConfusionMatrix:
    """How often each label (across) is predicted for each gold label (down)."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]


class CaptionedChart(NamedTuple):
    """A chart and a line under it."""

    svg: Markup
    under: str


Block = Markup | str | PageTable | BarTable | ConfusionMatrix | CaptionedChart  # str: a paragraph


class Section(NamedTuple):
    """A part of a page: cards lie side by side, blocks one below the other."""

    title: str
    cards: Sequence[Block] = ()
    blocks: Sequence[Block] = ()


def one_line(*pieces: Piece) -> Lines:
    """Return a cell of one line."""
    return [list(pieces)]


def clip(text: object, room: int = NAME) -> Piece:
    """Shorten a name; all of it is shown under the pointer."""
    name = str(text)
    return Piece(name) if len(name) <= room else Piece(name[: room - 1] + "…", hint=name[:1000])


def relative_bars(rows: Sequence[tuple[str, int, *tuple[str, ...]]]) -> list[BarRow]:
    """Return counts (name, count, values beside it) as bars; the largest has the full width."""
    most = max((count for _, count, *_ in rows), default=0) or 1
    return [BarRow(name, [count / most], [f"{count:,}", *beside]) for name, count, *beside in rows]


def right_and_wrong(title: str, rows: Iterable[tuple[str, int, int]], under: str = "") -> BarTable:
    """Return counts of right and wrong answers (name, right, wrong) as parts of one bar."""
    rows = list(rows)
    most = max((right + wrong for _, right, wrong in rows), default=0) or 1
    bars = []
    for name, right, wrong in rows:
        share = percent(right / (right + wrong)) if right + wrong else ""
        bars.append(BarRow(name, (right / most, wrong / most), (f"{right + wrong:,}", share)))
    return BarTable(title, bars, under, ("right", "wrong"), ("examples", "right"), stacked=True)


def by_tenth(title: str, scores: Floats, right: Floats, under: str = "") -> BarTable:
    """Return right and wrong answers in each tenth of a score."""
    place = _tenths(scores)
    hits, count = np.bincount(place, right, 10).astype(int), np.bincount(place, minlength=10)
    tenths = range(int(place.min(initial=9)), int(place.max(initial=0)) + 1)
    return right_and_wrong(
        title, ((f"{10 * t} to {10 * t + 10} %", hits[t], count[t] - hits[t]) for t in tenths), under
    )


def confidence(scores: Floats, right: Floats, counts: BarTable | None = None) -> list[Section]:
    """Return how often answers of a given confidence are right, and how many there are of them (or other `counts`)."""
    known = np.isfinite(scores)
    cards: list[Block] = []
    if known.any():
        cards.append(_calibration(scores[known], right[known]))
        counts = counts or by_tenth("Answers by confidence", scores[known], right[known])
    cards += [counts] if counts else []
    return [Section("Confidence", cards)] if cards else []


def _calibration(scores: Floats, right: Floats) -> Markup:
    place = _tenths(scores)
    count = np.bincount(place, minlength=10)
    some = count > 0
    sure, share = (np.bincount(place, values, 10)[some] / count[some] for values in (scores, right))
    gap = float((np.abs(sure - share) * count[some]).sum() / count.sum())
    axis, ends = Axis(text=percent, zero=True), np.array([0.0, 1.0])
    return curve_svg(
        f"Calibration: mean gap {percent(gap, 1)}",
        [
            Series("perfect calibration", ends, ends, "line", 7),
            Series("share of right answers", sure, share, "dots", 0),
        ],
        x=axis,
        y=axis,
        x_label="confidence",
    )


def _tenths(scores: Floats) -> np.ndarray:
    return np.clip((scores * 10).astype(np.int64), 0, 9)


def as_floats(values: Iterable[object]) -> Floats:
    """Return numbers; NaN where a value is none."""
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)
