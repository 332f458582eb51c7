"""What `bertree.advise` returns, and its HTML page: choices with commands, learning curves of the trial, rules, other
candidates."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertree.advice.candidates import AdviceCandidate, TrialRow
from bertree.advice.knowledge import Request, Rule, knowledge
from bertree.files.formats import Json
from bertree.report.curves import Series, curve_svg
from bertree.report.formats import byte_size, digits
from bertree.report.html import render
from bertree.report.scales import Axis
from bertree.report.tables import Block, Cell, Lines, PageTable, Piece, Section
from bertree.result_table import ResultTable, ShownAsTable


@dataclass(frozen=True, kw_only=True, repr=False)
class Advice(ShownAsTable):
    """What to use: `choices` are available, the best first; `to_fetch` would be better, but their weights are not here.
    Without a choice, `nearest` is the candidate that exceeds the limits least."""

    request: Request
    choices: tuple[AdviceCandidate, ...]
    to_fetch: tuple[AdviceCandidate, ...]
    nearest: AdviceCandidate | None
    others: tuple[tuple[AdviceCandidate, str], ...]  # with the reasons against them
    rules: tuple[Rule, ...]  # that apply here
    trial: tuple[TrialRow, ...]
    metric: str  # of expected scores
    device: str
    columns: str
    data: str

    def commands(self, candidate: AdviceCandidate) -> list[str]:
        """Return the commands that lead to a candidate."""
        facts, request = knowledge(), self.request
        kind = facts.tasks[request.kind]
        epochs = next((f" epochs={row.epochs}" for row in facts.epochs if request.examples <= row.most), "")
        words = {
            "model": shlex.quote(candidate.encoder.folder or candidate.encoder.name),
            "task": kind.verb if request.task == request.kind else request.task,
            "data": shlex.quote(self.data),
            "columns": self.columns,
            "out": f"my-{request.kind}",
            "epochs": epochs,
        }
        return [command.format(**words) for command in candidate.way.commands]

    def as_json(self) -> Json:
        """Return plain values."""

        def plain(candidate: AdviceCandidate) -> Json:
            expected = candidate.expected
            return {
                "model": candidate.encoder.name,
                "folder": candidate.encoder.folder or None,
                "way": candidate.way.name,
                "weight_bytes": candidate.weight_bytes,
                "memory_bytes": candidate.memory,
                "training_gib": round(candidate.training_gib, 3),
                "latency_ms": round(candidate.latency_ms, 3),
                "timed": candidate.timed,
                "expected": expected and {**vars(expected), "score": round(expected.score, 1)},
                "points_of_rules": candidate.points,
                "misses": {name: round(times, 3) for name, times in candidate.misses.items()},
                "commands": self.commands(candidate),
            }

        limits = {key: None if value == math.inf else value for key, value in vars(self.request).items()}
        return {
            "request": limits,
            "choices": [plain(candidate) for candidate in self.choices],
            "to_fetch": [plain(candidate) for candidate in self.to_fetch],
            "nearest": self.nearest and plain(self.nearest),
            "others": [{**plain(candidate), "why_not": reason} for candidate, reason in self.others],
            "rules": [
                {key: getattr(rule, key) for key in ("name", "text", "source", "ours", "figures")}
                for rule in self.rules
            ],
            "trial": [row._asdict() for row in self.trial],
            "metric": self.metric,
            "device": self.device,
        }

    def _result_table(self) -> ResultTable:
        rows = [
            (candidate.name, ", ".join(describe_costs(candidate)))
            for candidate in self.choices or ([self.nearest] if self.nearest else [])
        ]
        return ResultTable(f"advice: {self.request.describe()}", rows)


def describe_costs(candidate: AdviceCandidate) -> list[str]:
    """Return size, memory, latency and memory of training in words."""
    how = "measured" if candidate.timed else "from its operations"
    parts = [
        f"{byte_size(candidate.weight_bytes)} of weights",
        f"{byte_size(candidate.memory)} in memory",
        f"{digits(candidate.latency_ms)} ms ({how})",
    ]
    return parts + ([f"training {digits(candidate.training_gib)} GiB"] if candidate.training_gib else [])


def describe_expected(candidate: AdviceCandidate, metric: str) -> str:
    """Return the expected score in words."""
    expected = candidate.expected
    if expected is None:
        return "no measured row says what it scores"
    return f"{expected.score:.1f} {metric}: {expected.source}"


VERDICTS = {"holds": "good", "contradicted": "bad"}
HEAD = ("what, and the score to expect", "costs", "commands")
RULES = ("rule", "source", "our own studies")


def advice_page(advice: Advice) -> str:
    """Return the page."""
    fetch = "They meet the limits too. Put the weights into a folder of that name here."
    nearest = [advice.nearest] if advice.nearest else []
    star = "*: from the number of its operations, not measured."
    sections = [
        Section("Choices", blocks=_choices(advice.choices, advice, "Their weights are here; the best comes first.")),
        Section("Nearest", blocks=_choices(nearest, advice, "It exceeds the limits least.")),
        Section("Better, but not here", blocks=_choices(advice.to_fetch, advice, fetch)),
        Section(f"Tried out on {advice.data}", cards=_trial(advice)),
        Section("Rules that apply", blocks=_table(RULES, _rules(advice))),
        Section("Why not the others", blocks=[*_others(advice), star] if advice.others else []),
    ]
    return render(
        "study",
        title="advice",
        heading=advice.choices[0].name if advice.choices else "Nothing here meets the limits",
        under=f"{advice.request.describe()}; {advice.device}",
        state=None,
        tiles=[],
        sections=[part for part in sections if part.blocks or part.cards],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Cell]], numbers: Sequence[int] = ()) -> list[Block]:
    return [PageTable(head, rows, kind="cases", numbers=numbers)] if rows else []


def _choices(candidates: Sequence[AdviceCandidate], advice: Advice, under: str) -> list[Block]:
    rows = [_choice(candidate, advice) for candidate in candidates]
    return [*_table(HEAD, rows), under] if rows else []


def _choice(candidate: AdviceCandidate, advice: Advice) -> list[Cell]:
    how = " measured" if candidate.timed else " from its operations"
    costs: Lines = [
        [Piece(f"{digits(candidate.latency_ms)} ms", "strong"), Piece(how, "small")],
        [Piece(f"{byte_size(candidate.memory)} in memory")],
        [Piece(f"{byte_size(candidate.weight_bytes)} of weights", "small")],
        *([Piece(f"{name}: {times:.2g} times the limit", "bad")] for name, times in candidate.misses.items()),
    ]
    score = Piece(describe_expected(candidate, advice.metric), "small")
    name: Lines = [[Piece(candidate.encoder.name, "strong"), Piece(f": {candidate.way.title}")], [score]]
    return [name, costs, [[Piece(command, "code")] for command in advice.commands(candidate)]]


def _trial(advice: Advice) -> list[Block]:
    """Return the learning curves, and their points with intervals."""
    curves = []
    for name in dict.fromkeys(row.model for row in advice.trial):
        points = np.array([(row.examples, row.score) for row in advice.trial if row.model == name], np.float64)
        curves.append(Series(name=name, x=points[:, 0], y=points[:, 1], style="dots"))
    title = "Score of frozen features by the number of training examples"
    several = any(len(curve.x) > 1 for curve in curves)
    charts: list[Block] = [curve_svg(title, curves, x_label="examples", x=Axis(log=None))] if several else []
    rows = [
        [row.model, row.way, f"{row.examples:,}", f"{row.score:.1f}", "{:.1f} to {:.1f}".format(*row.interval)]
        for row in advice.trial
    ]
    return charts + _table(["model", "way", "examples", "score", "95 %"], rows, numbers=(2, 3, 4))


def _rules(advice: Advice) -> list[list[Cell]]:
    return [
        [
            rule.text,
            rule.source,
            [[Piece(rule.ours, VERDICTS.get(rule.ours, "strong"))], [Piece(rule.figures, "small")]],
        ]
        for rule in advice.rules
    ]


def _others(advice: Advice) -> list[Block]:
    rows: list[list[Cell]] = [
        [
            candidate.name,
            f"{digits(candidate.latency_ms)}{'' if candidate.timed else ' *'}",
            byte_size(candidate.memory),
            f"{candidate.expected.score:.1f}" if candidate.expected else "–",
            reason,
        ]
        for candidate, reason in advice.others
    ]
    return _table(["what", "ms", "memory", "expected", "why not"], rows, numbers=(1, 2, 3))
