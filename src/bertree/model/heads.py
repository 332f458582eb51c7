"""Heads: hidden states, or vectors of two texts -> logits. Each gets only the positions it needs.

Shape letters: m chosen positions, h width, e embedding width, v vocabulary, c classes, q pairs of texts, d width of a
vector.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import IGNORED
from bertree.errors import UserError, suggest
from bertree.model.layers.feed_forward import ACTIVATION

ROUND = 64
NEVER = -30000.0  # a logit whose probability is 0; half precision can represent it


class MaskHead(nn.Module):
    """MLM or LM: logits over the vocabulary. Its output matrix is the token embedding, passed in, never copied.

    `transform`: a dense layer, an activation and a norm come first. `bias`: one for each entry of the vocabulary.
    """

    def __init__(
        self,
        width: int,
        embedding_width: int,
        vocab_size: int,
        activation: str,
        eps: float,
        transform: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, embedding_width) if transform else None
        self.norm = nn.LayerNorm(embedding_width, eps=eps) if transform else None
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.vocab_size = vocab_size
        self.activation = ACTIVATION[activation]

    def forward(self, hidden_mh: Tensor, tokens: nn.Embedding, pad_vocab: bool = False) -> Tensor:
        """Return logits for the hidden states of the chosen positions (m x v).

        `pad_vocab`: on a GPU, pad the vocabulary to a multiple of 64 with entries whose probability is 0. Matrices of
        an odd size (BERT's vocabulary has 30,522 entries) are multiplied several times slower.
        """
        tokens_ve: Tensor = tokens.weight
        bias_v: Tensor | None = self.bias
        spare = -self.vocab_size % ROUND if pad_vocab and tokens_ve.is_cuda else 0
        if spare:
            bias_v = tokens_ve.new_zeros(self.vocab_size) if bias_v is None else bias_v
            tokens_ve, bias_v = F.pad(tokens_ve, (0, 0, 0, spare)), F.pad(bias_v, (0, spare), value=NEVER)
        if self.dense is not None and self.norm is not None:
            hidden_mh = self.norm(self.activation(self.dense(hidden_mh)))
        return F.linear(hidden_mh, tokens_ve, bias_v)

    def loss(self, hidden_mh: Tensor, tokens: nn.Embedding, targets_m: Tensor) -> Tensor:
        """Return the cross-entropy, summed over the targets that are not -100."""
        logits_mv = self(hidden_mh, tokens, pad_vocab=True)
        return F.cross_entropy(logits_mv.float(), targets_m, ignore_index=IGNORED, reduction="sum")


class ClassHead(nn.Module):
    """A logit per class for each state it is given: a token's or a sequence's.

    With `dense` the head first transforms the state (RoBERTa, DistilBERT). `reads` says which states it is given:
    each token's ("tokens"), the pooler's output ("pooled"), or one state per sequence ("sequence").
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
        """Return logits (... x c)."""
        if self.dense is not None:
            x_h = self.activation(self.dense(self.input_dropout(x_h)))
        logits: Tensor = self.out(self.dropout(x_h))
        return logits


PAIR_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}


def parse_concat(text: str) -> tuple[str, ...]:
    """Parse the features of a pair classifier: "u,v,|u-v|", also in brackets and with spaces."""
    names = tuple(name for name in text.replace(" ", "").strip("()").split(",") if name)
    for name in names:
        if name not in PAIR_FEATURES:
            raise UserError(f"concat: unknown part '{name}', {suggest(name, PAIR_FEATURES)}")
    if not names or len(set(names)) < len(names):
        raise UserError(f"concat: '{text}' must name each part once, for example u,v,|u-v|")
    return names


class PairClassifier(nn.Module):
    """A linear classifier on features of two sentence vectors, in fp32 like the vectors.

    Sentence-BERT is trained with it on sentence pairs; afterwards it is thrown away.
    """

    def __init__(self, width: int, classes: int, features: Sequence[str], std: float = 0.02) -> None:
        super().__init__()
        self.features = tuple(features)
        self.out = nn.Linear(len(self.features) * width, classes)
        nn.init.normal_(self.out.weight, std=std)
        nn.init.zeros_(self.out.bias)

    def forward(self, u_qd: Tensor, v_qd: Tensor) -> Tensor:
        """Return logits (q x c)."""
        with torch.autocast(u_qd.device.type, enabled=False):
            joined = torch.cat([PAIR_FEATURES[name](u_qd, v_qd) for name in self.features], -1)
            logits: Tensor = self.out(joined.to(self.out.weight.dtype))
            return logits
