"""Read documents segment by segment with a memory: what was computed for the segments before is not computed again.

Shape letters: m predicted tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from bertree.batch import Batch, Continuation
from bertree.errors import UserError
from bertree.inference.causal.scoring import Losses, token_losses
from bertree.inference.loaded import LoadedModel
from bertree.model.state import State
from bertree.model.transformer import TransformerEncoder

SEGMENT = 128  # tokens
LANES = 32  # documents at once
Ints = NDArray[np.int64]


def check_memory(model: LoadedModel, memory: int | None) -> int:
    """Return the length of the memory, in tokens; UserError if the model cannot have one."""
    if getattr(model.architecture, "positions", "") != "relative":
        raise UserError(
            f"memory: {model.name} has no relative positions, so it cannot read on from a memory; leave it out, and "
            "give `context` and `stride`"
        )
    length = memory if memory is not None else int(getattr(model.architecture, "memory", 0))
    if length < 1:
        raise UserError(f"memory: {model.name} was trained without one; give its length in tokens, 1 or more")
    return length


def score_segments(
    model: LoadedModel,
    documents: Sequence[Sequence[int]],
    start: Sequence[int],
    memory: int,
    segment: int,
    advance: Callable[[int], None],
) -> tuple[Losses, Ints]:
    """Return the loss of every token of documents, and the number of tokens each was predicted from.

    Documents with equally many segments are read side by side, each in a lane of its own.
    """
    lines = [[*start, *ids] for ids in documents]
    lines = [line for line in lines if len(line) > 1]
    count = lambda line: -(-(len(line) - 1) // segment)  # noqa: E731  the last token is predicted, not read
    losses, contexts = [], []
    for _, group in groupby(sorted(lines, key=count), count):
        together = list(group)
        for first in range(0, len(together), LANES):
            for found, context in _read(model, together[first : first + LANES], len(start), memory, segment):
                losses.append(found)
                contexts.append(context)
                advance(len(found))
    return np.concatenate(losses), np.concatenate(contexts)


@torch.inference_mode()
def _read(
    model: LoadedModel, lines: Sequence[Sequence[int]], skip: int, memory: int, segment: int
) -> Iterator[tuple[Losses, Ints]]:
    """Yield losses and numbers of tokens seen of each segment; nothing predicts one of the first `skip` tokens."""
    network = model.network
    assert isinstance(network.encoder, TransformerEncoder)
    state: State | None = network.encoder.start_memory(len(lines), memory)
    lanes = torch.arange(len(lines))
    for begin in range(0, max(map(len, lines)) - 1, segment):
        read = [line[begin : min(begin + segment, len(line) - 1)] for line in lines]
        wanted = np.concatenate([line[begin + 1 : begin + 1 + segment] for line in lines])
        place = np.concatenate([np.arange(len(part)) for part in read])
        continuation = Continuation(lanes, torch.full((len(lines),), begin == 0), len(lines))
        batch = replace(Batch.pack(read), continuation=continuation).to(model.device)
        with model._evaluating():
            output = network.encode(batch, state)
            chosen = np.flatnonzero(begin + place + 1 >= skip)
            chosen_m = torch.from_numpy(chosen).to(model.device)
            targets_m = torch.from_numpy(wanted[chosen]).to(model.device)
            losses_m, _ = token_losses(network, output.hidden, chosen_m, targets_m)
        state = output.state
        yield losses_m.double().cpu().numpy(), (place + 1 + min(begin, memory))[chosen]
