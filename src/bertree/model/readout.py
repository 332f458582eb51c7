"""What may stand between an encoder and its heads: other states than the last, an LSTM, a CRF; or a frozen encoder.

BERT's authors compare fine-tuning with reading a frozen encoder's states (their section 5.3); this is that comparison
as a value. It costs the states that are read, kept until they are joined, and buys an encoder that need not be trained.

Shape letters: t tokens, s sequences, h width of the encoder, w width of what the heads read, n states that are summed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture
from bertree.model.bilstm import BiLstm
from bertree.model.crf import Crf
from bertree.model.encoder import Encoder

# Which depths are read: 0 is what the first layer reads, 1 what comes out of it, -1 the last.
LAST_FOUR = (-4, -3, -2, -1)
DEPTHS: dict[str, tuple[int, ...]] = {
    "last": (-1,),
    "embeddings": (0,),
    "second-to-last": (-2,),
    "sum-last-four": LAST_FOUR,
    "concat-last-four": LAST_FOUR,
    "sum-all": (),  # every layer's, without the embeddings
}
MOST = 2**14  # files are not trusted: a width of a billion would be built


@dataclass(frozen=True)
class Top:
    """The choices. Defaults: heads on the last states, everything is trained."""

    layers: str = "last"  # which of the encoder's states are read
    lstm: int = 0  # width of each direction of an LSTM over them; 0: none
    lstm_layers: int = 2
    frozen: bool = False  # the encoder is read as it is and learns nothing
    crf: bool = False  # a token head's tags are chosen together

    def __post_init__(self) -> None:
        if self.layers not in DEPTHS:
            raise UserError(f"top.layers: unknown value '{self.layers}', {suggest(self.layers, DEPTHS)}")
        if not 0 <= self.lstm <= MOST:
            raise UserError(f"top.lstm: must lie between 0 and {MOST}, not {self.lstm}")
        if not 1 <= self.lstm_layers <= 64:
            raise UserError(f"top.lstm_layers: must lie between 1 and 64, not {self.lstm_layers}")

    @property
    def trivial(self) -> bool:
        """Nothing but heads: what other people's models are."""
        return self == Top(lstm_layers=self.lstm_layers)

    @property
    def reads_states(self) -> bool:
        """Heads are plain linear layers on what is read here. (A frozen encoder's pooler would be frozen too.)"""
        return self.frozen or self.transforms

    @property
    def transforms(self) -> bool:
        """What heads read is not the encoder's last states."""
        return self.layers != "last" or self.lstm > 0

    def differences(self) -> str:
        """What is chosen, for messages."""
        plain = asdict(Top())
        return ", ".join(f"{key} = {value}" for key, value in asdict(self).items() if value != plain[key])

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> "Top":
        """Read untrusted values (a TOML table): unknown keys and wrong types are refused by name."""
        kinds = get_type_hints(cls)
        words = {int: "a whole number", bool: "true or false", str: "a word"}
        for key, value in values.items():
            if key not in kinds:
                raise UserError(f"{where}: top.{key}: unknown key, {suggest(key, kinds)}")
            if type(value) is not kinds[key]:
                raise UserError(f"{where}: top.{key}: must be {words[kinds[key]]}, not {value!r}")
        try:
            return cls(**values)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None


class Mix(nn.Module):
    """A weighted sum of states: weights that are learned and sum to 1, and a learned scale (Peters et al. 2018)."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(states))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """n states (t x h) -> one."""
        shares_n = self.weights.softmax(-1)
        summed: Tensor = self.scale * torch.stack([s * x for s, x in zip(shares_n, states, strict=True)]).sum(0)
        return summed


class Concat(nn.Module):
    """States side by side; one alone is what it is."""

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """n states (t x h) -> t x (n h)."""
        return torch.cat(list(states), -1)


class Features(nn.Module):
    """What heads read instead of the last states."""

    def __init__(self, depths: Sequence[int], join: nn.Module, lstm: BiLstm | None) -> None:
        super().__init__()
        self.depths = tuple(depths)
        self.join = join
        self.lstm = lstm

    def states(self, encoder: Encoder, batch: Batch) -> list[Tensor]:
        """The encoder's states that are read; no layer above them is computed."""
        wanted, found = set(self.depths), []
        for depth, state in enumerate(encoder.states(batch)):
            if depth in wanted:
                found.append(state)
            if len(found) == len(wanted):
                break
        return found

    def forward(self, states: Sequence[Tensor], batch: Batch) -> Tensor:
        """What heads read of each token (t x w)."""
        read_tw: Tensor = self.join(states)
        return read_tw if self.lstm is None else self.lstm(read_tw, batch)

    def whole(self, read_tw: Tensor, batch: Batch, seeing_s: Tensor) -> Tensor:
        """What heads read of each sequence (s x w): the token that has seen it, or both ends of the LSTM."""
        return read_tw[seeing_s] if self.lstm is None else self.lstm.ends(read_tw, batch)


def build_features(a: Architecture, top: Top) -> tuple[Features | None, int]:
    """The modules of a top that stand between the encoder of `a` and its heads, and the width of what they give."""
    if not top.transforms:
        return None, a.width
    if a.body == "bilstm":
        raise UserError("top.layers, top.lstm: choose among a transformer's states; a bilstm is read at its last")
    chosen = DEPTHS[top.layers] or tuple(range(1, a.layers + 1))
    depths = [depth if depth >= 0 else a.layers + 1 + depth for depth in chosen]
    if top.layers not in ("last", "embeddings") and min(depths) < 1:
        raise UserError(
            f"top.layers: {top.layers} needs {-min(chosen)} layers, but the encoder has {a.layers}; try sum-all"
        )
    summed = top.layers.startswith("sum-")
    width = a.width if summed else a.width * len(depths)
    lstm = BiLstm(width, top.lstm, top.lstm_layers, a.classifier_dropout) if top.lstm else None
    features = Features(depths, Mix(len(depths)) if summed else Concat(), lstm)
    return features, width if lstm is None else lstm.width


def build_crf(top: Top, heads: Mapping[str, int]) -> Crf | None:
    """The CRF over the `token` head's classes, where one is asked for."""
    if not top.crf:
        return None
    if "token" not in heads:
        raise UserError("top.crf: needs a 'token' head, whose tags it chooses")
    return Crf(heads["token"])
