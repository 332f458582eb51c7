"""What people do with a model in Python beside inference: train it themselves, copy, move and look at it."""

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.config.names import has_native_bfloat16, parse_precision
from bertree.errors import BertreeWarning, UserError
from bertree.inference import cpu_linear
from bertree.inference.cpu_linear import linear_class
from bertree.inference.load import random_model
from bertree.model.pooling import PoolingConfig

TEXTS = ["A dog runs.", "Stocks fell on Monday.", ""]


@pytest.fixture
def model(small_folder: Path) -> bertree.Model:
    return bertree.load(small_folder)


@pytest.fixture
def classifier(model: bertree.Model) -> bertree.Model:
    changed = random_model(model.architecture, {"sequence": 2})
    changed.tokenizer = model.tokenizer
    return changed


def test_dimensions(model: bertree.Model) -> None:
    whole = model.embed(TEXTS)
    np.testing.assert_array_equal(model.embed(TEXTS, dimensions=20), whole[:, :20])
    model.vector = PoolingConfig(normalize=True)
    cut = model.embed(TEXTS, dimensions=20)
    np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(cut, whole[:, :20] / np.linalg.norm(whole[:, :20], axis=1, keepdims=True), atol=1e-6)
    assert model.embed([], dimensions=20).shape == (0, 20)
    for wrong in (0, -1, 129, 2.0, True, "20"):
        with pytest.raises(UserError, match=r"dimensions: .* whole number"):
            model.embed(TEXTS, dimensions=wrong)


def test_what_is_no_text(model: bertree.Model, classifier: bertree.Model) -> None:
    wrong: list[object] = [None, 3, 2.5, b"text"]
    for call, inputs in (
        *((call, [*wrong, {"text": "a"}]) for call in (model.embed, model.hidden, model.batch)),
        (classifier.predict, wrong),
    ):
        for value in inputs:
            with pytest.raises(UserError, match=r"is not a string|expected a text or a list of texts"):
                call(value)
    with pytest.raises(UserError, match="input 1: must be a text, a pair"):
        classifier.predict([3])


def test_one_text_is_one_input(classifier: bertree.Model) -> None:
    assert classifier.predict("the boat") == classifier.predict(["the boat"])
    assert classifier.predict({"text": "the boat"}) == classifier.predict([{"text": "the boat"}])


@pytest.mark.train
def test_training_of_ones_own_changes_what_is_served(model: bertree.Model, tmp_path: Path) -> None:
    before = model.embed(TEXTS[:2])
    torch.manual_seed(0)
    head = torch.nn.Linear(model.network.width, 2)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-3)
    losses = []
    assert model.train() is model
    for _ in range(12):
        batch = model.batch(TEXTS[:2])
        states = model.network(batch)
        logits = head(model.network.sequence_states(states, batch))
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    after = model.embed(TEXTS[:2])
    np.testing.assert_array_equal(after, model.embed(TEXTS[:2]), "no dropout, though it is in training mode")
    assert model.network.training
    assert np.abs(after - before).max() > 1e-2
    states = model.network(model.eval().batch(TEXTS[:2]))
    wanted = model.pooling(states, model.batch(TEXTS[:2]))
    assert wanted.requires_grad
    np.testing.assert_allclose(after, wanted.detach(), atol=1e-5)
    model.save(tmp_path / "own")
    np.testing.assert_allclose(bertree.load(tmp_path / "own").embed(TEXTS[:2]), after, atol=1e-6)


def test_modes_are_restored_module_by_module(model: bertree.Model) -> None:
    model.train()
    model.network.encoder.stack.eval()
    model.embed(TEXTS)
    model.hidden(TEXTS)
    model.fill_mask("a [MASK]")
    assert model.network.encoder.embeddings.dropout.training
    assert not model.network.encoder.stack.training


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_deep_copies(model: bertree.Model, dtype: str) -> None:
    model.to(precision=dtype)
    wanted = model.embed(TEXTS)
    other = copy.deepcopy(model)
    assert (other.precision, other.digest) == (model.precision, model.digest)
    assert model.precision == dtype or linear_class(torch.int8) is None
    np.testing.assert_array_equal(other.embed(TEXTS), wanted)
    with torch.no_grad():
        next(other.parameters()).mul_(2.0)
    assert not np.array_equal(other.embed(TEXTS), wanted)
    np.testing.assert_array_equal(model.embed(TEXTS), wanted)


def test_names_of_precisions(model: bertree.Model) -> None:
    names = {"float32": "fp32 float f32 FLOAT32", "float16": "half fp16 f16", "bfloat16": "bf16", "int8": "i8"}
    for name, others in names.items():
        assert {parse_precision(other) for other in (name, *others.split(), getattr(torch, name))} == {name}
    for wrong in ("float64", torch.float64, None, "int4"):
        with pytest.raises(UserError, match=r"precision '.*': must be"):
            parse_precision(wrong)
    with pytest.raises(UserError, match="'bf61': must be float32, bfloat16"):
        parse_precision("bf61")
    assert model.to(torch.float16).hidden(TEXTS)[0].dtype == torch.float16
    assert model.to("cpu", "fp32").precision == "float32"
    with pytest.raises(UserError, match="device 'warp': cannot be used"):
        model.to("warp")


@pytest.mark.parametrize("wanted", ["bfloat16", "int8"])
def test_a_cpu_without_instructions_for_a_precision_computes_in_float32(
    wanted: str, small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bertree.load(small_folder).embed(TEXTS)
    monkeypatch.setattr(cpu_linear, "has_native_bfloat16", lambda: False)
    monkeypatch.setattr(cpu_linear, "_is_correct", lambda kind, dtype: False)
    cpu_linear.note_missing.cache_clear()
    with pytest.warns(BertreeWarning, match=f"{wanted}: this CPU has no instructions"):
        model = bertree.load(small_folder, precision=wanted)
    assert model.precision == "float32"
    assert np.allclose(model.embed(TEXTS), expected, atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bertree.load(small_folder).to(precision=wanted).precision == "float32", "it is said once"
    cpu_linear.note_missing.cache_clear()
    assert isinstance(has_native_bfloat16(), bool)


def test_notebooks(model: bertree.Model, small_folder: Path, tmp_path: Path) -> None:
    shown = model._repr_html_()
    for word in ("transformer, 2 layers, width 128", "30,522 tokens", "512 tokens", "mask", "on cpu in float32"):
        assert word in shown
    assert model.tokenizer is not None
    assert "WordPiece" in model.tokenizer._repr_html_()
    assert repr(model.tokenizer) == "<bertree tokenizer: WordPiece, 30,522 tokens>"
    hostile = tmp_path / "<script>alert(1)</script>"
    model.tokenizer.special["mask"] = "<b>"
    model.save(hostile.parent / "x")
    (hostile.parent / "x").rename(tmp_path / "<script>")
    assert "<script>" not in bertree.load(tmp_path / "<script>")._repr_html_()
    assert "&lt;b&gt;" in model.tokenizer._repr_html_()
    assert "random weights" in random_model(model.architecture, {})._repr_html_()


def test_the_name_of_a_preset_and_of_the_bundled_model() -> None:
    preset, bundled = bertree.load("bert-tiny"), bertree.load("default")
    assert (preset.name, preset.origin) == ("bert-tiny", "bert-tiny")
    assert (bundled.name, bundled.origin) == ("default", "default")
    assert "bert-tiny" in repr(preset)


def test_state_dicts(model: bertree.Model) -> None:
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert not any(bool(value.any()) for _, value in model.named_parameters())
