"""Fine-tuning by the command line: what can be learned is learned, and what is written says so."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bertree
from bertree.batch import Batch
from bertree.finetuning import config
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.tasks import registry
from bertree.text import tokenizer_training
from tests.support import learnable
from tests.support.command import Command
from tests.support.learnable import KINDS, SETTINGS, Trained
from tests.support.shared import suite_has


def scores_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def predictions(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", KINDS)
def test_what_can_be_learned_is_learned(name: str, trained: Trained) -> None:
    kind, out = KINDS[name], trained(name)
    metrics = scores_of(out / "metrics.json")
    assert metrics[kind.metric] >= kind.bar
    assert metrics["metric"] == kind.metric
    assert metrics["task"] == kind.options[1]
    (seed,) = metrics["seeds"]
    assert seed["seed"] == metrics["best_seed"] == 0
    assert seed["diverged"] is False
    assert {key: seed[key] for key in seed if key not in ("seed", "best_step", "diverged")} == {
        key: metrics[key] for key in seed if key not in ("seed", "best_step", "diverged")
    }
    assert {k: v for k, v in scores_of(out / "seed-0" / "metrics.json").items() if k != "run"} == seed
    lines = predictions(out)
    assert len(lines) == metrics["examples"]["dev"]
    assert all("gold" in line and "predicted" in line for line in lines)
    assert "<svg" in (out / "seed-0" / "report.html").read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "metrics.json",
        "model",
        "predictions.jsonl",
        "report.html",
        "seed-0",
    ]
    assert not (out / "seed-0" / "checkpoints").exists()
    history = [json.loads(line) for line in (out / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    evaluations = {line["step"]: line[kind.metric] for line in history if line["kind"] == "eval"}
    best = evaluations[seed["best_step"]]
    assert best == max(evaluations.values())
    if name != "squad2":  # whose threshold is set afterwards
        assert best == pytest.approx(metrics[kind.metric], rel=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_the_saved_model_scores_the_same(name: str, trained: Trained, command: Command, tmp_path: Path) -> None:
    kind, out = KINDS[name], trained(name)
    wanted = scores_of(out / "metrics.json")
    arguments = ("evaluate", out / "model", *kind.options, "--data", out.parent / "data", "--json", "--device", "cpu")
    report = command.well(*arguments, "--out", tmp_path / "again").json
    figures = [key for key, value in report.items() if isinstance(value, float)]
    assert kind.metric in figures
    assert {key: report[key] for key in figures} == pytest.approx({key: wanted[key] for key in figures}, abs=1e-6)
    for left, right in zip(predictions(out), predictions(tmp_path / "again"), strict=True):
        near = name == "regression"
        assert left["predicted"] == (pytest.approx(right["predicted"], abs=1e-5) if near else right["predicted"])
    assert scores_of(tmp_path / "again" / "metrics.json")["task"] == kind.options[1]


CLASSES = {
    "classification": "SequenceClassification",
    "pair": "SequenceClassification",
    "regression": "SequenceClassification",
    "ner": "TokenClassification",
    "squad": "QuestionAnswering",
    "choice": "MultipleChoice",
}


@pytest.mark.parametrize("name", CLASSES)
def test_transformers_reads_the_saved_model(name: str, trained: Trained) -> None:
    path = trained(name) / "model"
    theirs, info = getattr(transformers, f"AutoModelFor{CLASSES[name]}").from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all("pooler" in key for key in info["unexpected_keys"])
    ours = bertree.load(path)
    texts = [("the boat is fine", "awful in the garden"), ("Ada to Turin", "red")]
    encoded = ours.tokenize(texts)
    words = transformers.AutoTokenizer.from_pretrained(path)
    inputs = words(*map(list, zip(*texts, strict=True)), padding=True, return_tensors="pt", return_token_type_ids=True)
    assert [row[row != words.pad_token_id].tolist() for row in inputs["input_ids"]] == [e.ids for e in encoded]
    batch = Batch.pack([e.ids for e in encoded], [e.segments for e in encoded])
    (head,) = ours.classes
    with torch.no_grad():
        mine = ours.network.class_logits(head, ours.network(batch), batch)
        if name == "choice":
            logits = theirs(**{key: value[None] for key, value in inputs.items()}).logits[0, :, None]
        else:
            logits = theirs(**inputs)
            logits = torch.stack([logits.start_logits, logits.end_logits], -1) if name == "squad" else logits.logits
    if head in ("token", "span"):
        logits = torch.cat([logits[row, : len(e.ids)] for row, e in enumerate(encoded)])
    assert torch.allclose(mine, logits, atol=1e-5)
    if ours.labels:
        assert [theirs.config.id2label[i] for i in range(len(ours.labels))] == ours.labels


def test_seeds_are_compared_and_the_best_is_kept(trained: Trained, command: Command, tmp_path: Path) -> None:
    trained("classification")
    result = command.well(*trained.command("classification", tmp_path / "out"), "epochs=3", "--seeds", 3, "patience=0")
    metrics = scores_of(tmp_path / "out" / "metrics.json")
    each = [seed["accuracy"] for seed in metrics["seeds"]]
    assert [seed["seed"] for seed in metrics["seeds"]] == [0, 1, 2]
    assert len(set(each)) > 1, "seeds that agree show nothing"
    assert metrics["mean"] == pytest.approx(np.mean(each))
    assert metrics["std"] == pytest.approx(np.std(each, ddof=1))
    assert metrics["median"] == pytest.approx(np.median(each))
    assert metrics["best"] == metrics["accuracy"] == max(each)
    assert metrics["best_seed"] == each.index(max(each))
    assert metrics["diverged"] == []
    assert all((tmp_path / "out" / f"seed-{n}" / "report.html").is_file() for n in range(3))
    assert "mean" in result.out
    kind = KINDS["classification"]
    data = trained.root / "classification" / "data"
    again = command.well("evaluate", tmp_path / "out" / "model", *kind.options, "--data", data, "--json").json
    assert again["accuracy"] == pytest.approx(max(each))


@pytest.mark.parametrize("bad_steps", [5, 1000])
def test_a_seed_that_diverges_is_named(bad_steps: int, trained: Trained, command: Command, tmp_path: Path) -> None:
    trained("classification")
    out = tmp_path / "out"
    extra = ("lr=1e30", "clip=0", "warmup=0", f"bad_steps={bad_steps}", "epochs=0.6", "--seeds", 2)
    result = command(*trained.command("classification", out), *extra)
    assert result.code == 1, "no seed has learned anything, whether there is a model or not"
    assert "lr=1e+30 is far too high" in result.err or "the gradient was not finite" in result.err
    metrics = json.loads((out / "metrics.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert metrics["diverged"] == [0, 1]
    assert metrics["mean"] is None
    assert "no seed has learned the task" in result.err
    assert result.err.count("has learned nothing:") == 2
    if bad_steps == 5:
        assert not (out / "model").exists()
        assert "model/" not in result.out
        assert metrics["best"] is None
    again = command(*trained.command("classification", out), *extra, "--resume")
    assert again.err.count("has learned nothing:") == 2


def test_a_degenerate_seed_does_not_stand_for_the_others(
    trained: Trained, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seeds, one of which learns nothing: the mean is that of the other."""
    from bertree.finetuning import tuner

    trained("classification")
    network = tuner.FineTuning.network

    def spoiled(self: tuner.FineTuning, seed: int) -> object:
        model = network(self, seed)
        if seed == 1:
            with torch.no_grad():
                model.heads["sequence"].out.weight.zero_()
                model.heads["sequence"].out.bias.copy_(torch.tensor([9.0, -9.0]))
            model.requires_grad_(False)
            model.heads["sequence"].out.bias.requires_grad_(True)
        return model

    monkeypatch.setattr(tuner.FineTuning, "network", spoiled)
    command.well(*trained.command("classification", tmp_path / "out"), "--seeds", 2)
    metrics = scores_of(tmp_path / "out" / "metrics.json")
    assert metrics["diverged"] == [1]
    assert metrics["seeds"][1]["diverged"].startswith("every prediction is the same: ")
    assert metrics["mean"] == metrics["best"] == metrics["seeds"][0]["accuracy"]
    assert metrics["std"] is None


