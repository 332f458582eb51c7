"""Units -> packed batches with labels, what a network makes of units, and the mean of what several models make of them.

Labels are in the layout that the head's loss reads. Logits and hidden states do not depend on how the units are
batched.

For `evaluate(ensemble=True)` the mean is taken over the probabilities of classes, options and tags, the numbers of a
regression, and the logits of a span's first and last token. A CRF gives no probabilities, so each of its models has one
vote for each word. All models read the same examples, each with its own tokenizer; only spans need the same tokens.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.errors import UserError
from bertree.model.network import Network
from bertree.objectives.embedding import pair_logits, vector_table
from bertree.objectives.supervised import HEAD_KINDS, HeadKind, TaskLabels
from bertree.tasks.metrics import softmax
from bertree.tasks.task import Logits, Task, Unit

TOKENS = {"cpu": 4096, "cuda": 65536}  # computed at once
Autocast = Callable[[], AbstractContextManager[object]]
Advance = Callable[[int], None]  # called with the number of units done
Rows = NDArray[np.float64]
SMALLEST = 1e-30  # replaces smaller probabilities, so that the logarithm is finite
AVERAGED = ("sequence", "token", "choice", "span")  # heads whose predictions can be averaged


def collate(units: Sequence[Unit], head: str, regression: bool = False, special: frozenset[int] | None = None) -> Batch:
    """Pack units into a batch with their labels and, where a teacher has scored them, its scores.

    `special`: also label the next tokens of the texts, except tokens of these ids."""
    kind = HEAD_KINDS[head]
    sequences = [sequence for unit in units for sequence in unit.sequences]
    batch = Batch.pack([s.ids for s in sequences], [s.segments for s in sequences], [s.second for s in sequences])
    counts = [_count(unit, kind) for unit in units]
    answers = _answers(units, counts, kind, regression)
    arrays = {"answers": answers}
    if kind.reads_tokens:
        starts = batch.cu_seqlens[:-1].numpy().astype(np.int64).repeat(counts)
        arrays["chosen"] = np.concatenate([np.asarray(unit.chosen or (), np.int64) for unit in units]) + starts
    width = 0
    if kind.reads_tokens or kind.competing:
        # Where each text of a unit has a label, all rows are as wide as the labels say.
        arrays["cells"], width = _grid(counts, answers.shape[1] if kind.labels == "unit" and answers.ndim == 2 else 0)
    if teacher_logits := _teacher_logits(units, head):
        arrays["teacher_logits"] = np.concatenate(teacher_logits)
    tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in arrays.items()}
    texts = None if special is None else _next_tokens(batch, special)
    orders = len(units[0].sequences) if kind.orders and units else 1
    assert not kind.orders or all(len(unit.sequences) == orders for unit in units), "the same orders in all units"
    return replace(batch, orders=orders, labels=TaskLabels(width=width, texts=texts, **tensors))


def _next_tokens(batch: Batch, special: frozenset[int]) -> PretrainingLabels:
    """Return the tokens whose next one, in the same sequence, is of the text; and what that is."""
    ids, starts = batch.ids.numpy(), batch.cu_seqlens[:-1].numpy()
    predicted = ~np.isin(ids, list(special))
    predicted[starts[starts < len(ids)]] = False
    targets = predicted.nonzero()[0]
    return PretrainingLabels(torch.from_numpy(targets - 1), torch.from_numpy(ids[targets]))


def logit_rows(unit: Unit, head: str) -> int:
    """Return how many rows of scores a head gives for a unit."""
    return HEAD_KINDS[head].rows_per_unit or _count(unit, HEAD_KINDS[head])


def _count(unit: Unit, kind: HeadKind) -> int:
    """Return how many tokens or sequences of a unit the head reads."""
    return len(unit.chosen or ()) if kind.reads_tokens else len(unit.sequences)


def _answers(units: Sequence[Unit], counts: Sequence[int], kind: HeadKind, regression: bool) -> NDArray[Any]:
    if kind.labels == "row":
        rows = [[IGNORED] * n if unit.answer is None else unit.answer for unit, n in zip(units, counts, strict=True)]
        return np.concatenate([np.asarray(row, np.int64) for row in rows])
    unknown = math.nan if regression else (IGNORED, IGNORED) if kind.labels == "span" else IGNORED
    answers = [unknown if unit.answer is None else unit.answer for unit in units]
    return np.array(answers, np.float32 if regression else np.int64)


def _teacher_logits(units: Sequence[Unit], head: str) -> list[NDArray[np.float32]]:
    """Return a teacher's scores of all units, NaN for those it has not scored; empty if there is no teacher."""
    scored = next((unit.teacher_logits for unit in units if unit.teacher_logits is not None), None)
    if scored is None:
        return []
    missing = np.full((1, scored.shape[1]), np.nan, np.float32)
    return [
        missing.repeat(logit_rows(unit, head), 0) if unit.teacher_logits is None else unit.teacher_logits
        for unit in units
    ]


