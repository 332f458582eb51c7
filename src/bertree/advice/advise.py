"""Which model to take and how to get there, for a task and limits: `bertree.advise`.

With data there is a short trial: a head on frozen features of each model, trained on more and more examples. It runs
the commands that the advice prints: `finetune --frozen` on a part of the examples, always scored on the same held-out
examples. For similarities, the vectors are compared without training.
"""

import math
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import torch

from bertree.advice.candidates import (
    AdviceCandidate,
    CandidateModel,
    Speeds,
    Trial,
    TrialRow,
    make_candidates,
    read_folder,
    rule_applies,
    rule_concerns,
    student_of,
)
from bertree.advice.knowledge import Knowledge, Request, TaskKind, knowledge, parse_count, read_request
from bertree.advice.result import Advice, advice_page
from bertree.comparison.timing import processor
from bertree.console import Bar, bar, note, notes_shown, say, showing, status
from bertree.embeddings.evaluate import evaluate_embeddings
from bertree.errors import UserError, counted
from bertree.files.atomic import refuse_other, write_atomically
from bertree.finetuning.finetune import finetune
from bertree.inference.load import choose_device
from bertree.model.presets import DEFAULT, PRESETS
from bertree.report.formats import duration
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task

CHOICES, TO_FETCH = 3, 2


def advise(
    *,
    task: str,
    examples: int | str | None = None,
    latency: str | None = None,
    memory: str | None = None,
    length: int = 128,
    pairs: int | str | None = None,
    card: float | None = None,
    data: str | Path | None = None,
    models: Sequence[str | Path] = (),
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    device: str = "auto",
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Advice:
    """Say which model to take for a task, and how: three choices that meet the limits, with size, latency on this
    machine, the score to be expected and its source, the commands, and why the others were not taken.

    `task` is a kind (classification, pair-classification, similarity, search, tagging, questions, choice) or a task of
    `finetune`. `examples` are labeled ones; `latency` ("20ms") is that of one text of `length` tokens, `memory`
    ("500MB") that of weights and one text, `card` a GPU's GiB for training, `pairs` how many pairs are compared.
    `models` are folders to consider besides the bundled model. With `data`, a file of labeled examples, the models'
    features are tried out on it; `text`, `pair` and `label` name its columns. `out` is a page (.html) to write.

    >>> advice = bertree.advise(task="classification", examples=5000, latency="200ms", memory="60MB")
    >>> [advice.commands(choice) for choice in advice.choices]
    """
    facts = knowledge()
    page = None if out is None else Path(out)
    if page is not None:
        if page.suffix != ".html":
            raise UserError(f"`out={out}`: must end in .html")
        refuse_other(page)
    with showing(progress):
        kind = facts.kind(task)
        pairs_of_texts = task == kind and "pair" in facts.tasks[kind].columns
        columns = {"text": text, "pair": pair or ("pair" if pairs_of_texts else None), "label": label}
        if data is None and any((text, pair, label)):
            raise UserError("`text`, `pair` and `label` name columns of `data`; give it")
        entry = facts.tasks[kind]
        if data is not None:
            count = count_examples(entry, task if task != kind else entry.verb, Path(data), columns)
            if examples is not None and count < parse_count("examples", examples):
                raise UserError(f"`examples={examples}`: {data} has {count:,}; leave it out, or give more data")
            examples = count if examples is None else examples
        if examples is None and entry.labeled:
            raise UserError(f"`examples`: say how many labeled examples of {task} there are, or give `data`")
        request = read_request(facts, task, examples or 0, length, latency, memory, pairs, card)
        on = choose_device(device)
        encoders, speeds = _read_encoders(facts, request, models, on)
        if speeds.busy:
            note(f"{speeds.load:.1f} programs share each core: latencies are the time of the processor, not of a clock")
        tried = [] if data is None else try_out(request, [e for e in encoders if e.folder], Path(data), columns, speeds)
        best = {row.model: row for row in tried}
        with status("timing models"):
            ranked = _rank(facts, request, encoders, speeds, best)
    here = [candidate for candidate in ranked if candidate.encoder.folder]
    choices = tuple(candidate for candidate in here if candidate.meets)[:CHOICES]
    to_fetch = _to_fetch(ranked, choices)
    allowed = [candidate for candidate in here if not candidate.why_not]
    nearest = None if choices else min(allowed, key=lambda each: math.prod(each.misses.values()), default=None)
    shown = [*choices, *to_fetch, *([nearest] if nearest else [])]
    others = [candidate for candidate in _one_of_a_member(ranked) if candidate not in shown]
    advice = Advice(
        request=request,
        choices=choices,
        to_fetch=to_fetch,
        nearest=nearest,
        others=tuple((candidate, _why_not(candidate, choices)) for candidate in others),
        rules=tuple(
            rule
            for rule in facts.rules
            if rule_applies(rule.when, request) and any(rule_concerns(rule.when, candidate) for candidate in shown)
        ),
        trial=tuple(tried),
        metric=facts.tasks[kind].metric if data is None else "score on your data",
        device=processor(torch.device(on)) + (", processor time" if speeds.busy else ""),
        columns="".join(f" --{name} {shlex.quote(value)}" for name, value in columns.items() if value),
        data=facts.tasks[kind].data if data is None else str(data),
    )
    if page is not None:
        write_atomically(page, advice_page(advice))
    return advice


def _read_encoders(
    facts: Knowledge, request: Request, models: Sequence[str | Path], device: str
) -> tuple[list[CandidateModel], Speeds]:
    """Return the models that are here, timed, and the members of the family."""
    loaded = [read_folder(name) for name in dict.fromkeys([DEFAULT, *map(str, models)])]
    names = [encoder.name for encoder, _ in loaded]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"`models`: two are called {twice}; rename a folder")
    speeds = Speeds(loaded[0][1], request, device)
    students = {way.student for way in facts.ways if request.kind in way.tasks}
    with status(f"timing {counted(len(loaded), 'model')} and their students"):
        for encoder, model in loaded:
            if request.length <= encoder.longest:
                speeds.of(model.architecture, model)
            for student in students:
                if (network := student_of(encoder.architecture, student)) is not None:
                    speeds.of(network)
    members = [
        CandidateModel(name, "", a, a.longest_input)
        for name in facts.members
        if name not in names and (a := PRESETS[name].architecture)
    ]
    return [*(encoder for encoder, _ in loaded), *members], speeds


