"""What the costs of every kind of architecture consist of, and those of a BiLSTM."""

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Protocol

from bertree.model.architecture import Architecture, BiLstm, Lstm, Transformer


@dataclass(frozen=True)
class Parameters:
    """Exact counts; a tensor shared by several layers or tied to another counts once."""

    embeddings: int  # tables, their norm, and the projection from E to H
    encoder: int  # the layers, the norm after the last in pre-norm or reversible, and the start of a query stream
    pooler: int
    mlm_head: int  # without its output matrix, where that is the token embedding

    @property
    def total(self) -> int:
        """Parameters without the MLM head, as usually compared."""
        return self.embeddings + self.encoder + self.pooler

    def as_dict(self) -> dict[str, int]:
        """Return the parts and the total, for `--json`."""
        return asdict(self) | {"total": self.total}


def linear(inputs: int, outputs: int, bias: bool = True) -> int:
    """Count the parameters of a linear layer."""
    return inputs * outputs + (outputs if bias else 0)


def named_parts(embeddings: int, tokens: int, projection: int, positions: int) -> dict[str, int]:
    """Name the parts of the embeddings; what is left are segments, norm and biases."""
    parts = {"tokens_v_x_e": tokens, "projection_e_x_h": projection, "positions": positions}
    return parts | {"segments_norm_biases": embeddings - sum(parts.values())}


def vocabulary_clusters(a: Lstm | Transformer) -> list[tuple[int, int]]:
    """Return the entries and the embedding width of each cluster of the vocabulary."""
    pairs = enumerate(pairwise(a.cluster_starts))
    return [(end - start, max(1, a.embedding_width // a.embedding_divisor**i)) for i, (start, end) in pairs]


class Costs(Protocol):
    """The costs of one architecture; each kind has its own formulas."""

    assumptions: str  # of the memory model
    rate: float  # share of the tokens that the head predicts

    def parameters(self) -> Parameters:
        """Count the parameters."""

    def embedding_parts(self) -> dict[str, int]:
        """Count the parts of the embeddings: V x E, E x H, positions, and the rest."""

    def inference_activations(self, tokens: int) -> int:
        """Numbers that a forward pass without gradients holds at its peak, besides the weights and its input."""

    def classifiers(self) -> dict[str, int]:
        """Count the layers and a classifier together, by the kind of texts; empty if papers do not count so."""

    def forward_flops(self, length: int) -> int:
        """Operations per token of the encoder's forward pass at a sequence length."""

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """Operations per predicted token: those of the MLM head and, if requested, of its row of the query stream."""

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass, if every layer keeps its own."""

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of activations and logits at the start of the backward pass, `predicted` of the tokens predicted."""

    def bytes_at_end(self, tokens: int) -> int:
        """Bytes of activations besides the gradients of all weights."""

    def output_matrix(self) -> int:
        """Return the size of the matrix whose gradient is written first."""


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

    def embedding_parts(self) -> dict[str, int]:
        """Count the parts of the embeddings."""
        tokens = self.a.vocab_size * self.a.embedding_width
        return named_parts(self.parameters().embeddings, tokens, 0, 0)

    def inference_activations(self, tokens: int) -> int:
        """Input and output of a layer, twice: in the order of the texts and step by step."""
        return tokens * 2 * (self.a.width + max(self.below))

    def classifiers(self) -> dict[str, int]:
        """Count the LSTM and its classifier of two classes, which its paper does."""
        counts, layers = {}, self.parameters().encoder
        for texts, head in (("single texts", "relu"), ("pairs", "compare")):
            counts[texts] = layers + classifier_parameters(replace(self.a, sequence_head=head))
        return counts

    def forward_flops(self, length: int) -> int:
        """Operations per token: four gates for each unit; the width is that of both directions."""
        return 2 * sum(4 * self.a.width * each for each in self.inputs)

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """None."""
        return 0

    def activation_bytes(self) -> int:
        """Bytes per token in fp32: each layer's input, and each unit's gates, cell and output."""
        return sum(4 * (each + 6 * self.a.width) + (each if self.a.dropout else 0) for each in self.below)

    def output_matrix(self) -> int:
        """The token embedding, whose gradient is written first."""
        return self.a.vocab_size * self.a.embedding_width

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of the activations."""
        return tokens * self.activation_bytes()

    def bytes_at_end(self, tokens: int) -> int:
        """None."""
        return 0


def classifier_parameters(a: Architecture) -> int:
    """Count the parameters of a BiLSTM's sequence head with two classes."""
    return linear(a.sequence_width, a.ffn_width) + linear(a.ffn_width, 2)
