"""An encoder with its heads: what is trained, saved and loaded.

Heads by name: `mask` (MLM), `pair` (NSP or SOP), `sequence` (classification, or regression with one
class), `token`, `span` (start and end), `choice` (one score per option). What stands between the two, if anything
does, is a `Top`; what makes one vector of a text is a `ToVector`.

Shape letters: t tokens, s sequences, m chosen positions, h width, w width of what heads read, v vocabulary, c classes.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture
from bertree.model.bilstm import _bilstm
from bertree.model.crf import Crf
from bertree.model.encoder import Encoder, _transformer
from bertree.model.heads import ClassHead, MaskHead
from bertree.model.init import initialise
from bertree.model.pooling import ToVector, Vector
from bertree.model.readout import Features, Top, build_crf, build_features

FIXED_CLASSES = {"mask": 0, "pair": 2, "span": 2, "choice": 1}  # mask: the vocabulary, not a count of its own
HEADS = ("mask", "pair", "sequence", "token", "span", "choice")
TOKEN_HEADS = ("token", "span")


class Network(nn.Module):
    """Encoder and heads, and what `top` puts between them: `features`, and a `crf` over the token head's scores."""

    def __init__(
        self,
        encoder: Encoder,
        heads: Mapping[str, nn.Module],
        top: Top | None = None,
        features: Features | None = None,
        crf: Crf | None = None,
        vector: ToVector | None = None,
        width: int = 0,
    ) -> None:
        """`width`: of what heads read."""
        super().__init__()
        self.top = top or Top()
        self.encoder = encoder
        self.features = features
        self.heads = nn.ModuleDict(heads)
        self.crf = crf
        self.vector = vector
        self.width = width
        if self.top.frozen:
            encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> "Network":
        """As of every module; but a frozen encoder has no dropout in training either."""
        super().train(mode)
        if self.top.frozen:
            self.encoder.eval()
        return self

    def forward(self, batch: Batch) -> Tensor:
        """What heads read: the last hidden states (t x h), or what the top makes of the encoder's states (t x w)."""
        if self.features is None:
            with self._as_it_is():
                hidden: Tensor = self.encoder(batch)
            return hidden
        with self._as_it_is():
            states = self.features.states(self.encoder, batch)
        read_tw: Tensor = self.features(states, batch)
        return read_tw

    def _as_it_is(self) -> AbstractContextManager[object]:
        """A frozen encoder leaves no trace for the backward pass."""
        return torch.no_grad() if self.top.frozen else nullcontext()

    def mask_logits(self, hidden_th: Tensor, chosen_m: Tensor, rounded: bool = False) -> Tensor:
        """MLM scores at the chosen tokens of the stream (m x v); `rounded` may add columns that count for nothing."""
        logits: Tensor = self.heads["mask"](hidden_th[chosen_m], self.encoder.embeddings.tokens.weight, rounded)
        return logits

    def class_logits(self, name: str, hidden_tw: Tensor, batch: Batch, chosen_m: Tensor | None = None) -> Tensor:
        """Scores of any other head: one row a sequence, or a (chosen) token for `token` and `span`."""
        head = self.heads[name]
        assert isinstance(head, ClassHead)
        if head.reads == "tokens":
            read = hidden_tw if chosen_m is None else hidden_tw[chosen_m]
        elif head.reads == "pooled":
            read = self.encoder.pool(hidden_tw, batch)
        else:
            read = self.whole(hidden_tw, batch)
        logits: Tensor = head(read)
        return logits

    def vectors(self, hidden_tw: Tensor, batch: Batch) -> Tensor:
        """One vector a sequence (s x d), in float32."""
        assert self.vector is not None
        found: Tensor = self.vector(hidden_tw, batch)
        return found

    def whole(self, hidden_tw: Tensor, batch: Batch) -> Tensor:
        """What stands for each sequence (s x w): what the encoder or the top says it is."""
        if self.features is None:
            return self.encoder.whole(hidden_tw, batch)
        return self.features.whole(hidden_tw, batch, self.encoder.seeing(batch))


def build(
    a: Architecture, heads: Mapping[str, int] | None = None, top: Top | None = None, vector: Vector | None = None
) -> Network:
    """The network of a point in the design space; `heads` maps a head's name to its number of classes."""
    top, heads = top or Top(), heads or {}
    encoder = build_encoder(a)
    features, width = build_features(a, top)
    made = {name: build_head(a, name, classes, top, width) for name, classes in heads.items()}
    to_vector = ToVector(width, vector) if vector is not None else None
    if to_vector is not None:
        initialise(to_vector, a.init_std)
    return Network(encoder, made, top, features, build_crf(top, heads), to_vector, width)


def build_head(a: Architecture, name: str, classes: int = 0, top: Top | None = None, width: int = 0) -> nn.Module:
    """A fresh head that fits the encoder of `a`, or what `top` makes of its states, of that width."""
    top = top or Top()
    if name not in HEADS:
        raise UserError(f"{name}: unknown head, {suggest(name, HEADS)}")
    if name in ("mask", "pair") and top.transforms:
        raise UserError(f"head '{name}': reads an encoder's last states, which top.layers and top.lstm replace")
    if name in ("mask", "pair") and a.body == "bilstm":
        raise UserError(f"head '{name}': a bilstm is not pretrained; its heads are sequence, token, span and choice")
    classes = FIXED_CLASSES.get(name, classes)
    if name == "mask":
        head: nn.Module = MaskHead(a.width, a.embedding_width, a.vocab_size, a.mask_activation, a.norm_eps)
    elif classes < 1:
        raise UserError(f"head '{name}': needs at least one class")
    elif name in TOKEN_HEADS:
        out = nn.Linear(width or a.width, classes)
        head = ClassHead(out, "tokens", a.classifier_dropout if name == "token" else 0.0)
    elif top.reads_states and name != "pair":
        read = width if top.transforms and width else a.whole_width
        head = ClassHead(nn.Linear(read, classes), "whole", a.classifier_dropout)
    elif a.body == "bilstm":
        dense = nn.Linear(a.whole_width, a.ffn_width)
        head = ClassHead(nn.Linear(a.ffn_width, classes), "whole", a.classifier_dropout, dense, "relu")
    else:
        head = _sequence_head(a, name, classes)
    initialise(head, a.init_std)
    return head


def _sequence_head(a: Architecture, name: str, classes: int) -> ClassHead:
    """What a family's own head on a whole sequence is."""
    out = nn.Linear(a.width, classes)
    # RoBERTa's and DistilBERT's classifiers bring a dense layer of their own; a choice head reads the
    # pooler wherever there is one.
    if name == "pair" or a.sequence_head == "pooler" or (name == "choice" and a.pooler):
        if not a.pooler:
            raise UserError(f"head '{name}': this architecture has no pooler to read; set pooler=true")
        return ClassHead(out, "pooled", 0.0 if name == "pair" else a.classifier_dropout)
    return ClassHead(
        out,
        "whole",
        a.classifier_dropout,
        dense=nn.Linear(a.width, a.width),
        activation=a.sequence_head,
        input_dropout=a.classifier_dropout if a.sequence_head == "tanh" else 0.0,
    )


def build_encoder(a: Architecture) -> Encoder:
    """The encoder of a point in the design space, with fresh weights."""
    return _transformer(a) if a.body == "transformer" else _bilstm(a)
