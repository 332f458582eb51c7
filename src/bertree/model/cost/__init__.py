"""The cost of an architecture: parameters, bytes, operations. Arithmetic, no torch.

Parameters are exact. Operations count a multiply-add as two and leave out norms, activations and
softmax (under one percent at these widths).

The memory model is for one step of pretraining with the packed encoder and the MLM head on 15 % of the
tokens (XLNet: a query stream of one token in 6), bf16 autocast, AdamW, not compiled, no activation
checkpointing. The peak is the larger of two moments:

    start of the backward pass    weights and moments (12 bytes per parameter), autocast's bf16 copies of
                                  the matrices (2), the token embedding's gradient, everything autograd
                                  keeps for the backward pass, and the logits of the masked tokens
    end of the backward pass      weights, moments and gradients (16 bytes per parameter), and what reversible
                                  layers need to compute a layer again

A BiLSTM is not pretrained: its figures are for a step in fp32 without a head, and were not measured.

`benchmarks/memory.py` compares this with measured peaks. A packed batch has no term in length squared: flash
attention keeps one number per head and query instead of the scores.
"""

from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any, NamedTuple

from bertree.errors import UserError
from bertree.model.architecture import Architecture, BiLstm, Lstm, Transformer
from bertree.model.cost.counts import BiLstmCosts, Costs, LstmCosts, Parameters, classifier_parameters
from bertree.model.cost.transformer import KEYS, MASK_RATE, QUERY_RATE, TransformerCosts

__all__ = [
    "GIB",
    "KEYS",
    "LENGTHS",
    "MASK_RATE",
    "PUBLISHED_BATCHES",
    "QUERY_RATE",
    "RESERVE",
    "Costs",
    "Parameters",
    "classifier_parameters",
    "costs",
    "forward_flops",
    "largest_batch",
    "long_lengths",
    "option_variants",
    "parameters",
    "pretraining_forward_flops",
    "training_bytes",
    "training_flops",
]

LENGTHS = (64, 128, 256, 320, 384, 512)
RESERVE = 0.06  # of a card, for the CUDA context and fragmentation
GIB = 1024**3
# Largest batch on a card of 12 GB that BERT's authors published (fp32, padded), by length.
PUBLISHED_BATCHES = {
    "bert-base": (64, 32, 16, 14, 12, 6),
    "bert-large": (12, 6, 2, 1, 0, 0),
}

COSTS: dict[type[Architecture], Callable[[Any], Costs]] = {
    Transformer: TransformerCosts,
    BiLstm: BiLstmCosts,
    Lstm: LstmCosts,
}


def costs(a: Architecture) -> Costs:
    """Return the formulas of an architecture's kind."""
    return COSTS[type(a)](a)


def parameters(a: Architecture) -> Parameters:
    """Count the parameters of an architecture."""
    return costs(a).parameters()


def forward_flops(a: Architecture, length: int) -> int:
    """Operations per token of the encoder's forward pass at a sequence length."""
    return costs(a).forward_flops(length)


def pretraining_forward_flops(
    a: Architecture, length: int, rate: float | None = None, query_stream: bool | None = None
) -> float:
    """Operations per token of a forward pass with the head on the predicted tokens.

    `rate` is their share; None: the usual one. `query_stream`: whether they are predicted by a query stream; None: if
    there is one."""
    formulas = costs(a)
    rate = formulas.rate if rate is None else rate
    return formulas.forward_flops(length) + rate * formulas.predicted_flops(length, _queries(a, query_stream))


def _queries(a: Architecture, query_stream: bool | None) -> bool:
    has_stream = isinstance(a, Transformer) and a.query_stream
    return has_stream if query_stream is None else has_stream and query_stream


def training_flops(a: Architecture, length: int, rate: float | None = None, query_stream: bool | None = None) -> int:
    """Operations per token of forward and backward (twice the forward); see `pretraining_forward_flops`."""
    return round(3 * pretraining_forward_flops(a, length, rate, query_stream))


def training_bytes(
    a: Architecture, batch: int, length: int, rate: float | None = None, query_stream: bool | None = None
) -> int:
    """Peak bytes of one training step on `batch` sequences of `length` tokens; the rest: see
    `pretraining_forward_flops`."""
    formulas, counts = costs(a), parameters(a)
    rate = formulas.rate if rate is None else rate
    everything = counts.total + counts.mlm_head
    tokens = batch * length
    kept = formulas.bytes_at_start(tokens, round(rate * tokens), _queries(a, query_stream))
    begins = 12 * everything + 2 * everything + 4 * formulas.output_matrix() + kept
    return max(begins, 16 * everything + formulas.bytes_at_end(tokens))


