"""The costs of a transformer, and the bytes that a training step keeps for its backward pass, under bf16 autocast."""

from collections.abc import Callable

from bertree.model.architecture import Transformer
from bertree.model.cost.counts import Costs, Parameters, linear, named_parts, vocabulary_clusters

ORDER_BYTES = 24  # per token, line of chunks and round: token and position of each slot, slot of each token, log-sum
# Per token, in units of the width: both streams after the last layer, their gradients, both again before the block that
# is computed and with its gradients (each float32), and what the block adds.
REVERSIBLE_WIDTHS = 4 * 8 + 6


class Activations:
    """The bytes of one architecture. Figures are per token unless stated otherwise."""

    def __init__(self, a: Transformer) -> None:
        self.a = a
        self._mask = a.width if a.dropout else 0  # one byte per element, after each block
        self._norm = 2 * a.width + 8  # input, mean and deviation

    def attention(self, kind: str) -> int:
        """Bytes of a block of attention of some kind, with its norm."""
        a = self.a
        h = a.width
        size = 2 * h + 6 * h + 2 * h + 4 * a.heads  # input, q k v, output, log-sum-exp
        size += 4 * h if a.positions == "rotary" else 0  # q and k before they are rotated
        size += 2 * h if a.positions == "relative" else 0  # q with each of two biases
        shared = kind == "lsh" or (a.shared_qk and kind in ("full", "causal"))
        size += 4 * h if shared else 0  # q in float32, of which keys of unit length are made
        lines = {"lsh": a.heads * a.hashes, "chunked": 1}.get(kind, 0)
        return self._mask + self._norm + size + ORDER_BYTES * lines

    def feed_forward(self) -> int:
        """Bytes of a feed-forward block with its norm, without the inner states."""
        return self._mask + self._norm + 2 * self.a.width  # input

    def inner(self) -> int:
        """Bytes of the inner states of a feed-forward block."""
        f = self.a.ffn_width
        size = 2 * f + 2 * f  # before and after the activation
        return size + (4 * f if self.a.ffn == "gated" else 0)  # the gate, and its product with the activation

    def outside(self) -> int:
        """Bytes of what is not in the layers: embeddings, angles of rotary positions, the norm after the last layer."""
        a = self.a
        angles = 4 * a.head_size * len(set(a.attention_kinds)) if a.positions == "rotary" else 0  # cosines and sines
        embeddings = (4 * a.embedding_width + 8 if a.embedding_norm else 0) + (a.embedding_width if a.dropout else 0)
        if a.embedding_projection:
            embeddings += 2 * a.embedding_width
        final_norm = 2 * a.width + 8 if a.residual == "pre-norm" and a.final_norm else 0
        return embeddings + angles + final_norm

    def per_token(self) -> int:
        """Bytes that grow with the tokens of a batch, if every layer keeps its own."""
        inner = 0 if self.a.ffn_chunk else self.inner()
        attention = sum(map(self.attention, self.a.attention_kinds))
        layers = attention + self.a.layers * (self.feed_forward() + inner) + self.outside()
        return self.a.readers * layers

    def at_start(self, tokens: int, predicted: int) -> int:
        """Bytes of a batch at the start of the backward pass; `predicted`: those of its predicted tokens."""
        a = self.a
        if a.residual == "reversible":
            last = 8 * a.width + (8 * a.width + 8 if a.final_norm else 0)  # both streams, float32, and their norm
            return a.readers * tokens * (self.outside() + last) + predicted
        return tokens * self.per_token() + predicted + self._inner_again(min(tokens, a.ffn_chunk))

    def at_end(self, tokens: int) -> int:
        """Bytes of a batch while the first layer's gradients are computed: reversible layers need as much as before."""
        a = self.a
        if a.residual != "reversible":
            return 0
        gradients = 2 * a.width + 6 * a.width + 6 * a.width  # of the output, of q, k and v, and of these side by side
        blocks = [(self.attention(kind) + gradients) * tokens for kind in set(a.attention_kinds)]
        in_chunk = min(tokens, a.ffn_chunk) if a.ffn_chunk else tokens
        blocks.append(self.feed_forward() * tokens + self._inner_again(in_chunk))
        return tokens * (self.outside() + REVERSIBLE_WIDTHS * a.width) + max(blocks)

    def _inner_again(self, tokens: int) -> int:
        """Bytes of inner states that are computed again, with their gradients: each is freed when it is used."""
        return 3 * self.inner() // 2 * tokens


