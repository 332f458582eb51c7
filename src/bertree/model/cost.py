"""The cost of an architecture: parameters, bytes, operations. Arithmetic, no torch.

Parameters are exact. Operations count a multiply-add as two and leave out norms, activations and
softmax (under one percent at these widths).

The memory model is for one step of pretraining with the packed encoder and the MLM head on 15 % of the
tokens, bf16 autocast, AdamW, not compiled, no activation checkpointing. The peak is the larger of two
moments:

    start of the backward pass    weights and moments (12 bytes per parameter), autocast's bf16 copies of
                                  the matrices (2), the token embedding's gradient, everything autograd
                                  keeps for the backward pass, and the logits of the masked tokens
    end of the backward pass      weights, moments and gradients (16 bytes per parameter)

A BiLSTM is not pretrained: its figures are for a step in fp32 without a head, and were not measured.

`benchmarks/memory.py` compares this with measured peaks. A packed batch has no term in length squared: flash
attention keeps one number per head and query instead of the scores.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from bertree.model.architecture import Architecture, BiLstm, Transformer

LENGTHS = (64, 128, 256, 320, 384, 512)
MASK_RATE = 0.15
LOGIT_BYTES = 10  # per logit: score in bf16, log-softmax and its gradient in fp32
RESERVE = 0.06  # of a card, for the CUDA context and fragmentation
GIB = 1024**3
# Keys per query, on average over a sequence, for each value of the axis `attention`.
KEYS: dict[str, Callable[[Transformer, int], float]] = {
    "full": lambda a, length: length,
    "causal": lambda a, length: a.memory if a.same_length else a.memory + (length + 1) / 2,
    "local": lambda a, length: _window_keys(min(a.window, length - 1), length),
}

UP = {"plain": 1, "gated": 2}  # outputs of the first linear layer in units of `ffn_width`, by the axis `ffn`

# Largest batch on a card of 12 GB that BERT's authors published (fp32, padded), by length.
PUBLISHED_BATCHES = {
    "bert-base": (64, 32, 16, 14, 12, 6),
    "bert-large": (12, 6, 2, 1, 0, 0),
}


@dataclass(frozen=True)
class Parameters:
    """Exact counts; a tensor shared by several layers or tied to another counts once."""

    embeddings: int  # tables, their norm, and the projection from E to H
    encoder: int  # the layers, the norm after the last in pre-norm, and the start of a query stream
    pooler: int
    mlm_head: int  # without its output matrix, which is the token embedding

    @property
    def total(self) -> int:
        """Parameters without the MLM head, as usually compared."""
        return self.embeddings + self.encoder + self.pooler

    def as_dict(self) -> dict[str, int]:
        """Return the parts and the total, for `--json`."""
        return asdict(self) | {"total": self.total}


def _window_keys(window: int, length: int) -> float:
    """Keys per query with a window to each side, which is cut at both ends of the sequence."""
    return 2 * window + 1 - window * (window + 1) / length


def _linear(inputs: int, outputs: int, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


class Costs(Protocol):
    """The costs of one architecture; each kind has its own formulas."""

    assumptions: str  # of the memory model
    rate: float  # share of the tokens that the head predicts

    def parameters(self) -> Parameters:
        """Count the parameters."""

    def classifiers(self) -> dict[str, int]:
        """Count the layers and a classifier together, by the kind of texts; empty if papers do not count so."""

    def forward_flops(self, length: int) -> int:
        """Operations per token of the encoder's forward pass at a sequence length."""

    def mask_head_flops(self) -> int:
        """Operations per masked position of the MLM head."""

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass."""

    def mask_head_bytes(self) -> int:
        """Bytes per masked token: the tensors that autograd keeps, and the logits."""


class TransformerCosts:
    """The costs of a transformer."""

    def __init__(self, a: Transformer) -> None:
        self.a = a
        self.rate = 1.0 if a.causal else MASK_RATE
        predicted = "every next token predicted" if a.causal else "MLM on 15 %"
        self.assumptions = f"bf16 autocast, AdamW, packed, {predicted}, attention_dropout = 0; see docs/memory.md"

    def parameters(self) -> Parameters:
        """Count the parameters."""
        a = self.a
        norm = 2 if a.norm == "layer" and a.norm_bias else 1  # vectors
        inner = a.heads * a.head_size
        attention = _linear(a.width, 3 * inner, a.attention_bias) + _linear(inner, a.width, a.attention_bias)
        if a.positions == "relative":
            attention += a.width * inner + (0 if a.shared_position_bias else 2 * inner)
        if a.segment_encoding == "relative":
            attention += 3 * inner
        ffn = _linear(a.width, UP[a.ffn] * a.ffn_width, a.ffn_bias) + _linear(a.ffn_width, a.width, a.ffn_bias)
        copies = len(set(a.plan("attention"))), len(set(a.plan("ffn")))
        last = norm * a.width if a.residual == "pre-norm" and a.final_norm else 0
        last += 2 * inner if a.shared_position_bias else 0
        last += a.width if a.query_stream else 0
        return Parameters(
            embeddings=self._embeddings(norm),
            encoder=(attention + norm * a.width) * copies[0] + (ffn + norm * a.width) * copies[1] + last,
            pooler=_linear(a.width, a.width) if a.pooler else 0,
            mlm_head=self._mask_head(),
        )

    def _clusters(self) -> list[tuple[int, int]]:
        """Return the entries and the embedding width of each cluster of the vocabulary."""
        a = self.a
        pairs = enumerate(pairwise(a.cluster_starts))
        return [(end - start, max(1, a.embedding_width // a.embedding_divisor**i)) for i, (start, end) in pairs]

    def _projections(self) -> list[int]:
        """Return the parameters of each cluster's projection; none if all are as wide as the layers."""
        widths = [width for _, width in self._clusters()]
        if not self.a.cutoffs or set(widths) == {self.a.width}:
            return []
        return [width * self.a.width for width in (widths if len(set(widths)) > 1 else widths[:1])]

    def _embeddings(self, norm: int) -> int:
        a = self.a
        places = a.max_positions + a.position_offset if a.positions == "learned" else 0
        segments = a.segments if a.segment_encoding == "absolute" else 0
        tables = sum(rows * width for rows, width in self._clusters()) + (places + segments) * a.embedding_width
        projection = _linear(a.embedding_width, a.width) if a.embedding_projection else sum(self._projections())
        return tables + (norm * a.embedding_width if a.embedding_norm else 0) + projection

    def _mask_head(self) -> int:
        a, clusters = self.a, self._clusters()
        transform = _linear(a.width, a.embedding_width) + 2 * a.embedding_width if a.mask_transform else 0
        found = transform + (a.vocab_size if a.mask_bias else 0)
        if self._projections():
            found += sum(clusters[int(i)][1] * a.width for i in a.output_projections.split(",") if i)
        return found + (len(clusters) - 1) * (a.embedding_width + 1)

    def classifiers(self) -> dict[str, int]:
        """None: papers count the encoder."""
        return {}

    def forward_flops(self, length: int) -> int:
        """Operations per token of the encoder's forward pass at a sequence length."""
        a = self.a
        inner = a.heads * a.head_size
        # Keys and values of the memory are computed with every segment.
        attention = (4 + 2 * a.memory / length) * a.width * inner
        linear = attention + (UP[a.ffn] + 1) * a.width * a.ffn_width
        keys = sum(KEYS[kind](a, length) for kind in a.attention_kinds)
        products = 3 if a.positions == "relative" else 2  # scores and weighted sum; scores by distance
        projection = a.embedding_width * a.width if a.embedding_projection else 0
        return round(2 * (a.layers * linear + products * keys * inner + projection))

    def mask_head_flops(self) -> int:
        """Operations per masked position of the MLM head."""
        a = self.a
        transform = a.width * a.embedding_width if a.mask_transform else 0
        return 2 * (transform + a.embedding_width * a.vocab_size)

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass."""
        a = self.a
        h, f = a.width, a.ffn_width
        masks = 2 * h if a.dropout else 0  # one byte per element, after attention and after feed-forward
        attention = 2 * h + 6 * h + 2 * h + 4 * a.heads  # input, q k v, output, log-sum-exp
        attention += 4 * h if a.positions == "rotary" else 0  # q and k before they are rotated
        angles = 4 * a.head_size * len(set(a.attention_kinds)) if a.positions == "rotary" else 0  # cosines and sines
        ffn = 2 * h + 2 * f + 2 * f  # input, before and after the activation
        ffn += 4 * f if a.ffn == "gated" else 0  # the gate, and its product with the activation
        norms = 2 * (2 * h + 8)  # inputs, mean and deviation of two norms
        embeddings = (4 * a.embedding_width + 8 if a.embedding_norm else 0) + (a.embedding_width if a.dropout else 0)
        if a.embedding_projection:
            embeddings += 2 * a.embedding_width
        final_norm = 2 * h + 8 if a.residual == "pre-norm" and a.final_norm else 0
        return a.layers * (masks + attention + ffn + norms) + embeddings + angles + final_norm

    def mask_head_bytes(self) -> int:
        """Bytes per masked token: the tensors that autograd keeps, and the logits."""
        return 6 * self.a.width + 12 * self.a.embedding_width + LOGIT_BYTES * self.a.vocab_size


class BiLstmCosts:
    """The costs of a BiLSTM. It has no MLM head."""

    assumptions = "fp32, AdamW, packed, without a head; an estimate"
    rate = 0.0

    def __init__(self, a: BiLstm) -> None:
        self.a = a
        self.below = [a.embedding_width] + [a.width] * (a.layers - 1)  # width of each layer's input
        # Inputs of each unit: the layer below, and its own direction one step before.
        self.inputs = [below + a.width // 2 for below in self.below]

    def parameters(self) -> Parameters:
        """Count the parameters."""
        a = self.a
        tables = a.vocab_size * a.embedding_width + (2 * a.embedding_width if a.embedding_norm else 0)
        return Parameters(tables, sum(4 * a.width * (each + 2) for each in self.inputs), pooler=0, mlm_head=0)

    def classifiers(self) -> dict[str, int]:
        """Count the LSTM and its classifier of two classes, which its paper does."""
        found, layers = {}, self.parameters().encoder
        for texts, head in (("single texts", "relu"), ("pairs", "compare")):
            found[texts] = layers + classifier_parameters(replace(self.a, sequence_head=head))
        return found

    def forward_flops(self, length: int) -> int:
        """Operations per token: four gates for each unit; the width is that of both directions."""
        return 2 * sum(4 * self.a.width * each for each in self.inputs)

    def mask_head_flops(self) -> int:
        """None."""
        return 0

    def activation_bytes(self) -> int:
        """Bytes per token in fp32: each layer's input, and each unit's gates, cell and output."""
        return sum(4 * (each + 6 * self.a.width) + (each if self.a.dropout else 0) for each in self.below)

    def mask_head_bytes(self) -> int:
        """None."""
        return 0


COSTS: dict[type[Architecture], Callable[[Any], Costs]] = {Transformer: TransformerCosts, BiLstm: BiLstmCosts}


def costs(a: Architecture) -> Costs:
    """Return the formulas of an architecture's kind."""
    return COSTS[type(a)](a)


