"""A preset: a named architecture, written as its differences from its parent."""

from dataclasses import dataclass
from typing import Any

from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture, Transformer, check_type


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A named architecture and its parent in the tree."""

    name: str
    parent: str | None
    architecture: Architecture
    note: str  # a short description
    published: str = ""  # the number of parameters in its paper, and how it is counted
    study: bool = False  # one cell of a paper's ablation table rather than a model with a name
    folder: str = ""  # path of the folder, if it is a model on disk


PRESETS: dict[str, Preset] = {}
DEFAULT = "default"  # the bundled model: not a preset, but a name that may be misspelled too


def add(name: str, parent: str | None, note: str, published: str = "", study: bool = False, **changes: Any) -> None:
    """Add a published model to the tree."""
    base = PRESETS[parent].architecture if parent else Transformer()
    architecture = base.with_values(changes)
    PRESETS[name] = Preset(
        name=name, parent=parent, architecture=architecture, note=note, published=published, study=study
    )


def preset(name: str) -> Preset:
    """Return the preset of that name; the error names the nearest one."""
    if name not in PRESETS:
        near = suggest(name, (*PRESETS, DEFAULT))
        named = near if near.startswith("did") else suggest("", (n for n, p in PRESETS.items() if not p.study))
        raise UserError(f"{name}: no such preset and no such folder; {named}")
    return PRESETS[name]


def register_preset(name: str, parent: str = "bert-base", note: str = "", **axes: Any) -> Preset:
    """Add a preset of your own: a known preset with other values on some axes of the architecture.

    It is known in this process only; a saved model carries its architecture with it.

    >>> register_preset("my-bert", parent="bert-small", layers=6, activation="relu")
    """
    if name in PRESETS or name == DEFAULT:
        raise UserError(f"{name}: there is such a preset; give yours another name")
    base = preset(parent).architecture
    values = {axis: check_type(axis, value, name) for axis, value in axes.items()}
    note = note or f"{parent} with other axes"
    PRESETS[name] = Preset(name=name, parent=parent, architecture=base.with_values(values), note=note)
    return PRESETS[name]
