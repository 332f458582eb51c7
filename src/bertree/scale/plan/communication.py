"""What the ranks of a mesh send each other in a training step, by arithmetic: calls and bytes of each kind.

The bytes of a call are those of the whole tensor: of what is gathered, or of what is summed. In a ring of n ranks each
sends (n - 1) / n of it to gather, or to reduce and scatter, and twice that to reduce for all ranks.
"""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from bertree.model.architecture import Transformer
from bertree.scale.plan.memory import REDUCED, Mesh, MicroBatch
from bertree.scale.plan.sizes import RankSizes, rank_sizes

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"


class Traffic(NamedTuple):
    """Collective calls of one kind."""

    kind: str
    what: str  # is sent
    group: str  # the ranks among which: data or tensor
    calls: int
    bytes: float

    def sent(self, ranks: int) -> float:
        """Return the bytes that each rank sends, with the ring algorithm."""
        return self.bytes * (ranks - 1) / ranks * (2 if self.kind == ALL_REDUCE else 1)


def total(traffic: Iterable[Traffic]) -> dict[str, tuple[int, float]]:
    """Return calls and bytes of each kind."""
    totals: dict[str, tuple[int, float]] = {}
    for entry in traffic:
        calls, size = totals.get(entry.kind, (0, 0))
        totals[entry.kind] = calls + entry.calls, size + entry.bytes
    return totals


def step_traffic(a: Transformer, mesh: Mesh, batch: MicroBatch) -> list[Traffic]:
    """Return the collective calls of a step; there are none in a group of one rank."""
    traffic: list[Traffic] = []
    if mesh.data > 1:
        traffic += data_traffic(rank_sizes(a, batch.bf16, mesh.tensor, mesh.shards), mesh, batch)
    if mesh.tensor > 1:
        micro_batch = tensor_traffic(
            a,
            batch.tokens,
            batch.predicted,
            mesh.tensor,
            sequence_parallel=mesh.sequence_parallel,
            recompute=batch.recompute,
            width=batch.bytes,
        )
        traffic += [
            Traffic(kind, "states", "tensor", calls * batch.count, size * batch.count)
            for kind, (calls, size) in total(micro_batch).items()
        ]
    return traffic


def data_traffic(sizes: RankSizes, mesh: Mesh, batch: MicroBatch) -> list[Traffic]:
    """Return the calls that gather weights and sum gradients."""
    n, every = sizes.shards, 1 if mesh.zero < 2 else batch.count
    reduced = REDUCED * (sizes.root.padded(n) + sum(group.padded(n) for group in sizes.layers))
    kind = REDUCE_SCATTER if mesh.zero else ALL_REDUCE
    traffic = [Traffic(kind, "gradients", "data", every * (1 + len(sizes.layers)), every * reduced)]
    if mesh.zero:
        passes = 2 if mesh.zero == 3 else 1  # stage 3 gathers each layer again in the backward pass
        gathered = sizes.root.padded(n) + passes * sum(group.padded(n) for group in sizes.layers)
        times = batch.count if mesh.zero == 3 else 1
        calls = times * (1 + passes * len(sizes.layers))
        traffic.insert(0, Traffic(ALL_GATHER, "weights", "data", calls, times * gathered * batch.bytes))
    if sizes.norms:
        traffic.append(Traffic(ALL_REDUCE, "norms' gradients", "data", 1, REDUCED * sizes.norms))
    return traffic


def tensor_traffic(
    a: Transformer,
    tokens: int,
    predicted: int,
    tensor: int,
    *,
    sequence_parallel: bool = False,
    recompute: bool = False,
    width: int = 4,
    lanes: int = 0,
) -> list[Traffic]:
    """Return the calls of one forward and backward pass of MLM or LM among the ranks that share each layer.

    `predicted`: how many of the tokens the head reads. `width`: bytes of an activation; the loss is in float32.
    `lanes`: how many lanes have a memory.
    """
    if tensor == 1:
        return []
    rows = tokens + (predicted if a.query_stream else 0)
    if sequence_parallel:
        layers = _sequence_parallel(a, rows, tensor, recompute, width)
    else:
        calls = 4 * a.layers + _recomputed_sums(a, recompute)
        layers = [_calls("layers", ALL_REDUCE, calls, rows * a.width * width)]
        if a.memory and a.residual == "pre-norm":  # gradients of the norm that reads the memory
            layers.append(_calls("memory", ALL_REDUCE, a.layers, lanes * a.memory * a.width * width))
    if a.cutoffs:  # an adaptive softmax is not split
        return layers
    embeddings = _calls("embeddings", ALL_REDUCE, 1, tokens * a.embedding_width * width)
    return [embeddings, *layers, *_loss(a, predicted, width)]


def _calls(what: str, kind: str, calls: int, bytes_each: int) -> Traffic:
    return Traffic(kind, what, "tensor", calls, calls * bytes_each)


def _recomputes(a: Transformer, recompute: bool) -> bool:
    return recompute or a.residual == "reversible"


def _recomputed_sums(a: Transformer, recompute: bool) -> int:
    """Return how many sums over the ranks the backward pass computes again. Recomputation of a layer stops where
    nothing more is needed: before its last sum, if no norm or dropout follows it."""
    if not _recomputes(a, recompute):
        return 0
    follows = a.residual == "post-norm" or a.dropout > 0.0
    return a.layers * (2 if follows or a.residual == "reversible" else 1)


def _sequence_parallel(a: Transformer, rows: int, tensor: int, recompute: bool, width: int) -> list[Traffic]:
    """Each component gathers the tokens before it, and sums and scatters its terms after it; the backward pass does
    the opposite. The hidden states are gathered once more after the last layer, and backward before the first."""
    whole = ceil(rows / tensor) * tensor * a.width * width
    gathered_again = 2 * a.layers if _recomputes(a, recompute) else 0
    traffic = [
        _calls("layers", ALL_GATHER, 4 * a.layers + gathered_again, whole),
        _calls("layers", REDUCE_SCATTER, 4 * a.layers + _recomputed_sums(a, recompute), whole),
        _calls("ends of the layers", ALL_GATHER, 1, whole),
        _calls("ends of the layers", ALL_GATHER, 1, whole * a.output_width // a.width),
    ]
    return [*traffic, _calls("memory", ALL_GATHER, a.layers, whole)] if a.memory else traffic


def _loss(a: Transformer, predicted: int, width: int) -> list[Traffic]:
    """The largest logit, then two sums; backward the gradient of the hidden states. The logits of a chunk are computed
    again in the backward pass."""
    chunked = 0 < a.ffn_chunk < predicted
    chunks = ceil(predicted / a.ffn_chunk) if chunked else 1
    times = 2 if chunked else 1
    state = a.embedding_width if a.mask_transform else a.output_width
    return [
        Traffic(ALL_REDUCE, "loss", "tensor", 2 * chunks * times, 3 * 4 * predicted * times),
        Traffic(ALL_REDUCE, "loss", "tensor", chunks, predicted * state * width),
    ]
