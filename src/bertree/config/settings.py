"""Settings are data: trees of plain values, read into frozen dataclasses whose fields carry their bounds.

A bound is written at its field: `lr: Annotated[float, Above(0)] = setting(1e-4, "learning rate")`. Its `check` returns
the value to keep, or raises ValueError with the reason why it is refused. `setting` adds what the value means, for help
texts and the reference (docs/reference.py).

A configuration is a dataclass of sections: dataclasses, tuples of them, or free tables. Values come from TOML files,
from the command line (`overrides.py`) and from Python. `read` names the first mistake by file and key, with the nearest
known name. It reads everything else that is a table of plain values too (model descriptions, comparisons, indexes).
"""

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

from bertree.errors import UserError, suggest
from bertree.files.formats import Json, toml_text

LARGEST = 2**63 - 1  # integer: what TOML promises
NOT_A_SETTING = {"setting": False}  # metadata of a field that is neither read nor written
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def setting(default: Any, meaning: str) -> Any:
    """Declare a setting: its default and what it means. Its bounds stand in its type."""
    return field(default=default, metadata={"meaning": meaning})


@runtime_checkable
class Bound(Protocol):
    """A condition on the value of a setting; on a list, on each of its values."""

    def check(self, value: Any) -> Any:
        """Return the value to keep; raise ValueError with the reason if it is refused."""


@dataclass(frozen=True)
class Above:
    """Larger than `low`."""

    low: float

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not value > self.low:
            raise ValueError(f"must be above {self.low}, not {value}")
        return value


@dataclass(frozen=True)
class AtLeast:
    """`low` or larger."""

    low: float

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not value >= self.low:
            wanted = f"be at least {self.low}, not" if self.low else "not be negative, but is"
            raise ValueError(f"must {wanted} {value}")
        return value


@dataclass(frozen=True)
class AtMost:
    """`high` or smaller."""

    high: float

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not value <= self.high:
            raise ValueError(f"must be at most {self.high}, not {value}")
        return value


@dataclass(frozen=True)
class Share:
    """From 0 up to 1, with 1 itself only if `closed`."""

    closed: bool = False

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not 0 <= value <= 1:
            raise ValueError(f"must lie between 0 and 1, not {value}")
        if value == 1 and not self.closed:
            raise ValueError(f"must lie in [0, 1), not {value}")
        return value


@dataclass(frozen=True)
class OneOf:
    """One of several words. `synonyms` are accepted and replaced by the word they stand for."""

    options: tuple[str, ...]
    synonyms: Mapping[str, str] | None = None

    def check(self, value: Any) -> Any:
        """Return the option that the value names."""
        value = (self.synonyms or {}).get(value, value)
        if value not in self.options:
            raise ValueError(f"unknown value '{value}', {suggest(value, self.options)}")
        return value


@dataclass(frozen=True)
class Keys:
    """A table whose keys are known only at run time: each with its default value, which is filled in."""

    defaults: Mapping[str, Any]


def read(kind: Any, value: Any, where: str, at: str = "") -> Any:
    """Read `value` as `kind`: a dataclass, a tuple, a table or a plain type. `where` and `at` go into the message."""
    location = f"{where}: {at}" if at else where
    origin = get_origin(kind)
    if origin is Annotated:
        base, *bounds = get_args(kind)
        keys = next((bound for bound in bounds if isinstance(bound, Keys)), None)
        checked = _read_keys(base, keys, value, where, at) if keys else read(base, value, where, at)
        return _check_bounds(checked, bounds, location)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where, at)
    if origin in (types.UnionType, Union):
        if value is None and types.NoneType in get_args(kind):
            return None
        (kind,) = (inner for inner in get_args(kind) if inner is not types.NoneType)
        return read(kind, value, where, at)
    if origin is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list | tuple):
            raise UserError(f"{location}: must be a list")
        if kinds[-1] is not ... and len(value) != len(kinds):
            raise UserError(f"{location}: must be a list of {len(kinds)} values, not {len(value)}")
        return tuple(read(kinds[0], inner, where, key_path(at, i)) for i, inner in enumerate(value))
    if origin in (dict, Mapping):
        inner_kind = get_args(kind)[1]
        return {
            key: read(inner_kind, inner, where, key_path(at, key)) for key, inner in _table(value, location).items()
        }
    return value if kind is Any else _read_plain(kind, value, location)


