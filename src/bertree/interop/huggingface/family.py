"""One family of Hugging Face: how its tensors are named and how its config.json describes a `Transformer`.

Tensor names are tables for both directions. A row pairs one module of bertree with one of Hugging Face, and weight and
bias follow; or one tensor with one, where a parameter belongs to no such module. Queries, keys and values may be three
tensors there and are stacked along the rows here; `Stored` describes this and other differences. `{i}` is the number of
a stored layer or cluster.

A configuration is a preset with differences. Some axes have a key of their own, some are computed, some only matter in
training; every other axis must have the preset's value, and every key under `only` one of the values listed there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.interop.weights import Stored
from bertree.model.architecture import Transformer

Part = str | tuple[str, str, str] | Stored
Row = tuple[str, Part]
# Class name without the family's title -> heads.
TASK_CLASSES: dict[str, tuple[str, ...]] = {
    "Model": (),
    "ForMaskedLM": ("mask",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("token",),
    "ForQuestionAnswering": ("span",),
    "ForMultipleChoice": ("choice",),
}


@dataclass(frozen=True)
class Family:
    """Tensor and class names of one `model_type` of Hugging Face."""

    model_type: str
    title: str  # prefix of its class names
    prefix: str  # of the encoder's names in models that have a head
    encoder: tuple[Row, ...]
    heads: dict[str, tuple[Row, ...]]  # rows relative to `heads.NAME.`
    classes: dict[str, tuple[str, ...]]  # class name without the title -> heads; left-to-right ones first
    special_rows: Callable[[Transformer], tuple[Row, ...]] = lambda a: ()  # further rows, which depend on the model
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)  # copy -> the tensor; else the next
    ignored: tuple[str, ...] = ()  # regular expressions: buffers that some releases stored
    other_names: dict[str, str] = field(default_factory=dict)  # name without the prefix -> another it may have
    problem: Callable[[Transformer, Sequence[str]], str] = lambda a, heads: ""  # why these heads do not work
    library: str = "transformers"  # with the last release that has the family, if newer ones lack it
    unapplied_bias: str = ""  # a tensor of the LM head that transformers keeps and does not apply

    def head_rows(self, head: str) -> Iterable[Row]:
        """Return the rows of one head, with bertree's full names."""
        return ((f"heads.{head}.{ours}" if ours else f"heads.{head}", theirs) for ours, theirs in self.heads[head])

    def class_name(self, heads: Iterable[str], causal: bool = True) -> str | None:
        """Return the Hugging Face class with exactly these heads, or None; of a pair, the one for left-to-right."""
        wanted = set(heads)
        names = [self.title + name for name, has in self.classes.items() if set(has) == wanted]
        return names[0 if causal else -1] if names else None

    def heads_of(self, class_name: str) -> tuple[str, ...] | None:
        """Return the heads of a class of the family; None for an unknown class."""
        return self.classes.get(class_name.removeprefix(self.title))

    def original(self, name: str, stored: Iterable[str]) -> str | None:
        """Return the stored tensor to which one of this name is tied; None if it is not tied."""
        template, number = _template(name)
        originals = (original.replace("{i}", number) for original in self.tied.get(template, ()))
        return next((original for original in originals if original in stored), None)


def _template(name: str) -> tuple[str, str]:
    """Return a name with {i} for its numbers, and the first of them."""
    words = name.split(".")
    number = next((word for word in words if word.isdigit()), "")
    return ".".join("{i}" if word.isdigit() else word for word in words), number


def hf_tensor_names(
    family: Family, a: Transformer, heads: Iterable[str], ours: Iterable[str], prefixed: bool = True
) -> dict[str, Stored]:
    """Return how Hugging Face stores each of bertree's tensors.

    A model with a head stores its encoder below a prefix, a bare encoder does not; `prefixed=False` leaves it out.
    """
    prefix = family.prefix if (heads := tuple(heads)) and prefixed else ""
    rows = [row for head in heads for row in family.head_rows(head)] + [*family.encoder, *family.special_rows(a)]
    table = {name: _prefixed("" if name.startswith("heads.") else prefix, theirs) for name, theirs in rows}
    names = {}
    for name in ours:
        template, number = _template(name)
        module, leaf = template.rsplit(".", 1)
        end = "" if template in table else f".{leaf}"
        stored = table[template if template in table else module]
        names[name] = stored._replace(names=tuple((theirs + end).replace("{i}", number) for theirs in stored.names))
    return names


def _prefixed(prefix: str, theirs: Part) -> Stored:
    if not isinstance(theirs, Stored):
        theirs = Stored((theirs,) if isinstance(theirs, str) else theirs)
    return theirs._replace(names=tuple(prefix + name for name in theirs.names))


