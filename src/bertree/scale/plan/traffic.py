"""What the ranks of a mesh send each other in a training step: calls and bytes of each kind.

The bytes of a call are those of the whole tensor: of what is gathered, or of what is summed. A rank sends and receives
(n - 1) / n of it in a gathering or a scattered sum over n ranks, twice that in a sum that all ranks get.
"""

from typing import NamedTuple

from bertree.model.architecture import Transformer
from bertree.scale.plan.memory import REDUCED, Mesh, MicroBatch
from bertree.scale.plan.sizes import RankSizes, rank_sizes
from bertree.scale.traffic import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, total
from bertree.scale.traffic import tensor_traffic as exchanges


class Traffic(NamedTuple):
    """Collective calls of one kind in a step."""

    kind: str
    what: str  # is sent
    group: str  # the ranks among which: data or tensor
    calls: int
    bytes: float

    def sent(self, ranks: int) -> float:
        """Return the bytes that each rank sends, with the ring algorithm."""
        return self.bytes * (ranks - 1) / ranks * (2 if self.kind == ALL_REDUCE else 1)


def traffic(a: Transformer, mesh: Mesh, batch: MicroBatch) -> list[Traffic]:
    """Return the collective calls of a step; none among ranks that are alone."""
    found = data_traffic(rank_sizes(a, batch.bf16, mesh.tensor, mesh.shards), mesh, batch) if mesh.data > 1 else []
    return found + (tensor_traffic(a, mesh, batch) if mesh.tensor > 1 else [])


def data_traffic(sizes: RankSizes, mesh: Mesh, batch: MicroBatch) -> list[Traffic]:
    """Return the calls that gather parameters and sum gradients."""
    n, every = sizes.shards, 1 if mesh.zero < 2 else batch.count
    reduced = REDUCED * (sizes.root.padded(n) + sum(part.padded(n) for part in sizes.layers))
    kind = REDUCE_SCATTER if mesh.zero else ALL_REDUCE
    found = [Traffic(kind, "gradients", "data", every * (1 + len(sizes.layers)), every * reduced)]
    if mesh.zero:
        passes = 2 if mesh.zero == 3 else 1  # stage 3 gathers each layer again in the backward pass
        gathered = sizes.root.padded(n) + passes * sum(part.padded(n) for part in sizes.layers)
        times = batch.count if mesh.zero == 3 else 1
        calls = times * (1 + passes * len(sizes.layers))
        found.insert(0, Traffic(ALL_GATHER, "weights", "data", calls, times * gathered * batch.bytes))
    return found + ([Traffic(ALL_REDUCE, "norms' gradients", "data", 1, REDUCED * sizes.norms)] if sizes.norms else [])


def tensor_traffic(a: Transformer, mesh: Mesh, batch: MicroBatch) -> list[Traffic]:
    """Return the calls that gather and sum the states of tokens, and those of the loss."""
    of_batch = exchanges(
        a, batch.tokens, batch.predicted, mesh.tensor, mesh.sequence_parallel, batch.recompute, batch.bytes
    )
    return [
        Traffic(kind, "states", "tensor", calls * batch.count, size * batch.count)
        for kind, (calls, size) in total(of_batch).items()
    ]
