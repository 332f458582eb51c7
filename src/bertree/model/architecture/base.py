"""What the architectures share: common axes, how one is read, written and changed, and the questions they answer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import prod
from typing import Any, ClassVar, Self

from bertree.errors import UserError, counted, suggest

MAX_WIDTH, MAX_ROWS = 2**17, 2**25  # of any vector, and of any table: files are not trusted

Bound = Callable[[Any], str]  # value -> what is wrong with it; empty if nothing is


def axis(default: Any, meaning: str, *bounds: Bound) -> Any:
    """Declare an axis: a field of a frozen dataclass."""
    return field(default=default, metadata={"meaning": meaning, "bounds": bounds})


def positive(value: float) -> str:
    """A size: at least 1."""
    return "" if value >= 1 else f"must be at least 1, not {value}"


def not_negative(value: float) -> str:
    """A number that may be 0."""
    return "" if value >= 0 else f"must not be negative, but is {value}"


def above_zero(value: float) -> str:
    """A number above 0."""
    return "" if value > 0 else f"must be above 0, not {value}"


def probability(value: float) -> str:
    """A share of elements that are dropped."""
    return "" if 0 <= value < 1 else f"must lie in [0, 1), not {value}"


def at_most(most: int) -> Bound:
    """A number with an upper limit."""
    return lambda value: "" if value <= most else f"{value} is more than the {most} supported"


@dataclass(frozen=True)
class one_of:  # called like the functions above
    """One of some words."""

    options: Sequence[str]

    def __call__(self, value: str) -> str:
        return "" if value in self.options else f"unknown value '{value}', {suggest(value, self.options)}"


@dataclass(frozen=True)
class list_of:
    """Some words, divided by commas."""

    options: Sequence[str]

    def __call__(self, value: str) -> str:
        return next(filter(None, map(one_of(self.options), value.split(","))), "")


def list_of_rising_numbers(value: str) -> str:
    """Whole numbers that rise, divided by commas; may be empty."""
    parts = value.split(",") if value else []
    if not all(map(_is_number, parts)):
        return f"must be whole numbers divided by commas, not '{value}'"
    numbers = [int(part) for part in parts]
    return "" if numbers == sorted(set(numbers)) else f"{value}: each number must be larger than the one before"


def two_sizes(value: str) -> str:
    """Two sizes, divided by a comma; may be empty."""
    parts = value.split(",")
    if not value or (len(parts) == 2 and all(_is_number(part) and int(part) >= 1 for part in parts)):
        return ""
    return f"must be two whole numbers of at least 1 divided by a comma, not '{value}'"


def bucket_counts(value: str) -> str:
    """An even number, or two even factors; 0: none is fixed."""
    parts = value.split(",")
    if value == "0":
        return ""
    if len(parts) > 2 or not all(map(_is_number, parts)):
        return f"must be an even number, or two even factors such as 32,64, not '{value}'"
    works = ",".join(str(max(2, int(part) + int(part) % 2)) for part in parts)
    if works != value:
        return f"each hash has as many buckets on either side of 0, so numbers must be even: {works}, not {value}"
    return at_most(MAX_ROWS)(prod(map(int, parts)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


MAX_LAYERS = 1024
SEQUENCE_HEADS = ("pooler", "tanh", "relu", "compare", "linear", "summary", "normed")
# Axes in the order of files. All of these are written; any other only where it differs from its default.
WRITTEN = (
    *("vocab_size", "body", "width", "layers", "heads", "attention", "ffn_width", "embedding_width"),
    *("embedding_projection", "max_positions", "position_offset", "segments", "sharing", "groups", "activation"),
    *("mask_activation", "norm_eps", "residual", "embedding_norm", "residual_init", "pooler", "sequence_head"),
    *("dropout", "attention_dropout", "classifier_dropout", "init_std"),
)
DIRECTIONS = ("forward", "backward", "both")
TASK_HEADS = ("sequence", "token", "span", "beam-span", "choice")
KINDS: dict[str, type["Architecture"]] = {}  # body -> its class


@dataclass(frozen=True)
class Architecture(ABC):
    """One point in the space of models, frozen and checked. Fields are axes; defaults are BERT-base."""

    body: ClassVar[str]  # its name in files

    vocab_size: int = axis(30522, "entries in the vocabulary", positive, at_most(MAX_ROWS))
    width: int = axis(
        768, "width of the hidden states (H); of a bilstm, of both directions together", positive, at_most(MAX_WIDTH)
    )
    layers: int = axis(12, "depth: number of layers", positive, at_most(MAX_LAYERS))
    ffn_width: int = axis(
        3072,
        "inner width of feed-forward; of a bilstm, of its classifier; of an lstm, its cells",
        positive,
        at_most(MAX_WIDTH),
    )
    embedding_width: int = axis(
        768,
        "width of the token embeddings (E); E < H needs the projection, an LSTM does not",
        positive,
        at_most(MAX_WIDTH),
    )
    max_positions: int = axis(512, "longest sequence", positive, at_most(MAX_ROWS))
    norm_eps: float = axis(1e-12, "epsilon of the layer norms", above_zero)
    embedding_norm: bool = axis(True, "layer norm after the embeddings")
    direction: str = axis(
        "forward",
        "how a language model reads: from left to right (forward), from right to left (backward), or twice, once in "
        "each direction (both): the two halves of a hidden state have seen the text before a token and after it",
        one_of(DIRECTIONS),
    )
    sequence_head: str = axis(
        "pooler",
        "classifier: on the pooler, with a dense layer of its own (tanh, relu, or compare on two; summary: tanh, no "
        "dropout before it; normed: with a norm behind it, on tokens too), or alone (linear)",
        one_of(SEQUENCE_HEADS),
    )
    dropout: float = axis(0.1, "on embeddings, attention and feed-forward outputs", probability)
    classifier_dropout: float = axis(0.1, "before a task head's last layer", probability)
    init_std: float = axis(0.02, "standard deviation of the initial weights", above_zero)

    def __init_subclass__(cls) -> None:
        if "body" in vars(cls):
            KINDS[cls.body] = cls

    def __post_init__(self) -> None:
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        for problem in axis_problems(fields(self), own) or self._problems():
            raise UserError(f"architecture: {problem}")

    @abstractmethod
    def _problems(self) -> list[str]:
        """Return each violated constraint on more than one axis."""

    @classmethod
    def from_axes(cls, values: Mapping[str, Any]) -> "Architecture":
        """Return the architecture with these values, as files have them: `body` says which kind."""
        return _kind(values.get("body", "transformer"), values)._make(values)

    def with_values(self, changes: Mapping[str, Any]) -> "Architecture":
        """Return an architecture with other values. Changes that follow from them on other axes are made too:
        an E that differs from H brings the projection; a new width keeps E = H and ffn = 4 H if they held; the MLM head
        keeps the activation of the layers; pre-norm comes as Megatron has it, without a norm on the embeddings and with
        smaller initial matrices that write into the residual. An LSTM drops what only a transformer has; the way back
        ends at DistilBERT's kind, without segments and pooler."""
        return _kind(changes.get("body", self.body), changes)._changed(self, changes)

    @classmethod
    @abstractmethod
    def _make(cls, values: Mapping[str, Any]) -> Self:
        """Return an architecture of this kind from values of any axes."""

    @classmethod
    @abstractmethod
    def _changed(cls, before: "Architecture", changes: Mapping[str, Any]) -> Self:
        """Return an architecture of this kind from one of any kind and changes on any axes."""

    def axes(self) -> dict[str, Any]:
        """Return all axes with their values, in order. One that this kind does not have has a fixed value."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        values = own | {"body": self.body} | self.fixed_axes()
        return {name: values[name] for name in (*WRITTEN, *own)}

    def written_axes(self) -> dict[str, Any]:
        """Return the axes that files have, with their values."""
        defaults = {field.name: field.default for field in fields(self)}
        return {n: value for n, value in self.axes().items() if n in WRITTEN or value != defaults[n]}

    def fixed_axes(self) -> dict[str, Any]:
        """Return the values that files have on axes that this kind does not have."""
        return {}

    def differences(self, other: "Architecture") -> dict[str, tuple[Any, Any]]:
        """Return the axes on which two architectures differ: name -> (other's value, this value)."""
        theirs = {field.name: field.default for field in fields(self)} | other.axes()
        pairs = {name: (theirs[name], value) for name, value in self.axes().items()}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    # Questions. What is true of every point of a kind is an attribute of its class.

    has_attention: ClassVar[bool]
    pretrainable: ClassVar[bool]
    compilable: ClassVar[bool] = True  # training steps can be compiled
    layers_readable: ClassVar[bool]  # states below the last layer, and an LSTM on top of them
    head_names: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def replayable(self) -> bool:
        """True if a step reads no value on the host, so that a CUDA graph can hold it."""

    @property
    def default_heads(self) -> dict[str, int]:
        """Heads of an untrained model, with their numbers of classes."""
        return {"mask": 0} if "mask" in self.head_names else {}

    @property
    def causal(self) -> bool:
        """True if no token sees those that are read after it (`direction` says in which order)."""
        return False

    @property
    def readers(self) -> int:
        """How many times a text is read: by layers for each direction."""
        return 2 if self.direction == "both" else 1

    @property
    def mixes_embeddings(self) -> bool:
        """True if a sum of all layers has the embeddings too."""
        return False

    @property
    def longest_input(self) -> int:
        """Longest sequence: `max_positions`, or more where positions are unlimited."""
        return self.max_positions

    @property
    def ends_in_summary(self) -> bool:
        """True if the token that represents a sequence comes after its texts (XLNet's <cls>)."""
        return False

    @property
    def reads_segments(self) -> bool:
        """True if the two texts of a pair have different segment embeddings."""
        return False

    @property
    def output_width(self) -> int:
        """Width of the hidden states after the last layer: that of both directions, if there are two."""
        return self.readers * self.width

    @property
    def sequence_width(self) -> int:
        """Width of a sequence's state."""
        return self.output_width

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of fine-tuning, if none is set."""

    @abstractmethod
    def for_task(self, head: str, pairs: bool, reads_states: bool) -> "Architecture":
        """Return the architecture that learns a task: the head's name, whether it has pairs of texts, and whether the
        head reads the encoder's states alone."""

    def describe(self) -> str:
        """Return kind and size in words."""
        return f"{self.body}, {counted(self.layers, 'layer')}, width {self.width}"

    @property
    def short(self) -> str:
        """Kind and size in letters, for the family tree."""
        factorised = f" E{self.embedding_width}" if self.embedding_width != self.width else ""
        return f"L{self.layers} H{self.width} {self._mark}{factorised}"

    @property
    @abstractmethod
    def _mark(self) -> str:
        """The kind in letters."""


def _kind(body: str, values: Mapping[str, Any]) -> type[Architecture]:
    """Return the class of a body, and refuse values of axes that only another kind has."""
    if body not in KINDS:
        raise UserError(f"architecture: body: unknown value '{body}', {suggest(body, KINDS)}")
    names = {name: {field.name for field in fields(kind)} for name, kind in KINDS.items()}
    for axis in values:
        owners = [name for name, own in names.items() if axis in own]
        if owners and body not in owners and "transformer" not in owners:
            raise UserError(f"architecture: {axis}: a {body} has no such axis; only body = {owners[0]} has")
    return KINDS[body]


def later_axes(a: Architecture) -> dict[str, Any]:
    """Return the axes that are not always written, with their defaults: what models had before there was a choice."""
    return {field.name: field.default for field in fields(a) if field.name not in WRITTEN}


def axis_problems(axes: Iterable[Field[Any]], values: Mapping[str, Any]) -> list[str]:
    """Return every value that is out of its bounds, with the reason."""
    bounds = {field.name: field.metadata.get("bounds", ()) for field in axes}
    problems = [(name, bound(value)) for name, value in values.items() for bound in bounds.get(name, ())]
    return [f"{name}: {problem}" for name, problem in problems if problem]
