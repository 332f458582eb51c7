"""The candidates of `bertree advise`: a model and a way to use it, with its size, its latency here and a likely score.

Latency is measured with the network that will be used in the end, on one text of the requested length. A student that
does not exist yet, or a preset without weights here, is timed with random weights: these take the same time.
"""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bertree.advice.knowledge import Conditions, Knowledge, MeasuredRows, Request, Scored, Way
from bertree.comparison.measure import weight_bytes
from bertree.comparison.timing import SENTENCES, Runner, TimedModel
from bertree.config.names import resolve_model_path
from bertree.errors import UserError
from bertree.inference.load import load, make_model, random_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.model import cost
from bertree.model.architecture import Architecture
from bertree.model.presets import PRESETS

SECONDS, MOST_RUNS, WARM_UP = 0.6, 12, 2  # of timing one network
BUSY = 1.2  # load average per core above which the machine counts as busy


@dataclass(frozen=True)
class CandidateModel:
    """A model folder, or a member of the family whose weights are not here."""

    name: str
    folder: str  # "" if its weights are not here
    architecture: Architecture
    longest: int  # tokens of the longest text it reads
    file_bytes: int = 0


@dataclass(frozen=True)
class Expected:
    """A score in percent, and where it comes from."""

    score: float
    source: str
    inferred: bool  # not measured with this way and this number of examples


@dataclass(frozen=True, kw_only=True)
class AdviceCandidate:
    """A model, a way, and what it costs."""

    encoder: CandidateModel
    way: Way
    runs: Architecture  # the network that is used in the end
    weight_bytes: int
    memory: int  # bytes for float32 weights and one text
    training_gib: float  # 0: nothing is trained
    latency_ms: float
    timed: bool  # False: latency is estimated from the number of operations
    expected: Expected | None = None
    points: float = 0.0  # that rules add to the score
    misses: dict[str, float] = field(default_factory=dict)  # limit -> how many times it is exceeded
    why_not: str = ""  # why it is excluded, apart from limits

    @property
    def name(self) -> str:
        """Model and way."""
        return f"{self.encoder.name}: {self.way.title}"

    @property
    def meets(self) -> bool:
        """Whether it meets all limits and no rule refuses it."""
        return not self.misses and not self.why_not

    @property
    def worth(self) -> float:
        """The score by which candidates are ranked."""
        return self.expected.score + self.points if self.expected else -math.inf


def read_folder(name: str | Path) -> tuple[CandidateModel, Model]:
    """Load a model that the user has named; refuse one without weights or tokenizer."""
    if str(name) in PRESETS and not resolve_model_path(name).is_dir():
        raise UserError(f"{name}: is a preset, which has random weights; `models` takes folders with weights")
    model = load(name)
    if model.tokenizer is None:
        raise UserError(f"{name}: has no tokenizer, so it reads no texts; put its files into the folder")
    path = resolve_model_path(name)
    size, _ = weight_bytes(TimedModel(str(name), model, path))
    return CandidateModel(Path(name).name or str(name), str(name), model.architecture, model.max_length, size), model


class TrialRow(NamedTuple):
    """What a model scored on the user's own data, in percent, with its 95 % interval."""

    model: str
    way: str
    examples: int
    score: float
    interval: tuple[float, float]


Trial = Mapping[str, TrialRow]  # model -> its row with the most examples


