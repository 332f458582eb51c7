"""Single predictions on a page: the mistakes a model is most sure of, and what it only just got right.

Texts are shortened around what matters.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bertree.files.formats import Json
from bertree.report.formats import digits, percent
from bertree.report.history import Floats
from bertree.report.tables import Cell, Lines, PageTable, Piece, Section

MISTAKES, CLOSE = 20, 5  # at most shown
ROOM = 320  # characters of a text
Case = tuple[Cell, Cell, Cell]  # text, gold answer and prediction
ShowCase = Callable[[int], Case]


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
        Section(name, blocks=[PageTable(head, [[*show(n), _sure(scores[n])] for n in numbers.tolist()], [3], "cases")])
        for name, numbers in picked.items()
        if len(numbers)
    ]


def largest_errors(gold: Floats, predicted: Floats, show: ShowCase) -> list[Section]:
    """Return the numbers that are furthest off."""
    off = np.abs(predicted - gold)
    order = np.argsort(-np.nan_to_num(off, nan=-np.inf), kind="stable")[:MISTAKES]
    rows = [[*show(number), digits(float(off[number]))] for number in order.tolist() if off[number] > 0]
    table = PageTable(["text", "gold", "predicted", "error"], rows, [1, 2, 3], "cases off")
    return [Section("Largest errors", blocks=[table])]


def _sure(score: float) -> str:
    return percent(score, 1) if np.isfinite(score) else "–"


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
    """Return a text with stretches of it marked (start, end, kind), cut to the surroundings of the first of them."""
    marks = sorted((max(0, start), min(end, len(text)), kind) for start, end, kind in marks)
    if not marks:
        return start_of(text, room)
    spare = max(0, room - (marks[0][1] - marks[0][0])) // 2
    first = max(0, marks[0][0] - spare)
    behind = min(len(text), first + max(room, marks[0][1] - marks[0][0]))
    behind = min(behind, first + 2 * room)
    pieces, at = [Piece("…")] if first else [], first
    for start, end, kind in marks:
        start, end = max(start, at), min(end, behind)
        if start < end:
            pieces += [Piece(text[at:start]), Piece(text[start:end], kind)]
            at = end
    return [[*pieces, Piece(text[at:behind] + ("…" if behind < len(text) else ""))]]
