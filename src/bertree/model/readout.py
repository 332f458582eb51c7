"""What the heads read of an encoder: its last states, other layers, an LSTM over them, a CRF; a frozen encoder or not.

BERT's authors compare fine-tuning with features of a frozen encoder (section 5.3); a `Readout` is that choice as a
value. Reading several layers keeps their states in memory until they are joined; in return the encoder need not be
trained.

Shape letters: t tokens, s sequences, h width of the encoder, w width of the heads' input, n layers that are summed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture
from bertree.model.encoder import Encoder
from bertree.model.recurrent import BidirectionalLstm


class Crf(nn.Module):
    """Transition scores between tags."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(classes))
        self.end = nn.Parameter(torch.zeros(classes))
        self.transitions = nn.Parameter(torch.zeros(classes, classes))  # from, to

    def loss(self, scores_mc: Tensor, cells_m: Tensor, width: int, answers_m: Tensor) -> Tensor:
        """Return the sum over the sequences of -log p(answers | scores)."""
        assert bool((answers_m >= 0).all()), "a CRF needs an answer at every chosen token"
        if not len(scores_mc):
            return self.start.sum() * 0.0
        with torch.autocast(scores_mc.device.type, enabled=False):
            start, end, transitions, scores_mc = self._in_float32(scores_mc)
            scores_qwc, real_qw = _grid(scores_mc, cells_m, width)
            sums_qc = start + scores_qwc[:, 0]
            for column in range(1, width):
                onward_qc = (sums_qc[:, :, None] + transitions).logsumexp(1) + scores_qwc[:, column]
                sums_qc = torch.where(real_qw[:, column, None], onward_qc, sums_qc)
            everything_q = (sums_qc + end).logsumexp(-1)
            answers_qw, _ = _grid(answers_m, cells_m, width)
            last_q = real_qw.sum(-1).sub(1).clamp(min=0)
            between_qw = transitions[answers_qw[:, :-1], answers_qw[:, 1:]] * real_qw[:, 1:]
            ends_q = start[answers_qw[:, 0]] + end[answers_qw.gather(1, last_q[:, None])[:, 0]]
            filled_q = real_qw[:, 0]
            tagged = scores_mc.gather(1, answers_m[:, None]).sum() + between_qw.sum() + ends_q[filled_q].sum()
            return everything_q[filled_q].sum() - tagged

    @torch.no_grad()
    def decode(self, scores_mc: Tensor, cells_m: Tensor, width: int) -> Tensor:
        """Return the most likely tag of each chosen token (m), by Viterbi."""
        if not len(scores_mc):
            return cells_m
        with torch.autocast(scores_mc.device.type, enabled=False):
            start, end, transitions, scores_mc = self._in_float32(scores_mc)
            scores_qwc, real_qw = _grid(scores_mc, cells_m, width)
            best_qc, came_from = start + scores_qwc[:, 0], []
            for column in range(1, width):
                onward_qc, before_qc = (best_qc[:, :, None] + transitions).max(1)
                best_qc = torch.where(real_qw[:, column, None], onward_qc + scores_qwc[:, column], best_qc)
                came_from.append(before_qc)
            tag_q = (best_qc + end).argmax(-1)
            tags = [tag_q]
            for column in range(width - 1, 0, -1):
                before_q = came_from[column - 1].gather(1, tag_q[:, None])[:, 0]
                tag_q = torch.where(real_qw[:, column], before_q, tag_q)
                tags.append(tag_q)
            return torch.stack(tags[::-1], 1).flatten()[cells_m]

    def _in_float32(self, scores_mc: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kind = torch.promote_types(scores_mc.dtype, torch.float32)
        return self.start.to(kind), self.end.to(kind), self.transitions.to(kind), scores_mc.to(kind)


def _grid(values_m: Tensor, cells_m: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the value of each cell (q x w x ...), 0 in empty cells, and which cells are filled (q x w)."""
    rows = int(cells_m.max()) // width + 1
    grid = values_m.new_zeros(rows * width, *values_m.shape[1:]).index_copy(0, cells_m, values_m)
    real = torch.zeros(rows * width, dtype=torch.bool, device=cells_m.device).index_fill_(0, cells_m, True)
    real_qw = real.unflatten(0, (rows, width))
    assert not bool((real_qw[:, 1:] & ~real_qw[:, :-1]).any()), "a row is filled from the left"
    return grid.unflatten(0, (rows, width)), real_qw


# Which states are read: 0 the embeddings, 1 the first layer's, -1 the last layer's.
LAST_FOUR = (-4, -3, -2, -1)
DEPTHS: dict[str, tuple[int, ...]] = {
    "last": (-1,),
    "embeddings": (0,),
    "second-to-last": (-2,),
    "sum-last-four": LAST_FOUR,
    "concat-last-four": LAST_FOUR,
    "sum-all": (),  # every layer; without the embeddings, except ELMo's
}
MOST = 2**14  # files are not trusted: a width of a billion must not be built


@dataclass(frozen=True)
class Readout:
    """Settings of the readout. Defaults: heads on the last states, everything is trained."""

    layers: str = "last"  # which of the encoder's states are read
    lstm: int = 0  # width of each direction of a BiLSTM over them; 0: none
    lstm_layers: int = 2
    frozen: bool = False  # the encoder is not trained
    crf: bool = False  # a CRF chooses the tags of the token head together
    pooled: bool = False  # heads on whole texts read the text's vector (pooling.py)

    def __post_init__(self) -> None:
        if self.layers not in DEPTHS:
            raise UserError(f"top.layers: unknown value '{self.layers}', {suggest(self.layers, DEPTHS)}")
        if not 0 <= self.lstm <= MOST:
            raise UserError(f"top.lstm: must lie between 0 and {MOST}, not {self.lstm}")
        if not 1 <= self.lstm_layers <= 64:
            raise UserError(f"top.lstm_layers: must lie between 1 and 64, not {self.lstm_layers}")
        if self.pooled and self.lstm:
            raise UserError("top.pooled: a text's vector is pooled from hidden states; leave it out, or top.lstm")

    @property
    def trivial(self) -> bool:
        """True if there is nothing but heads on the last states, as in the models of other libraries."""
        return self == Readout(lstm_layers=self.lstm_layers)

    @property
    def reads_states(self) -> bool:
        """True if heads are plain linear layers on the features. (A frozen encoder's pooler would be frozen too.)"""
        return self.frozen or self.pooled or self.transforms

    @property
    def transforms(self) -> bool:
        """True if the heads' input is not the encoder's last states."""
        return self.layers != "last" or self.lstm > 0

    def describe(self) -> str:
        """Say in words what is unlike the models of other libraries, for messages."""
        parts = {
            "its head reads the vector of a text": self.pooled,
            f"its head reads other layers than the last alone ({self.layers})": self.layers != "last",
            "a BiLSTM stands between its encoder and its head": self.lstm > 0,
            "a CRF chooses its tags": self.crf,
        }
        described = ", ".join(part for part, applies in parts.items() if applies)
        return described or "its head was trained on a frozen encoder"

    def as_mapping(self) -> dict[str, object]:
        """Return plain values, as bertree.toml holds them; `pooled` only if true: older files have no such key."""
        return {key: value for key, value in asdict(self).items() if key != "pooled" or value}


class ScalarMix(nn.Module):
    """A learned weighted sum of layers: softmax weights and a scale (Peters et al. 2018)."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(states))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Sum n layers' states (t x h)."""
        shares_n = self.weights.softmax(-1)
        summed: Tensor = self.scale * torch.stack([s * x for s, x in zip(shares_n, states, strict=True)]).sum(0)
        return summed


class Concat(nn.Module):
    """Layers' states side by side."""

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Concatenate n layers' states (t x (n h))."""
        return torch.cat(list(states), -1)


class LayerFeatures(nn.Module):
    """Features of the encoder's layers, read by the heads instead of the last states."""

    def __init__(self, depths: Sequence[int], join: nn.Module, lstm: BidirectionalLstm | None) -> None:
        super().__init__()
        self.depths = tuple(depths)
        self.join = join
        self.lstm = lstm

    def states(self, encoder: Encoder, batch: Batch) -> list[Tensor]:
        """Return the states that are read; no layer above them is computed."""
        wanted, states = set(self.depths), []
        for depth, state in enumerate(encoder.states(batch)):
            if depth in wanted:
                states.append(state)
            if len(states) == len(wanted):
                break
        return states

    def forward(self, states: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the features of each token (t x w)."""
        features_tw: Tensor = self.join(states)
        return features_tw if self.lstm is None else self.lstm(features_tw, batch)


def build_features(a: Architecture, readout: Readout) -> tuple[LayerFeatures | None, int]:
    """Build the modules between the encoder of `a` and its heads; return them and the width of their output."""
    if not readout.transforms:
        return None, a.output_width
    if not a.layers_readable:
        raise UserError("top.layers, top.lstm: are for transformers; of a bilstm only the last states can be read")
    chosen = DEPTHS[readout.layers] or tuple(range(0 if a.mixes_embeddings else 1, a.layers + 1))
    depths = [depth if depth >= 0 else a.layers + 1 + depth for depth in chosen]
    if readout.layers not in ("last", "embeddings", "sum-all") and min(depths) < 1:
        raise UserError(
            f"top.layers: {readout.layers} needs {-min(chosen)} layers, but the encoder has {a.layers}; try sum-all"
        )
    summed = readout.layers.startswith("sum-")
    width = a.output_width if summed else a.output_width * len(depths)
    lstm = BidirectionalLstm(width, readout.lstm, readout.lstm_layers, a.classifier_dropout) if readout.lstm else None
    features = LayerFeatures(depths, ScalarMix(len(depths)) if summed else Concat(), lstm)
    return features, width if lstm is None else lstm.width


def build_crf(readout: Readout, heads: Mapping[str, int]) -> Crf | None:
    """Build the CRF over the `token` head's classes, if the readout has one."""
    if not readout.crf:
        return None
    if "token" not in heads:
        raise UserError("top.crf: needs a 'token' head, whose tags it chooses")
    return Crf(heads["token"])
