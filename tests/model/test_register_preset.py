"""A preset of one's own: a known one with other values on some axes."""

from collections.abc import Iterator

import pytest

from bertree.errors import UserError
from bertree.inference.load import load
from bertree.model.presets import PRESETS, preset, register_preset


@pytest.fixture(autouse=True)
def presets() -> Iterator[None]:
    before = dict(PRESETS)
    yield
    PRESETS.clear()
    PRESETS.update(before)


def test_a_registered_preset_is_one_like_others() -> None:
    own = register_preset("mine", parent="bert-tiny", layers=3, width=64, dropout=0)
    assert preset("mine") == own
    assert (own.architecture.layers, own.architecture.ffn_width, own.architecture.dropout) == (3, 256, 0.0)
    assert load("mine").architecture == own.architecture


@pytest.mark.parametrize(
    ("name", "parent", "axes", "message"),
    [
        ("bert-base", "bert-tiny", {}, "bert-base: there is such a preset"),
        ("default", "bert-tiny", {}, "default: there is such a preset"),
        ("mine", "bert-tin", {}, "did you mean 'bert-tiny'"),
        ("mine", "bert-tiny", {"layer": 3}, "mine: layer: unknown key, did you mean 'layers'"),
        ("mine", "bert-tiny", {"layers": "3"}, "mine: layers: must be a whole number, not '3'"),
        ("mine", "bert-tiny", {"heads": 3}, "heads: 3 heads cannot divide"),
    ],
)
def test_mistakes(name: str, parent: str, axes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_preset(name, parent, **axes)
    assert "mine" not in PRESETS
