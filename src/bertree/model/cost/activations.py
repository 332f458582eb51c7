"""Bytes that a training step of a transformer keeps for its backward pass, under bf16 autocast."""

from bertree.model.architecture import Transformer

ORDER_BYTES = 24  # per token, line of chunks and round: token and place of each slot, slot of each token, log-sum
# Per token, in units of the width: both streams after the last layer, their gradients, both again before the block that
# is computed and with its gradients (each float32), and what the block adds.
REVERSIBLE_WIDTHS = 4 * 8 + 6


class Activations:
    """The bytes of one architecture. Figures are per token, if nothing else is said."""

    def __init__(self, a: Transformer) -> None:
        self.a = a
        self._mask = a.width if a.dropout else 0  # one byte per element, after each block
        self._norm = 2 * a.width + 8  # input, mean and deviation

    def attention(self, kind: str) -> int:
        """Bytes of a block of attention of some kind, with its norm."""
        a = self.a
        h = a.width
        found = 2 * h + 6 * h + 2 * h + 4 * a.heads  # input, q k v, output, log-sum-exp
        found += 4 * h if a.positions == "rotary" else 0  # q and k before they are rotated
        found += 2 * h if a.positions == "relative" else 0  # q with each of two biases
        shared = kind == "lsh" or (a.shared_qk and kind in ("full", "causal"))
        found += 4 * h if shared else 0  # q in float32, of which keys of unit length are made
        lines = {"lsh": a.heads * a.hashes, "chunked": 1}.get(kind, 0)
        return self._mask + self._norm + found + ORDER_BYTES * lines

    def feed_forward(self) -> int:
        """Bytes of a feed-forward block with its norm, without the inner states."""
        return self._mask + self._norm + 2 * self.a.width  # input

    def inner(self) -> int:
        """Bytes of the inner states of a feed-forward block."""
        f = self.a.ffn_width
        found = 2 * f + 2 * f  # before and after the activation
        return found + (4 * f if self.a.ffn == "gated" else 0)  # the gate, and its product with the activation

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
        return attention + self.a.layers * (self.feed_forward() + inner) + self.outside()

    def at_start(self, tokens: int, predicted: int) -> int:
        """Bytes of a batch at the start of the backward pass; `predicted`: those of its predicted tokens."""
        a = self.a
        if a.residual == "reversible":
            last = 8 * a.width + (8 * a.width + 8 if a.final_norm else 0)  # both streams, float32, and their norm
            return tokens * (self.outside() + last) + predicted
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
