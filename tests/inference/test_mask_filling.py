"""Masks with their places in the text, and several texts at once."""

from pathlib import Path

import pytest

import bertree
from bertree.errors import TextsCut, UserError
from bertree.inference.mask_filling import FilledMask
from tests.support import learnable
from tests.support.xlnet_folder import save_xlnet

TEXT = "Ünter 🙂 [MASK] boat and the <mask> by the [MASK]."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> bertree.Model:
    return bertree.load(learnable.model(tmp_path_factory.mktemp("masks") / "model", learnable.tokenizer()))


def close(some: list[FilledMask], others: list[FilledMask]) -> None:
    for left, right in zip(some, others, strict=True):
        assert left[:2] == right[:2]
        assert [c.id for c in left.candidates] == [c.id for c in right.candidates]
        for a, b in zip(left.candidates, right.candidates, strict=True):
            assert a.probability == pytest.approx(b.probability, abs=1e-6)


def test_masks_have_their_places_in_the_text_as_it_was_given(model: bertree.Model) -> None:
    candidates = model.fill_masks(TEXT, 3)
    assert [TEXT[mask.start : mask.end] for mask in candidates] == ["[MASK]", "<mask>", "[MASK]"]
    assert [mask.candidates for mask in candidates] == model.fill_mask(TEXT, 3)


def test_texts_that_are_filled_together_are_filled_as_alone(model: bertree.Model, tmp_path: Path) -> None:
    for loaded in (model, bertree.load(save_xlnet(tmp_path / "xlnet"))):
        texts = [(TEXT, 3), ("the <mask>", 1), ("[MASK] and [MASK] of the boat", 2)]
        together = loaded.fill_prepared([loaded.prepare_masks(text, k) for text, k in texts])
        for (text, k), masks in zip(texts, together, strict=True):
            close(masks, loaded.fill_masks(text, k))
            assert {len(mask.candidates) for mask in masks} == {k}


def test_a_text_that_is_cut_behind_its_masks_is_filled_with_a_warning(model: bertree.Model) -> None:
    text = "the <mask> " + "boat " * 100
    assert model.prepare_masks(text).encoded.dropped == 40
    with pytest.warns(TextsCut, match="1 of 1 texts cut to 64 tokens"):
        assert len(model.fill_masks(text)) == 1
    with pytest.raises(UserError, match="beyond the first 64 tokens"):
        model.prepare_masks("boat " * 100 + "[MASK]")