def _rank(
    facts: Knowledge, request: Request, encoders: Sequence[CandidateModel], speeds: Speeds, trial: Trial
) -> list[AdviceCandidate]:
    """Return all candidates, the best first. Members that may meet the limits are timed; of those that are closer than
    the knowledge can tell apart, the faster comes first."""
    for candidate in make_candidates(facts, request, encoders, speeds, trial):
        slow = candidate.latency_ms > facts.timed_longest * request.latency_ms
        excluded = candidate.why_not or set(candidate.misses) - {"latency"}
        if candidate.expected and not (candidate.timed or slow or excluded):
            speeds.of(candidate.runs)
    left = list(make_candidates(facts, request, encoders, speeds, trial))
    ranked: list[AdviceCandidate] = []
    while left:
        best = max(candidate.worth for candidate in left)
        ranked.append(
            min(
                (candidate for candidate in left if candidate.worth >= best - facts.tie_points),
                key=lambda candidate: candidate.latency_ms,
            )
        )
        left.remove(ranked[-1])
    return ranked


def _to_fetch(ranked: Sequence[AdviceCandidate], choices: Sequence[AdviceCandidate]) -> tuple[AdviceCandidate, ...]:
    """Return members that meet the limits and should be better than all choices, each in its best way."""
    best = choices[0].worth if choices else -math.inf
    members = {
        candidate.encoder.name: candidate
        for candidate in reversed(ranked)
        if not candidate.encoder.folder and candidate.meets and candidate.expected
    }
    better = [candidate for candidate in members.values() if candidate.worth > best]
    return tuple(sorted(better, key=lambda candidate: -candidate.worth)[:TO_FETCH])


def _one_of_a_member(ranked: Sequence[AdviceCandidate]) -> list[AdviceCandidate]:
    """Return all candidates of the models that are here, then the best one of each member."""
    members: dict[str, AdviceCandidate] = {}
    for candidate in ranked:
        if not candidate.encoder.folder:
            members.setdefault(candidate.encoder.name, candidate)
    return [*(candidate for candidate in ranked if candidate.encoder.folder), *members.values()]