def layer_rows(base: str, qkv: Part, out: Part, norm: str, up: Part, down: Part, last: str) -> tuple[Row, ...]:
    """Return the rows of a layer: its attention and its feed-forward, each with its norm; names begin with `base`."""
    ours = [f"attention.{{i}}.{name}" for name in ("part.qkv", "part.out", "norm")]
    ours += [f"ffn.{{i}}.{name}" for name in ("part.up", "part.down", "norm")]
    theirs = (qkv, out, norm, up, down, last)
    return tuple((f"encoder.stack.{name}", _prefixed(base, part)) for name, part in zip(ours, theirs, strict=True))


# Hugging Face's names of activations -> ours. Of several names for one, the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
}
# Axes that do not change the outputs of a stored model.
IDLE = (
    *("mask_activation", "residual_init", "init_std", "dropout", "attention_dropout", "classifier_dropout"),
    *("window", "ffn_chunk"),
)
# Names that transformers reads for the same keys.
OTHER_KEYS = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "d_model": "hidden_size",
    "vocab_size": "n_token",
}


@dataclass(frozen=True)
class FamilyConfig:
    """The configuration of one family."""

    preset: str
    keys: dict[str, str]  # axis -> key
    activations: dict[str, str]  # Hugging Face's name -> ours
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # key -> the values that can be read
    derived: tuple[str, ...] = ()  # axes that `read` and `write` convert
    read: Callable[[Json, Transformer, str], dict[str, Any]] = lambda config, base, where: {}
    write: Callable[[Transformer], Json] = lambda a: {}
    defaults: Json = field(default_factory=dict)  # for a missing key, if transformers has not the preset's
    different: Callable[[Transformer], tuple[str, Any] | None] = lambda a: None  # an axis it cannot express


def read_values(family: FamilyConfig, config: Json, base: Transformer, where: str) -> dict[str, Any]:
    """Return the values of axes that a config.json sets, some of them not checked yet."""
    complete = family.defaults | with_known_keys(family, config)
    for key, allowed in family.only.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(f"{where}: {key}: {config[key]!r} has no equal here, only {allowed[0]!r}")
    values = {axis: complete[key] for axis, key in family.keys.items() if complete.get(key) is not None}
    if "activation" in values:
        if not isinstance(values["activation"], str) or values["activation"] not in family.activations:
            value, names = values["activation"], ", ".join(family.activations)
            raise UserError(f"{where}: {family.keys['activation']}: {value!r} is not supported; known: {names}")
        values["activation"] = family.activations[values["activation"]]
    return values | family.read(complete, base, where)


def with_known_keys(family: FamilyConfig, config: Json) -> Json:
    """Return the configuration with the family's own names for keys."""
    missing = {key: OTHER_KEYS[key] for key in family.keys.values() if key in OTHER_KEYS and key not in config}
    return config | {key: config[alias] for key, alias in missing.items() if alias in config}


def different_axes(family: FamilyConfig, a: Transformer, base: Transformer) -> Iterator[tuple[str, Any]]:
    """Yield the axes that the family cannot express, each with its value there."""
    free = {*family.keys, *family.derived, *IDLE, "head_width", "embedding_width"}
    wanted = {f.name: getattr(base, f.name) for f in fields(a) if f.name not in free}
    if "head_width" not in family.keys:
        wanted["head_width"] = a.head_width if a.head_size * a.heads == a.width else 0
    if "embedding_width" not in family.keys or not a.cutoffs:
        wanted["embedding_width"] = a.width
    if "ffn_width" not in family.keys:
        wanted["ffn_width"] = 4 * a.width
    if "final_norm" in family.derived and a.residual == "pre-norm":
        wanted["final_norm"] = False
    if "activation" in family.keys and a.activation not in family.activations.values():
        wanted["activation"] = " or ".join(family.activations.values())
    yield from ((axis, value) for axis, value in wanted.items() if getattr(a, axis) != value)
    if (other := family.different(a)) is not None:
        yield other


def write_keys(family: FamilyConfig, a: Transformer) -> Json:
    """Return the keys of config.json that describe an architecture."""
    config: Json = {key: getattr(a, axis) for axis, key in family.keys.items()}
    if "activation" in family.keys:
        names = {ours: theirs for theirs, ours in reversed(family.activations.items())}
        config[family.keys["activation"]] = names[a.activation]
    return config | family.write(a)


def pattern(kinds: Sequence[str]) -> str:
    """Return the kinds of layers as the axis `attention` has them: the shortest list that gives them when repeated."""
    same = [0]  # of each prefix: length of its longest proper suffix that is also a prefix of the list
    for kind in kinds[1:]:
        length = same[-1]
        while length and kind != kinds[length]:
            length = same[length - 1]
        same.append(length + (kind == kinds[length]))
    return ",".join(kinds[: len(kinds) - same[-1]])


def number(config: Json, key: str, default: int, where: str) -> int:
    """Return the whole number of a key; UserError names the key of anything else."""
    value = config.get(key, default)
    if type(value) is not int:
        raise UserError(f"{where}: {key}: must be a whole number, not {value!r}")
    return value
