"""What the ranks of a tensor-parallel group tell each other for a batch, by arithmetic: calls and bytes."""

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from bertree.model.architecture import Transformer
from bertree.scale.split import model_sizes

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"


class Exchange(NamedTuple):
    """Calls of one kind. `bytes` are those of the whole tensors that they sum or gather: of these a ring of n ranks
    sends (n - 1) / n to gather, or to sum and scatter, and twice as much to sum for all."""

    what: str
    kind: str
    calls: int
    bytes: int

    def sent(self, ranks: int) -> float:
        """Return the bytes that a rank sends."""
        return self.bytes * (2 if self.kind == ALL_REDUCE else 1) * (ranks - 1) / ranks


def total(exchanges: Iterable[Exchange]) -> dict[str, tuple[int, int]]:
    """Return calls and bytes of each kind."""
    found: dict[str, tuple[int, int]] = {}
    for exchange in exchanges:
        calls, size = found.get(exchange.kind, (0, 0))
        found[exchange.kind] = calls + exchange.calls, size + exchange.bytes
    return found


def tensor_traffic(
    a: Transformer,
    tokens: int,
    predicted: int,
    tensor: int,
    sequence_parallel: bool = False,
    recompute: bool = False,
    width: int = 4,
    lanes: int = 0,
) -> list[Exchange]:
    """Return what a forward and a backward pass of MLM or LM over a batch cost: so many tokens, of which so many are
    predicted. `width`: bytes of an activation; the loss is in float32. `lanes`: of texts that have a memory."""
    if tensor == 1:
        return []
    rows = tokens + (predicted if a.query_stream else 0)
    ends = _sequence_parallel(a, rows, tensor, recompute, width) if sequence_parallel else []
    layers = ends or [_made("layers", ALL_REDUCE, 4 * a.layers + _sums_again(a, recompute), rows * a.width * width)]
    if a.memory and a.residual == "pre-norm" and not sequence_parallel:  # gradients of the norm that reads it
        layers.append(_made("memory", ALL_REDUCE, a.layers, lanes * a.memory * a.width * width))
    if a.cutoffs:  # an adaptive softmax is not split
        return layers
    embeddings = _made("embeddings", ALL_REDUCE, 1, tokens * a.embedding_width * width)
    return [embeddings, *layers, *_loss(a, predicted, width)]


def gradient_traffic(a: Transformer, tensor: int) -> list[Exchange]:
    """Return what sequence parallelism costs beside that, once a step: gradients of the layers' norms and biases."""
    return [_made("gradients", ALL_REDUCE, 1, 4 * model_sizes(a).layers.whole)] if tensor > 1 else []


def _made(what: str, kind: str, calls: int, bytes_each: int) -> Exchange:
    return Exchange(what, kind, calls, calls * bytes_each)


def _computes_again(a: Transformer, recompute: bool) -> bool:
    return recompute or a.residual == "reversible"


def _sums_again(a: Transformer, recompute: bool) -> int:
    """Return how many sums of parts the backward pass computes again. Layers that are computed again stop where nothing
    more is needed: before the last sum, if no norm or dropout follows it."""
    if not _computes_again(a, recompute):
        return 0
    follows = a.residual == "post-norm" or a.dropout > 0.0
    return a.layers * (2 if follows or a.residual == "reversible" else 1)


def _sequence_parallel(a: Transformer, rows: int, tensor: int, recompute: bool, width: int) -> list[Exchange]:
    """Each part: tokens are gathered before it and its terms summed and scattered after it, and the other way round in
    the backward pass. Once more they are gathered after the last layer, and backward before the first."""
    whole = ceil(rows / tensor) * tensor * a.width * width
    gathered_again = 2 * a.layers if _computes_again(a, recompute) else 0
    found = [
        _made("layers", ALL_GATHER, 4 * a.layers + gathered_again, whole),
        _made("layers", REDUCE_SCATTER, 4 * a.layers + _sums_again(a, recompute), whole),
        _made("ends of the layers", ALL_GATHER, 1, whole),
        _made("ends of the layers", ALL_GATHER, 1, whole * a.output_width // a.width),
    ]
    return [*found, _made("memory", ALL_GATHER, a.layers, whole)] if a.memory else found


def _loss(a: Transformer, predicted: int, width: int) -> list[Exchange]:
    """The largest logit, then two sums; backward the gradient of the states. Chunks of a loss are computed again."""
    chunked = 0 < a.ffn_chunk < predicted
    chunks = ceil(predicted / a.ffn_chunk) if chunked else 1
    times = 2 if chunked else 1
    state = a.embedding_width if a.mask_transform else a.output_width
    return [
        Exchange("loss", ALL_REDUCE, 2 * chunks * times, 3 * 4 * predicted * times),
        Exchange("loss", ALL_REDUCE, chunks, predicted * state * width),
    ]
