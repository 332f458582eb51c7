"""The costs of an LSTM language model.

Operations leave out the character CNN: it computes each distinct word of a batch once, so its share depends on the text
(a third of an LSTM's operations for each word it computes, at ELMo's sizes).
"""

from bertree.model.architecture import Lstm
from bertree.model.cost.counts import Parameters, linear, named_parts, vocabulary_clusters

CHARACTERS = 261


class LstmCosts:
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

    def classifiers(self) -> dict[str, int]:
        """None."""
        return {}

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
