"""Tables, sections and single predictions of a page as plain values, which templates/parts.html.j2 turns into HTML.

Shares are drawn as bars inside a table and confusions as a coloured one: tables wrap and scroll on small screens.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from bertree.files.formats import Json
from bertree.report.calibration import calibrate, reliability_svg
from bertree.report.formats import digits, percent
from bertree.report.history import Floats

NAME = 40  # characters of a name, before it is shortened
MISTAKES, CLOSE = 20, 5  # rows of the tables of mistakes and of the least confident right answers
ROOM = 320  # characters of a text, before it is shortened


class Piece(NamedTuple):
    """Text in a cell. `kind` is its look: strong, small, number, inner, good, bad, missing, code, mark, gold, wrong."""

    text: str
    kind: str = ""
    hint: str = ""  # shown under the pointer
    link: str = ""


Lines = list[list[Piece]]
Cell = str | Lines
Case = tuple[Cell, Cell, Cell]  # text, gold answer and prediction
ShowCase = Callable[[int], Case]  # of the number of an example
Tile = tuple[str, str, str]  # name, value, a few words more


@dataclass(frozen=True)
class PageTable:
    """Rows of cells; the columns in `numbers` are set flush right."""

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    _: KW_ONLY
    numbers: Collection[int] = ()
    kind: str = ""
    title: Cell = ""
    under: str = ""


class BarRow(NamedTuple):
    """A name, shares from 0 to 1 that are drawn as bars, and values next to them."""

    name: str
    shares: Sequence[float]
    values: Sequence[str]


@dataclass(frozen=True)
class BarTable:
    """Rows of bars, one below the other or, if `stacked`, end to end. `names` says what the bars of a row are."""

    title: str
    bars: Sequence[BarRow]
    _: KW_ONLY
    under: str = ""
    names: Sequence[str] = ()
    head: Sequence[str] = ()  # of the values next to the bars
    stacked: bool = False


@dataclass(frozen=True)
class ConfusionMatrix:
    """How often each label (across) is predicted for each gold label (down)."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]


@dataclass(frozen=True)
class HeatTable:
    """Numbers (rows x columns) as colours from `low` to `high`; each is shown under the pointer, and written in its
    field where there are at most 16 columns. NaN is an empty field."""

    title: str
    under: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Floats
    _: KW_ONLY
    corner: str = ""
    low: float = 0.0
    high: float = 1.0


class CaptionedChart(NamedTuple):
    """A chart and a line under it."""

    svg: Markup
    under: str


Block = Markup | str | PageTable | BarTable | ConfusionMatrix | HeatTable | CaptionedChart  # str: a paragraph


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
    """Return counts (name, count, further values) as bars; the largest has the full width."""
    most = max((count for _, count, *_ in rows), default=0) or 1
    return [BarRow(name, [count / most], [f"{count:,}", *values]) for name, count, *values in rows]


def right_and_wrong(title: str, rows: Iterable[tuple[str, int, int]], under: str = "") -> BarTable:
    """Return counts of right and wrong answers (name, right, wrong) as parts of one bar."""
    rows = list(rows)
    most = max((right + wrong for _, right, wrong in rows), default=0) or 1
    bars = []
    for name, right, wrong in rows:
        share = percent(right / (right + wrong)) if right + wrong else ""
        bars.append(BarRow(name, (right / most, wrong / most), (f"{right + wrong:,}", share)))
    return BarTable(title, bars, under=under, names=("right", "wrong"), head=("examples", "right"), stacked=True)


def by_tenth(title: str, scores: Floats, right: Floats, under: str = "") -> BarTable:
    """Return right and wrong answers in each tenth of a score."""
    tenth_of = np.clip((scores * 10).astype(np.int64), 0, 9)
    hits, count = np.bincount(tenth_of, right, 10).astype(int), np.bincount(tenth_of, minlength=10)
    tenths = range(int(tenth_of.min(initial=9)), int(tenth_of.max(initial=0)) + 1)
    return right_and_wrong(
        title, ((f"{10 * t} to {10 * t + 10} %", hits[t], count[t] - hits[t]) for t in tenths), under
    )


