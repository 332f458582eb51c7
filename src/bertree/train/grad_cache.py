"""Gradient caching (Gao et al. 2021): steps too large for memory whose loss needs all examples at once.

With in-batch negatives every text of a step matters to every other, so the loss is not a sum over micro-batches. But it
depends on them only through their vectors. So all micro-batches are embedded without gradients, the loss and its
gradient with respect to the vectors are computed once, and each micro-batch is embedded again and given the gradient of
its vectors. It costs a second forward pass; memory is that of one micro-batch.

The same holds for ranks: each gathers the vectors of all, computes the loss of the whole step, and takes the gradient
of its own. A rank with one micro-batch needs no second pass.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.objectives.objective import Loss, Objective
from bertree.scale.world import World
from bertree.train.feed import StepBatches
from bertree.train.loop import Loop, Scales, plain_gradients, weighted_sum


@runtime_checkable
class WholeStepObjective(Objective, Protocol):
    """An objective that needs all micro-batches of a step at once, through the vectors of each."""

    @property
    def all_ranks(self) -> bool:
        """Whether it needs those of all data ranks; else each rank's alone."""

    def part(self, network: nn.Module, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch."""

    def answers(self, batch: Batch) -> Tensor:
        """Return the gold label of each row of vectors."""

    def together(self, network: nn.Module, parts: Sequence[Tensor], answers: Sequence[Tensor]) -> dict[str, Loss]:
        """Return the loss of each term on all micro-batches of a step."""


def cached_gradients(loop: Loop, step_batches: StepBatches, scales: Scales) -> dict[str, Tensor]:
    """Run the backward passes of micro-batches whose objective needs all of them at once."""
    objective, world = loop.objective, loop.world
    assert isinstance(objective, WholeStepObjective)
    gathers = world.data > 1 and objective.all_ranks
    if len(step_batches.batches) <= 1 and not gathers:
        return plain_gradients(loop, step_batches, scales)
    numbers = step_batches.micro_numbers

    def embed(number: int, batch: Batch) -> Tensor:
        """Return the vectors of a micro-batch, with the same dropout both times."""
        loop.seed_dropout(step_batches.update.number, number)
        with loop.autocast():
            return objective.part(loop.network, batch)

    batches = [batch.to(loop.device) for batch in step_batches.batches]
    once = len(batches) == 1
    with torch.set_grad_enabled(once):
        parts = [embed(number, batch) for number, batch in zip(numbers, batches, strict=True)]
    tables, answers = [part.detach() for part in parts], [objective.answers(batch) for batch in batches]
    first, rows = 0, [len(table) for table in tables]
    if gathers:
        tables, answers = _of_all_ranks(world, tables, answers, loop.device)
        first = sum(len(table) for table in tables[: world.data_rank])
    table = torch.cat(tables).requires_grad_()
    losses = objective.together(loop.network, [table], answers)
    total = weighted_sum(losses, scales)
    counted = not gathers or world.data_rank == 0
    if counted:
        total.backward()
    else:  # what else the loss reads of the network learns on the first rank, and gradients are summed over ranks
        (table.grad,) = torch.autograd.grad(total, [table])
    assert table.grad is not None
    gradients = table.grad[first : first + sum(rows)].split(rows)
    for number, batch, part, gradient in zip(numbers, batches, parts, gradients, strict=True):
        (part if once else embed(number, batch)).backward(gradient)
    return {name: loss.sum.detach() * counted for name, loss in losses.items()}


def _of_all_ranks(
    world: World, tables: Sequence[Tensor], answers: Sequence[Tensor], device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the vectors of each rank (a rank may have none) and their gold labels."""
    fractions = world.agree({"fractions": int(bool(answers) and answers[0].is_floating_point())})["fractions"]
    none = torch.zeros(0, device=device)
    own_answers = torch.cat(list(answers)).double() if answers else none.double()
    kind = torch.float32 if fractions else torch.int64
    vectors = world.gather_rows(torch.cat(list(tables)) if tables else none)
    return vectors, [answer.to(kind) for answer in world.gather_rows(own_answers)]
