"""The outputs of a network for units: logits or hidden states, independent of how the units are batched."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.model.network import Network
from bertree.objectives.embedding import pair_logits, vector_table
from bertree.objectives.supervised import TaskLabels
from bertree.tasks.collate import batches_by_length, collate, logit_rows
from bertree.tasks.task import Logits, Unit

TOKENS = {"cpu": 4096, "cuda": 65536}  # computed at once
Autocast = Callable[[], AbstractContextManager[object]]
Advance = Callable[[int], None]  # called with the number of units done


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
