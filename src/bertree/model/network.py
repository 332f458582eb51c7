"""An encoder with its heads: what is trained, saved and loaded.

Heads by name: `mask` (MLM), `pair` (NSP or SOP), `sequence` (classification, or regression with one
class), `token`, `span` (start and end), `choice` (one score per option).

Shape letters: t tokens, s sequences, m chosen positions, h width, v vocabulary, c classes.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture
from bertree.model.encoder import Encoder, build_encoder, initialise
from bertree.model.heads import ClassHead, MaskHead

FIXED_CLASSES = {"mask": 0, "pair": 2, "span": 2, "choice": 1}  # mask: the vocabulary, not a count of its own
HEADS = ("mask", "pair", "sequence", "token", "span", "choice")
TOKEN_HEADS = ("token", "span")


class Network(nn.Module):
    """Encoder and heads."""

    def __init__(self, encoder: Encoder, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    def forward(self, batch: Batch) -> Tensor:
        """The last hidden states (t x h)."""
        hidden: Tensor = self.encoder(batch)
        return hidden

    def mask_logits(self, hidden_th: Tensor, chosen_m: Tensor, rounded: bool = False) -> Tensor:
        """MLM scores at the chosen tokens of the stream (m x v); `rounded` may add columns that count for nothing."""
        logits: Tensor = self.heads["mask"](hidden_th[chosen_m], self.encoder.embeddings.tokens.weight, rounded)
        return logits

    def class_logits(self, name: str, hidden_th: Tensor, batch: Batch, chosen_m: Tensor | None = None) -> Tensor:
        """Scores of any other head: one row a sequence, or a (chosen) token for `token` and `span`."""
        head = self.heads[name]
        assert isinstance(head, ClassHead)
        if name in TOKEN_HEADS:
            read = hidden_th if chosen_m is None else hidden_th[chosen_m]
        elif head.dense is not None:
            read = hidden_th[batch.first]
        else:
            read = self.encoder.pool(hidden_th, batch)
        logits: Tensor = head(read)
        return logits


def build(a: Architecture, heads: Mapping[str, int] | None = None) -> Network:
    """The network of a point in the design space; `heads` maps a head's name to its number of classes."""
    return Network(build_encoder(a), {name: build_head(a, name, n) for name, n in (heads or {}).items()})


def build_head(a: Architecture, name: str, classes: int = 0) -> nn.Module:
    """A fresh head that fits the encoder of `a`."""
    if name not in HEADS:
        raise UserError(f"{name}: unknown head, {suggest(name, HEADS)}")
    classes = FIXED_CLASSES.get(name, classes)
    if name == "mask":
        head: nn.Module = MaskHead(a.width, a.embedding_width, a.vocab_size, a.mask_activation, a.norm_eps)
    elif classes < 1:
        raise UserError(f"head '{name}': needs at least one class")
    else:
        head = _class_head(a, name, classes)
    initialise(head, a.init_std)
    return head


def _class_head(a: Architecture, name: str, classes: int) -> ClassHead:
    out = nn.Linear(a.width, classes)
    if name in TOKEN_HEADS or name == "pair":
        dropout = a.classifier_dropout if name == "token" else 0.0
        if name == "pair" and not a.pooler:
            raise UserError("head 'pair': this architecture has no pooler to read; set pooler=true")
        return ClassHead(out, dropout)
    # RoBERTa's and DistilBERT's classifiers bring a dense layer of their own; a choice head reads the
    # pooler wherever there is one.
    if a.sequence_head == "pooler" or (name == "choice" and a.pooler):
        if not a.pooler:
            raise UserError(f"head '{name}': this architecture has no pooler to read; set pooler=true")
        return ClassHead(out, a.classifier_dropout)
    return ClassHead(
        out,
        a.classifier_dropout,
        dense=nn.Linear(a.width, a.width),
        activation=a.sequence_head,
        input_dropout=a.classifier_dropout if a.sequence_head == "tanh" else 0.0,
    )
