"""The design space as data, for pages and programs: presets, axes, and what a point costs. Arithmetic, no torch."""

import re
from collections.abc import Mapping
from typing import Any

from bertree.errors import UserError
from bertree.model import cost
from bertree.model.architecture import AXES, MEANING, TYPES, Architecture, Transformer, check_type
from bertree.model.architecture.base import KINDS, list_of, one_of, positive, probability
from bertree.model.presets import PRESETS, Preset, preset

_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_BOUNDS: dict[str, tuple[Any, ...]] = {name: field.metadata.get("bounds", ()) for name, field in AXES.items()}


def describe_presets(length: int = 512, batch: int = 1) -> list[dict[str, Any]]:
    """Return name, parent, year and a short description of every preset, with its axes and what it costs on `batch`
    sequences of `length` tokens, or of its longest."""
    return [_describe_preset(point, min(length, point.architecture.longest_input), batch) for point in PRESETS.values()]


def _describe_preset(point: Preset, length: int, batch: int) -> dict[str, Any]:
    year = _YEAR.search(point.note)
    return {
        "name": point.name,
        "parent": point.parent,
        "year": int(year.group()) if year else None,
        "about": point.note,
        "study": point.study,
        "parameters": cost.parameters(point.architecture).total,
        "operations_per_token": cost.forward_flops(point.architecture, length),
        "peak": cost.training_bytes(point.architecture, batch, length),
        "axes": point.architecture.axes(),
    }


def describe_axes() -> list[dict[str, Any]]:
    """Return every axis with its kind (number, choice, switch), its default, its values and its meaning.

    The largest whole number is the largest of any preset: what is in use, not what is allowed. Axes whose value is
    a list written as text (cutoffs, axial_shape ...) are left out.
    """
    usual = {name: field.default for name, field in AXES.items()} | Transformer().axes()
    described = ((name, _describe_axis(name, TYPES[name], usual[name])) for name in MEANING)
    return [
        {"name": name} | description | {"about": MEANING[name]}
        for name, description in described
        if description is not None
    ]


def _describe_axis(name: str, kind: type, usual: Any) -> dict[str, Any] | None:
    description: dict[str, Any] = {"kind": "switch", "default": usual, "low": None, "high": None, "choices": None}
    if kind is bool:
        return description
    if kind is str:
        words = (
            [*KINDS]
            if name == "body"
            else next((list(bound.options) for bound in _BOUNDS[name] if isinstance(bound, one_of | list_of)), None)
        )
        return None if words is None else description | {"kind": "choice", "choices": words}
    used = [point.architecture.axes().get(name, usual) for point in PRESETS.values()]
    bounds = _BOUNDS[name]
    if kind is int:
        low = 1 if positive in bounds else 0
        high = max(*used, low + 1)
    else:
        low, high = (0, 0.99) if probability in bounds else (min(used) / 10, 10 * max(used))
    return description | {"kind": "number", "low": low, "high": high}


def describe_point(name: str, changes: Mapping[str, Any], length: int | None = None, batch: int = 1) -> dict[str, Any]:
    """Return what a preset with other values on some axes consists of and costs.

    Memory is that of a training step on `batch` sequences of `length` tokens (see `bertree.model.cost`); operations
    are those of a forward pass. An impossible combination is a UserError that says why.
    """
    base = preset(name).architecture
    a = base.with_values({axis: _checked(axis, value) for axis, value in changes.items()})
    length = min(512, a.longest_input) if length is None else length
    if not 1 <= length <= a.longest_input:
        raise UserError(f"length: must lie between 1 and {a.longest_input}, the longest sequence, not {length}")
    if batch < 1:
        raise UserError(f"batch: must be at least 1, not {batch}")
    counts = cost.parameters(a)
    parts = {part: count for part, count in counts.as_dict().items() if part != "total"}
    memory = _memory(a, sum(parts.values()), batch, length)
    if max(memory.values()) >= 2**63:  # which JSON readers cannot hold
        raise UserError(f"a step on {batch} x {length} tokens would take more than 2^63 bytes; make it smaller")
    return {
        "parameters": counts.total,
        "parts": [{"name": part, "parameters": count} for part, count in parts.items()],
        "memory": memory,
        "operations_per_token": cost.forward_flops(a, length),
        "training_operations_per_token": cost.training_flops(a, length),
        "length": length,
        "batch": batch,
        "axes": a.axes(),
        "differences": [
            {"axis": axis, "before": before, "value": value} for axis, (before, value) in a.differences(base).items()
        ],
        "short": a.short,
    }


def _checked(axis: str, value: Any) -> Any:
    """Return a value with the type of its axis; JSON may write a whole number as 6.0."""
    if TYPES.get(axis) is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    return check_type(axis, value, "changes")


def _memory(a: Architecture, everything: int, batch: int, length: int) -> dict[str, int]:
    """Return the bytes of a training step by what they hold. The parts are not all there at once: see `peak`."""
    costs, tokens = cost.costs(a), batch * length
    return {
        "weights": 4 * everything,
        "gradients": 4 * everything,
        "optimizer": 8 * everything,
        "activations": costs.bytes_at_start(tokens, round(costs.rate * tokens), getattr(a, "query_stream", False)),
        "peak": cost.training_bytes(a, batch, length),
    }