MASK_RATE = 0.15
QUERY_RATE = 1 / 6  # share of the tokens that a query stream predicts
LOGIT_BYTES = 10  # per logit: score in bf16, log-softmax and its gradient in fp32
# Keys per query, on average over a sequence, for each value of the axis `attention`.
KEYS: dict[str, Callable[[Transformer, int], float]] = {
    "full": lambda a, length: a.memory + length,
    "causal": lambda a, length: a.memory if a.same_length else a.memory + (length + 1) / 2,
    "local": lambda a, length: _window_keys(min(a.window, length - 1), a.look_ahead, length),
    "chunked": lambda a, length: _chunk_keys(a.chunk_length, a.chunks_before + 1 + a.chunks_after, length),
    "lsh": lambda a, length: (
        a.hashes * _chunk_keys(a.lsh_chunk_length, a.lsh_chunks_before + 1 + a.lsh_chunks_after, length)
    ),
}

UP = {"plain": 1, "gated": 2}  # outputs of the first linear layer in units of `ffn_width`, by the axis `ffn`


class TransformerCosts(Costs):
    """The costs of a transformer."""

    def __init__(self, a: Transformer) -> None:
        self.a = a
        self.rate = 1.0 if a.causal else QUERY_RATE if a.query_stream else MASK_RATE
        token = {"forward": "next token", "backward": "previous token", "both": "next and previous token"}[a.direction]
        predicted = f"every {token} predicted" if a.causal else "MLM on 15 %"
        predicted = "one token in 6 predicted by the query stream" if a.query_stream else predicted
        self.assumptions = f"bf16 autocast, AdamW, packed, {predicted}, attention_dropout = 0; see docs/memory.md"

    def parameters(self) -> Parameters:
        """Count the parameters."""
        a = self.a
        norm = 2 if a.norm == "layer" and a.norm_bias else 1  # vectors
        inner = a.heads * a.head_size
        attention = linear(inner, a.width, a.attention_bias) + norm * a.width
        if a.positions == "relative":
            attention += a.width * inner + (0 if a.shared_position_bias else 2 * inner)
        if a.segment_encoding == "relative":
            attention += 3 * inner
        copies = zip(a.sharing_indices("attention"), a.attention_kinds, strict=True)
        kinds = dict(copies).values()  # of each stored copy
        projections = sum(linear(a.width, self._projected(kind) * inner, a.attention_bias) for kind in kinds)
        ffn = linear(a.width, UP[a.ffn] * a.ffn_width, a.ffn_bias) + linear(a.ffn_width, a.width, a.ffn_bias)
        ffn += norm * a.width
        last = norm * a.reader_width if a.residual != "post-norm" and a.final_norm else 0
        last += 2 * inner if a.shared_position_bias else 0
        last += a.width if a.query_stream else 0
        last -= 0 if a.first_norm else norm * a.width
        layers = attention * len(kinds) + projections + ffn * len(set(a.sharing_indices("ffn"))) + last
        return Parameters(
            embeddings=self._embeddings(norm),
            encoder=a.readers * layers,
            pooler=linear(a.output_width, a.width) if a.pooler else 0,
            mlm_head=self._mask_head(),
        )

    def _projected(self, kind: str) -> int:
        """Return how many of queries, keys and values attention of some kind computes by products of their own."""
        return 2 if kind == "lsh" or (self.a.shared_qk and kind in ("full", "causal")) else 3

    def _projections(self) -> list[int]:
        """Return the parameters of each cluster's projection; none if all are as wide as the layers."""
        widths = [width for _, width in vocabulary_clusters(self.a)]
        if not self.a.cutoffs or set(widths) == {self.a.width}:
            return []
        return [width * self.a.width for width in (widths if len(set(widths)) > 1 else widths[:1])]

    def _embeddings(self, norm: int) -> int:
        a = self.a
        places = a.max_positions + a.position_offset if a.positions == "learned" else 0
        segments = a.segments if a.segment_encoding == "absolute" else 0
        tables = sum(rows * width for rows, width in vocabulary_clusters(a)) + (places + segments) * a.embedding_width
        if a.positions == "axial":
            tables += sum(size * width for size, width in zip(a.axial_sizes, a.axial_vector_widths, strict=True))
        projection = linear(a.embedding_width, a.width) if a.embedding_projection else sum(self._projections())
        return tables + (norm * a.embedding_width if a.embedding_norm else 0) + projection

    def embedding_parts(self) -> dict[str, int]:
        """Count the parts of the embeddings."""
        a = self.a
        tokens = sum(rows * width for rows, width in vocabulary_clusters(self.a))
        projection = a.embedding_width * a.width if a.embedding_projection else sum(self._projections())
        positions = (a.max_positions + a.position_offset) * a.embedding_width if a.positions == "learned" else 0
        if a.positions == "axial":
            positions = sum(size * width for size, width in zip(a.axial_sizes, a.axial_vector_widths, strict=True))
        return named_parts(self.parameters().embeddings, tokens, projection, positions)

    def inference_activations(self, tokens: int) -> int:
        """Copies of the states, and the larger of what attention and feed-forward layer hold beside them."""
        a = self.a
        inner, copies = a.heads * a.head_size, 3 if a.residual == "post-norm" else 4
        attention = 6 * inner + 2 * a.head_size if a.positions == "rotary" else 5 * inner
        gated = 4 if a.ffn == "gated" else 2
        return a.readers * tokens * (copies * a.width + max(attention, gated * a.ffn_width))

    def _mask_head(self) -> int:
        a, clusters = self.a, vocabulary_clusters(self.a)
        transform = linear(a.reader_width, a.embedding_width, a.head_bias)
        transform += (2 if a.head_bias else 1) * a.embedding_width
        transform = transform if a.mask_transform else 0
        parameters = transform + (a.vocab_size if a.mask_bias else 0) + (0 if a.tied_output else self.output_matrix())
        if self._projections():
            parameters += sum(clusters[int(i)][1] * a.width for i in a.output_projections.split(",") if i)
        return parameters + (len(clusters) - 1) * (a.embedding_width + 1)

    def output_matrix(self) -> int:
        """Return the size of the head's output matrix, whether it is the token embedding or not."""
        a = self.a
        return a.vocab_size * (a.embedding_width if a.mask_transform or a.tied_output else a.reader_width)

    def forward_flops(self, length: int) -> int:
        """Operations per token of the encoder's forward pass at a sequence length."""
        a = self.a
        inner = a.heads * a.head_size
        # Keys and values of the memory are computed with every segment.
        keys_and_values = a.layers * (2 + 2 * a.memory / length) * a.width * inner
        keys_and_values -= sum(3 - self._projected(kind) for kind in a.attention_kinds) * a.width * inner
        hashing = a.attention_kinds.count("lsh") * a.hashes * _hash_axes(a, length) * inner
        projection = a.embedding_width * a.width if a.embedding_projection else 0
        return round(2 * a.readers * (self._row(length) + keys_and_values + hashing + projection))

    def _row(self, length: int) -> float:
        """Products per row of the layers, without those of keys and values."""
        a = self.a
        inner = a.heads * a.head_size
        linear = 2 * a.width * inner + (UP[a.ffn] + 1) * a.width * a.ffn_width
        keys = sum(KEYS[kind](a, length) for kind in a.attention_kinds)
        products = 3 if a.positions == "relative" else 2  # scores and weighted sum; scores by distance
        return a.layers * linear + products * keys * inner

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """Operations per predicted token: those of the MLM head and, if requested, of its row of the query stream."""
        a = self.a
        transform = a.reader_width * a.embedding_width if a.mask_transform else 0
        row = self._row(length) if query_stream else 0
        return round(2 * a.readers * (transform + self.output_matrix() + row))

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass, if every layer keeps its own."""
        return Activations(self.a).per_token()

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of activations and logits at the start of the backward pass, `predicted` of the tokens predicted."""
        a = self.a
        row = self.activation_bytes() - 4 * a.layers * a.width if query_stream else 0  # it has no keys and values
        in_head, outside = predicted, row
        if a.ffn_chunk and not a.cutoffs:  # the head's tensors exist for a chunk at a time; its input stays
            in_head, outside = min(predicted, a.ffn_chunk), row + 2 * a.output_width
        return Activations(a).at_start(tokens, in_head * self.head_bytes() + predicted * outside)

    def bytes_at_end(self, tokens: int) -> int:
        """Bytes of activations besides the gradients of all weights."""
        return Activations(self.a).at_end(tokens)

    def head_bytes(self) -> int:
        """Bytes per predicted token that autograd keeps of the MLM head, and those of the logits."""
        a = self.a
        return a.readers * (6 * a.reader_width + 12 * a.embedding_width + LOGIT_BYTES * a.vocab_size)


def _window_keys(window: int, both_sides: bool, length: int) -> float:
    """Keys per query with a window before it, or to both sides, which is cut at the ends of the sequence."""
    return 1 + (1 + both_sides) * (window - window * (window + 1) / (2 * length))


def _chunk_keys(chunk: int, seen: int, length: int) -> int:
    """Keys per query that sees so many chunks of a sequence; scores of whole chunks are computed, hidden or not."""
    return min(length, chunk) if length <= chunk else min(seen, -(-length // chunk)) * chunk


def _hash_axes(a: Transformer, length: int) -> int:
    """Axes that each vector is multiplied with in one round of hashing: half of the buckets of each factor."""
    if a.buckets != "0":
        return sum(int(factor) // 2 for factor in a.buckets.split(","))
    exponent = max(1, (2 * (length // a.lsh_chunk_length)).bit_length() - 1)
    if 2**exponent <= 2 * a.lsh_chunk_length:
        return int(2**exponent // 2)
    return int((2 ** (exponent // 2) + 2 ** (exponent - exponent // 2)) // 2)
