"""What the loop minimises: named terms, each a sum over what a batch asks and the count of it.

A term's count is known before anything is computed, on the host. So the loop can add up the counts of all
micro-batches (and ranks) of a step first and divide each sum by the whole: how a step is cut into pieces
never changes its meaning.

Shape letters: t tokens, h width, m masked tokens, s sequences, c classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.network import Network

IGNORED = -100


class Loss(NamedTuple):
    """One term on one batch."""

    sum: Tensor  # of the losses
    right: Tensor | None  # how many answers were right; only where no gradient is asked for


class Term(Protocol):
    """Something a batch asks of the network."""

    def count(self, batch: Batch) -> int:
        """How many questions the batch asks; the batch is on the host."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """The sum of the losses over them."""


class Objective(Protocol):
    """What the loop minimises: a weighted sum of terms."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Of the terms, by name."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Questions a batch (on the host) asks, by term."""

    def __call__(self, network: nn.Module, batch: Batch) -> dict[str, Loss]:
        """Every term's loss on a batch."""


@dataclass(frozen=True)
class WeightedTerms:
    """A weighted sum of terms that share one pass through the encoder."""

    terms: Mapping[str, Term]
    weights: Mapping[str, float]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Questions a batch (on the host) asks, by term."""
        return {name: term.count(batch) for name, term in self.terms.items()}

    def __call__(self, network: nn.Module, batch: Batch) -> dict[str, Loss]:
        """Every term's loss on a batch."""
        assert isinstance(network, Network)
        hidden_th = network(batch)
        return {name: term.loss(network, hidden_th, batch) for name, term in self.terms.items()}


def cross_entropy(logits_mc: Tensor, targets_m: Tensor) -> Loss:
    """Sum over the rows whose target is not -100."""
    total = F.cross_entropy(logits_mc.float(), targets_m, ignore_index=IGNORED, reduction="sum")
    right = None if torch.is_grad_enabled() else (logits_mc.argmax(-1) == targets_m).sum()
    return Loss(total, right)
