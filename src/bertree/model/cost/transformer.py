"""The costs of a transformer."""

from collections.abc import Callable
from itertools import pairwise

from bertree.model.architecture import Transformer
from bertree.model.cost.counts import Parameters, linear

MASK_RATE = 0.15
QUERY_RATE = 1 / 6  # share of the tokens that a query stream predicts
LOGIT_BYTES = 10  # per logit: score in bf16, log-softmax and its gradient in fp32
# Keys per query, on average over a sequence, for each value of the axis `attention`.
KEYS: dict[str, Callable[[Transformer, int], float]] = {
    "full": lambda a, length: a.memory + length,
    "causal": lambda a, length: a.memory if a.same_length else a.memory + (length + 1) / 2,
    "local": lambda a, length: _window_keys(min(a.window, length - 1), length),
}

UP = {"plain": 1, "gated": 2}  # outputs of the first linear layer in units of `ffn_width`, by the axis `ffn`


class TransformerCosts:
    """The costs of a transformer."""

    def __init__(self, a: Transformer) -> None:
        self.a = a
        self.rate = 1.0 if a.causal else QUERY_RATE if a.query_stream else MASK_RATE
        predicted = "every next token predicted" if a.causal else "MLM on 15 %"
        predicted = "one token in 6 predicted by the query stream" if a.query_stream else predicted
        self.assumptions = f"bf16 autocast, AdamW, packed, {predicted}, attention_dropout = 0; see docs/memory.md"

    def parameters(self) -> Parameters:
        """Count the parameters."""
        a = self.a
        norm = 2 if a.norm == "layer" and a.norm_bias else 1  # vectors
        inner = a.heads * a.head_size
        attention = linear(a.width, 3 * inner, a.attention_bias) + linear(inner, a.width, a.attention_bias)
        if a.positions == "relative":
            attention += a.width * inner + (0 if a.shared_position_bias else 2 * inner)
        if a.segment_encoding == "relative":
            attention += 3 * inner
        ffn = linear(a.width, UP[a.ffn] * a.ffn_width, a.ffn_bias) + linear(a.ffn_width, a.width, a.ffn_bias)
        copies = len(set(a.plan("attention"))), len(set(a.plan("ffn")))
        last = norm * a.width if a.residual == "pre-norm" and a.final_norm else 0
        last += 2 * inner if a.shared_position_bias else 0
        last += a.width if a.query_stream else 0
        last -= 0 if a.first_norm else norm * a.width
        return Parameters(
            embeddings=self._embeddings(norm),
            encoder=(attention + norm * a.width) * copies[0] + (ffn + norm * a.width) * copies[1] + last,
            pooler=linear(a.width, a.width) if a.pooler else 0,
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
        projection = linear(a.embedding_width, a.width) if a.embedding_projection else sum(self._projections())
        return tables + (norm * a.embedding_width if a.embedding_norm else 0) + projection

    def _mask_head(self) -> int:
        a, clusters = self.a, self._clusters()
        transform = linear(a.width, a.embedding_width, a.head_bias) + (2 if a.head_bias else 1) * a.embedding_width
        transform = transform if a.mask_transform else 0
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
        # Keys and values of the memory are computed with every segment.
        keys_and_values = (2 + 2 * a.memory / length) * a.width * a.heads * a.head_size
        projection = a.embedding_width * a.width if a.embedding_projection else 0
        return round(2 * (self._row(length) + a.layers * keys_and_values + projection))

    def _row(self, length: int) -> float:
        """Products per row of the layers, without those of keys and values."""
        a = self.a
        inner = a.heads * a.head_size
        linear = 2 * a.width * inner + (UP[a.ffn] + 1) * a.width * a.ffn_width
        keys = sum(KEYS[kind](a, length) for kind in a.attention_kinds)
        products = 3 if a.positions == "relative" else 2  # scores and weighted sum; scores by distance
        return a.layers * linear + products * keys * inner

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """Operations per predicted token: those of the MLM head and, if asked for, of its row of the query stream."""
        a = self.a
        transform = a.width * a.embedding_width if a.mask_transform else 0
        row = self._row(length) if query_stream else 0
        return round(2 * (transform + a.embedding_width * a.vocab_size + row))

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass."""
        a = self.a
        h, f = a.width, a.ffn_width
        masks = 2 * h if a.dropout else 0  # one byte per element, after attention and after feed-forward
        attention = 2 * h + 6 * h + 2 * h + 4 * a.heads  # input, q k v, output, log-sum-exp
        attention += 4 * h if a.positions == "rotary" else 0  # q and k before they are rotated
        attention += 2 * h if a.positions == "relative" else 0  # q with each of two biases
        angles = 4 * a.head_size * len(set(a.attention_kinds)) if a.positions == "rotary" else 0  # cosines and sines
        ffn = 2 * h + 2 * f + 2 * f  # input, before and after the activation
        ffn += 4 * f if a.ffn == "gated" else 0  # the gate, and its product with the activation
        norms = 2 * (2 * h + 8)  # inputs, mean and deviation of two norms
        embeddings = (4 * a.embedding_width + 8 if a.embedding_norm else 0) + (a.embedding_width if a.dropout else 0)
        if a.embedding_projection:
            embeddings += 2 * a.embedding_width
        final_norm = 2 * h + 8 if a.residual == "pre-norm" and a.final_norm else 0
        return a.layers * (masks + attention + ffn + norms) + embeddings + angles + final_norm

    def predicted_bytes(self, query_stream: bool) -> int:
        """Bytes per predicted token: the tensors that autograd keeps, and the logits."""
        a = self.a
        row = self.activation_bytes() - 4 * a.layers * a.width if query_stream else 0  # it has no keys and values
        return 6 * a.width + 12 * a.embedding_width + LOGIT_BYTES * a.vocab_size + row


def _window_keys(window: int, length: int) -> float:
    """Keys per query with a window to each side, which is cut at both ends of the sequence."""
    return 2 * window + 1 - window * (window + 1) / length
