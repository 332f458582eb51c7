"""What the costs of every kind of architecture consist of."""

from dataclasses import asdict, dataclass
from typing import Protocol


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

    def predicted_flops(self, length: int, query_stream: bool) -> int:
        """Operations per predicted token: those of the MLM head and, if asked for, of its row of the query stream."""

    def activation_bytes(self) -> int:
        """Bytes per token that autograd keeps for the encoder's backward pass, if every layer keeps its own."""

    def bytes_at_start(self, tokens: int, predicted: int, query_stream: bool) -> int:
        """Bytes of activations and logits at the start of the backward pass, `predicted` of the tokens predicted."""

    def bytes_at_end(self, tokens: int) -> int:
        """Bytes of activations beside the gradients of all weights."""

    def output_matrix(self) -> int:
        """Return the size of the matrix whose gradient is written first."""
