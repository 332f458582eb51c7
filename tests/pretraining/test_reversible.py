"""A reversible BERT: pretrained, killed and resumed, loaded, evaluated; teacher and student of others."""

import random
from pathlib import Path

import pytest
import torch

import bertree
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.model.transformer import TransformerEncoder
from bertree.objectives.distill_pretraining import add_projections, distillation_objective
from tests.support import runs
from tests.support.batches import fresh, joined, sequences, tiny

CHANGES = ("model.residual=reversible", "model.attention_dropout=0.1", "model.ffn_chunk=20")


def arguments(folder: Path, store: Path) -> tuple[str, ...]:
    recipe = str(runs.recipe("bert", folder))
    return ("pretrain", recipe, "--store", str(store), "--out", str(folder / "out"), *CHANGES)


@pytest.fixture(scope="module")
def whole(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two micro-batches a step, with dropout."""
    folder = tmp_path_factory.mktemp("reversible")
    assert runs.finish(*arguments(folder, token_store), log=folder / "log") == 0, (folder / "log").read_text()
    return folder / "out"


def test_killed_and_resumed_it_ends_in_the_same_bytes(whole: Path, token_store: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    command = (*arguments(tmp_path, token_store), "--resume")
    runs.kill(*command, log=log, after=(2,), moments=random.Random(0))
    assert runs.finish(*command, log=log) == 0, log.read_text()
    assert runs.results(out) == runs.results(whole)


def test_the_trained_model_is_loaded(whole: Path, tmp_path: Path) -> None:
    model = bertree.load(str(whole / "model"), device="cpu")
    a = model.architecture
    assert isinstance(a, Transformer)
    assert (a.residual, a.ffn_chunk, a.width, a.output_width) == ("reversible", 20, 32, 64)
    assert isinstance(model.network.encoder, TransformerEncoder)
    assert model.network.encoder.norm is not None
    assert model.network.encoder.norm.weight.shape == (64,)
    assert len(model.fill_mask("the [MASK] of")) == 5
    model.save(tmp_path / "again")
    again = bertree.load(str(tmp_path / "again"), device="cpu")
    for name, tensor in model.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], tensor), name
    vector = model.encode("a text")
    assert vector.shape == (64,)
    assert (vector == again.encode("a text")).all()


@pytest.mark.parametrize(("student", "teacher"), [("reversible", "pre-norm"), ("pre-norm", "reversible")])
def test_it_learns_from_others_and_they_from_it(student: str, teacher: str) -> None:
    torch.manual_seed(1)
    axes = {"pooler": False, "layers": 4}
    teaching = build(tiny(**axes, residual=teacher), {"mask": 0}).eval()
    learning = fresh(heads=("mask",), **axes, residual=student)
    weights = {"ce": 1.0, "cos": 1.0, "hidden": 1.0}
    widths = (learning.encoder.width, teaching.encoder.width)
    assert sorted(widths) == [16, 32]
    module = add_projections(learning, *widths, weights, 2)
    objective = distillation_objective(weights, teaching, pairs=[(2, 2), (4, 4)])
    batch = joined(sequences(3))
    torch.manual_seed(2)
    losses = objective(module, batch).losses
    sum(loss.sum for loss in losses.values()).backward()
    assert set(losses) == set(weights)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
