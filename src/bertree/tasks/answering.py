"""What a network's head says about units: the logits of each, whatever their lengths and whatever lies beside them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from bertree.model.network import Network
from bertree.tasks.batches import by_length, collate
from bertree.tasks.task import Logits, Unit

TOKENS = {"cpu": 4096, "cuda": 65536}  # computed at once


def logits(
    network: Network,
    head: str,
    units: Sequence[Unit],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    advance: Callable[[int], None] = lambda count: None,
) -> list[Logits]:
    """One array a unit: a row for its sequence, for each chosen token, or for each option.

    `advance` hears how many units are done."""
    device = next(network.parameters()).device
    found: dict[int, Logits] = {}
    before = network.training
    network.eval()
    try:
        with torch.no_grad():
            for rows in by_length(units, TOKENS["cuda" if device.type == "cuda" else "cpu"]):
                some = [units[row] for row in rows]
                batch = collate(some, head).to(device)
                with autocast():
                    scores = network.class_logits(head, network(batch), batch, batch.chosen)
                if network.crf is not None and head == "token":
                    decoded = network.crf.decode(scores, batch.cells, batch.width)
                    scores = torch.nn.functional.one_hot(decoded, scores.shape[1])
                sizes = [len(unit.chosen or ()) if head in ("token", "span") else len(unit.sequences) for unit in some]
                pieces = np.split(scores.float().cpu().numpy(), np.cumsum(sizes)[:-1])
                found.update(zip(rows, pieces, strict=True))
                advance(len(rows))
    finally:
        network.train(before)
    return [found[row] for row in range(len(units))]
