"""The architecture of a model: one point in a space of choices, frozen and checked.

There are three kinds, each a frozen dataclass: `Transformer`, `BiLstm`, and `Lstm` for language models. Every field is
one axis. A new model of the family is a new value in `presets`; a new idea is one more option on one axis. Questions
about an architecture are its properties and class attributes (`Architecture`). Nothing here imports torch, so that
`bertree info` starts fast.
"""

from dataclasses import fields
from typing import Any, get_type_hints

from bertree.errors import UserError, suggest
from bertree.model.architecture.base import WRITTEN, Architecture, later_axes
from bertree.model.architecture.recurrent import BiLstm, Lstm
from bertree.model.architecture.transformer import Transformer
from bertree.model.architecture.transformer_axes import ACTIVATIONS, SHARING

__all__ = [
    "ACTIVATIONS",
    "MEANING",
    "SHARING",
    "TYPES",
    "Architecture",
    "BiLstm",
    "Lstm",
    "Transformer",
    "check_type",
    "later_axes",
    "parse_override",
]

AXES = {field.name: field for kind in (Lstm, Transformer) for field in fields(kind)}  # a transformer's, where both have
_ORDER = dict.fromkeys((*WRITTEN, *(field.name for field in fields(Transformer)), *AXES))
_BODY = "kind of encoder: a transformer, a bidirectional LSTM (bilstm), or an LSTM language model (lstm)"
_HINTS = get_type_hints(Lstm) | get_type_hints(Transformer)
# The meaning and the type of each axis, in the order of files.
MEANING: dict[str, str] = {name: AXES[name].metadata["meaning"] if name != "body" else _BODY for name in _ORDER}
TYPES: dict[str, type] = {name: _HINTS[name] if name != "body" else str for name in _ORDER}
assert {field.name for field in fields(BiLstm)} <= set(AXES), "a BiLSTM has no axes of its own"
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


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
        raise UserError(f"'{override}': unknown axis, {suggest(name, TYPES)}")
    wanted = TYPES[name]
    try:
        if wanted is bool:
            return name, {"true": True, "false": False}[text.lower()]
        return name, wanted(text)
    except (ValueError, KeyError):
        raise UserError(f"{name}: must be {_WORDS[wanted]}, not '{text}'") from None
