"""Describe a model or a preset: its axes, its parameters, and what it costs. `bertree.info`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertree.config import names as model_names
from bertree.config.overrides import overrides_of
from bertree.interop.folder import read_architecture, read_heads, read_max_length
from bertree.model import cost
from bertree.model.architecture import Architecture, parse_override
from bertree.model.presets import PRESETS, Preset, preset


def info(name: str | Path, *, overrides: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
    """Describe a preset or a model folder: architecture, parameters, bytes of its weights, operations per token.

    `changes` are other values on its axes (`layers=6`), `overrides` the same as strings. `bertree.presets()` lists the
    names of all presets.

    >>> bertree.info("albert-base", layers=6)["parameters"]["total"]
    """
    axes = [f"{axis.key}={str(axis.value).lower()}" for axis in overrides_of(changes)]
    return describe(find_point(str(name), [*overrides, *axes]))


def presets() -> dict[str, str]:
    """Return the presets: their names, each with a note on what it is.

    >>> bertree.presets()["albert-base"]
    """
    return {name: point.note for name, point in PRESETS.items()}


def find_point(name: str, overrides: Sequence[str] = ()) -> Preset:
    """Return a preset, or a model folder described like a preset, with some axes changed."""
    if name not in PRESETS and (path := model_names.resolve_model_path(name)).is_dir():
        note = "the bundled model" if path == model_names.FOLDER else "a model folder"
        point = Preset(name=name, parent=None, architecture=read_architecture(path), note=note, folder=str(path))
    else:
        point = preset(name)
    if not overrides:
        return point
    changed = point.architecture.with_values(dict(map(parse_override, overrides)))
    axes = "1 axis" if len(overrides) == 1 else f"{len(overrides)} axes"
    return Preset(
        name=f"{point.name} {' '.join(overrides)}",
        parent=point.name if point.name in PRESETS else None,
        architecture=changed,
        note=f"{point.name} with {axes} changed",
    )


def count_parameters(point: Preset) -> cost.Parameters:
    """Count the parameters. A model on disk may have no MLM head; an architecture is counted with one."""
    counts = cost.parameters(point.architecture)
    if point.folder and "mask" not in read_heads(Path(point.folder)):
        return replace(counts, mlm_head=0)
    return counts


def describe(point: Preset) -> dict[str, Any]:
    """Return the plain values that `bertree info --json` prints."""
    a = point.architecture
    counts = count_parameters(point)
    weights = counts.total + counts.mlm_head
    long = _long_sequences(a)
    lengths = (*cost.LENGTHS, *(cost.long_lengths(a) if long else ()))
    return {
        "name": point.name,
        "parent": point.parent,
        "note": point.note,
        "published": point.published or None,
        "folder": point.folder or None,
        "architecture": a.written_axes(),
        "max_length": read_max_length(Path(point.folder)) if point.folder else a.max_positions,
        "parameters": counts.as_dict(),
        "embedding_parameters": cost.embedding_parts(a),
        "weight_bytes": {"float32": 4 * weights, "bfloat16": 2 * weights},
        "inference_bytes_of_one_sequence": {str(n): cost.inference_bytes(a, 1, n) for n in lengths},
        "flops_per_token": {
            str(n): {"forward": cost.forward_flops(a, n), "training": cost.training_flops(a, n)} for n in lengths
        },
    } | ({"training_bytes_of_one_sequence": long} if long else {})


def _long_sequences(a: Architecture) -> dict[str, Any]:
    """Return the bytes of a training step with one long sequence: option -> length -> bytes."""
    lengths = cost.long_lengths(a)
    return {
        name: {str(length): cost.training_bytes(variant, 1, length) for length in lengths}
        for name, variant in cost.option_variants(a).items()
    }
