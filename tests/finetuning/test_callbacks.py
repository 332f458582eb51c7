"""Functions that a run calls: what they get, and that a run whose callback fails can be resumed behind that step."""

import os
import signal
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.train.metrics_log import TrainingEvent
from tests.support import learnable

SETTINGS: dict[str, Any] = {"task": "classification", "data": learnable.feelings(40), "epochs": 2, "batch": 8}
SETTINGS |= {"device": "cpu", "lr": 3e-3, "evaluations": 2}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return learnable.model(tmp_path / "encoder", learnable.tokenizer(), layers=1)


class Broken(Exception):
    """An error of the user's own."""


def test_what_callbacks_get(encoder: Path, tmp_path: Path) -> None:
    steps: list[TrainingEvent] = []
    evaluations: list[TrainingEvent] = []
    saves: list[TrainingEvent] = []
    with learnable.one_thread():
        run = bertree.finetune(
            encoder,
            out=tmp_path / "a",
            on_step=steps.append,
            on_evaluation=evaluations.append,
            on_save=saves.append,
            **SETTINGS,
        )
        plain = bertree.finetune(encoder, out=tmp_path / "b", **SETTINGS)
    last = steps[-1].steps
    assert [event.step for event in steps] == list(range(1, last + 1))
    assert all(event.loss and event.lr is not None and event.tokens_per_s and not event.scores for event in steps)
    logged = {row["step"]: row["accuracy"] for row in run.history if row["kind"] == "eval"}
    assert {event.step: event.scores["accuracy"] for event in evaluations} == logged
    assert [event.path for event in saves] == [tmp_path / "a" / "model"]
    weights = [(folder.folder / "model" / "model.safetensors").read_bytes() for folder in (run, plain)]
    assert weights[0] == weights[1]
    with pytest.raises(FrozenInstanceError):
        steps[0].step = 3


def test_a_failing_callback_ends_a_run_that_resumes(encoder: Path, tmp_path: Path) -> None:
    def fail(event: TrainingEvent) -> None:
        if event.step == 3:
            raise Broken("no connection")

    resumed: list[int] = []
    with learnable.one_thread():
        with pytest.raises(Broken, match="no connection"):
            bertree.finetune(encoder, out=tmp_path / "a", on_step=fail, **SETTINGS)
        run = bertree.finetune(
            encoder, out=tmp_path / "a", resume=True, on_step=lambda event: resumed.append(event.step), **SETTINGS
        )
        plain = bertree.finetune(encoder, out=tmp_path / "b", **SETTINGS)
    assert resumed[0] == 4
    weights = [(folder.folder / "model" / "model.safetensors").read_bytes() for folder in (run, plain)]
    assert weights[0] == weights[1]


def test_what_is_no_function(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(bertree.UserError, match="on_step: 3 is not a function or None"):
        bertree.finetune(encoder, out=tmp_path / "a", on_step=3, **SETTINGS)
    with pytest.raises(bertree.UserError, match="`on_save`: must be a function of one argument, the event"):
        bertree.finetune(encoder, out=tmp_path / "a", on_save=lambda step, loss: None, **SETTINGS)


@pytest.mark.parametrize("verb", ["pretrain", "distill", "train_embeddings"])
def test_every_verb_that_trains_calls_them(
    verb: str, encoder: Path, trained: learnable.Trained, token_store: Path, tmp_path: Path
) -> None:
    phases = {"phases": [{"steps": 2, "batch_tokens": 256, "max_length": 16}], "warmup": 1, "layers": 1}
    pairs = [(text, text, 1.0) for text in ("a film", "a word", "a text", "a line")]
    calls: dict[str, Any] = {
        "pretrain": lambda **arguments: bertree.pretrain("bert-base-tiny", store=token_store, **phases, **arguments),
        "distill": lambda **arguments: bertree.distill(
            trained("classification") / "model", data=SETTINGS["data"], epochs=0.1, seconds=0, **arguments
        ),
        "train_embeddings": lambda **arguments: bertree.train_embeddings(
            encoder, data={"train": pairs, "dev": pairs}, loss="cosine", epochs=1, batch=2, **arguments
        ),
    }
    events: dict[str, list[TrainingEvent]] = {"on_step": [], "on_save": []}
    with learnable.one_thread():
        run = calls[verb](out=tmp_path / "out", **{name: each.append for name, each in events.items()})
    assert [event.step for event in events["on_step"]] == list(range(1, events["on_step"][-1].steps + 1))
    assert events["on_save"][-1].path == run.folder / "model"


def test_a_stopped_run_has_the_figures_it_logged(encoder: Path, tmp_path: Path) -> None:
    def stop_at(step: int) -> Any:
        return lambda event: os.kill(os.getpid(), signal.SIGTERM) if event.step == step else None

    with learnable.one_thread():
        early = bertree.finetune(encoder, out=tmp_path / "early", seeds=2, on_step=stop_at(1), **SETTINGS)
        later = bertree.finetune(encoder, out=tmp_path / "later", on_step=stop_at(8), **SETTINGS)
    assert early.signal == later.signal == signal.SIGTERM
    assert early.metrics["step"] == 1
    assert early.metrics["loss"] > 0
    assert later.metrics["kind"] == "eval"
    assert later.metrics["accuracy"] == [row for row in later.history if row["kind"] == "eval"][-1]["accuracy"]
    assert "loss" in early._repr_html_()
