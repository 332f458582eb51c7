"""The costs of a BiLSTM."""

from dataclasses import replace

from bertree.model.architecture import Architecture, BiLstm
from bertree.model.cost.counts import Parameters, linear


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


def classifier_parameters(a: Architecture, classes: int = 2) -> int:
    """Count the parameters of a BiLSTM's sequence head."""
    return linear(a.sequence_width, a.ffn_width) + linear(a.ffn_width, classes)
