"""Batches made by hand, and the network for them."""

from dataclasses import replace
from typing import Any

import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import Network, build
from bertree.train.feed import ScheduledStep, StepBatches
from bertree.train.loop import Loop

VOCAB = 50


def tiny(**axes: object) -> Architecture:
    """A BERT of two thin layers without dropout."""
    values = {"vocab_size": VOCAB, "layers": 2, "width": 16, "heads": 2, "max_positions": 40}
    return Transformer().with_values(values | {"dropout": 0.0, "attention_dropout": 0.0} | axes)


def fresh(seed: int = 0, heads: tuple[str, ...] = ("mask", "pair"), **axes: object) -> Network:
    """Its network, with every parameter away from 0."""
    torch.manual_seed(seed)
    network = build(tiny(**axes), dict.fromkeys(heads, 0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return network


def sequences(count: int, seed: int = 0, longest: int = 20) -> list[Batch]:
    """Batches of one sequence: different lengths, different numbers of masks, some without a pair."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, longest + 1, (), generator=draw))
        ids = torch.randint(5, VOCAB, (length,), generator=draw).tolist()
        batch = Batch.pack([ids], [[0] * (length // 2) + [1] * (length - length // 2)])
        masked = (torch.rand(length, generator=draw) < 0.25).nonzero()[:, 0]
        label = int(torch.randint(0, 3, (), generator=draw))
        rows.append(
            replace(
                batch,
                labels=PretrainingLabels(
                    masked=masked,
                    targets=torch.randint(5, VOCAB, masked.shape, generator=draw),
                    pairs=torch.tensor([label if label < 2 else -100]),
                ),
            )
        )
    return rows


def joined(batches: list[Batch]) -> Batch:
    """One batch of several."""
    starts = torch.tensor([0, *(b.ids.numel() for b in batches)]).cumsum(0)
    rows = [b.split(b.ids) for b in batches]
    labels = [PretrainingLabels.of(batch) for batch in batches]
    packed = Batch.pack([ids.tolist() for row in rows for ids in row])
    return replace(
        packed,
        segments=torch.cat([b.segments for b in batches]),
        labels=PretrainingLabels(
            masked=torch.cat([part.masked + s for part, s in zip(labels, starts.tolist(), strict=False)]),
            targets=torch.cat([part.targets for part in labels]),
            pairs=torch.cat([part.pairs for part in labels]),
        ),
    )


def make_step(*batches: Batch, number: int = 0, lr: float = 1e-3) -> StepBatches:
    """A step over them."""
    return StepBatches(ScheduledStep(number, 0, number, 1, lr), batches, 0.0)


def run_backward(loop: Loop, step_batches: StepBatches) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Leave the gradients of a step in the parameters, without the optimizer's step; return sums and counts."""
    counts = loop.count_targets(step_batches)
    return loop.compute_gradients(step_batches, counts), counts


def axes_of(holder: Any) -> Any:
    """The architecture of a model, a preset or a folder's contents; its type does not tell which axes it has."""
    return holder.architecture