def embedding_parts(a: Architecture) -> dict[str, int]:
    """Count the parameters of the embeddings by part: tokens (V x E), projection (E x H), positions, the rest."""
    return costs(a).embedding_parts()


def inference_bytes(a: Architecture, batch: int, length: int) -> int:
    """Peak bytes of a forward pass on `batch` sequences of `length` tokens, without a head: weights and activations in
    float32. Attention keeps no scores: the kernels compute them in blocks."""
    return 4 * (parameters(a).total + costs(a).inference_activations(batch * length))


def largest_batch(a: Architecture, length: int, card_gb: float) -> int:
    """The largest training batch that fits a card of that many GiB; 0 if not even one sequence does."""
    return _largest(lambda batch: training_bytes(a, batch, length), card_gb)


def largest_inference_batch(a: Architecture, length: int, card_gb: float) -> int:
    """The largest batch of a forward pass in fp32 that fits such a card; 0 if not even one sequence does."""
    return _largest(lambda batch: inference_bytes(a, batch, length), card_gb)


def _largest(bytes_of: Callable[[int], int], card_gb: float) -> int:
    usable = card_gb * GIB * (1 - RESERVE)
    if bytes_of(1) > usable:
        return 0
    low, high = 1, 2
    while bytes_of(high) <= usable:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_of(middle) <= usable else (low, middle)
    return low


LONG = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
NONE, ALL, OWN = "none of them", "all of them", "as it is"
CHUNK = 4096  # tokens in the feed-forward layer at the same time, where an architecture does not say it
_CHUNKS = {"chunked", "lsh"}


class MemoryOption(NamedTuple):
    """What saves memory in long sequences: a name, whether an architecture uses it, its axes with and without it."""

    name: str
    used: bool
    on: dict[str, Any]
    off: dict[str, Any]


def option_variants(a: Architecture) -> dict[str, Architecture]:
    """Return `a` with none of the options, with each of them alone, with all, and as it is; empty if it uses none."""
    options = list(_options(a)) if isinstance(a, Transformer) else []
    if not any(option.used for option in options):
        return {}
    bare = a.with_values({axis: value for option in options for axis, value in option.off.items()})
    possible = [option for option in options if option.used or _can_be(bare, option.on)]
    alone = {option.name: bare.with_values(option.on) for option in possible}
    together = a.with_values({axis: value for option in possible for axis, value in option.on.items()})
    joined = {ALL: together} if len(possible) > 1 else {}
    return {NONE: bare, **alone} | joined | ({OWN: a} if a != together else {})


def long_lengths(a: Architecture) -> tuple[int, ...]:
    """Return the lengths that are compared, as far as sequences of an architecture may be so long."""
    return tuple(length for length in LONG if length <= a.longest_input)


def _can_be(a: Architecture, changes: dict[str, Any]) -> bool:
    try:
        a.with_values(changes)
    except UserError:
        return False
    return True


def _options(a: Transformer) -> Iterator[MemoryOption]:
    used = bool(_CHUNKS & set(a.attention_kinds))
    pattern = a.attention if used else "lsh" if a.sharing in ("attention", "all") else "chunked,lsh"
    exact = "full" if a.look_ahead else "causal"
    plain = ",".join(exact if kind in _CHUNKS else kind for kind in a.attention.split(","))
    off = {"attention": plain, "look_ahead": a.look_ahead}
    on = {"attention": pattern, "look_ahead": a.look_ahead if used else not a.causal}
    yield MemoryOption("lsh attention" if "lsh" in pattern else "chunked attention", used, on, off)
    used = a.residual == "reversible"
    norms = {"embedding_norm": a.embedding_norm, "residual_init": a.residual_init}
    off = {"residual": "pre-norm" if used else a.residual} | norms
    yield MemoryOption("reversible layers", used, {"residual": "reversible"} | norms, off)
    yield MemoryOption("feed-forward in chunks", a.ffn_chunk > 0, {"ffn_chunk": a.ffn_chunk or CHUNK}, {"ffn_chunk": 0})
    if a.positions in ("axial", "learned"):
        rows = next(n for n in range(isqrt(a.max_positions), 0, -1) if a.max_positions % n == 0)
        shape = a.axial_shape if a.positions == "axial" else f"{rows},{a.max_positions // rows}"
        off = {"positions": "learned", "max_positions": a.max_positions}
        yield MemoryOption("axial positions", a.positions == "axial", {"positions": "axial", "axial_shape": shape}, off)
