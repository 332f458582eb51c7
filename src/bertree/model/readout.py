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
from bertree.model.bilstm import BidirectionalLstm
from bertree.model.crf import Crf
from bertree.model.encoder import Encoder

# Which states are read: 0 the embeddings, 1 the first layer's, -1 the last layer's.
LAST_FOUR = (-4, -3, -2, -1)
DEPTHS: dict[str, tuple[int, ...]] = {
    "last": (-1,),
    "embeddings": (0,),
    "second-to-last": (-2,),
    "sum-last-four": LAST_FOUR,
    "concat-last-four": LAST_FOUR,
    "sum-all": (),  # every layer, without the embeddings
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

    def __post_init__(self) -> None:
        if self.layers not in DEPTHS:
            raise UserError(f"top.layers: unknown value '{self.layers}', {suggest(self.layers, DEPTHS)}")
        if not 0 <= self.lstm <= MOST:
            raise UserError(f"top.lstm: must lie between 0 and {MOST}, not {self.lstm}")
        if not 1 <= self.lstm_layers <= 64:
            raise UserError(f"top.lstm_layers: must lie between 1 and 64, not {self.lstm_layers}")

    @property
    def trivial(self) -> bool:
        """True if there is nothing but heads on the last states, as in the models of other libraries."""
        return self == Readout(lstm_layers=self.lstm_layers)

    @property
    def reads_states(self) -> bool:
        """True if heads are plain linear layers on the features. (A frozen encoder's pooler would be frozen too.)"""
        return self.frozen or self.transforms

    @property
    def transforms(self) -> bool:
        """True if the heads' input is not the encoder's last states."""
        return self.layers != "last" or self.lstm > 0

    def differences(self) -> str:
        """List the settings that are not the defaults, for messages."""
        defaults = asdict(Readout())
        return ", ".join(f"{key} = {value}" for key, value in asdict(self).items() if value != defaults[key])


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
        wanted, found = set(self.depths), []
        for depth, state in enumerate(encoder.states(batch)):
            if depth in wanted:
                found.append(state)
            if len(found) == len(wanted):
                break
        return found

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
    chosen = DEPTHS[readout.layers] or tuple(range(1, a.layers + 1))
    depths = [depth if depth >= 0 else a.layers + 1 + depth for depth in chosen]
    if readout.layers not in ("last", "embeddings") and min(depths) < 1:
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
