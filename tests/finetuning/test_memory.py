"""A model remembers its task: columns, labels, the examples it was not trained on; a run stands for its model."""

import csv
import json
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from bertree.tasks.task import Task
from tests.support.command import Command
from tests.support.learnable import Trained, feelings, write


@pytest.fixture(scope="module")
def run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> bertree.Run:
    """A run on one file whose columns have names of their own."""
    root = tmp_path_factory.mktemp("memory")
    rows, more = (
        [{"question": row["text"], "kind": row["label"]} for row in feelings(*how)] for how in ((240,), (40, 1))
    )
    write(root / "all.csv", rows)
    write(root / "data" / "train.csv", rows)
    write(root / "data" / "test.csv", [*rows[:3], *more])
    options = {"text": "question", "label": "kind", "epochs": 3, "lr": 3e-3}
    return bertree.finetune(trained.start, task="classification", data=root / "all.csv", out=root / "run", **options)


def test_evaluate_needs_nothing_that_the_model_knows(run: bertree.Run, command: Command) -> None:
    root = run.folder.parent
    result = command.well("evaluate", run.folder, "--data", root / "data", "--split", "test")
    assert "test: 3 of 43 examples are in the training split too, word for word" in result.err
    assert "only 43 examples are scored" in result.err
    assert "95 % interval" in result.out
    scores = bertree.evaluate(run.model, data=root / "data")
    assert list(scores.splits) == ["test"], "there is no dev split"
    low, high = scores.metrics["intervals"]["accuracy"]
    assert low < scores.metrics["accuracy"] <= high


def test_the_rows_that_were_held_out_are_scored_again(run: bertree.Run) -> None:
    """Of the file it was trained on; of any other file, all rows."""
    root = run.folder.parent
    with pytest.warns(bertree.BertreeWarning, match="is the file that was trained on, so the 24 examples are scored"):
        again = bertree.evaluate(run.folder, data=root / "all.csv")
    assert again.metrics["accuracy"] == pytest.approx(run.metrics["accuracy"])
    assert again.metrics["intervals"]["accuracy"] == pytest.approx(run.metrics["intervals"]["accuracy"])
    assert bertree.evaluate(run.folder, data=root / "data" / "test.csv").metrics["examples"] == 43


def test_predict_reads_files(run: bertree.Run, command: Command) -> None:
    file = run.folder.parent / "data" / "test.csv"
    result = command.well("predict", run.folder, file, "--json")
    rows = list(csv.DictReader(file.open()))
    assert [json.loads(line)["text"] for line in result.out.splitlines()] == [row["question"] for row in rows]
    assert f"reading {file}" in result.err
    (line,) = command.well("predict", run.folder, file, "--literal", "--json").out.splitlines()
    assert json.loads(line)["text"] == str(file)
    for wrong, reason in (((file.parent,), "is a folder"), ((file, "a text"), "give files or texts")):
        refused = command("predict", run.folder, *wrong)
        assert (refused.code, len(refused.lines)) == (2, 1)
        assert reason in refused.err
    other = write(file.with_name("other.jsonl"), [{"body": "the boat"}])
    assert command.well("predict", run.folder, other, "--text", "body").out.endswith("the boat\n")


def test_compare_takes_task_and_columns_of_the_models(run: bertree.Run, trained: Trained, command: Command) -> None:
    root = run.folder.parent
    comparison = bertree.compare([run.folder, run.model], data=root / "all.csv", seconds=0.2, device="cpu")
    assert comparison.measured_on == "24 examples of classification"
    assert comparison.scores["accuracy"][0] == pytest.approx(run.metrics["accuracy"])
    assert comparison.is_kept("accuracy")
    texts = ("--texts", root / "data" / "test.csv", "--seconds", 0.2)
    result = command.well("compare", run.folder, trained.start, *texts, "--text", "question", "--json")
    assert result.json["measured_on"] == "43 texts of test.csv"
    assert "which column is the text? Give --text NAME" in command("compare", run.folder, trained.start, *texts).err


def test_training_goes_on_with_the_task_of_the_model(run: bertree.Run, trained: Trained, tmp_path: Path) -> None:
    data = run.folder.parent / "all.csv"
    again = bertree.finetune(run.folder, data=data, out=tmp_path / "again", epochs=0.1, lr=1e-6)
    assert again.model.task["text"] == "question"
    small = bertree.distill(run.folder, data=data, out=tmp_path / "small", student="bert-tiny", epochs=0.1, seconds=0)
    assert small.metrics["distillation"]["teacher"]["intervals"]["accuracy"]
    with pytest.raises(UserError, match="does not say which task it was fine-tuned for; name one with `task`"):
        bertree.finetune(trained.start, data=data, out=tmp_path / "none")


def test_a_rate_that_is_too_low_is_said(run: bertree.Run, trained: Trained, command: Command, tmp_path: Path) -> None:
    options = ("--task", "classification", "--text", "question", "--label", "kind")
    data = ("--train", run.folder.parent / "all.csv", "--dev", run.folder.parent / "data" / "test.csv")
    result = command("finetune", trained.start, *options, *data, "--out", tmp_path / "low", "epochs=1", "lr=1e-9")
    assert result.code == 1
    assert "no seed has learned the task; lr=1e-09 is far too low: leave it out" in result.err
    assert "dev: 3 of 43 examples are in the training split too" in result.err
    metrics = json.loads((tmp_path / "low" / "metrics.json").read_text())
    assert metrics["overlap"] == {"dev": 3}


def test_what_examples_share_is_what_the_model_reads() -> None:
    task: Task[object] = bertree.TextTask("mine")
    left, same, other = (task.parse(record) for record in ("a text", {"text": "a text"}, "another"))
    assert task.input_of(left) == task.input_of(same) != task.input_of(other)
    assert task.input_of(object()) is None, "of an example of an unknown kind nothing is known"
