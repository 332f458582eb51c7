"""The architecture of a model: one point in a space of choices, frozen and checked.

Every field is one axis. A new model of the family is a new value in `presets.py`; a new idea is one more option on one
axis. Nothing here imports torch, so that `bertree info` starts fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from bertree.errors import UserError, suggest

MAX_LAYERS = 1024
MAX_WIDTH, MAX_ROWS = 2**17, 2**25  # of any vector, and of any table
BODIES = ("transformer", "bilstm")
SHARING = ("none", "attention", "ffn", "all")
ACTIVATIONS = ("gelu", "gelu-tanh", "relu")
SEQUENCE_HEADS = ("pooler", "tanh", "relu", "compare")
ATTENTION = ("full", "causal")
RESIDUALS = ("post-norm", "pre-norm")
RESIDUAL_INITS = ("plain", "scaled")

# The meaning of each axis, for `bertree info`, in the order of the dataclass.
MEANING = {
    "vocab_size": "entries in the vocabulary",
    "body": "kind of encoder: a transformer, or a bidirectional LSTM (bilstm)",
    "width": "width of the hidden states (H); of a bilstm, of both directions together",
    "layers": "depth: number of layers",
    "heads": "attention heads",
    "attention": "tokens that a token sees: all of its sequence (full), or itself and those before it (causal)",
    "ffn_width": "inner width of the feed-forward part; of a bilstm, of its classifier",
    "embedding_width": "width of the token embeddings (E); E < H needs the projection, a bilstm does not",
    "embedding_projection": "linear map from E to H after the embeddings",
    "max_positions": "longest sequence",
    "position_offset": "rows of the position table that are never used, before position 0",
    "segments": "segment (token type) embeddings: 0, 1 or more",
    "sharing": "what the layers share: none, attention, ffn or all",
    "groups": "distinct layers among the shared ones",
    "activation": "of the feed-forward part",
    "mask_activation": "of the MLM head",
    "norm_eps": "epsilon of the layer norms",
    "residual": "norms after each part (post-norm), or before it and once at the end (pre-norm)",
    "embedding_norm": "layer norm after the embeddings",
    "residual_init": "initial matrices that write into the residual: plain, or scaled by 1 / sqrt(2 layers)",
    "pooler": "dense + tanh on the first token (causal: the last), trained with the encoder",
    "sequence_head": "input of a classifier: the pooler, or a dense layer of its own (tanh, relu, or compare on two)",
    "dropout": "on embeddings and on both parts of each block",
    "attention_dropout": "on attention probabilities (above 0, training takes the padded kernel)",
    "classifier_dropout": "before a task head's last layer",
    "init_std": "standard deviation of the initial weights",
}


@dataclass(frozen=True)
class Architecture:
    """The axes. Defaults are BERT-base."""

    vocab_size: int = 30522
    body: str = "transformer"
    width: int = 768
    layers: int = 12
    heads: int = 12
    attention: str = "full"
    ffn_width: int = 3072
    embedding_width: int = 768
    embedding_projection: bool = False
    max_positions: int = 512
    position_offset: int = 0
    segments: int = 2
    sharing: str = "none"
    groups: int = 1
    activation: str = "gelu"
    mask_activation: str = "gelu"
    norm_eps: float = 1e-12
    residual: str = "post-norm"
    embedding_norm: bool = True
    residual_init: str = "plain"
    pooler: bool = True
    sequence_head: str = "pooler"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    classifier_dropout: float = 0.1
    init_std: float = 0.02

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise UserError(f"architecture: {problem}")

    def _problems(self) -> list[str]:
        """Return every violated constraint, most likely cause first."""
        found = [
            f"{name}: must be at least 1, not {value}"
            for name in (
                "vocab_size",
                "width",
                "layers",
                "heads",
                "ffn_width",
                "embedding_width",
                "max_positions",
            )
            if (value := getattr(self, name)) < 1
        ]
        found += [
            f"{name}: must not be negative, but is {value}"
            for name in ("position_offset", "segments")
            if (value := getattr(self, name)) < 0
        ]
        found += [
            f"{name}: must lie in [0, 1), not {value}"
            for name in ("dropout", "attention_dropout", "classifier_dropout")
            if not 0 <= (value := getattr(self, name)) < 1
        ]
        found += [
            f"{name}: must be above 0, not {value}"
            for name in ("norm_eps", "init_std")
            if not (value := getattr(self, name)) > 0
        ]
        options = {
            "body": BODIES,
            "attention": ATTENTION,
            "sharing": SHARING,
            "activation": ACTIVATIONS,
            "mask_activation": ACTIVATIONS,
            "residual": RESIDUALS,
            "residual_init": RESIDUAL_INITS,
            "sequence_head": SEQUENCE_HEADS,
        }
        found += [
            f"{name}: unknown value '{value}', {suggest(value, known)}"
            for name, known in options.items()
            if (value := getattr(self, name)) not in known
        ]
        if found:
            return found
        # Files are not trusted: a width of a billion must not be built.
        found += [
            f"{name}: {value} is more than the {most} supported"
            for most, names in (
                (MAX_WIDTH, ("width", "ffn_width", "embedding_width", "heads")),
                (MAX_ROWS, ("vocab_size", "max_positions", "position_offset", "segments")),
            )
            for name in names
            if (value := getattr(self, name)) > most
        ]
        found += self._transformer_problems() if self.body == "transformer" else self._bilstm_problems()
        if self.layers > MAX_LAYERS:
            found.append(f"layers: {self.layers} is more than the {MAX_LAYERS} supported")
        if not 1 <= self.groups <= self.layers:
            found.append(f"groups: {self.groups} groups do not fit {self.layers} layers")
        if self.sharing == "none" and self.groups != 1:
            found.append(f"groups: {self.groups} has no meaning when nothing is shared (sharing = none)")
        return found

    def _transformer_problems(self) -> list[str]:
        """Return the violated constraints of a transformer."""
        found = []
        if self.width % self.heads:
            found.append(f"heads: {self.heads} heads cannot divide a width of {self.width} evenly")
        if self.embedding_width != self.width and not self.embedding_projection:
            found.append(
                f"embedding_width: {self.embedding_width} differs from width {self.width}, "
                "so embedding_projection must be true"
            )
        if self.sequence_head == "compare":
            found.append("sequence_head: compare reads the texts of a pair apart, which only body = bilstm does")
        return found

    def _bilstm_problems(self) -> list[str]:
        """Return the violated constraints of a BiLSTM. Axes it does not use may have any value."""
        found = [f"width: a bilstm has two equal halves, but {self.width} is odd"] if self.width % 2 else []
        for axis, value in BILSTM_VALUES.items():
            if axis in BILSTM_REASONS and (given := getattr(self, axis)) != value:
                found.append(
                    f"{axis}: {BILSTM_REASONS[axis]}, so with body = bilstm it is {_lower(value)}, not {_lower(given)}"
                )
        if self.sequence_head not in ("relu", "compare"):
            found.append(
                f"sequence_head: a bilstm's is relu (single texts) or compare (pairs), not {self.sequence_head}"
            )
        return found

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def sequence_width(self) -> int:
        """Width of a sequence's state; if pairs are compared, of u, v, u * v and |u - v| together."""
        return 4 * self.width if self.sequence_head == "compare" else self.width

    def plan(self, part: str) -> tuple[int, ...]:
        """Return which stored copy of `part` ("attention" or "ffn") each layer uses: the sharing plan."""
        if self.sharing in (part, "all"):
            return tuple(int(depth / (self.layers / self.groups)) for depth in range(self.layers))
        return tuple(range(self.layers))

    def with_values(self, changes: Mapping[str, Any]) -> "Architecture":
        """Return an architecture with other values. Changes that follow from them on other axes are made too:
        an E that differs from H brings the projection; a new width keeps E = H and ffn = 4 H if they held; the MLM head
        keeps the activation of the layers; pre-norm comes as Megatron has it, without a norm on the embeddings and with
        smaller initial matrices that write into the residual. A bilstm drops what only a transformer has; the way back
        ends at DistilBERT's kind, without segments and pooler."""
        body = changes.get("body", self.body)
        implied: dict[str, Any] = _body_change(self.body, body)
        if "width" in changes and body != "bilstm":
            if self.embedding_width == self.width:
                implied["embedding_width"] = changes["width"]
            if self.ffn_width == 4 * self.width:
                implied["ffn_width"] = 4 * int(changes["width"])
        width = changes.get("width", self.width)
        if "embedding_width" in changes:
            implied["embedding_projection"] = body != "bilstm" and changes["embedding_width"] != width
        elif body != self.body:
            implied["embedding_projection"] = body != "bilstm" and self.embedding_width != width
        if "activation" in changes and self.mask_activation == self.activation:
            implied["mask_activation"] = changes["activation"]
        if changes.get("sharing") == "none":
            implied["groups"] = 1
        if changes.get("residual", self.residual) != self.residual and body != "bilstm":
            implied["embedding_norm"] = changes["residual"] == "post-norm"
            implied["residual_init"] = "plain" if changes["residual"] == "post-norm" else "scaled"
        return replace(self, **(implied | dict(changes)))

    def differences(self, other: "Architecture") -> dict[str, tuple[Any, Any]]:
        """Return the axes on which two architectures differ: name -> (other's value, this value)."""
        pairs = {f.name: (getattr(other, f.name), getattr(self, f.name)) for f in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


# Values of a transformer's axes once the body becomes a bilstm.
BILSTM_VALUES: dict[str, Any] = {
    "heads": 1,
    "attention": "full",
    "embedding_projection": False,
    "position_offset": 0,
    "segments": 0,
    "sharing": "none",
    "groups": 1,
    "residual": "post-norm",
    "embedding_norm": False,
    "residual_init": "plain",
    "pooler": False,
    "sequence_head": "relu",
    "attention_dropout": 0.0,
}
BILSTM_REASONS = {  # of these axes, those of which a BiLSTM refuses other values, and why
    "attention": "a bidirectional LSTM sees the whole sequence",
    "embedding_projection": "the LSTM reads the embeddings as they are",
    "segments": "the two texts of a pair are encoded apart",
    "sharing": "each layer has its own weights",
    "pooler": "a text is represented by both ends of the LSTM",
}


def _body_change(before: str, after: str) -> dict[str, Any]:
    """Return the changes on other axes that follow from a change of the body."""
    if before == after:
        return {}
    return dict(BILSTM_VALUES) if after == "bilstm" else {"embedding_norm": True, "sequence_head": "relu"}


def _lower(value: Any) -> str:
    return str(value).lower()


TYPES: dict[str, type] = get_type_hints(Architecture)
assert list(MEANING) == list(TYPES), "every axis has its meaning, in order"


def check_type(name: str, value: Any, where: str) -> Any:
    """Return `value` with the type of axis `name`, or raise UserError."""
    if name not in TYPES:
        raise UserError(f"{where}: {name}: unknown key, {suggest(name, TYPES)}")
    wanted = TYPES[name]
    if wanted is float and type(value) is int and abs(value) < 2**63:
        return float(value)
    if type(value) is not wanted:
        raise UserError(f"{where}: {name}: must be {_WORDS[wanted]}, not {value!r}")
    return value


def parse_override(override: str) -> tuple[str, Any]:
    """Parse one `axis=value` of the command line."""
    name, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"'{override}': expected axis=value, for example layers=6")
    if name not in TYPES:
        raise UserError(f"{name}: unknown axis, {suggest(name, TYPES)}")
    wanted = TYPES[name]
    try:
        if wanted is bool:
            return name, {"true": True, "false": False}[text.lower()]
        return name, wanted(text)
    except (ValueError, KeyError):
        raise UserError(f"{name}: must be {_WORDS[wanted]}, not '{text}'") from None


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
