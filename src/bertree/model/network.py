"""An encoder with its heads: what is trained, saved and loaded.

Heads by name: `mask` (MLM), `pair` (NSP or SOP), `sequence` (classification, or regression with one class), `token`,
`span` (start and end), `beam-span` (the end given the start), `choice` (one logit per option). A
`Readout` may put other states, an LSTM or a CRF between encoder and heads; a `SentencePooling` turns a text's states
into one vector.

Shape letters: t tokens, s sequences, m chosen positions, h width, w width of the heads' input, v vocabulary, c classes,
d width of a sentence vector.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture, BiLstm, Lstm, Transformer
from bertree.model.directions import build_directed
from bertree.model.encoder import Encoder, EncoderOutput, State, StateSpec
from bertree.model.heads import BeamSpanHead, ClassHead, Grid, MaskHead
from bertree.model.layers.basic import initialize
from bertree.model.layers.embeddings import AdaptiveSoftmax
from bertree.model.pooling import PoolingConfig, SentencePooling
from bertree.model.readout import Crf, LayerFeatures, Readout, build_crf, build_features
from bertree.model.recurrent import build_bilstm, build_lstm, build_lstm_mask_head
from bertree.model.transformer import build_transformer, vocabulary_clusters

# 0: the head has no classes of its own: mask has the vocabulary, beam-span three outputs
FIXED_CLASSES = {"mask": 0, "pair": 2, "span": 2, "beam-span": 0, "choice": 1}
HEADS = ("mask", "pair", "sequence", "token", "span", "beam-span", "choice")
TOKEN_HEADS = ("token", "span")


class Network(nn.Module):
    """Encoder and heads, and what the readout adds: `features` in front of the heads, a `crf` after the token head.

    `width` is that of the heads' input.
    """

    def __init__(
        self,
        encoder: Encoder,
        heads: Mapping[str, nn.Module],
        *,
        readout: Readout | None = None,
        features: LayerFeatures | None = None,
        crf: Crf | None = None,
        vector: SentencePooling | None = None,
        width: int = 0,
    ) -> None:
        super().__init__()
        self.readout = readout or Readout()
        self.encoder = encoder
        self.features = features
        self.heads = nn.ModuleDict(heads)
        self.crf = crf
        self.vector = vector
        self.width = width
        if self.readout.frozen:
            encoder.requires_grad_(False)

    def start_state(self, lanes: int) -> State | None:
        """Return the encoder's state before the first batch of so many lanes; None if it has none."""
        return self.encoder.start_state(lanes)

    def state_specs(self, lanes: int) -> Mapping[str, StateSpec]:
        """Describe the encoder's state for this number of lanes; empty if it has none."""
        return self.encoder.state_specs(lanes)

    def train(self, mode: bool = True) -> "Network":
        """Set training mode. A frozen encoder stays in evaluation mode: it has no dropout."""
        super().train(mode)
        if self.readout.frozen:
            self.encoder.eval()
        return self

    def forward(self, batch: Batch) -> Tensor:
        """Return the heads' input: the last hidden states (t x h), or the readout's features (t x w)."""
        if self.features is None:
            with self._encoder_grad():
                hidden_th: Tensor = self.encoder(batch)
            return hidden_th
        with self._encoder_grad():
            states = self.features.states(self.encoder, batch)
        features_tw: Tensor = self.features(states, batch)
        return features_tw

    def encode(self, batch: Batch, state: State | None = None) -> EncoderOutput:
        """Return the heads' input, and the encoder's state for the next batch."""
        if self.features is not None:
            return EncoderOutput(self(batch))
        with self._encoder_grad():
            return self.encoder.encode(batch, state)

    def _encoder_grad(self) -> AbstractContextManager[object]:
        """Disable gradients if the encoder is frozen."""
        return torch.no_grad() if self.readout.frozen else nullcontext()

    def mask_logits(self, hidden_th: Tensor, chosen_m: Tensor, pad_vocab: bool = False) -> Tensor:
        """Return MLM or LM logits at the chosen tokens of the stream (m x v), or at the chosen rows of
        `Encoder.reader_states`, if there are two directions; `pad_vocab`: see `MaskHead`.

        An adaptive softmax gives log-probabilities."""
        states_mh = self.encoder.reader_states(hidden_th)[chosen_m]
        logits_mv: Tensor = self.heads["mask"](states_mh, self.encoder.embeddings.tokens, pad_vocab)
        return logits_mv

    def mask_loss(self, hidden_th: Tensor, chosen_m: Tensor, targets_m: Tensor) -> Tensor:
        """Return the cross-entropy at the chosen tokens, summed over the targets that are not -100: for training. An
        adaptive softmax computes no more than its targets need."""
        head = self.heads["mask"]
        assert isinstance(head, MaskHead | AdaptiveSoftmax)
        states_mh = self.encoder.reader_states(hidden_th)[chosen_m]
        return head.loss(states_mh, self.encoder.embeddings.tokens, targets_m)  # type: ignore[arg-type]

    def class_logits(self, name: str, hidden_tw: Tensor, batch: Batch, chosen_m: Tensor | None = None) -> Tensor:
        """Return the logits of any other head: a row per sequence, or per (chosen) token for `token` and `span`.

        The states of a batch's orders (`Batch.orders`) are added before the head, so they share a row."""
        head = self._class_head(name)
        if head.reads == "tokens":
            states = hidden_tw if chosen_m is None else hidden_tw[chosen_m]
        else:
            states = self.text_states(name, hidden_tw, batch)
        logits: Tensor = head(states)
        return logits

    def text_states(self, name: str, hidden_tw: Tensor, batch: Batch) -> Tensor:
        """Return what a head on whole texts reads: a row per text. The states of a batch's orders are added."""
        reads = self._class_head(name).reads
        if reads == "pooled":
            states = self.encoder.pool(hidden_tw, batch)
        elif reads == "vector":
            states = self.vectors(hidden_tw, batch)
        else:
            states = self.sequence_states(hidden_tw, batch)
        return states.unflatten(0, (-1, batch.orders)).sum(1) if batch.orders > 1 else states

    def _class_head(self, name: str) -> ClassHead:
        head = self.heads[name]
        assert isinstance(head, ClassHead)
        return head

    def beam_scores(self, hidden_tw: Tensor, chosen_m: Tensor, grid: Grid) -> Tensor:
        """Return what a search for answers needs of each chosen token: see `BeamSpanHead`."""
        scores_mc: Tensor = self.heads["beam-span"](hidden_tw[chosen_m], grid)
        return scores_mc

    def vectors(self, hidden_tw: Tensor, batch: Batch) -> Tensor:
        """Return one sentence vector per sequence (s x d), in float32."""
        assert self.vector is not None
        vectors_sd: Tensor = self.vector(hidden_tw, batch)
        return vectors_sd

    def sequence_states(self, hidden_tw: Tensor, batch: Batch) -> Tensor:
        """Return one state per sequence (s x w): as the encoder represents it, or the final states of an LSTM."""
        if self.features is None or self.features.lstm is None:
            return self.encoder.sequence_states(hidden_tw, batch)
        return self.features.lstm.final_states(hidden_tw, batch)