def _why_not(candidate: AdviceCandidate, choices: Sequence[AdviceCandidate]) -> str:
    """Say why a candidate was not taken."""
    if candidate.misses:
        return "; ".join(f"{name} {times:.2g} times the limit" for name, times in candidate.misses.items())
    if candidate.why_not:
        return candidate.why_not
    if candidate.expected is None:
        return "no measured row says what it scores"
    if not candidate.encoder.folder:
        return "its weights are not here, and others are better"
    if choices and candidate.worth < choices[-1].worth:
        return f"expected {choices[0].worth - candidate.worth:.1f} points below the first choice"
    return "as good, but slower"


SHARES = (0.125, 0.25, 0.5, 1.0)  # of the sample
SAMPLE, LEAST = 1500, 64  # training examples
HELD_OUT, MOST_HELD_OUT = 400, 0.3  # scored examples, and their largest share
Columns = Mapping[str, str | None]


def count_examples(kind: TaskKind, task: str, data: Path, columns: Columns) -> int:
    """Return the training examples of a file or folder of a task."""
    named = make_task(task, **columns) if kind.columns else make_task(task)
    splits = TaskFiles.of(data).splits(named)
    if "train" not in splits:
        raise UserError(f"{data}: has no training examples; give a file of labeled examples")
    return sum(1 for example in named.read(splits["train"]) if getattr(example, "gold", True) is not None)


def try_out(
    request: Request, encoders: Sequence[CandidateModel], data: Path, columns: Columns, speeds: Speeds
) -> list[TrialRow]:
    """Return the scores of each model with shares of the examples."""
    if request.kind not in ("classification", "pair-classification", "similarity"):
        note(f"`data`: {request.kind} is not tried out, because no head on frozen features is solved for it")
        return []
    if request.kind == "similarity":
        with bar(f"comparing the pairs of {data.name}", len(encoders)) as progress:
            return [_vectors(encoder, data, columns, progress) for encoder in encoders]
    held_out = min(MOST_HELD_OUT, HELD_OUT / request.examples)
    sample = min(SAMPLE, int(request.examples * (1 - held_out)))
    if sample < LEAST:
        raise UserError(f"{data}: has {request.examples} examples; a trial needs {round(LEAST / (1 - MOST_HELD_OUT))}")
    sizes = [int(share * sample) for share in SHARES]
    texts = sum(sizes) + len(sizes) * round(held_out * request.examples)
    seconds = sum(texts * speeds.of(encoder.architecture) / 1000 for encoder in encoders)
    say(f"trying out {counted(len(encoders), 'model')} on {data}: at most about {duration(seconds)}")
    rows, task = [], "classification" if request.task == request.kind else request.task
    with bar("trying out", len(encoders) * len(sizes)) as progress:
        for encoder, examples in product(encoders, sizes):
            with tempfile.TemporaryDirectory() as folder, showing(False), notes_shown(False):
                run = finetune(
                    encoder.folder,
                    task=task,
                    data=data,
                    out=f"{folder}/run",
                    frozen=True,
                    text=columns["text"],
                    pair=columns["pair"],
                    label=columns["label"],
                    examples=examples,
                    held_out=held_out,
                )
                metrics = run.metrics
                progress.advance()
            score, (low, high) = metrics[metrics["metric"]], metrics["intervals"][metrics["metric"]]
            rows.append(TrialRow(encoder.name, "frozen", examples, 100 * score, (100 * low, 100 * high)))
    return rows


def _vectors(encoder: CandidateModel, data: Path, columns: Columns, progress: Bar) -> TrialRow:
    with showing(False):
        text, pair, label = columns["text"], columns["pair"], columns["label"]
        evaluated = evaluate_embeddings(encoder.folder, data=data, text=text, pair=pair, label=label)
        scores = evaluated.metrics["encoders"][0]
    low, high = scores["average_interval"]["spearman"]["cosine"]
    progress.advance()
    return TrialRow(encoder.name, "vectors", 0, scores["average"]["spearman"]["cosine"], (low, high))