def _grid(counts: Sequence[int], least: int = 0) -> tuple[NDArray[np.int64], int]:
    """Return the cell of each score in a grid of one row per unit, and the width of the grid."""
    width = max(least, max(counts, default=0))
    sizes = np.asarray(counts, np.int64)
    columns = np.arange(sizes.sum()) - (sizes.cumsum() - sizes).repeat(sizes)
    return np.arange(len(counts)).repeat(sizes) * width + columns, width


def batches_by_length(units: Sequence[Unit], tokens: int) -> Iterator[list[int]]:
    """Yield the numbers of units of similar lengths, at most `tokens` at once, the longest units first."""
    sizes = np.array([sum(len(s.ids) for s in unit.sequences) for unit in units], np.int64)
    order = np.argsort(-sizes, kind="stable").tolist()
    rows: list[int] = []
    room = tokens
    for row in order:
        if rows and sizes[row] > room:
            yield rows[::-1]  # shortest first, as the CPU's attention likes them
            rows, room = [], tokens
        rows.append(row)
        room -= int(sizes[row])
    if rows:
        yield rows[::-1]


def inference_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context for inference: bfloat16 on a GPU, where it is much faster."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def logits(
    network: Network,
    head: str,
    units: Sequence[Unit],
    autocast: Autocast = nullcontext,
    advance: Advance = lambda count: None,
) -> list[Logits]:
    """Return one array per unit: a row for its sequence, each chosen token or each option; or the vectors."""

    def head_outputs(hidden_tw: Tensor, batch: Batch) -> Tensor:
        labels = TaskLabels.of(batch)
        if head in ("vector", "compare"):
            vectors_sd = network.vectors(hidden_tw, batch)
            return vectors_sd if head == "vector" else pair_logits(network, vector_table(vectors_sd, labels))
        if head == "beam-span":
            assert labels.chosen is not None
            return network.beam_scores(hidden_tw, labels.chosen, labels.grid)
        scores_mc = network.class_logits(head, hidden_tw, batch, labels.chosen)
        if network.crf is None:
            return scores_mc
        assert labels.cells is not None
        return F.one_hot(network.crf.decode(scores_mc, labels.cells, labels.width), scores_mc.shape[1])

    return _run_batches(network, head, units, head_outputs, autocast, advance)


def text_states(
    network: Network,
    head: str,
    units: Sequence[Unit],
    encode: Callable[[Batch], Tensor],
    autocast: Autocast = nullcontext,
    advance: Advance = lambda count: None,
) -> Logits:
    """Return what a head on whole texts reads, a row for each unit. `encode` computes the hidden states."""
    head_inputs = partial(network.text_states, head)
    return np.concatenate(_run_batches(network, head, units, head_inputs, autocast, advance, encode))


def token_states(network: Network, units: Sequence[Unit], autocast: Autocast = nullcontext) -> list[Logits]:
    """Return the hidden states that a head would read at the chosen tokens of each unit, a row for each token."""

    def head_outputs(hidden_tw: Tensor, batch: Batch) -> Tensor:
        chosen = TaskLabels.of(batch).chosen
        assert chosen is not None
        return hidden_tw[chosen]

    return _run_batches(network, "token", units, head_outputs, autocast, lambda count: None)