def build(
    a: Architecture,
    heads: Mapping[str, int] | None = None,
    readout: Readout | None = None,
    vector: PoolingConfig | None = None,
) -> Network:
    """Build a network with random weights; `heads` maps a head's name to its number of classes."""
    readout, heads = readout or Readout(), heads or {}
    encoder = build_encoder(a)
    features, width = build_features(a, readout)
    if readout.pooled:
        vector = vector or PoolingConfig()
    text_width = vector.width(width) if readout.pooled and vector else 0
    built = {name: build_head(a, name, classes, readout, width, text_width) for name, classes in heads.items()}
    pooling = SentencePooling(width, vector, a.ends_in_summary) if vector is not None else None
    if pooling is not None:
        initialize(pooling, a.init_std)
    crf = build_crf(readout, heads)
    return Network(encoder, built, readout=readout, features=features, crf=crf, vector=pooling, width=width)


def build_encoder(a: Architecture) -> Encoder:
    """Build the encoder of an architecture with random weights."""
    return BUILDERS[type(a)].encoder(a)


def build_head(
    a: Architecture,
    name: str,
    classes: int = 0,
    readout: Readout | None = None,
    width: int = 0,
    text_width: int = 0,
) -> nn.Module:
    """Build a head with random weights for the encoder of `a`, or for the features of `readout`, of that width.

    `text_width`: that of a text's vector, where heads on whole texts read it."""
    readout = readout or Readout()
    if name not in HEADS:
        raise UserError(f"{name}: unknown head, {suggest(name, HEADS)}")
    if name in ("mask", "pair") and readout.transforms:
        raise UserError(f"head '{name}': reads an encoder's last states, which top.layers and top.lstm replace")
    if name not in a.head_names:
        *most, last = a.head_names
        why = "has no sentence pairs" if a.pretrainable else "is not pretrained"
        raise UserError(f"head '{name}': a {a.body} {why}; its heads are {', '.join(most)} and {last}")
    classes = FIXED_CLASSES.get(name, classes)
    if name == "mask":
        head: nn.Module = BUILDERS[type(a)].mask_head(a)
    elif name == "beam-span":
        head = BeamSpanHead(width or a.output_width, a.norm_eps)
    elif classes < 1:
        raise UserError(f"head '{name}': needs at least one class")
    elif name in TOKEN_HEADS:
        head = _token_head(a, name, classes, width, readout.transforms)
    elif readout.pooled and name != "pair":
        head = ClassHead(nn.Linear(text_width, classes), "vector", a.classifier_dropout)
    elif readout.reads_states and name != "pair":
        read = width if readout.transforms and width else a.sequence_width
        head = ClassHead(nn.Linear(read, classes), "sequence", a.classifier_dropout)
    else:
        head = BUILDERS[type(a)].sequence_head(a, name, classes)
    initialize(head, a.init_std)
    return head


