"""Heads: hidden states -> scores. Each is given only the positions it reads.

Shape letters: t tokens, s sequences, m chosen positions, h width, e embedding width, v vocabulary, c classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.model.feed_forward import ACTIVATION

ROUND = 64
NEVER = -30000.0  # a logit with no probability; half precision can hold it


class MaskHead(nn.Module):
    """MLM: scores over the vocabulary. Its output matrix is the token embedding, handed in, never copied."""

    def __init__(self, width: int, embedding_width: int, vocab_size: int, activation: str, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, embedding_width)
        self.norm = nn.LayerNorm(embedding_width, eps=eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.activation = ACTIVATION[activation]

    def forward(self, hidden_mh: Tensor, tokens_ve: Tensor, rounded: bool = False) -> Tensor:
        """Hidden states of the chosen positions -> logits (m x v).

        A GPU multiplies rows of an odd length (BERT's vocabulary has 30,522 entries) several times slower.
        `rounded` fills the vocabulary up with entries whose probability is 0.
        """
        bias_v: Tensor = self.bias
        spare = -len(bias_v) % ROUND if rounded and tokens_ve.is_cuda else 0
        if spare:
            tokens_ve, bias_v = F.pad(tokens_ve, (0, 0, 0, spare)), F.pad(bias_v, (0, spare), value=NEVER)
        return F.linear(self.norm(self.activation(self.dense(hidden_mh))), tokens_ve, bias_v)


class ClassHead(nn.Module):
    """A score per class for each vector it is given: a token's, or a sequence's.

    With `dense` the head first transforms the vector itself (RoBERTa, DistilBERT); without, it takes it as it is.
    `reads` says which vectors those are: each token's ("tokens"), the pooler's ("pooled"), or those of the token
    that has seen its whole sequence ("whole").
    """

    def __init__(
        self,
        out: nn.Linear,
        reads: str,
        dropout: float,
        dense: nn.Linear | None = None,
        activation: str = "tanh",
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.reads = reads
        self.input_dropout = nn.Dropout(input_dropout)
        self.dense = dense
        self.activation = ACTIVATION[activation]
        self.dropout = nn.Dropout(dropout)
        self.out = out

    def forward(self, x_h: Tensor) -> Tensor:
        """Vectors -> logits (... x c)."""
        if self.dense is not None:
            x_h = self.activation(self.dense(self.input_dropout(x_h)))
        logits: Tensor = self.out(self.dropout(x_h))
        return logits
