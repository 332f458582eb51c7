"""Single settings laid over a configuration: `optim.lr=1e-4` on the command line, `optim={"lr": 1e-4}` in Python.

The section may be left out where the key is clear: `lr=1e-4`, or `steps=100` in a run of one phase.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from os import PathLike, fspath
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from bertree.config.settings import Keys, setting_fields
from bertree.errors import UserError, suggest
from bertree.files.formats import Json

# Names that other trainers have for settings.
ELSEWHERE = {
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
    "batch_size": "batch",
    "per_device_train_batch_size": "batch",
    "max_seq_length": "max_length",
    "max_steps": "steps",
    "warmup_ratio": "warmup",
    "warmup_steps": "warmup",
    "max_grad_norm": "clip",
    "lr_scheduler_type": "shape",
}


@dataclass(frozen=True)
class Override:
    """One setting: its key, with or without the section, and its value."""

    key: str
    value: Any


def overrides_of(settings: Mapping[str, Any]) -> list[Override]:
    """Return Python keyword settings as overrides: `{"lr": 1e-4}`, `{"optim": {"lr": 1e-4}}`, `{"optim.lr": 1e-4}`."""
    overrides: list[Override] = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            overrides += [Override(f"{key}.{inner.key}", inner.value) for inner in overrides_of(value)]
        else:
            overrides.append(Override(str(key), fspath(value) if isinstance(value, PathLike) else value))
    return overrides


def parse(text: str) -> Override:
    """Read `key=value`; the value is TOML, or a bare word."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise UserError(f"'{text}': expected key=value, for example optim.lr=1e-4")
    try:
        return Override(key, tomllib.loads(f"v = {raw}")["v"])
    except tomllib.TOMLDecodeError:
        return Override(key, raw)
    except (RecursionError, ValueError):
        raise UserError(f"{key}: the value is nested too deeply or has too many digits") from None


def apply_overrides(
    tree: Json,
    overrides: Iterable[str | Override],
    kind: type,
    *,
    free: Mapping[str, Collection[str]] | None = None,
    hidden: Collection[str] = (),
) -> set[str]:
    """Put overrides into a tree of settings of `kind` and return their full keys, of tables those of their values.

    `free` names the keys of sections that are free tables; `hidden` the keys that need their section or are not for
    the user at all.
    """
    keys: set[str] = set()
    for entry in overrides:
        override = parse(entry) if isinstance(entry, str) else entry
        if not all(override.key.split(".")):
            raise UserError(f"'{override.key}': is not a key; write it as section.key, for example optim.lr")
        key = _full_key(override.key, tree, kind, free or {}, hidden)
        _put(tree, key, override.value)
        keys |= _value_keys(key, override.value)
    return keys


def _value_keys(key: str, value: Any) -> set[str]:
    """Return the keys of the single values that a value consists of: `phases.0.steps` of `phases=[{steps=3}]`."""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple) and all(isinstance(entry, Mapping) for entry in value):
        inner = enumerate(value)
    return {name for word, below in inner for name in _value_keys(f"{key}.{word}", below)} or {key}


def _full_key(key: str, tree: Json, kind: type, free: Mapping[str, Collection[str]], hidden: Collection[str]) -> str:
    """Return the key with its section, which may be left out where only one has such a key."""
    if "." in key:
        return key
    sections = {name: keys for name, keys in _sections(tree, kind, free).items() if name not in hidden}
    if key in sections:
        return key
    full = [f"{section}.{key}" for section, keys in sections.items() if key in keys]
    full = [name for name in full if name not in hidden]
    if not full:
        names = {name for keys in sections.values() for name in keys}
        hint = f"did you mean '{ELSEWHERE[key]}'?" if ELSEWHERE.get(key) in names else suggest(key, names)
        raise UserError(f"{key}: unknown setting, {hint}")
    if len(full) > 1:
        raise UserError(f"{key}: could be {' or '.join(full)}; write the one you mean")
    return full[0]


def _sections(tree: Json, kind: type, free: Mapping[str, Collection[str]]) -> dict[str, Collection[str]]:
    """Return the sections of a configuration with their keys; each entry of a list is a section of its own."""
    hints = get_type_hints(kind, include_extras=True)
    sections: dict[str, Collection[str]] = {}
    for field in setting_fields(kind):
        hint, name = hints[field.name], field.name
        sections[name] = _keys(hint) or free.get(name, ())
        if get_origin(hint) is tuple and isinstance(entries := tree.get(name), list):
            sections |= {f"{name}.{number}": _keys(get_args(hint)[0]) for number in range(len(entries))}
    return sections


def _keys(hint: Any) -> list[str]:
    if get_origin(hint) is Annotated:
        return [key for bound in get_args(hint)[1:] if isinstance(bound, Keys) for key in bound.defaults]
    return [field.name for field in setting_fields(hint)] if is_dataclass(hint) else []


def _put(tree: Json, key: str, value: Any) -> None:
    *path, last = key.split(".")
    node: Any = tree
    for word in path:
        if isinstance(node, list):
            node = node[_entry(node, word, key)]
        elif isinstance(node, dict):
            node = node.setdefault(word, {})
    if isinstance(node, list):
        node[_entry(node, last, key)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise UserError(f"{key}: is a single value, not a table")


def _entry(items: list[Any], word: str, key: str) -> int:
    if not (word.isascii() and word.isdecimal()) or len(word) > 9 or int(word) >= len(items):
        raise UserError(f"{key}: '{word}' is not one of the {len(items)} entries, which count from 0")
    return int(word)