def build_mask_head(a: Transformer) -> nn.Module:
    """Build the head of masked or next tokens."""
    clusters = vocabulary_clusters(a)
    if clusters is None:
        return MaskHead(
            a.reader_width,
            a.embedding_width,
            a.vocab_size,
            activation=a.mask_activation,
            norm_eps=a.norm_eps,
            transform=a.mask_transform,
            bias=a.mask_bias,
            transform_bias=a.head_bias,
            tied=a.tied_output,
            chunk=a.ffn_chunk,
        )
    projected = not clusters.same_width or a.embedding_width != a.width
    own = [int(cluster) for cluster in a.output_projections.split(",") if cluster and projected]
    return AdaptiveSoftmax(clusters, a.width, own)


def _token_head(a: Architecture, name: str, classes: int, width: int, reads_features: bool) -> ClassHead:
    """Build a head on each token's state."""
    if isinstance(a, Transformer) and a.sequence_head == "normed" and not reads_features:
        return _normed_head(a, nn.Linear(a.width, classes), "tokens")
    out = nn.Linear(width or a.output_width, classes)
    return ClassHead(out, "tokens", a.classifier_dropout if name == "token" else 0.0)


def _normed_head(a: Transformer, out: nn.Linear, reads: str) -> ClassHead:
    """Build ModernBERT's head: a dense layer, an activation and a norm come first."""
    dense = nn.Linear(a.output_width, a.width, bias=a.head_bias)
    norm = nn.LayerNorm(a.width, eps=a.norm_eps, bias=a.head_bias)
    return ClassHead(out, reads, a.classifier_dropout, dense=dense, activation=a.mask_activation, norm=norm)


def _transformer_head(a: Transformer, name: str, classes: int) -> ClassHead:
    """Build the sequence head of a family."""
    if a.sequence_head == "linear" and name != "pair":
        return ClassHead(nn.Linear(a.output_width, classes, bias=False), "sequence", 0.0)
    out = nn.Linear(a.width, classes)
    if a.sequence_head == "normed" and name != "pair":
        return _normed_head(a, out, "sequence")
    if a.sequence_head == "summary":
        return ClassHead(out, "sequence", a.classifier_dropout, dense=nn.Linear(a.output_width, a.width))
    # RoBERTa's and DistilBERT's classifiers have a dense layer of their own; a choice head reads the pooler if there
    # is one.
    if name == "pair" or a.sequence_head == "pooler" or (name == "choice" and a.pooler):
        if not a.pooler:
            raise UserError(f"head '{name}': this architecture has no pooler to read; set pooler=true")
        return ClassHead(out, "pooled", 0.0 if name == "pair" else a.classifier_dropout)
    return ClassHead(
        out,
        "sequence",
        a.classifier_dropout,
        dense=nn.Linear(a.output_width, a.width),
        activation=a.sequence_head,
        input_dropout=a.classifier_dropout if a.sequence_head == "tanh" else 0.0,
    )


def _bilstm_head(a: BiLstm, name: str, classes: int) -> ClassHead:
    """Build the classifier of a BiLSTM, with an inner layer."""
    dense = nn.Linear(a.sequence_width, a.ffn_width)
    out = nn.Linear(a.ffn_width, classes)
    return ClassHead(out, "sequence", a.classifier_dropout, dense=dense, activation="relu")


def _lstm_head(a: Lstm, name: str, classes: int) -> ClassHead:
    """Build the classifier of an LSTM language model."""
    return ClassHead(nn.Linear(a.sequence_width, classes), "sequence", a.classifier_dropout)


def _no_mask_head(a: BiLstm) -> nn.Module:
    raise AssertionError("a bilstm has no such head")


class Builders(NamedTuple):
    """What is built for one kind of architecture."""

    encoder: Callable[[Any], Encoder]
    sequence_head: Callable[[Any, str, int], ClassHead]  # of a head's name and its number of classes
    mask_head: Callable[[Any], nn.Module] = _no_mask_head


BUILDERS: dict[type[Architecture], Builders] = {
    Transformer: Builders(
        lambda a: build_transformer(a) if a.direction == "forward" else build_directed(a),
        _transformer_head,
        build_mask_head,
    ),
    BiLstm: Builders(build_bilstm, _bilstm_head),
    Lstm: Builders(build_lstm, _lstm_head, build_lstm_mask_head),
}
