"""Configuration is data: plain values, laid over each other, checked, frozen. For recipes and for fine-tuning.

A configuration is a dataclass of sections, each a dataclass, a list of them, or a free table. Values come as a tree
of plain types, from TOML files and from the command line (`optim.lr=1e-4`); the first mistake is named, with the
nearest right name.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from bertree.errors import UserError, suggest
from bertree.files import Json

MOST_SEED = 2**62


@dataclass(frozen=True)
class Limits:
    """What the types of a configuration cannot say: by key, for example `optim.lr`."""

    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    above_zero: Sequence[str] = ()
    at_least_one: Sequence[str] = ()
    not_negative: Sequence[str] = ()
    shares: Sequence[str] = ()  # from 0 up to, not including, 1


def as_toml(config: Any) -> str:
    """The whole configuration, every value written out."""
    tree = asdict(config)
    plain = {key: value for key, value in tree.items() if isinstance(value, str)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if value]
    for name, value in tree.items():
        several = isinstance(value, list | tuple)
        for table in value if several else [value]:
            if isinstance(table, dict):
                lines += ["", f"[[{name}]]" if several else f"[{name}]"]
                lines += [f"{key} = {_toml(inner)}" for key, inner in table.items()]
    return "\n".join(lines) + "\n"


def differences(one: Any, other: Any) -> list[str]:
    """Keys in which two configurations differ, for example `optim.lr`."""
    first, second = _flat(asdict(one)), _flat(asdict(other))
    return sorted(key for key in first | second if first.get(key) != second.get(key))


def _flat(tree: Any, prefix: str = "") -> Json:
    items: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list | tuple) and tree and isinstance(tree[0], dict):
        items = enumerate(tree)
    else:
        return {prefix: list(tree) if isinstance(tree, tuple) else tree}
    flat: Json = {}
    for key, value in items:
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def merged(base: Json, over: Json) -> Json:
    """Tables are laid over each other; everything else, phases too, is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result


def override(tree: Json, text: str) -> None:
    """One `key.key=value` from the command line; the value in TOML, or a bare word."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise UserError(f"'{text}': expected key=value, for example optim.lr=1e-4")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    *path, last = key.split(".")
    place: Any = tree
    for word in path:
        if isinstance(place, list):
            place = _item(place, word, key)
        elif isinstance(place, dict):
            place = place.setdefault(word, {})
    if isinstance(place, list):
        _item(place, last, key)
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise UserError(f"{key}: is a single value, not a table")


def _item(items: list[Any], word: str, key: str) -> Any:
    if not word.isdigit() or int(word) >= len(items):
        raise UserError(f"{key}: '{word}' is not one of the {len(items)} entries, which count from 0")
    return items[int(word)]


def read(kind: Any, value: Any, where: str, at: str = "") -> Any:
    """`value` as `kind`: a dataclass, a list of them, or a plain type. The first mistake is named."""
    place = f"{where}: {at}" if at else where
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise UserError(f"{place}: must be a table")
        hints = get_type_hints(kind)
        found = {}
        for key, inner in value.items():
            if key not in hints:
                raise UserError(f"{where}: {at + '.' if at else ''}{key}: unknown key, {suggest(key, hints)}")
            found[key] = read(hints[key], inner, where, f"{at}.{key}" if at else key)
        return kind(**found)  # type: ignore[operator]
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list | tuple):
            raise UserError(f"{place}: must be a list")
        if kinds[-1] is not ... and len(value) != len(kinds):
            raise UserError(f"{place}: must be a list of {len(kinds)} values, not {len(value)}")
        return tuple(read(kinds[0], inner, where, f"{at}.{i}") for i, inner in enumerate(value))
    if kind is float and type(value) is int:
        return float(value)
    wanted = dict if get_origin(kind) is dict else kind
    if type(value) is not wanted:
        raise UserError(f"{place}: must be {_WORDS[wanted]}, not {value!r}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table"}


def check(config: Any, where: str, limits: Limits) -> None:
    """Every value against the limits."""
    for key, value in _values(config):
        if key in limits.options and value not in limits.options[key]:
            raise UserError(f"{where}: {key}: unknown value '{value}', {suggest(value, limits.options[key])}")
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise UserError(f"{where}: {key}: must be finite, not {value}")
        if key in limits.above_zero and not value > 0:
            raise UserError(f"{where}: {key}: must be above 0, not {value}")
        if key in limits.at_least_one and value < 1:
            raise UserError(f"{where}: {key}: must be at least 1, not {value}")
        if key in limits.not_negative and value < 0:
            raise UserError(f"{where}: {key}: must not be negative, but is {value}")
        if key == "run.seed" and value > MOST_SEED:
            raise UserError(f"{where}: run.seed: must be at most {MOST_SEED}, not {value}")
        if key in limits.shares and not all(
            0 <= part < 1 for part in (value if isinstance(value, tuple) else (value,))
        ):
            raise UserError(f"{where}: {key}: must lie in [0, 1), not {value}")


def _values(config: Any) -> Iterable[tuple[str, Any]]:
    for section in fields(config):
        value = getattr(config, section.name)
        parts: Sequence[Any] = value if isinstance(value, tuple) else [value]
        for part in parts:
            if is_dataclass(part):
                for inner in fields(part):
                    yield f"{section.name}.{inner.name}", getattr(part, inner.name)


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
