"""What `bertree.advise` returns, and how a candidate is described."""

import math
import shlex
from dataclasses import dataclass

from bertree.advice.candidates import AdviceCandidate, TrialRow
from bertree.advice.knowledge import Request, Rule, knowledge
from bertree.files.formats import Json
from bertree.report.formats import byte_size, digits
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
