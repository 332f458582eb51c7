"""An evaluation of search as a page: the figures of each mode, and the questions that fail, with what came first."""

from bertree.report.html import render
from bertree.report.tables import Cell, PageTable, Piece, start_of
from bertree.search.evaluation.figures import DEPTH, FIGURES, ModeScores, SearchEvaluation

SHOWN = 200  # failures
TEXT = 240  # characters of a passage


def evaluation_page(evaluation: SearchEvaluation) -> str:
    """Return the page."""
    return render(
        "search",
        title=f"search in {evaluation.index}",
        heading=f"Search in {evaluation.index}",
        under=f"{len(evaluation.questions):,} questions, measured by bertree index evaluate",
        figures=PageTable(
            ["mode", *FIGURES, "first, over words"],
            [
                [scores.mode, *(_figure(scores, name) for name in FIGURES), _over(evaluation, scores)]
                for scores in evaluation.modes
            ],
            numbers=range(1, len(FIGURES) + 2),
            under="Percent, with 95 % confidence intervals; the last column is the paired difference.",
        ),
        tuned=tuned_line(evaluation),
        failures=_failures(evaluation),
    )


def _figure(scores: ModeScores, name: str) -> Cell:
    low, high = scores.interval(name)
    return [
        [Piece(f"{100 * scores.mean(name):.1f}", "strong")],
        [Piece(f"{100 * low:.1f} to {100 * high:.1f}", "small")],
    ]


def _over(evaluation: SearchEvaluation, scores: ModeScores) -> Cell:
    over = evaluation.json()["modes"][scores.mode]["first"]["over_words"]
    if over is None or scores.mode == "words":
        return ""
    low, high = (100 * side for side in over["interval"])
    return [[Piece(f"{100 * over['mean']:+.1f}", "strong")], [Piece(f"{low:+.1f} to {high:+.1f}", "small")]]


def tuned_line(evaluation: SearchEvaluation) -> str:
    """Say which weight was chosen on which questions, and what it does on the others; nothing if none was."""
    tuned = evaluation.tuned
    if tuned is None:
        return ""
    return (
        f"Weight of words: {tuned.weight:g} (before: {tuned.before:g}), chosen on {tuned.chosen_on:,} questions. On "
        f"the other {tuned.held_out:,}: mrr {100 * tuned.held_out_mrr:.1f} (before: {100 * tuned.held_out_before:.1f})."
    )


def _failures(evaluation: SearchEvaluation) -> PageTable:
    """The questions that the last mode fails, the worst first."""
    last = evaluation.modes[-1]
    wrong = [number for number, first in enumerate(last.values["first"].tolist()) if not first]
    wrong.sort(key=lambda number: (last.values["mrr"][number], number))
    rows: list[list[Cell]] = []
    for number in wrong[:SHOWN]:
        question = evaluation.questions[number]
        hit = last.seen[number]
        ranks = [place(scores.ranked[number], question.documents) for scores in evaluation.modes]
        came_first = start_of(hit.text, TEXT) if hit else "nothing"
        rows.append([start_of(question.text), ", ".join(sorted(question.documents)), *ranks, came_first])
    names = [scores.mode for scores in evaluation.modes]
    under = f"{len(wrong):,} of {len(evaluation.questions):,}" + (f", the first {SHOWN}" if len(wrong) > SHOWN else "")
    head = ["question", "right document", *(f"place, {name}" for name in names), f"first, {names[-1]}"]
    return PageTable(head, rows, numbers=range(2, 2 + len(names)), under=under)


def place(ranked: list[str], right: frozenset[str]) -> str:
    """Return the place of the first right document."""
    return next((str(at) for at, id in enumerate(ranked, 1) if id in right), f"not in {DEPTH} passages")
