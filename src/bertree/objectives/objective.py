"""What the loop minimizes: named terms, each a sum over the targets of a batch, and their count.

The modules of this folder implement it; train/loop.py uses it. The count is known on the host before anything is
computed. So the loop adds up the counts of all micro-batches (and ranks) of a step first and divides each sum by the
total: how a step is split never changes its result.

Shape letters: t tokens, h width, m masked tokens, s sequences, c classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import IGNORED, Batch
from bertree.model.encoder import State
from bertree.model.network import Network


class Loss(NamedTuple):
    """The loss of one term on one batch."""

    sum: Tensor  # over the targets
    correct: Tensor | None  # how many predictions were correct; counted only where there are no gradients


class Computed(NamedTuple):
    """The loss of each term on a batch, and the encoder's memory for the batch that continues it."""

    losses: dict[str, Loss]
    memory: State | None = None


class Term(Protocol):
    """One term of an objective."""

    def count(self, batch: Batch) -> int:
        """Count the targets of a batch on the host."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Return the sum of the losses over the targets."""


class Objective(Protocol):
    """What the loop minimizes: a weighted sum of terms."""

    @property
    def weights(self) -> Mapping[str, float]:
        """Weights of the terms, by name."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the targets of a batch on the host, by term."""

    def __call__(self, network: nn.Module, batch: Batch, memory: State | None = None) -> Computed:
        """Return the loss of each term on a batch. `memory`: after the batch that it continues; None: start fresh."""


@dataclass(frozen=True)
class WeightedTerms:
    """A weighted sum of terms that share one pass through the encoder."""

    terms: Mapping[str, Term]
    weights: Mapping[str, float]

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the targets of a batch on the host, by term."""
        return {name: term.count(batch) for name, term in self.terms.items()}

    def __call__(self, network: nn.Module, batch: Batch, memory: State | None = None) -> Computed:
        """Return the loss of each term on a batch, and the encoder's new memory."""
        assert isinstance(network, Network)
        hidden_th, new_memory = network.encode(batch, memory)
        losses = {name: term.loss(network, hidden_th, batch) for name, term in self.terms.items()}
        return Computed(losses, new_memory)


def cross_entropy(logits_mc: Tensor, targets_m: Tensor) -> Loss:
    """Sum the cross-entropy over the rows whose target is not -100."""
    total = F.cross_entropy(logits_mc.float(), targets_m, ignore_index=IGNORED, reduction="sum")
    correct = None if torch.is_grad_enabled() else (logits_mc.argmax(-1) == targets_m).sum()
    return Loss(total, correct)
