"""The sections of a report page for each kind of task: what was confused, by how much, and the confident mistakes.

page.py calls the public function for the task's head. The lines are those of `Task.predict`, all with a gold answer.
To show a new kind of task, write a function here and call it in `page._split`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np

from bertree.files.formats import Json
from bertree.report.formats import digits, percent
from bertree.report.history import Floats
from bertree.report.scales import Axis, scale
from bertree.report.svg import POINTS, agreement_svg
from bertree.report.tables import (
    BarRow,
    BarTable,
    Block,
    CaptionedChart,
    Case,
    Cell,
    ConfusionMatrix,
    PageTable,
    Piece,
    Section,
    around,
    as_floats,
    by_tenth,
    clip,
    confidence,
    confident_cases,
    largest_errors,
    one_line,
    relative_bars,
    right_and_wrong,
    start_of,
    text_and_pair,
)
from bertree.tasks.squad import official

LABELS = 30  # at most in a confusion matrix
PAIRS = 20  # rows of the tables that replace a larger matrix
SHORT = 160  # characters shown of each of two texts
QUESTION_WORDS = re.compile(r"\b(how many|how much|who|whom|whose|what|when|where|which|why|how)\b", re.IGNORECASE)
ANSWER_LENGTHS = ((1, "1 word"), (2, "2 words"), (3, "3 words"), (5, "4 to 5"), (10, "6 to 10"), (20, "11 to 20"))
NO_ANSWER = one_line(Piece("no answer", "missing"))


def classes(lines: Sequence[Json], labels: Sequence[str]) -> list[Section]:
    """Return the sections of a task with one label per text."""
    gold, predicted = ([str(line[field]) for line in lines] for field in ("gold", "predicted"))

    def show(number: int) -> Case:
        return text_and_pair(lines[number]), one_line(clip(gold[number], 60)), one_line(clip(predicted[number], 60))

    scores, right = _scores_and_hits(lines)
    return [
        *_confusions(Counter(zip(gold, predicted, strict=True)), labels),
        *confidence(scores, right),
        *confident_cases(scores, right, show),
    ]


def _scores_and_hits(lines: Sequence[Json]) -> tuple[Floats, Floats]:
    scores = as_floats(line.get("score") for line in lines)
    return scores, np.array([line["gold"] == line["predicted"] for line in lines], dtype=np.float64)


def _confusions(counts: Counter[tuple[str, str]], labels: Sequence[str]) -> list[Section]:
    """Return which labels are predicted for which: a matrix or, where that is too large, the most frequent pairs."""
    title = "Confusion of labels"
    seen = dict.fromkeys(chain.from_iterable(counts))
    shown = [label for label in labels if label in seen] + sorted(set(seen) - set(labels))
    if len(shown) <= LABELS:
        matrix = ConfusionMatrix(shown, [[counts[gold, predicted] for predicted in shown] for gold in shown])
        return [Section(title, blocks=[matrix])] if shown else []
    totals: Counter[str] = Counter()
    for (gold, _), count in counts.items():
        totals[gold] += count
    return [Section(title, [_most_confused(counts, totals), _least_found(counts, totals)])]


def _most_confused(counts: Counter[tuple[str, str]], totals: Counter[str]) -> BarTable:
    wrong = Counter({pair: count for pair, count in counts.items() if pair[0] != pair[1]}).most_common(PAIRS)
    rows = [(f"{gold} → {predicted}", count, percent(count / totals[gold])) for (gold, predicted), count in wrong]
    under = f"gold → predicted; the first {len(rows)}, of {len(totals):,} labels"
    return BarTable("Most frequent confusions", relative_bars(rows), under=under, head=("count", "of this gold"))


def _least_found(counts: Counter[tuple[str, str]], totals: Counter[str]) -> BarTable:
    shares = sorted((counts[label, label] / total, label) for label, total in totals.items())
    rows = [BarRow(label, [share], [percent(share), f"{totals[label]:,}"]) for share, label in shares[:PAIRS]]
    return BarTable(
        "Labels with the lowest recall", rows, under="share of a label's examples that are found", head=("found", "of")
    )


def regression(lines: Sequence[Json]) -> list[Section]:
    """Return the sections of a task with one number per text."""
    gold, predicted = (as_floats(line.get(field) for line in lines) for field in ("gold", "predicted"))
    finite = np.isfinite(gold) & np.isfinite(predicted)
    sections = []
    if finite.any():
        off = predicted[finite] - gold[finite]
        count = f"{finite.sum():,} examples" + ("" if finite.sum() <= POINTS else ", some of them drawn")
        under = (
            f"{count}; mean error {digits(float(np.abs(off).mean()))}, root of the mean square "
            f"{digits(float(np.sqrt((off**2).mean())))}, bias {digits(float(off.mean()))}"
        )
        chart = CaptionedChart(agreement_svg("Gold against predicted", gold, predicted), under)
        sections = [Section("Predictions and errors", [chart, _error_histogram(off)])]

    def show(number: int) -> Case:
        return text_and_pair(lines[number]), digits(float(gold[number]), 4), digits(float(predicted[number]), 4)

    return [*sections, *largest_errors(gold, predicted, show)]


def _error_histogram(off: Floats) -> BarTable:
    steps = scale(Axis(), off, 12)
    count, _ = np.histogram(off, bins=steps.ticks)
    names = [f"{low} to {high}" for low, high in pairwise(steps.labels)]
    rows = relative_bars(list(zip(names, count.tolist(), strict=True)))
    return BarTable("Errors", rows, under="predicted minus gold", head=("examples",))


def vectors(lines: Sequence[Json], labels: Sequence[str]) -> list[Section]:
    """Return the sections of texts compared by their vectors: by scores, by classes, or by which one is nearest."""
    if isinstance(lines[0]["gold"], float):
        return regression(lines)
    if "probabilities" in lines[0]:
        return classes(lines, labels)
    scores, right = _scores_and_hits(lines)

    def show(number: int) -> Case:
        line = lines[number]
        if "rank" in line:
            return start_of(line["text"]), start_of(line["gold"], SHORT), start_of(line["predicted"], SHORT)
        negatives = " / ".join(map(str, line.get("negatives", ())))
        nearest = line["pair"] if right[number] else negatives
        return start_of(line["text"]), start_of(line["pair"], SHORT), start_of(nearest, SHORT)

    return confident_cases(scores, right, show)


def tags(lines: Sequence[Json], labels: Sequence[str]) -> list[Section]:
    """Return the sections of a task with one tag per word."""
    counts = Counter(chain.from_iterable(zip(line["gold"], line["predicted"], strict=True) for line in lines))
    scores, right = _scores_and_hits(lines)

    def show(number: int) -> Case:
        line = lines[number]
        marks, at, differ = [], 0, []
        for word, gold, predicted in zip(line["words"], line["gold"], line["predicted"], strict=True):
            if gold != predicted:
                marks.append((at, at + len(word), "wrong"))
                differ.append((gold, predicted))
            at += len(word) + 1
        gold_tags, predicted_tags = (", ".join(str(pair[side]) for pair in differ[:8]) for side in (0, 1))
        return around(" ".join(line["words"]), marks), gold_tags, predicted_tags

    return [*_confusions(counts, labels), *confident_cases(scores, right, show)]


def choices(lines: Sequence[Json], metrics: Json) -> list[Section]:
    """Return the sections of a task with one option of several."""
    scores, right = _scores_and_hits(lines)
    shares = [sorted(line.get("probabilities") or [0.0]) for line in lines]
    margin = np.array([each[-1] - (each[-2] if len(each) > 1 else 0.0) for each in shares], dtype=np.float64)
    cards = []
    if len({len(line["options"]) for line in lines}) > 1:
        cards.append(_by_options(lines, right))
    prefix = "accuracy-"
    levels = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    if levels:
        rows = [BarRow(name, [float(value)], [percent(float(value), 1)]) for name, value in levels.items()]
        cards.append(BarTable("Accuracy by level", rows))
    cards.append(_by_position(lines))
    hit, missed = (float(margin[right == value].mean()) if (right == value).any() else 0.0 for value in (1, 0))
    under = f"mean {percent(hit, 1)} where it is right, {percent(missed, 1)} where it is wrong"
    lead = by_tenth("Lead of the chosen option over the next", margin, right, under)

    def show(number: int) -> Case:
        line = lines[number]
        question = start_of(line["question"], 200, "strong") if line.get("question") else []
        gold, predicted = (start_of(line["options"][line[field]], SHORT) for field in ("gold", "predicted"))
        return start_of(line.get("context", ""), 220) + question, gold, predicted

    return [
        Section("Scores by question", cards),
        *confidence(scores, right, lead),
        *confident_cases(scores, right, show),
    ]


def _by_options(lines: Sequence[Json], right: Floats) -> BarTable:
    groups: dict[str, list[float]] = {}
    for line, hit in zip(lines, right.tolist(), strict=True):
        groups.setdefault(f"{len(line['options'])} options", []).append(hit)
    rows = [(name, int(sum(hits)), int(len(hits) - sum(hits))) for name, hits in sorted(groups.items())]
    return right_and_wrong("Accuracy by number of options", rows)


def _by_position(lines: Sequence[Json]) -> BarTable:
    """Return how often the first, second ... option is chosen, and is right: a model may prefer one of them."""
    gold, chosen = (Counter(line[field] for line in lines) for field in ("gold", "predicted"))
    rows = []
    for option in sorted(gold.keys() | chosen.keys())[:LABELS]:
        counts = chosen[option], gold[option]
        rows.append(BarRow(f"option {option + 1}", [n / len(lines) for n in counts], [f"{n:,}" for n in counts]))
    return BarTable("Which option is chosen", rows, names=("chosen", "right one"), head=("chosen", "right one"))


def spans(lines: Sequence[Json]) -> list[Section]:
    """Return the sections of a task with a span of a passage, or none (SQuAD 2.0), as the answer."""
    may_have_none = any("null_odds" in line for line in lines)  # SQuAD 2.0
    gold_answers, predicted_answers = ([line[field] for line in lines] for field in ("gold", "predicted"))
    counted = official.score_questions(gold_answers, predicted_answers, 2 if may_have_none else 1)
    scores = as_floats(line.get("score") for line in lines)
    words = (match[0].lower() if (match := QUESTION_WORDS.search(line["question"])) else "other" for line in lines)
    cards: list[Block] = [
        _span_scores("By question word", words, counted),
        _span_scores("By length of the answer", map(_answer_length, lines), counted),
    ]
    if may_have_none:
        cards.append(_answered(lines, counted.exact))

    def show(number: int) -> Case:
        line = lines[number]
        gold, predicted, start, end = line["gold"], line["predicted"], line.get("start"), line.get("end")
        marks = []
        if start is not None and end is not None:
            marks = [(start, end, "mark" if counted.exact[number] else "wrong")]
        elif gold and (at := line["context"].find(gold[0])) >= 0:
            marks = [(at, at + len(gold[0]), "gold")]
        answers = [start_of(text, 120)[0] for text in list(dict.fromkeys(gold))[:3]]
        text = start_of(line["question"], 200, "strong") + around(line["context"], marks)
        return text, answers or NO_ANSWER, start_of(predicted, SHORT) if predicted else NO_ANSWER

    near = (counted.f1 >= 0.5) & (counted.exact < 1)  # neither right nor a mistake worth showing
    return [
        Section("Scores by question", cards),
        *confidence(scores, counted.exact),
        *confident_cases(scores, np.where(near, np.nan, counted.exact), show),
    ]


def _answer_length(line: Json) -> str:
    if not line["gold"]:
        return "no answer"
    words = len(line["gold"][0].split())
    return next((name for most, name in ANSWER_LENGTHS if words <= most), "over 20")


def _span_scores(title: str, names: Iterable[str], counted: official.QuestionScores) -> BarTable:
    """Return the mean F1 and exact match of groups of questions."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    order = [name for _, name in ANSWER_LENGTHS] + ["over 20"]
    rows = []
    for name in sorted(groups, key=lambda name: (order.index(name) if name in order else -1, -len(groups[name]))):
        f1, exact = (float(each[groups[name]].mean()) for each in (counted.f1, counted.exact))
        rows.append(BarRow(name, [f1, exact], [percent(f1, 1), percent(exact, 1), f"{len(groups[name]):,}"]))
    return BarTable(title, rows, names=("F1", "exact"), head=("F1", "exact", "questions"))


def _answered(lines: Sequence[Json], exact: Floats) -> PageTable:
    """Return how often the model answers questions that have an answer, and those that have none."""
    table: Counter[tuple[bool, str]] = Counter()
    for line, hit in zip(lines, exact.tolist(), strict=True):
        answer = "no answer" if not line["predicted"] else "right answer" if hit else "another answer"
        table[bool(line["gold"]), answer] += 1
    columns = ("right answer", "another answer", "no answer")
    rows: list[list[Cell]] = []
    for has, name in ((True, "has an answer"), (False, "has none")):
        total = sum(table[has, answer] for answer in columns) or 1
        rows.append([name, *(f"{table[has, answer]:,} · {percent(table[has, answer] / total)}" for answer in columns)])
    rows[1][1] = "–"  # there is no right answer to a question that has none
    under = "rows: the question; columns: what the model gives"
    return PageTable(["", *columns], rows, numbers=[1, 2, 3], title="Answer or not", under=under)
