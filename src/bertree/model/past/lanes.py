"""How the sequences of a batch continue the lanes of the batches before it.

Shape letters: t tokens, s sequences.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bertree.batch import Batch, Continuation

MEMORY, KEYS, VALUES, LENGTHS = "memory", "keys", "values", "lengths"


class Spans(NamedTuple):
    """The sequences of a batch and how far back each reaches."""

    lane_s: Tensor
    past_s: Tensor  # tokens of its lane that are seen before it
    length_s: Tensor
    of_t: Tensor  # the sequence of each token
    place_t: Tensor  # of each token in its lane, from the first token that is seen

    @classmethod
    def of(cls, batch: Batch, continuation: Continuation, past_s: Tensor) -> "Spans":
        """Return the spans of a batch."""
        of_t = batch.sequence_ids
        inside_t = torch.arange(len(batch.ids), device=of_t.device) - batch.cu_seqlens.long()[of_t]
        return cls(continuation.lanes, past_s, batch.lengths.long(), of_t, past_s[of_t] + inside_t)


def lanes_of(batch: Batch) -> Continuation:
    """Return how a batch continues another; if it does not say, every sequence starts a lane."""
    if batch.continuation is not None:
        return batch.continuation
    count = len(batch.cu_seqlens) - 1
    lanes_s = torch.arange(count, device=batch.ids.device)
    return Continuation(lanes_s, torch.ones_like(lanes_s, dtype=torch.bool), count)