class Speeds:
    """Latencies of networks on this machine, each measured once. On a busy machine, where elapsed time depends on other
    programs, processor time divided by the number of threads is measured instead."""

    def __init__(self, base: Model, request: Request, device: str) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.load = os.getloadavg()[0] / cores if hasattr(os, "getloadavg") else 0.0
        self.busy = self.load > BUSY and torch.device(device).type == "cpu"
        self._base, self._length, self._device = base, request.length, torch.device(device)
        self._known: dict[Architecture, float] = {}

    def measured(self, a: Architecture) -> bool:
        """Whether a network has been timed."""
        return a in self._known

    def of(self, a: Architecture, model: Model | None = None) -> float:
        """Return the milliseconds of one text, from the text to the hidden states: the median of some runs."""
        if a not in self._known:
            self._known[a] = self._measure(a, model)
        return self._known[a]

    @cached_property
    def _rate(self) -> float:
        """Milliseconds of an operation."""
        return self.of(self._base.architecture, self._base) / self._flops(self._base.architecture)

    def guess(self, a: Architecture) -> float:
        """Return the milliseconds that its operations take at the rate of the bundled model."""
        return self._rate * self._flops(a)

    def _flops(self, a: Architecture) -> float:
        return cost.forward_flops(a, self._length) * float(self._length)

    def _measure(self, a: Architecture, model: Model | None) -> float:
        tokenizer = self._base.required_tokenizer
        if model is None:
            model = random_model(a.with_values({"vocab_size": max(a.vocab_size, tokenizer.size)}), {})
        else:
            tokenizer = model.required_tokenizer
        cut = make_model(Contents(model.architecture, model.network, tokenizer, max_length=self._length))
        words = " ".join(SENTENCES).split()
        text = " ".join((words * (self._length // len(words) + 1))[: self._length])  # a word has a token or more
        runner = Runner(
            TimedModel(a.body, cut), [text], self._device, _processor_time if self.busy else time.perf_counter
        )
        for _ in range(WARM_UP):
            runner.run_one(0)
        runs: list[float] = []
        began = time.perf_counter()
        while not runs or (len(runs) < MOST_RUNS and time.perf_counter() - began < SECONDS):
            runs.append(runner.run_one(0)[1])
        return 1000 * float(np.median(runs))


def _processor_time() -> float:
    return time.process_time() / torch.get_num_threads()


def make_candidates(
    facts: Knowledge, request: Request, encoders: Sequence[CandidateModel], speeds: Speeds, trial: Trial
) -> Iterator[AdviceCandidate]:
    """Yield a candidate for each model and each way that is possible for the task."""
    for encoder in encoders:
        for way in facts.ways:
            runs = student_of(encoder.architecture, way.student)
            if request.kind not in way.tasks or runs is None or (way.student in PRESETS and not encoder.folder):
                continue
            trained, parameters = way.least > 0, cost.parameters(runs).total
            training = cost.training_bytes(encoder.architecture, facts.batch, request.length) if way.trains else 0
            yield _with_limits(
                AdviceCandidate(
                    encoder=encoder,
                    way=way,
                    runs=runs,
                    weight_bytes=(not trained and encoder.file_bytes) or 4 * parameters,
                    memory=cost.inference_bytes(runs, 1, request.length),
                    training_gib=training / cost.GIB,
                    latency_ms=way.passes * (speeds.of(runs) if speeds.measured(runs) else speeds.guess(runs)),
                    timed=speeds.measured(runs),
                ),
                facts,
                request,
                trial,
            )


def student_of(a: Architecture, student: str) -> Architecture | None:
    """Return the network that a way runs in the end; None if it cannot be built from this one."""
    if student == "half":
        return a.with_values({"layers": a.layers // 2}) if a.layers > 1 else None
    return PRESETS[student].architecture.with_values({"vocab_size": a.vocab_size}) if student else a


def _with_limits(candidate: AdviceCandidate, facts: Knowledge, request: Request, trial: Trial) -> AdviceCandidate:
    """Return a candidate with the limits it exceeds, the points that rules give it, and why it is excluded."""
    misses = {
        name: value / limit
        for name, value, limit in (
            ("latency", candidate.latency_ms, request.latency_ms),
            ("memory", candidate.memory, request.memory),
            ("card", candidate.training_gib, facts.card_share * request.card),
        )
        if value > limit
    }
    why_not, way, examples = "", candidate.way, request.examples
    if request.length > candidate.encoder.longest:
        misses["length"] = request.length / candidate.encoder.longest
    if examples < way.least:
        why_not = f"needs {way.least} examples or more"
    elif way.most and examples > way.most:
        why_not = f"is for {way.most:,} examples or fewer"
    points = 0.0
    for rule in facts.rules:
        if rule_applies(rule.when, request) and rule_concerns(rule.when, candidate):
            points += rule.points
            why_not = why_not or (f"refused by the rule {rule.name}" if rule.refuse else "")
    return replace(
        candidate, misses=misses, why_not=why_not, points=points, expected=expected(facts, request, candidate, trial)
    )


def rule_applies(when: Conditions, request: Request) -> bool:
    """Whether a rule's conditions on the request hold."""
    return (
        (not when.tasks or request.kind in when.tasks)
        and (not when.examples_below or request.examples < when.examples_below)
        and request.pairs >= when.pairs_above
        and request.length > when.length_above
        and (not when.memory_below_mb or request.memory < 1e6 * when.memory_below_mb)
        and (not when.latency_below or request.latency_ms < when.latency_below)
    )


def rule_concerns(when: Conditions, candidate: AdviceCandidate) -> bool:
    """Whether a rule's conditions on the way and the model hold."""
    by_way = not when.ways or candidate.way.name in when.ways
    return by_way and (not when.members or candidate.encoder.name in when.members)


def expected(facts: Knowledge, request: Request, candidate: AdviceCandidate, trial: Trial) -> Expected | None:
    """Return the score that a candidate should reach, from the nearest measured row; None if there is none.

    If the row has another number of examples or another way, its score is shifted by the difference that this makes for
    the base model."""
    name, way, examples = candidate.encoder.name, candidate.way.name, request.examples
    if tried := trial.get(name):  # with all examples of the user, so that only the way may differ
        row, own_way = Scored(name, examples, tried.score), tried.way
        source = f"measured on your data ({own_way}, {tried.examples:,} examples: {row.score:.1f})"
    else:
        nearest = _nearest_row(facts, request, candidate)
        if nearest is None:
            return None
        row, rows = nearest
        source, own_way = f"{row.model}, {row.examples:,} examples: {row.score:g} ({rows.source})", rows.way
        base = trial.get(facts.base)
        usual = facts.curve(request.kind, base.way, base.examples) if base else None
        if base and usual is not None:  # shift by how much easier the user's task is for the base model
            row = replace(row, score=row.score + base.score - usual)
    if (way, examples) == (own_way, row.examples):
        return Expected(row.score, source, name not in trial and row.model != name)
    target, measured = facts.curve(request.kind, way, examples), facts.curve(request.kind, own_way, row.examples)
    if target is None or measured is None:
        near = way == own_way and row.examples <= facts.reach * max(1, examples)
        return Expected(row.score, source, True) if near else None
    return Expected(max(0.0, min(100.0, row.score + target - measured)), f"inferred from {source}", True)


def _nearest_row(facts: Knowledge, request: Request, candidate: AdviceCandidate) -> tuple[Scored, MeasuredRows] | None:
    """Return the row of a model with the nearest way and number of examples. For a folder without rows, use those of
    the model that is nearest in size."""
    of_kind = [rows for rows in facts.rows if rows.task == request.kind]
    names = {row.model for rows in of_kind for row in rows.scores}
    if candidate.encoder.name not in names and not candidate.encoder.folder:
        return None
    name = candidate.encoder.name
    if name not in names:
        size = cost.parameters(candidate.encoder.architecture).total
        sized = {other: value for other, value in _sizes(facts).items() if other in names}
        if not sized:
            return None
        name = min(sized, key=lambda other: abs(math.log(sized[other] / size)))
    ways = list(dict.fromkeys([candidate.way.name, *(rows.way for rows in of_kind)]))
    rows = next(rows for way in ways if (rows := facts.scores(request.kind, way, name)))
    return min(rows, key=lambda pair: abs(math.log(max(1, pair[0].examples) / max(1, request.examples))))


def _sizes(facts: Knowledge) -> dict[str, float]:
    return {**facts.sizes, **{name: float(cost.parameters(PRESETS[name].architecture).total) for name in facts.members}}