def test_scores_that_lie_close_together_are_not_alike() -> None:
    """What counts is the spread of the gold scores: some scales are small."""
    from bertree.finetuning.tuner import degenerate_reason

    def lines(message: list[float], asked: list[float]) -> list[dict[str, object]]:
        return [{"predicted": p, "gold": g} for p, g in zip(message, asked, strict=True)]

    scale = [0.5 + n / 1000 for n in range(20)]
    assert degenerate_reason(lines(scale, scale)) is False
    assert degenerate_reason(lines(scale, [10 * n for n in range(20)]))
    assert degenerate_reason(lines([math.nan] * 20, scale))
    assert degenerate_reason(lines([1.0] * 20, [1.0] * 20)) is False, "there is nothing else to say"
    assert degenerate_reason(lines([1.0] * 9, scale[:9])) is False, "too few to tell"


def test_a_roberta_without_pooler_learns_to_choose(trained: Trained, command: Command, tmp_path: Path) -> None:
    """Its choice head reads a pooler, in transformers too, which a model with an MLM head alone does not have."""
    trained("choice")
    words = tokenizer_training.train(lambda: [" ".join(learnable.WORDS)] * 4, "bpe", 300)
    values = {"vocab_size": words.size, "layers": 1, "width": 32, "embedding_width": 32, "heads": 2}
    a = preset("roberta-base").architecture.with_values(values | {"max_positions": 64, "pooler": False})
    folder.write(Contents(a, build(a, {"mask": 0}), words), tmp_path / "start")
    data = trained.root / "choice" / "data"
    arguments = ("--task", "choice", "--data", data, *SETTINGS, "epochs=1", "--out", tmp_path / "out")
    command.well("finetune", tmp_path / "start", *arguments)
    _, info = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "out/model", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    report = command.well("evaluate", tmp_path / "out" / "model", "--task", "choice", "--data", data, "--json").json
    assert report["accuracy"] == pytest.approx(scores_of(tmp_path / "out/metrics.json")["accuracy"])


