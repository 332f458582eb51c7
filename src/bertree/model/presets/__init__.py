"""The family tree: every published model as a value, written as its differences from its parent."""

# Each adds its presets to the tree, parents first.
from bertree.model.presets import encoders, language_models  # noqa: F401  isort: skip
from bertree.model.presets.tree import DEFAULT, PRESETS, Preset, preset, register_preset

__all__ = ["DEFAULT", "PRESETS", "Preset", "preset", "register_preset"]
