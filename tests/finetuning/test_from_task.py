"""Fine-tuning from a model that has learned another task: its encoder, a new head."""

import json
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from tests.support import learnable
from tests.support.command import Command
from tests.support.learnable import KINDS, SETTINGS, Trained


def arguments(trained: Trained, name: str, out: Path, *more: object) -> list[object]:
    data = learnable.prepared(KINDS[name], out.parent / f"{name}-data")
    arguments = ["finetune", trained.start, *KINDS[name].options, "--data", data, "--out", out, *SETTINGS]
    return [*arguments, "batch=16", *more]


def test_the_encoder_is_that_of_the_other_task(trained: Trained, tmp_path: Path, command: Command) -> None:
    other, out = trained("ner"), tmp_path / "out"
    result = command.well(*arguments(trained, "classification", out, "--from-task", other, "epochs=0.01", "lr=1e-12"))
    assert f"the encoder is that of {other / 'model'}, which has learned ner" in result.out.replace("\n", "")
    folders = (other / "model", out / "model", trained.start)
    before, after, base = (bertree.load(folder).network.encoder.stack.state_dict() for folder in folders)
    shared = list(after)
    assert all((after[name] - before[name]).abs().max() < 1e-6 for name in shared)
    assert any((after[name] - base[name]).abs().max() > 1e-3 for name in shared), "it is not the base model's"
    assert json.loads((out / "metrics.json").read_text())["model"] == str(other / "model")


def test_what_cannot_be_started_from_is_refused(trained: Trained, tmp_path: Path) -> None:
    data = learnable.prepared(KINDS["classification"], tmp_path / "data")
    wider = learnable.model(tmp_path / "wider", trained.words, ffn_width=48)
    cases = {
        "no such run or model folder": (trained.start, tmp_path / "nothing"),
        "was not fine-tuned": (trained.start, trained.start),
        "has learned classification already": (trained.start, trained("classification")),
        "its layers are not those of": (wider, trained("ner")),
    }
    for message, (model, run) in cases.items():
        with pytest.raises(UserError, match=message):
            bertree.finetune(model, task="classification", data=data, out=tmp_path / "out", from_task=run, device="cpu")
        assert not (tmp_path / "out").exists()


def test_a_run_is_resumed_from_the_same_task_alone(trained: Trained, tmp_path: Path) -> None:
    data = learnable.prepared(KINDS["classification"], tmp_path / "data")
    options = {"task": "classification", "data": data, "out": tmp_path / "out", "device": "cpu", "epochs": 0.01}
    bertree.finetune(trained.start, from_task=trained("ner"), **options)
    assert bertree.finetune(trained.start, from_task=trained("ner"), resume=True, **options).complete
    with pytest.raises(UserError, match="was trained with other settings or data"):
        bertree.finetune(trained.start, resume=True, **options)
