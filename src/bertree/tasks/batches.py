"""Units -> packed batches, with the labels in the layout that the head's loss reads; and what a network makes of units.

Logits and hidden states do not depend on how the units are batched.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.model.network import Network
from bertree.objectives.embedding import pair_logits, vector_table
from bertree.objectives.supervised import HEAD_KINDS, HeadKind, TaskLabels
from bertree.tasks.task import Logits, Unit

TOKENS = {"cpu": 4096, "cuda": 65536}  # computed at once
Autocast = Callable[[], AbstractContextManager[object]]
Advance = Callable[[int], None]  # called with the number of units done


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

    def head_inputs(hidden_tw: Tensor, batch: Batch) -> Tensor:
        return network.text_states(head, hidden_tw, batch)

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
