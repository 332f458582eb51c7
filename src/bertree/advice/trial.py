"""A short trial on the user's data: a head on frozen features of each model, trained on more and more examples.

It runs the commands that the advice prints: `finetune --frozen` on a part of the examples, always scored on the same
held-out examples. For similarities, the vectors are compared without training.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertree.advice.candidates import CandidateModel, Speeds, TrialRow
from bertree.advice.knowledge import Request, TaskKind
from bertree.console import Bar, bar, note, notes_shown, say, showing
from bertree.embeddings.evaluate import evaluate_embeddings
from bertree.errors import UserError, counted
from bertree.finetuning.finetune import finetune
from bertree.report.formats import duration
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import make_task

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
    with bar("trying out", len(encoders) * len(sizes)) as progress:
        return [
            _frozen(encoder, request, data, columns, examples, held_out, progress)
            for encoder in encoders
            for examples in sizes
        ]


def _frozen(
    encoder: CandidateModel,
    request: Request,
    data: Path,
    columns: Columns,
    examples: int,
    held_out: float,
    progress: Bar,
) -> TrialRow:
    task = "classification" if request.task == request.kind else request.task
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
        metric = run.metrics["metric"]
        low, high = run.metrics["intervals"][metric]
        progress.advance()
        return TrialRow(encoder.name, "frozen", examples, 100 * run.metrics[metric], (100 * low, 100 * high))


def _vectors(encoder: CandidateModel, data: Path, columns: Columns, progress: Bar) -> TrialRow:
    with showing(False):
        text, pair, label = columns["text"], columns["pair"], columns["label"]
        evaluated = evaluate_embeddings(encoder.folder, data=data, text=text, pair=pair, label=label)
        scores = evaluated.metrics["encoders"][0]
    low, high = scores["average_interval"]["spearman"]["cosine"]
    progress.advance()
    return TrialRow(encoder.name, "vectors", 0, scores["average"]["spearman"]["cosine"], (low, high))
