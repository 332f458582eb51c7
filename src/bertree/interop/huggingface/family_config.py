"""config.json of a family of Hugging Face and `Transformer`, in both directions: what the families describe by tables.

Each family is a preset. Some axes have a key of their own, some are computed, some only matter in training; every other
axis must have the preset's value, and every key named under `only` the value that has an equal here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.model.architecture import Transformer

# Hugging Face's names of activations -> ours. Of several names for one, the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
}
# Axes without influence on the outputs of these models as they are stored.
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
    defaults: Json = field(default_factory=dict)  # what transformers takes for a missing key, if not the preset's value
    different: Callable[[Transformer], tuple[str, Any] | None] = lambda a: None  # an axis whose value there is another


def read_values(family: FamilyConfig, config: Json, base: Transformer, where: str) -> dict[str, Any]:
    """Return the values of axes that a config.json sets, some of them not checked yet."""
    known = family.defaults | with_known_keys(family, config)
    for key, allowed in family.only.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(f"{where}: {key}: {config[key]!r} has no equal here, only {allowed[0]!r}")
    values = {axis: known[key] for axis, key in family.keys.items() if known.get(key) is not None}
    if "activation" in values:
        if not isinstance(values["activation"], str) or values["activation"] not in family.activations:
            given, names = values["activation"], ", ".join(family.activations)
            raise UserError(f"{where}: {family.keys['activation']}: {given!r} is not supported; known: {names}")
        values["activation"] = family.activations[values["activation"]]
    return values | family.read(known, base, where)


def with_known_keys(family: FamilyConfig, config: Json) -> Json:
    """Return the configuration with the family's own names for keys."""
    missing = {key: OTHER_KEYS[key] for key in family.keys.values() if key in OTHER_KEYS and key not in config}
    return config | {key: config[other] for key, other in missing.items() if other in config}


def different_axis(family: FamilyConfig, a: Transformer, base: Transformer) -> tuple[str, Any] | None:
    """Return an axis that the family cannot express as it is, and its value there; None if it holds all of them."""
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
    found = next(((axis, value) for axis, value in wanted.items() if getattr(a, axis) != value), None)
    return found or family.different(a)


def write_keys(family: FamilyConfig, a: Transformer) -> Json:
    """Return the keys of config.json that describe an architecture."""
    config: Json = {key: getattr(a, axis) for axis, key in family.keys.items()}
    if "activation" in family.keys:
        names = {ours: theirs for theirs, ours in reversed(family.activations.items())}
        config[family.keys["activation"]] = names[a.activation]
    return config | family.write(a)


def pattern(kinds: Sequence[str]) -> str:
    """Return the kinds of layers as the axis `attention` has them: the shortest list that gives them in turn."""
    same = [0]  # for each beginning of the list: how long its longest end is that the list begins with too
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
