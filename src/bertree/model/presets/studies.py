"""Cells of the papers' ablation tables."""

from bertree.model.architecture import SHARING
from bertree.model.presets.tree import add

# The two ablations of the ALBERT paper: embedding width against sharing, on the base model.
_STUDY = {
    ("none", 64): "87M",
    ("none", 128): "89M",
    ("none", 256): "93M",
    ("none", 768): "108M",
    ("attention", 128): "64M",
    ("attention", 768): "83M",
    ("ffn", 128): "38M",
    ("ffn", 768): "57M",
    ("all", 64): "10M",
    ("all", 128): "12M",
    ("all", 256): "16M",
    ("all", 768): "31M",
}
for _sharing in SHARING:
    for _width in (64, 128, 256, 768):
        _figure = _STUDY.get((_sharing, _width), "")
        add(
            f"albert-base-e{_width}-{_sharing}",
            "albert-base",
            f"ALBERT study: E = {_width}, sharing {_sharing}",
            f"{_figure} without the pooler" if _figure and _sharing == "none" else _figure,
            study=True,
            embedding_width=_width,
            sharing=_sharing,
        )