def confidence(scores: Floats, right: Floats, counts: BarTable | None = None) -> list[Section]:
    """Return how often answers of a confidence are right, and how many they are (or `counts` of something else)."""
    finite = np.isfinite(scores)
    cards: list[Block] = []
    if finite.any():
        calibration = calibrate(scores, right)
        title = f"Expected calibration error {percent(calibration.error, 1)}" if calibration else ""
        cards.append(reliability_svg(title, {"share of right answers": calibration}))
        counts = counts or by_tenth("Answers by confidence", scores[finite], right[finite])
    cards += [counts] if counts else []
    return [Section("Confidence", cards)] if cards else []


def as_floats(values: Iterable[object]) -> Floats:
    """Return numbers; NaN where a value is none."""
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)


def confident_cases(scores: Floats, right: Floats, show: ShowCase) -> list[Section]:
    """Return the most confident mistakes and the least confident right answers; without scores the first mistakes.

    `right` is 1, 0, or NaN for what is neither: a span that is nearly the right one.
    """
    wrong = np.flatnonzero(right < 1)
    order = np.argsort(-np.nan_to_num(scores[wrong], nan=-np.inf), kind="stable")
    title = "The most confident mistakes" if np.isfinite(scores).any() else "Mistakes"
    close = np.flatnonzero((right >= 1) & np.isfinite(scores))
    picked = {
        title: wrong[order[:MISTAKES]],
        "Right, but least confident": close[np.argsort(scores[close], kind="stable")[:CLOSE]],
    }
    head = ["text", "gold", "predicted", "confidence"]
    return [
        Section(name, blocks=[PageTable(head, _rows(numbers, scores, show), numbers=[3], kind="cases")])
        for name, numbers in picked.items()
        if len(numbers)
    ]


def largest_errors(gold: Floats, predicted: Floats, show: ShowCase) -> list[Section]:
    """Return the numbers that are furthest off."""
    off = np.abs(predicted - gold)
    order = np.argsort(-np.nan_to_num(off, nan=-np.inf), kind="stable")[:MISTAKES]
    rows = [[*show(number), digits(float(off[number]))] for number in order.tolist() if off[number] > 0]
    table = PageTable(["text", "gold", "predicted", "error"], rows, numbers=[1, 2, 3], kind="cases")
    return [Section("Largest errors", blocks=[table])]


def _rows(numbers: np.ndarray, scores: Floats, show: ShowCase) -> list[list[Cell]]:
    return [[*show(n), percent(scores[n], 1) if np.isfinite(scores[n]) else "–"] for n in numbers.tolist()]


def start_of(text: object, room: int = ROOM, kind: str = "") -> Lines:
    """Return the beginning of a text: what a model that truncates texts has seen too."""
    full = str(text)
    return [[Piece(full[:room] + ("…" if len(full) > room else ""), kind)]]


def text_and_pair(line: Json) -> Lines:
    """Return a text, and the second one below it where there is one."""
    second = line.get("pair")
    if second is None:
        return start_of(line.get("text", ""))
    return start_of(line.get("text", ""), ROOM // 2 + 40) + start_of(second, ROOM // 2 + 40)


def around(text: str, marks: Sequence[tuple[int, int, str]], room: int = ROOM) -> Lines:
    """Return a text with marked ranges (start, end, kind), shortened to the surroundings of the first of them."""
    marks = sorted((max(0, start), min(end, len(text)), kind) for start, end, kind in marks)
    if not marks:
        return start_of(text, room)
    spare = max(0, room - (marks[0][1] - marks[0][0])) // 2
    first = max(0, marks[0][0] - spare)
    last = min(len(text), first + max(room, marks[0][1] - marks[0][0]), first + 2 * room)
    pieces, at = [Piece("…")] if first else [], first
    for start, end, kind in marks:
        start, end = max(start, at), min(end, last)
        if start < end:
            pieces += [Piece(text[at:start]), Piece(text[start:end], kind)]
            at = end
    return [[*pieces, Piece(text[at:last] + ("…" if last < len(text) else ""))]]
