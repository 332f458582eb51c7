"""What there is to see of each kind of task: lines of predictions -> parts of a page.

Lines are those of `Task.predict`, all of them with a gold answer.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np

from bertree.files import Json
from bertree.report.cases import Shown, around, cases, errors, head, pair
from bertree.report.formats import digits, percent
from bertree.report.history import Floats
from bertree.report.html import cards, html_table
from bertree.report.scales import Axis, scale
from bertree.report.tables import (
    Bar,
    bars,
    by_tenth,
    caption,
    clipped,
    floats,
    heat,
    reliability,
    safe,
    scatter_svg,
    stacked,
)
from bertree.tasks.squad import metric

LABELS = 30  # at most in a confusion matrix
SHORT = 160  # characters of a text beside another
PAIRS = 20  # most frequent confusions beyond that
WORDS = re.compile(r"\b(how many|how much|who|whom|whose|what|when|where|which|why|how)\b", re.IGNORECASE)
LENGTHS = ((1, "1 word"), (2, "2 words"), (3, "3 words"), (5, "4 to 5"), (10, "6 to 10"), (20, "11 to 20"))


def classes(lines: Sequence[Json], labels: Sequence[str]) -> list[str]:
    """One label a text."""
    gold, said = [str(line["gold"]) for line in lines], [str(line["predicted"]) for line in lines]
    scores = floats(line.get("score") for line in lines)
    right = np.array([g == s for g, s in zip(gold, said, strict=True)], dtype=np.float64)

    def show(number: int) -> Shown:
        return pair(lines[number]), clipped(gold[number], 60), clipped(said[number], 60)

    return [
        *confusions(Counter(zip(gold, said, strict=True)), labels),
        *_section("How sure it is", reliability(scores, right)),
        *cases(scores, right, show),
    ]


def confusions(counts: Counter[tuple[str, str]], labels: Sequence[str]) -> list[str]:
    """Which labels are taken for which: as a matrix, or where that is too large the most frequent pairs."""
    seen = dict.fromkeys(chain.from_iterable(counts))
    known = [label for label in labels if label in seen] + sorted(set(seen) - set(labels))
    if len(known) <= LABELS:
        return ["<h2>Which labels are taken for which</h2>", heat(known, counts)] if known else []
    return _section("Which labels are taken for which", [_confused(counts), _by_label(counts, known)])


def _confused(counts: Counter[tuple[str, str]]) -> str:
    total: Counter[str] = Counter()
    for (gold, _), count in counts.items():
        total[gold] += count
    wrong = Counter({both: count for both, count in counts.items() if both[0] != both[1]}).most_common(PAIRS)
    most = max((count for _, count in wrong), default=1)
    rows = [
        Bar(f"{gold} → {said}", [count / most], [f"{count:,}", percent(count / total[gold])])
        for (gold, said), count in wrong
    ]
    under = f"gold → predicted; the first {len(rows)}, of {len(total):,} labels"
    return bars("Most frequent confusions", rows, under, head=("", "count", "of this gold"))


def _by_label(counts: Counter[tuple[str, str]], labels: Sequence[str]) -> str:
    """The labels that are found least."""
    true: Counter[str] = Counter()
    for (gold, _), count in counts.items():
        true[gold] += count
    shares = sorted((counts[label, label] / true[label], label) for label in labels if true[label])
    rows = [Bar(label, [share], [percent(share), f"{true[label]:,}"]) for share, label in shares[:PAIRS]]
    return bars("Labels found least", rows, "share of a label's examples that are found", head=("", "found", "of"))


def regression(lines: Sequence[Json]) -> list[str]:
    """One number a text."""
    gold, said = (floats(line.get(field) for line in lines) for field in ("gold", "predicted"))
    known = np.isfinite(gold) & np.isfinite(said)
    parts = []
    if known.any():
        off = said[known] - gold[known]
        count = f"{known.sum():,} examples" + ("" if known.sum() <= 2000 else ", some of them drawn")
        scatter = scatter_svg("Gold against predicted", gold, said)
        under = (
            f"{count}; mean error {digits(float(np.abs(off).mean()))}, root of the mean square "
            f"{digits(float(np.sqrt((off**2).mean())))}, bias {digits(float(off.mean()))}"
        )
        parts = _section("How near it comes", [scatter + caption("", under), _offsets(off)])

    def show(number: int) -> Shown:
        return pair(lines[number]), digits(float(gold[number]), 4), digits(float(said[number]), 4)

    return [*parts, *errors(gold, said, show)]


def vectors(lines: Sequence[Json], labels: Sequence[str]) -> list[str]:
    """Texts compared by their vectors: by scores, by classes, or by which of several is nearest."""
    if isinstance(lines[0]["gold"], float):
        return regression(lines)
    if "probabilities" in lines[0]:
        return classes(lines, labels)
    scores = floats(line.get("score") for line in lines)
    right = np.array([line["gold"] == line["predicted"] for line in lines], dtype=np.float64)

    def show(number: int) -> Shown:
        line = lines[number]
        if "rank" in line:
            return head(line["text"]), head(line["gold"], SHORT), f"{head(line['predicted'], SHORT)}"
        others = " / ".join(map(str, line.get("negatives", ())))
        return head(line["text"]), head(line["pair"], SHORT), head(others if not right[number] else line["pair"], SHORT)

    return cases(scores, right, show)


def _offsets(off: Floats) -> str:
    """A histogram of predicted minus gold."""
    steps = scale(Axis(), off, 12)
    count, _ = np.histogram(off, bins=steps.ticks)
    most = max(int(count.max()), 1)
    names = [f"{low} to {high}" for low, high in pairwise(steps.labels)]
    rows = [Bar(name, [some / most], [f"{some:,}"]) for name, some in zip(names, count.tolist(), strict=True)]
    return bars("Errors", rows, "predicted minus gold", head=("", "examples"))


def tags(lines: Sequence[Json], labels: Sequence[str]) -> list[str]:
    """A plain tag for each word."""
    pairs = (zip(line["gold"], line["predicted"], strict=True) for line in lines)
    counts = Counter(chain.from_iterable(pairs))
    scores = floats(line.get("score") for line in lines)
    right = np.array([line["gold"] == line["predicted"] for line in lines], dtype=np.float64)

    def show(number: int) -> Shown:
        line = lines[number]
        places, at, differ = [], 0, []
        for word, gold, said in zip(line["words"], line["gold"], line["predicted"], strict=True):
            if gold != said:
                places.append((at, at + len(word), "wrong"))
                differ.append((gold, said))
            at += len(word) + 1
        shown = [safe(", ".join(map(str, side[:8]))) for side in zip(*differ, strict=True)] or ["", ""]
        return around(" ".join(line["words"]), places), shown[0], shown[1]

    return [*confusions(counts, labels), *cases(scores, right, show)]


def choices(lines: Sequence[Json], figures: Json) -> list[str]:
    """One option of several."""
    right = np.array([line["gold"] == line["predicted"] for line in lines], dtype=np.float64)
    scores = floats(line.get("score") for line in lines)
    known = [sorted(line.get("probabilities") or [0.0]) for line in lines]
    margin = np.array([some[-1] - (some[-2] if len(some) > 1 else 0.0) for some in known], dtype=np.float64)
    drawn = []
    if len({len(line["options"]) for line in lines}) > 1:
        names = (f"{len(line['options'])} options" for line in lines)
        drawn.append(_groups("Accuracy by number of options", names, right))
    levels = {name.removeprefix("accuracy-"): value for name, value in figures.items() if name.startswith("accuracy-")}
    if levels:
        rows = [Bar(name, [float(value)], [percent(float(value), 1)]) for name, value in levels.items()]
        drawn.append(bars("Accuracy by level", rows))
    drawn.append(_positions(lines))
    under = f"mean {percent(float(margin[right > 0].mean()) if right.any() else 0, 1)} where it is right, "
    under += f"{percent(float(margin[right == 0].mean()) if not right.all() else 0, 1)} where it is wrong"
    sure = [*reliability(scores, right)[:1], by_tenth("Lead of the chosen option over the next", margin, right, under)]

    def show(number: int) -> Shown:
        line = lines[number]
        asked = f"<br><b>{head(line['question'], 200)}</b>" if line.get("question") else ""
        gold, said = (head(line["options"][line[field]], 160) for field in ("gold", "predicted"))
        return head(line.get("context", ""), 220) + asked, gold, said

    return [*_section("Which questions", drawn), *_section("How sure it is", sure), *cases(scores, right, show)]


def _positions(lines: Sequence[Json]) -> str:
    """Whether a place among the options is favoured."""
    gold, said = Counter(line["gold"] for line in lines), Counter(line["predicted"] for line in lines)
    rows = []
    for place in sorted(gold.keys() | said.keys())[:LABELS]:
        shares = [said[place] / len(lines), gold[place] / len(lines)]
        rows.append(Bar(f"option {place + 1}", shares, [f"{said[place]:,}", f"{gold[place]:,}"]))
    return bars("Which option is chosen", rows, "", ("chosen", "right one"), ("", "chosen", "right one"))


def _groups(title: str, names: Iterable[str], right: Floats) -> str:
    groups: dict[str, list[float]] = {}
    for name, hit in zip(names, right.tolist(), strict=True):
        groups.setdefault(name, []).append(hit)
    rows = [(name, int(sum(some)), int(len(some) - sum(some))) for name, some in sorted(groups.items())]
    return stacked(title, rows)


def spans(lines: Sequence[Json]) -> list[str]:
    """A piece of a passage, or none of it (version 2.0)."""
    second = any("null_odds" in line for line in lines)
    counted = metric.score_questions(
        [line["gold"] for line in lines], [line["predicted"] for line in lines], 1 + second
    )
    scores = floats(line.get("score") for line in lines)
    asked = (found[0].lower() if (found := WORDS.search(line["question"])) else "other" for line in lines)
    drawn = [
        _scores("By question word", asked, counted),
        _scores("By length of the answer", map(_length, lines), counted),
    ]
    if second:
        drawn.append(_answered(lines, counted.exact))

    def show(number: int) -> Shown:
        line = lines[number]
        context, start, end = line["context"], line.get("start"), line.get("end")
        marks = []
        if start is not None and end is not None:
            marks = [(start, end, "" if counted.exact[number] else "wrong")]
        gold = line["gold"]
        if not marks and gold and (at := context.find(gold[0])) >= 0:
            marks = [(at, at + len(gold[0]), "gold")]
        wanted = "<br>".join(head(text, 120) for text in list(dict.fromkeys(gold))[:3]) or "<i>no answer</i>"
        said = head(line["predicted"], 160) if line["predicted"] else "<i>no answer</i>"
        return f"<b>{head(line['question'], 200)}</b><br>{around(context, marks)}", wanted, said

    return [
        *_section("Which questions", drawn),
        *_section("How sure it is", reliability(scores, counted.exact)),
        *cases(scores, np.where((counted.f1 >= 0.5) & (counted.exact < 1), np.nan, counted.exact), show),
    ]


def _length(line: Json) -> str:
    if not line["gold"]:
        return "no answer"
    words = len(line["gold"][0].split())
    return next((name for most, name in LENGTHS if words <= most), "over 20")


def _scores(title: str, names: Iterable[str], counted: metric.QuestionScores) -> str:
    """Mean F1 and exact match of groups of questions."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    order = [name for _, name in LENGTHS] + ["over 20"]
    named = sorted(groups, key=lambda name: (order.index(name) if name in order else -1, -len(groups[name])))
    rows = []
    for name in named:
        f1, exact = (float(each[groups[name]].mean()) for each in (counted.f1, counted.exact))
        rows.append(Bar(name, [f1, exact], [percent(f1, 1), percent(exact, 1), f"{len(groups[name]):,}"]))
    return bars(title, rows, "", ("F1", "exact"), ("", "F1", "exact", "questions"))


def _answered(lines: Sequence[Json], exact: Floats) -> str:
    """Whether the model speaks where it should and is silent where it should."""
    table: Counter[tuple[bool, str]] = Counter()
    for line, hit in zip(lines, exact.tolist(), strict=True):
        said = "no answer" if not line["predicted"] else "right answer" if hit else "another answer"
        table[bool(line["gold"]), said] += 1
    columns = ("right answer", "another answer", "no answer")
    rows = []
    for has, name in ((True, "has an answer"), (False, "has none")):
        total = sum(table[has, said] for said in columns) or 1
        rows.append([name, *(f"{table[has, said]:,} · {percent(table[has, said] / total)}" for said in columns)])
    rows[1][1] = "–"
    return caption("Answer or not", "rows: the question; columns: what the model gives") + html_table(
        ["", *columns], [[safe(cell) for cell in row] for row in rows], [1, 2, 3]
    )


def _section(title: str, inside: Sequence[str]) -> list[str]:
    return [f"<h2>{safe(title)}</h2>", cards(inside)] if inside else []
