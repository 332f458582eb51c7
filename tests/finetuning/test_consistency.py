"""What is said about a model, a seed or a split is about that one: columns, labels, heads, halves, resumed runs."""

import csv
import json
from pathlib import Path

import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.finetuning import evaluate as scores_of
from bertree.finetuning.scored import hold_out
from bertree.finetuning.tuner import degenerate_reason
from bertree.tasks import registry
from tests.support.command import Command
from tests.support.learnable import Trained, feelings, pairs


def table(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, list(rows[0]))
        lines.writeheader()
        lines.writerows(rows)
    return path


def test_a_model_keeps_its_columns(trained: Trained, command: Command, tmp_path: Path) -> None:
    model = trained("pair") / "model"
    rows = [{"text": "nothing at all", "one": r["one"], "two": r["two"], "kind": r["kind"]} for r in pairs(60, 1)]
    data = table(tmp_path / "own.csv", rows)
    result = command.well("evaluate", model, "--task", "classification", "--data", data, "--json")
    report = json.loads(result.out)
    assert "own.csv: has no splits, so all of its rows are scored" in result.err
    assert report["accuracy"] == json.loads((trained("pair") / "metrics.json").read_text())["accuracy"]
    lines = command.well("predict", model, "--file", data, "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == [row["one"] for row in rows]


def test_labels_are_matched_by_name_or_not_at_all() -> None:
    heads = {"sequence": 2}
    turned = registry.task_of_model(heads, ["not_entailment", "Entailment"], {}, False, "rte")
    assert turned.labels == ("not_entailment", "entailment")
    assert registry.task_of_model(heads, ["LABEL_0", "LABEL_1"], {}, False, "rte").labels == (
        "entailment",
        "not_entailment",
    )
    assert registry.task_of_model(heads, ["NEGATIVE", "POSITIVE"], {}, False, "sst-2").labels == ("0", "1")
    with pytest.raises(UserError, match=r"rte.*entailment, not_entailment.*head.*a, b"):
        registry.task_of_model(heads, ["a", "b"], {}, False, "rte")


def test_a_crf_is_known_from_the_network(trained: Trained, command: Command, tmp_path: Path) -> None:
    model, data = trained("crf") / "model", trained.root / "crf" / "data" / "dev.jsonl"
    command.well("evaluate", model, "--task", "ner", "--data", data, "--out", tmp_path / "o")
    lines = (tmp_path / "o" / "predictions.jsonl").read_text().splitlines()
    assert all(json.loads(line)["score"] is None for line in lines)


def test_a_seed_that_learned_nothing_never_wins() -> None:
    good = {"diverged": False, "f1": 0.2}
    same = {"diverged": "every prediction is the same", "f1": 0.9}
    assert scores_of.rank(good, "f1") > scores_of.rank(same, "f1")


def test_a_tagger_that_says_the_same_of_every_word_is_named() -> None:
    lines = [{"predicted": ["O"] * n, "gold": ["B-X", *["O"] * (n - 1)]} for n in range(2, 30)]
    assert degenerate_reason(lines)
    lines[3]["predicted"][0] = "B-X"
    assert not degenerate_reason(lines)


def test_fewer_seeds_on_resume_do_not_contradict_the_model(trained: Trained, command: Command, tmp_path: Path) -> None:
    data, out = trained.root / "classification" / "data", tmp_path / "out"
    trained("classification")
    arguments = (
        "finetune",
        trained.start,
        "--task",
        "classification",
        "--data",
        data,
        "--out",
        out,
        "epochs=0.3",
        "batch=16",
    )
    command.well(*arguments, "--seeds", 3)
    before = json.loads((out / "metrics.json").read_text())
    command.well(*arguments, "--resume")
    assert json.loads((out / "metrics.json").read_text()) == before
    other = tmp_path / "other"
    other.mkdir()
    table(other / "train.csv", [row | {"text": str(row["text"])[::-1]} for row in feelings(240)])
    table(other / "dev.csv", feelings(60, 1))
    result = command(*[other if word == data else word for word in arguments], "--resume")
    assert result.code == 2
    assert "with other settings or data" in result.err


def test_another_tasks_head_is_not_gone_on_with(trained: Trained, command: Command, tmp_path: Path) -> None:
    data = trained.root / "classification" / "data"
    model = trained("classification") / "model"
    barely = ("epochs=0.1", "lr=1e-12", "batch=16")
    again = command.well(
        "finetune", model, "--task", "classification", "--data", data, "--out", tmp_path / "again", *barely
    )
    assert "the head of the model is reused" in again.out
    toml = (model / "bertree.toml").read_text()
    (tmp_path / "renamed").mkdir()
    for path in model.iterdir():
        (tmp_path / "renamed" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "renamed" / "bertree.toml").write_text(toml.replace('name = "classification"', 'name = "sst-2"'))
    arguments = ("--task", "classification", "--data", data, "--out", tmp_path / "fresh", *barely)
    assert "going on with" not in command.well("finetune", tmp_path / "renamed", *arguments).out
    heads = [
        bertree.load(path).network.heads["sequence"].out.weight
        for path in (model, tmp_path / "again" / "model", tmp_path / "fresh" / "model")
    ]
    assert torch.allclose(heads[0], heads[1], atol=1e-6)
    assert not torch.allclose(heads[0], heads[2], atol=1e-3)


def test_a_mismatched_file_is_never_the_matched_half(trained: Trained, command: Command, tmp_path: Path) -> None:
    model = bertree.load(trained("pair") / "model")
    rows = ["sentence1\tsentence2\tgold_label", *(f"{r['one']}\t{r['two']}\tneutral" for r in pairs(20, 1))]
    (tmp_path / "dev_mismatched.tsv").write_text("\n".join(rows) + "\n")
    folder = tmp_path / "three"
    contents = model._contents
    contents.labels, contents.task = [], {}
    if len(model.labels) != 3:
        from bertree.model.network import build_head

        model.network.heads["sequence"] = build_head(model.architecture, "sequence", 3)
    model.save(folder)
    data = tmp_path / "dev_mismatched.tsv"
    report = json.loads(command.well("evaluate", folder, "--task", "mnli", "--data", data, "--json").out)
    assert "accuracy" not in report
    assert 0 <= report["mismatched_accuracy"] <= 1


def test_what_belongs_together_is_held_out_together() -> None:
    examples = [f"{group} {n}" for group in "abcdefghij" for n in range(7)]
    split = hold_out(examples, 0.2, lambda example: example[0])
    assert {example[0] for example in split["dev"]}.isdisjoint(example[0] for example in split["train"])
    assert len(split["dev"]) == 14


def test_unlabeled_files_are_not_scored_in_silence(trained: Trained, command: Command, tmp_path: Path) -> None:
    model, data = trained("classification") / "model", tmp_path / "new.csv"
    table(data, [{"text": row["text"]} for row in feelings(12, 3)])
    result = command("evaluate", model, "--task", "classification", "--data", data)
    assert (result.code, len(result.lines)) == (2, 1)
    assert "no gold answers" in result.err
    command.well("evaluate", model, "--task", "classification", "--data", data, "--out", tmp_path / "o")
    assert len((tmp_path / "o" / "predictions.jsonl").read_text().splitlines()) == 12


def test_predict_from_python(trained: Trained) -> None:
    model = bertree.load(trained("pair") / "model")
    row = pairs(1, 5)[0]
    by_name, by_place = model.predict([{"one": row["one"], "two": row["two"]}, (row["one"], row["two"])])
    assert by_name["predicted"] == by_place["predicted"]
    assert by_name["score"] == pytest.approx(by_place["score"], abs=1e-6)
    with pytest.raises(UserError, match="input 2: "):
        model.predict([(row["one"], row["two"]), "no second text"])