def classifier_parameters(a: Architecture, classes: int = 2) -> int:
    """Count the parameters of a BiLSTM's sequence head."""
    return _linear(a.sequence_width, a.ffn_width) + _linear(a.ffn_width, classes)


def parameters(a: Architecture) -> Parameters:
    """Count the parameters of an architecture."""
    return costs(a).parameters()


def forward_flops(a: Architecture, length: int) -> int:
    """Operations per token of the encoder's forward pass at a sequence length."""
    return costs(a).forward_flops(length)


def training_flops(a: Architecture, length: int, rate: float | None = None) -> int:
    """Operations per token of forward and backward (twice the forward), the head on the predicted tokens.

    `rate` is their share; None: the usual one."""
    found = costs(a)
    return round(3 * (found.forward_flops(length) + (found.rate if rate is None else rate) * found.mask_head_flops()))


def training_bytes(a: Architecture, batch: int, length: int, rate: float | None = None) -> int:
    """Peak bytes of one training step on `batch` sequences of `length` tokens; `rate`: see `training_flops`."""
    found, counts = costs(a), parameters(a)
    rate = found.rate if rate is None else rate
    everything = counts.total + counts.mlm_head
    tokens = batch * length
    kept = tokens * found.activation_bytes() + round(rate * tokens) * found.mask_head_bytes()
    begins = 12 * everything + 2 * everything + 4 * a.vocab_size * a.embedding_width + kept
    return max(begins, 16 * everything)


def largest_batch(a: Architecture, length: int, card_gb: float) -> int:
    """The largest batch that fits a card of that many GiB; 0 if not even one sequence does."""
    usable = card_gb * GIB * (1 - RESERVE)
    if training_bytes(a, 1, length) > usable:
        return 0
    low, high = 1, 2
    while training_bytes(a, high, length) <= usable:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if training_bytes(a, middle, length) <= usable else (low, middle)
    return low


def describe_architecture(a: Architecture) -> str:
    """Describe the size of an architecture, for messages."""
    return f"{a.layers} layers, width {a.width}, {parameters(a).total / 1e6:.1f}M parameters"
