"""Single predictions on a page: the mistakes a model is most sure of, and what it only just got right.

A text is shortened around what matters; only the few cases shown are made into HTML, however many there are.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bertree.files import Json
from bertree.report.formats import digits, percent
from bertree.report.history import Floats
from bertree.report.html import html_table
from bertree.report.tables import safe

MISTAKES, CLOSE = 20, 5  # at most shown
ROOM = 320  # characters of a text
Shown = tuple[str, str, str]  # text, gold answer and prediction, as HTML
Show = Callable[[int], Shown]


def cases(scores: Floats, right: Floats, show: Show) -> list[str]:
    """The most confident mistakes and the least confident right answers; without scores the first mistakes.

    `right` is 1, 0, or NaN for what is neither: a span that is nearly the right one.
    """
    wrong = np.flatnonzero(right < 1)
    order = np.argsort(-np.nan_to_num(scores[wrong], nan=-np.inf), kind="stable")
    sure = bool(np.isfinite(scores).any())
    parts = [_part("The most confident mistakes" if sure else "Mistakes", wrong[order[:MISTAKES]], scores, show)]
    close = np.flatnonzero((right >= 1) & np.isfinite(scores))
    order = np.argsort(scores[close], kind="stable")
    return [*parts, _part("Right, but least sure", close[order[:CLOSE]], scores, show)]


def errors(gold: Floats, predicted: Floats, show: Show) -> list[str]:
    """The numbers that are furthest off."""
    off = np.abs(predicted - gold)
    order = np.argsort(-np.nan_to_num(off, nan=-np.inf), kind="stable")[:MISTAKES]
    rows = [[*show(int(number)), digits(float(off[number]))] for number in order if off[number] > 0]
    return [_titled("Furthest off", html_table(["text", "gold", "predicted", "off by"], rows, [1, 2, 3], "cases off"))]


def _part(title: str, picked: np.ndarray, scores: Floats, show: Show) -> str:
    if not len(picked):
        return ""
    rows = [[*show(int(number)), _sure(float(scores[number]))] for number in picked]
    return _titled(title, html_table(["text", "gold", "predicted", "sure"], rows, [3], "cases"))


def _titled(title: str, inside: str) -> str:
    return f"<h2>{safe(title)}</h2>{inside}"


def _sure(score: float) -> str:
    return percent(score, 1) if np.isfinite(score) else "–"


def head(text: object, room: int = ROOM) -> str:
    """The beginning of a text: what a model that cuts texts has seen too."""
    whole = str(text)
    return f'<span dir="auto">{safe(whole[:room])}{"…" if len(whole) > room else ""}</span>'


def pair(line: Json) -> str:
    """A text, and the second one below it where there is one."""
    second = line.get("pair")
    if second is None:
        return head(line.get("text", ""))
    return f"{head(line.get('text', ''), ROOM // 2 + 40)}<br>{head(second, ROOM // 2 + 40)}"


def around(text: str, marks: Sequence[tuple[int, int, str]], room: int = ROOM) -> str:
    """A text with stretches of it marked (start, end, class), cut to what stands around the first of them."""
    marks = sorted((max(0, start), min(end, len(text)), kind) for start, end, kind in marks)
    if not marks:
        return head(text, room)
    spare = max(0, room - (marks[0][1] - marks[0][0])) // 2
    first = max(0, marks[0][0] - spare)
    behind = min(len(text), first + max(room, marks[0][1] - marks[0][0]))
    behind = min(behind, first + 2 * room)
    parts, at = ["…" if first else ""], first
    for start, end, kind in marks:
        start, end = max(start, at), min(end, behind)
        if start < end:
            parts.append(f'{safe(text[at:start])}<mark class="{kind}">{safe(text[start:end])}</mark>')
            at = end
    tail = "…" if behind < len(text) else ""
    return f'<span dir="auto">{"".join(parts)}{safe(text[at:behind])}{tail}</span>'