def _run_batches(
    network: Network,
    head: str,
    units: Sequence[Unit],
    head_outputs: Callable[[Tensor, Batch], Tensor],
    autocast: Autocast,
    advance: Advance,
    encode: Callable[[Batch], Tensor] | None = None,
) -> list[Logits]:
    device = next(network.parameters()).device
    by_row: dict[int, Logits] = {}
    before = network.training
    network.eval()
    try:
        with torch.no_grad():
            for rows in batches_by_length(units, TOKENS["cuda" if device.type == "cuda" else "cpu"]):
                unlabeled = [units[row]._replace(answer=None, teacher_logits=None) for row in rows]
                batch = collate(unlabeled, head).to(device)
                with autocast():
                    outputs = head_outputs((encode or network)(batch), batch)
                sizes = [logit_rows(unit, head) for unit in unlabeled]
                pieces = np.split(outputs.float().cpu().numpy(), np.cumsum(sizes)[:-1])
                by_row.update(zip(rows, pieces, strict=True))
                advance(len(rows))
    finally:
        network.train(before)
    return [by_row[row] for row in range(len(units))]


class Member(NamedTuple):
    """A model of the ensemble: the task with its labels, the units it reads, and its logits for each of them."""

    task: Task[Any]
    units: Sequence[Unit]
    logits: Sequence[Logits]


def check_ensemble(tasks: Sequence[Task[Any]]) -> None:
    """Refuse models whose predictions cannot be averaged."""
    first = tasks[0]
    for task in tasks[1:]:
        if (task.name, task.head, task.regression) != (first.name, first.head, first.regression):
            names = f"{first.name} ({first.head}) and {task.name} ({task.head})"
            raise UserError(f"`ensemble=True`: the models have learned different tasks: {names}")
        if task.head not in AVERAGED:
            raise UserError(f"`ensemble=True`: predictions of the head {task.head} cannot be averaged")
        if sorted(task.labels) != sorted(first.labels):
            names = " and ".join(", ".join(labels[:6]) for labels in (first.labels, task.labels))
            raise UserError(f"`ensemble=True`: the models have different labels: {names}")


def average(members: Sequence[Member]) -> list[Logits]:
    """Return logits for the units of the first member, from which its task makes the ensemble's predictions."""
    first = members[0]
    if len(members) == 1:
        return list(first.logits)
    if first.task.head == "span":
        return _mean_logits(members)
    rows = [_by_example(member) for member in members]
    means = [np.mean(of_example, 0) for of_example in zip(*rows, strict=True)]
    if not first.task.regression and not _has_votes(first):
        means = [np.log(np.maximum(mean, SMALLEST)) for mean in means]
    return _by_unit(means, first)


def _by_example(member: Member) -> list[Rows]:
    """Return the rows of each example to average: probabilities, numbers or votes, with classes sorted by name."""
    rows: dict[int, list[Rows]] = {}
    order = np.argsort(np.array(member.task.labels)) if member.task.labels else slice(None)
    for unit, logits in zip(member.units, member.logits, strict=True):
        rows.setdefault(unit.example, []).append(np.asarray(logits, np.float64))
    values = [np.concatenate(rows[number]) for number in sorted(rows)]
    if not member.task.regression and not _has_votes(member):
        values = [softmax(value.T).T if member.task.head == "choice" else softmax(value) for value in values]
    return [value[:, order] for value in values]


def _by_unit(means: Sequence[Rows], member: Member) -> list[Logits]:
    """Split the rows of each example by the member's units, and put the classes into the member's order."""
    order = np.argsort(np.argsort(np.array(member.task.labels))) if member.task.labels else slice(None)
    used_rows = dict[int, int]()
    numbers = {example: place for place, example in enumerate(sorted({unit.example for unit in member.units}))}
    pieces = []
    for unit, logits in zip(member.units, member.logits, strict=True):
        start = used_rows.get(unit.example, 0)
        used_rows[unit.example] = start + len(logits)
        piece = means[numbers[unit.example]][start : start + len(logits)]
        pieces.append(piece[:, order].astype(np.float32))
    return pieces


def _mean_logits(members: Sequence[Member]) -> list[Logits]:
    """Average the logits of models whose units have the same tokens."""
    for member in members[1:]:
        same_tokens = len(member.units) == len(members[0].units) and all(
            first.sequences[0].ids == unit.sequences[0].ids and first.chosen == unit.chosen
            for first, unit in zip(members[0].units, member.units, strict=True)
        )
        if not same_tokens:
            raise UserError(
                "`ensemble=True`: spans are averaged by tokens, so the models need one tokenizer, stride and max_length"
            )
    return [np.mean(of_unit, 0) for of_unit in zip(*(member.logits for member in members), strict=True)]


def _has_votes(member: Member) -> bool:
    return bool(getattr(member.task, "crf", False))
