"""Tables of a page as plain values, which templates/parts.html.j2 turns into HTML.

Shares are drawn as bars inside a table and confusions as a coloured one: tables wrap and scroll on small screens.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from bertree.report.formats import percent
from bertree.report.history import Floats
from bertree.report.scales import Axis
from bertree.report.svg.curves import Series, curve_svg

ALPHA = 0.62  # of the strongest colour of a confusion matrix: the count on it stays readable
NAME = 40  # characters of a label in a table
DENSE = 8  # labels from which on a confusion matrix is set small


class Piece(NamedTuple):
    """Text in a cell. `kind` is its look: strong, small, number, inner, good, bad, missing, mark, gold, wrong."""

    text: str
    kind: str = ""
    hint: str = ""  # shown under the pointer
    link: str = ""


class BarCell(NamedTuple):
    """Bars one below the other, each with its parts: a class and a share of the full width."""

    bars: Sequence[Sequence[tuple[str, float]]]


Lines = list[list[Piece]]
Cell = str | Lines | BarCell
Tile = tuple[str, str, str]  # name, value, a few words more


@dataclass(frozen=True)
class Table:
    """Rows of cells; the columns in `numbers` are set flush right. `keys` names the classes of its bars."""

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    numbers: Collection[int] = ()
    kind: str = ""
    title: Cell = ""
    under: str = ""
    keys: Mapping[str, str] | None = None


@dataclass(frozen=True)
class ConfusionCell:
    """How often a label is predicted for a gold label."""

    count: int
    right: bool
    share: str
    strength: float  # of its colour
    hint: str


@dataclass(frozen=True)
class ConfusionMatrix:
    """Gold labels down, predicted labels across."""

    labels: Sequence[Cell]
    rows: Sequence[tuple[Cell, Sequence[ConfusionCell], int]]
    dense: bool
    upright: bool


class CaptionedChart(NamedTuple):
    """A chart and a line under it."""

    svg: Markup
    under: str


Block = Markup | str | Table | ConfusionMatrix | CaptionedChart  # str: a paragraph


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


class BarRow(NamedTuple):
    """A row of bars: its name, shares from 0 to 1, and values beside them."""

    name: str
    shares: Sequence[float]
    beside: Sequence[str]


def bars(
    title: str, rows: Sequence[BarRow], under: str = "", names: Sequence[str] = (), head: Sequence[str] = ()
) -> Table:
    """Return shares as bars, one below the other where a row has several; `names` says what these are."""
    cells: list[list[Cell]] = [
        [
            one_line(clip(row.name, 2 * NAME)),
            BarCell([[(f"b{number}", share)] for number, share in enumerate(row.shares)]),
            *row.beside,
        ]
        for row in rows
    ]
    return _bar_table(title, cells, under, {f"b{number}": name for number, name in enumerate(names)}, head)


def stacked_bars(title: str, rows: Sequence[tuple[str, int, int]], under: str = "") -> Table:
    """Return counts of right and wrong answers (name, right, wrong) as parts of one bar."""
    most = max((right + wrong for _, right, wrong in rows), default=0) or 1
    cells: list[list[Cell]] = []
    for name, right, wrong in rows:
        share = percent(right / (right + wrong)) if right + wrong else ""
        bar = BarCell([[("right", right / most), ("wrong", wrong / most)]])
        cells.append([name, bar, f"{right + wrong:,}", share])
    return _bar_table(title, cells, under, {"right": "right", "wrong": "wrong"}, ("", "examples", "right"))


def _bar_table(
    title: str, cells: Sequence[Sequence[Cell]], under: str, keys: Mapping[str, str], head: Sequence[str]
) -> Table:
    numbers = range(2, max(map(len, cells), default=2))
    return Table(["", *head] if head else [], cells, numbers, "bars", title, under, keys)


def confusion_matrix(labels: Sequence[str], counts: Mapping[tuple[str, str], int]) -> ConfusionMatrix:
    """Return which labels are predicted for which; the larger its share of its row, the stronger a cell."""
    rows = []
    for gold in labels:
        row = [counts.get((gold, predicted), 0) for predicted in labels]
        total = sum(row)
        cells = [_confusion(gold, label, count, total) for label, count in zip(labels, row, strict=True)]
        rows.append((one_line(clip(gold, 24)), cells, total))
    dense = len(labels) > DENSE
    upright = dense or sum(min(len(label), NAME) for label in labels) > 70
    return ConfusionMatrix([one_line(clip(label, 24)) for label in labels], rows, dense, upright)


def _confusion(gold: str, predicted: str, count: int, total: int) -> ConfusionCell:
    share = count / total if total else 0.0
    hint = f"{gold[:80]} → {predicted[:80]}: {count:,}, {percent(share, 1)} of {total:,}"
    # Mistakes are mostly small shares: their root, so that they are seen.
    strength = ALPHA * (share if gold == predicted else share**0.5)
    return ConfusionCell(count, gold == predicted, percent(share), strength, hint)


def calibration(scores: Floats, right: Floats) -> list[Block]:
    """Return how often answers of a given confidence are right, and how many there are of them."""
    known = np.isfinite(scores)
    scores, right = scores[known], right[known]
    if not len(scores):
        return []
    place = _tenths(scores)
    count = np.bincount(place, minlength=10)
    some = count > 0
    sure = np.bincount(place, scores, 10)[some] / count[some]
    share = np.bincount(place, right, 10)[some] / count[some]
    gap = float((np.abs(sure - share) * count[some]).sum() / count.sum())
    axis = Axis(text=percent, zero=True)
    ends = np.array([0.0, 1.0])
    curve = curve_svg(
        f"Is it as good as it thinks? Mean gap {percent(gap, 1)}",
        [Series("as sure as right", ends, ends, "line", 7), Series("right answers", sure, share, "dots", 0)],
        x=axis,
        y=axis,
        x_label="how sure the model is",
    )
    return [curve, by_tenth("Answers by how sure the model is", scores, right)]


def by_tenth(title: str, scores: Floats, right: Floats, under: str = "") -> Table:
    """Return right and wrong answers in each tenth of a score."""
    place = _tenths(scores)
    hits, count = np.bincount(place, right, 10), np.bincount(place, minlength=10)
    rows = [
        (f"{10 * tenth} to {10 * tenth + 10} %", int(hits[tenth]), int(count[tenth] - hits[tenth]))
        for tenth in range(int(place.min(initial=9)), int(place.max(initial=0)) + 1)
    ]
    return stacked_bars(title, rows, under)


def _tenths(scores: Floats) -> np.ndarray:
    return np.clip((scores * 10).astype(np.int64), 0, 9)


def as_floats(values: Iterable[object]) -> Floats:
    """Return numbers; NaN where a value is none."""
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)
