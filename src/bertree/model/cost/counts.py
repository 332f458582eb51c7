"""What the costs of every kind of architecture consist of, and those of LSTMs.

Operations of an LSTM language model leave out the character CNN: it computes each distinct word of a batch once, so its
share depends on the text (a third of an LSTM's operations for each word it computes, at ELMo's sizes).
"""

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Protocol

from bertree.model.architecture import Architecture, BiLstm, Lstm, Transformer

CHARACTERS = 261


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
        return {}

    def forward_flops(self, length: int) -> int:
        """Operations per token of the encoder's forward pass at a sequence length."""

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """Operations per predicted token: those of the MLM head and, if requested, of its row of the query stream."""
        return 0

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass, if every layer keeps its own."""

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of activations and logits at the start of the backward pass, `predicted` of the tokens predicted."""

    def bytes_at_end(self, tokens: int) -> int:
        """Bytes of activations besides the gradients of all weights."""
        return 0

    def output_matrix(self) -> int:
        """Return the size of the matrix whose gradient is written first."""


class BiLstmCosts(Costs):
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

    def activation_bytes(self) -> int:
        """Bytes per token in fp32: each layer's input, and each unit's gates, cell and output."""
        return sum(4 * (each + 6 * self.a.width) + (each if self.a.dropout else 0) for each in self.below)

    def output_matrix(self) -> int:
        """The token embedding, whose gradient is written first."""
        return self.a.vocab_size * self.a.embedding_width

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of the activations."""
        return tokens * self.activation_bytes()


def classifier_parameters(a: Architecture) -> int:
    """Count the parameters of a BiLSTM's sequence head with two classes."""
    return linear(a.sequence_width, a.ffn_width) + linear(a.ffn_width, 2)


class LstmCosts(Costs):
    """The costs of an LSTM language model."""

    def __init__(self, a: Lstm) -> None:
        self.a = a
        self.rate = 1.0
        self.assumptions = "bf16 autocast, AdamW, packed, every token predicted by each direction; an estimate"

    def parameters(self) -> Parameters:
        """Count the parameters."""
        a, width = self.a, self.a.width
        layer = linear(width, 4 * a.ffn_width) + 4 * a.ffn_width * width + a.ffn_width * width
        encoder = a.layers * a.readers * layer
        return Parameters(self._embeddings(), encoder, pooler=0, mlm_head=self._mask_head())

    def _embeddings(self) -> int:
        a = self.a
        if not a.characters:
            return a.vocab_size * a.embedding_width
        total = sum(count for _, count in a.filter_table)
        filters = sum(linear(length * a.character_width, count) for length, count in a.filter_table)
        highways = a.highways * linear(total, 2 * total)
        return CHARACTERS * a.character_width + filters + highways + linear(total, a.embedding_width)

    def _mask_head(self) -> int:
        a, clusters = self.a, vocabulary_clusters(self.a)
        if not a.cutoffs:
            return a.vocab_size + (0 if a.tied_output else a.vocab_size * a.embedding_width)
        widths = [width for _, width in clusters]
        projections = sum(width * a.width for width in widths) if len(set(widths)) > 1 else 0
        matrices = sum(entries * width for entries, width in clusters)
        return a.vocab_size + matrices + projections + (len(clusters) - 1) * (widths[0] + 1)

    def embedding_parts(self) -> dict[str, int]:
        """Count the parts of the embeddings: a table, or the character CNN."""
        count = self._embeddings()
        return {"character_cnn": count} if self.a.characters else named_parts(count, count, 0, 0)

    def inference_activations(self, tokens: int) -> int:
        """Input and output of a layer, and the gates, cells and raw outputs of all its steps."""
        a = self.a
        return tokens * a.readers * (3 * a.width + 6 * a.ffn_width)

    def forward_flops(self, length: int) -> int:
        """Operations per token: four gates for each cell of its input and its last output, and the projection."""
        a, width = self.a, self.a.width
        return 2 * a.layers * a.readers * (8 * a.ffn_width * width + a.ffn_width * width)

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """Operations of the softmax for each direction; of an adaptive one, of its frequent tokens alone."""
        (entries, _), *rare = vocabulary_clusters(self.a)
        return 2 * self.a.readers * self.a.width * (entries + len(rare))

    def activation_bytes(self) -> int:
        """Bytes per token: of each layer its input, gates, cells in fp32, raw and projected outputs."""
        a = self.a
        own = a.readers * (2 * 2 * a.width + (2 * 4 + 4 + 2) * a.ffn_width)
        return a.layers * own + 2 * a.output_width

    def output_matrix(self) -> int:
        """The matrices of the softmax."""
        return sum(entries * width for entries, width in vocabulary_clusters(self.a))

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of the activations, and of the logits of the frequent tokens: half precision, and twice fp32."""
        (entries, _), *rare = vocabulary_clusters(self.a)
        return tokens * self.activation_bytes() + 10 * self.a.readers * predicted * (entries + len(rare))

    def bytes_at_end(self, tokens: int) -> int:
        """Bytes of the gradients of one layer's gates and cells."""
        return tokens * self.a.readers * (2 * 4 + 4) * self.a.ffn_width