def test_one_setting_leaves_the_others_as_they_are() -> None:
    task = registry.make_task("classification")
    plain = config.load([], task)
    assert plain == config.FineTuneConfig()
    assert (plain.optim.lr, plain.optim.eps, plain.run.log_every, plain.run.save_every) == (0.0, 1e-8, 25, 1)
    assert config.load(["lr=3e-5"], task).optim == replace(plain.optim, lr=3e-5)
    assert config.load(["weight_decay=0.1"], task).optim == replace(plain.optim, weight_decay=0.1)
    assert config.load(["seed=1"], task).run == replace(plain.run, seed=1)
    assert config.load(["lr=1", "run.seed=1", "epochs=2"], task) != config.load(["lr=1", "run.seed=1"], task)
    assert config.load([], task) == plain, "and the defaults are not changed by it"


def test_it_stops_early(trained: Trained, command: Command, tmp_path: Path) -> None:
    trained("squad")
    result = command.well(*trained.command("squad", tmp_path / "out"), "epochs=40", "patience=2", "evaluations=2")
    assert "stopped early: no better f1 in 2 evaluations" in result.out
    lines = [json.loads(line) for line in (tmp_path / "out/seed-0/metrics.jsonl").read_text().splitlines()]
    evaluations = [(line["step"], line["f1"]) for line in lines if line["kind"] == "eval"]
    best = max(evaluations, key=lambda pair: pair[1])
    assert evaluations.index(best) == len(evaluations) - 3
    assert evaluations[-1][0] < 600
    assert scores_of(tmp_path / "out/metrics.json")["f1"] == pytest.approx(best[1], rel=1e-5)


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


def test_the_same_seed_gives_the_same_bytes(trained: Trained, command: Command, tmp_path: Path) -> None:
    trained("ner")
    settings = ("epochs=0.5", "dropout=0.1")
    command.well(*trained.command("ner", tmp_path / "one"), *settings)
    command.well(*trained.command("ner", tmp_path / "two"), *settings)
    command.well(*trained.command("ner", tmp_path / "other"), *settings, "seed=1")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


@pytest.mark.parametrize("name", suite_has(["choice"], ["crf", "choice"]))
def test_micro_batches_change_next_to_nothing(name: str, trained: Trained, command: Command, tmp_path: Path) -> None:
    trained(name)
    outs = []
    for number, extra in enumerate([(), ("micro_tokens=100",)]):
        outs.append(tmp_path / str(number))
        command.well(*trained.command(name, outs[-1]), "epochs=1", "lr=1e-3", "batch=16", *extra)
    left, right = (bertree.load(out / "model").network.state_dict() for out in outs)
    start = bertree.load(trained.start).network.state_dict()
    moved = max(float((left[n] - start[n]).abs().max()) for n in left if n in start)
    assert moved > 1e-3
    # Adam makes much of little, and a bias that is added to every option has no gradient but rounding.
    apart = {n: float((left[n] - right[n]).abs().max()) for n in left if n != "heads.choice.out.bias"}
    assert max(apart.values()) < 0.15 * moved
    assert weights(outs[0]) != weights(outs[1]), "it was cut into pieces"