def _read_dataclass(kind: Any, value: Any, where: str, at: str) -> Any:
    hints = _hints(kind)
    fields_by_name = {field.name: field for field in setting_fields(kind)}
    values = {}
    for key, inner in _table(value, f"{where}: {at}" if at else where).items():
        if key not in fields_by_name:
            raise UserError(f"{where}: {key_path(at, key)}: unknown key, {suggest(key, fields_by_name)}")
        values[key] = read(hints[key], inner, where, key_path(at, key))
    for key, each in fields_by_name.items():
        if key not in values and each.default is MISSING and each.default_factory is MISSING:
            raise UserError(f"{where}: {key_path(at, key)}: is missing")
    try:
        result = kind(**values)
    except UserError as error:  # what the dataclass itself checks
        raise UserError(f"{where}: {error}") from None
    for key in fields_by_name:
        if key not in values and get_origin(hints[key]) is Annotated:  # a default may say that a value must be given
            _check_bounds(getattr(result, key), get_args(hints[key])[1:], f"{where}: {key_path(at, key)}")
    return result


@lru_cache(maxsize=256)
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _read_keys(kind: Any, keys: Keys, value: Any, where: str, at: str) -> Json:
    """Read a table whose keys are known; those that are missing have their defaults."""
    values = _table(value, f"{where}: {at}")
    for key in values:
        if key not in keys.defaults:
            raise UserError(f"{where}: {key_path(at, key)}: unknown key, {suggest(key, keys.defaults)}")
    read_values = {key: read(get_args(kind)[1], inner, where, key_path(at, key)) for key, inner in values.items()}
    return dict(keys.defaults) | read_values


def _read_plain(kind: Any, value: Any, location: str) -> Any:
    if kind is float and type(value) is int and abs(value) <= LARGEST:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{location}: must be {_WORDS[kind]}, not {_short_repr(value)}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{location}: must be finite, not {value}")
    if kind is int and abs(value) > LARGEST:
        raise UserError(f"{location}: must be at most {LARGEST}, not {_short_repr(value)}")
    if kind is str and not _is_unicode(value):
        raise UserError(f"{location}: must be valid Unicode text, not {value!a}")
    return value


def _table(value: Any, location: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"{location}: must be a table")
    for key in value:
        if not isinstance(key, str) or not _is_unicode(key):
            raise UserError(f"{location}: {key!a}: is not a key")
    return value


def _is_unicode(text: str) -> bool:
    """Return whether a text can be written to a file; a path with broken characters cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_bounds(value: Any, bounds: Sequence[Any], location: str) -> Any:
    """Check a value against its bounds; of a list or table, each value. None is no value."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: _check_bounds(inner, bounds, f"{location}.{key}") for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_check_bounds(inner, bounds, location) for inner in value)
    for bound in bounds:
        if isinstance(bound, Bound):
            try:
                value = bound.check(value)
            except ValueError as error:
                raise UserError(f"{location}: {error}") from None
    return value


def setting_fields(config: Any) -> list[Field[Any]]:
    """Return the fields of a configuration, or of its class, that are settings."""
    return [field for field in fields(config) if field.init and field.metadata.get("setting", True)]


def key_path(at: str, key: object) -> str:
    """Return a key with the tables above it: `optim.lr`."""
    word = str(key) or '""'  # as TOML writes an empty key
    return f"{at}.{word}" if at else word


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def as_tree(config: Any) -> Json:
    """Return the settings of a configuration as plain values."""
    values = asdict(config)
    return {field.name: values[field.name] for field in setting_fields(config)}


def as_toml(config: Any) -> str:
    """Write a configuration as TOML, with every value; empty texts above the tables are left out."""
    return toml_text({key: value for key, value in as_tree(config).items() if value != ""})


def differences(first: Any, second: Any) -> list[str]:
    """Return the keys in which two configurations differ, for example `optim.lr`."""
    first, second = _flat(as_tree(first)), _flat(as_tree(second))
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
        flat |= _flat(value, key_path(prefix, key))
    return flat


def merge(base: Json, over: Json) -> Json:
    """Lay one tree over another: tables are merged, everything else, lists of tables too, is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result
