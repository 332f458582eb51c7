"""Examples that are made up: only the teacher labels them."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import bertree
from bertree.distillation import teacher
from bertree.text import tokenizer_training
from tests.support.command import Command
from tests.support.learnable import WORDS, Trained, model
from tests.support.lessons import command_of
from tests.support.shared import suite_has


@pytest.mark.parametrize("name", suite_has(["pair"], ["classification", "pair", "regression"]))
def test_copies_are_labeled_by_the_teacher(name: str, command: Command, trained: Trained, tmp_path: Path) -> None:
    out, count = tmp_path / "out", 320 if name == "regression" else 240
    result = command.well(*command_of(trained, name, out, "copies=3", "epochs=0.5"))
    metrics = json.loads((out / "metrics.json").read_text())
    units = metrics["examples"]["train"]
    assert 2 * count < units <= 4 * count
    assert len(load_file(out / teacher.SCORES_FILE)["scores"]) == units
    assert "3 copies of each example" in result.out + result.err
    assert metrics["distillation"]["kept"] > 0.8
    rows = [json.loads(line) for line in (out / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    first = next(row for row in rows if row["kind"] == "train")
    assert first["hard"] > 0
    assert first["soft"] > 0


def test_copies_are_made_of_the_examples_that_are_drawn_alone(
    command: Command, trained: Trained, tmp_path: Path
) -> None:
    """Were rows drawn from examples and copies together, most of them would be copies."""
    out = tmp_path / "out"
    command.well(*command_of(trained, "classification", out, "examples=20", "copies=3", "ngram=0", "epochs=0.1"))
    alone = tmp_path / "alone"
    command.well(*command_of(trained, "classification", alone, "examples=20", "epochs=0.1"))
    scores, drawn = (load_file(folder / teacher.SCORES_FILE)["scores"] for folder in (out, alone))
    assert len(drawn) == 20
    assert 40 < len(scores) <= 80
    assert abs(scores[:20] - drawn).max() < 1e-4, "the same examples come first"


def test_masks_are_spelled_as_each_tokenizer_does(command: Command, trained: Trained, tmp_path: Path) -> None:
    """The student's mask is <mask>, the teacher's [MASK]: to the teacher, both runs read the same texts."""
    text = " ".join(WORDS)
    words = tokenizer_training.train(lambda: [text] * 4, "bpe", 450)
    assert words.special["mask"] != trained.words.special["mask"]
    other = model(tmp_path / "other", words, layers=1)
    rates = ("copies=2", "masking=0.5", "replacing=0", "ngram=0", "epochs=0.1")
    command.well(*command_of(trained, "classification", tmp_path / "a", *rates, student="half"))
    command.well(*command_of(trained, "classification", tmp_path / "b", *rates, student=other))
    left, right = (load_file(tmp_path / out / teacher.SCORES_FILE)["scores"] for out in "ab")
    assert left.shape == right.shape
    assert abs(left - right).max() < 1e-4
    assert abs(left[:240] - left[240:480]).max() > 1e-2, "masks must change something"


def test_a_bilstm_learns_from_copies(command: Command, trained: Trained, tmp_path: Path) -> None:
    """As in the paper: scores alone (mse), many copies; what comes out is a model like any other."""
    out = tmp_path / "out"
    settings = ("kind=mse", "copies=2", "epochs=2", "lr=1e-3")
    command.well(*command_of(trained, "classification", out, *settings, student="bilstm"))
    assert json.loads((out / "metrics.json").read_text())["distillation"]["kept"] > 0.8  # 0.95 to 1 with five seeds
    model = bertree.load(out / "model")
    assert model.architecture.body == "bilstm"
    assert [line["predicted"] for line in model.predict(["the boat is happy", "a gloomy lamp"])] == ["good", "bad"]
    result = command(*command_of(trained, "classification", tmp_path / "x", student="bilstm", more=("--layers", "1")))
    assert result.code == 2
    assert "a bilstm has no layers" in result.err
    assert len(result.lines) == 1