def test_a_tenth_is_held_out_where_there_is_no_dev_split(trained: Trained, command: Command, tmp_path: Path) -> None:
    for number, name in enumerate(("all.csv", "all.jsonl", "all.parquet", "all.tsv")):
        data = learnable.write(tmp_path / name, learnable.feelings(120))
        arguments = ("finetune", trained.start, "--task", "classification", "--data", data, *SETTINGS, "epochs=0.3")
        result = command.well(*arguments, "--out", tmp_path / f"out{number}")
        assert "120 examples, 12 held out of them" in result.out
        metrics = scores_of(tmp_path / f"out{number}" / "metrics.json")
        assert metrics["examples"] == {"train": 108, "dev": 12}
    models = {weights(tmp_path / f"out{number}") for number in range(4)}
    assert len(models) == 1, "the same rows, whatever the file"


FROZEN = ["sum-all lstm=8 crf=true lstm_layers=1 epochs=4", "last epochs=8"]


@pytest.mark.parametrize("extra", suite_has(FROZEN[:1], FROZEN))
def test_a_frozen_encoder(extra: str, trained: Trained, command: Command, tmp_path: Path) -> None:
    trained("ner")
    out = tmp_path / "out"
    command.well(*trained.command("ner", out), "lr=3e-2", "batch=16", "--frozen", *extra.split())
    metrics = scores_of(out / "metrics.json")
    assert metrics["f1"] > 0.5
    before, after = (bertree.load(path).network for path in (trained.start, out / "model"))
    for name, tensor in before.encoder.state_dict().items():
        if "pooler" not in name:
            assert torch.equal(tensor, after.encoder.state_dict()[name]), name
    data = trained.root / "ner" / "data"
    again = command.well("evaluate", out / "model", "--task", "ner", "--data", data, "--json").json
    assert again["f1"] == pytest.approx(metrics["f1"], abs=1e-6)


def test_one_goes_on_from_a_model_with_the_same_labels(trained: Trained, command: Command, tmp_path: Path) -> None:
    """Its head, its CRF and what it reads are kept; with other labels they are fresh."""
    for name in ("classification", "crf"):
        start, kind = trained(name) / "model", KINDS[name]
        arguments = (
            "finetune",
            start,
            *kind.options,
            "--data",
            trained.root / name / "data",
            *SETTINGS,
            *kind.settings,
        )
        command.well(*arguments, "lr=1e-9", "epochs=0.1", "--out", tmp_path / name)
        metrics = scores_of(tmp_path / name / "metrics.json")
        assert metrics[kind.metric] == pytest.approx(scores_of(trained(name) / "metrics.json")[kind.metric])
        left, right = (bertree.load(path).network.state_dict() for path in (start, tmp_path / name / "model"))
        assert all(torch.allclose(left[key], right[key], atol=1e-5) for key in left)


def test_labels_are_never_markup(trained: Trained, command: Command, tmp_path: Path) -> None:
    rows = [row | {"label": {"good": "[/x]", "bad": "[red]"}[row["label"]]} for row in learnable.feelings(60)]
    data = learnable.write(tmp_path / "all.csv", rows)
    arguments = ("--task", "classification", "--data", data, *SETTINGS, "epochs=1", "--out", tmp_path / "out")
    assert "[/x], [red]" in command.well("finetune", trained.start, *arguments).out
    tags = [
        {"words": row["words"], "tags": [tag.replace("PER", "[/x]") for tag in row["tags"]]}
        for row in learnable.tagged(60)
    ]
    data = learnable.write(tmp_path / "tags.jsonl", tags)
    arguments = ("--task", "tagging", "--data", data)
    result = command.well("finetune", trained.start, *arguments, *SETTINGS, "epochs=2", "--out", tmp_path / "tags")
    assert "f1-[/x]" in result.out
    assert "f1-[/x]" in command.well("evaluate", tmp_path / "tags" / "model", *arguments).out


def test_scores_of_evaluate_go_into_the_glue_table(trained: Trained, command: Command, tmp_path: Path) -> None:
    rows = [{"sentence": row["text"], "label": int(row["label"] == "good")} for row in learnable.feelings(60)]
    for name in ("train.tsv", "dev.tsv"):
        learnable.write(tmp_path / "SST-2" / name, rows)
    arguments = ("--task", "sst-2", "--data", tmp_path / "SST-2")
    command.well("finetune", trained.start, *arguments, *SETTINGS, "epochs=0.3", "--out", tmp_path / "run")
    command.well("evaluate", tmp_path / "run" / "model", *arguments, "--out", tmp_path / "scores")
    left, right = (command.well("glue", tmp_path / name).out for name in ("run", "scores"))
    for message in (left, right):
        assert "sst-2" in message
        assert f"accuracy {100 * scores_of(tmp_path / 'run/metrics.json')['accuracy']:.1f}" in message
    assert math.isfinite(scores_of(tmp_path / "scores/metrics.json")["accuracy"])
