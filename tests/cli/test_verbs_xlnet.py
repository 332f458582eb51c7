"""Every verb on an XLNet: it works, or one line says why it has no meaning."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.inference.cpu_linear import linear_class
from tests.support import learnable
from tests.support.batches import axes_of
from tests.support.command import Command
from tests.support.learnable import KINDS
from tests.support.shared import common_folder, make_once
from tests.support.xlnet_folder import save_xlnet

TEXTS = ["a lamp on the road", "the river and the stone by the window", "happy", "a lamp on the table"]
STEP = ("device=cpu", "batch=8", "epochs=0.1", "lr=1e-3")


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, texts and the files of tasks, made once."""

    def make(where: Path) -> None:
        where.mkdir()
        save_xlnet(where / "xlnet")
        (where / "texts.txt").write_text("\n".join(TEXTS) + "\n")
        learnable.write(where / "pairs.csv", [{"one": f"a lamp {i}", "two": f"the road {i}"} for i in range(40)])
        shades = [(place, colour) for place in learnable.PLACES for colour in learnable.COLOURS]
        rows = [
            {"sentence1": f"a red lamp in {place}", "sentence2": f"the {colour} lamp", "score": number / 5}
            for number, (place, colour) in enumerate(shades)
        ]
        learnable.write(where / "sts.csv", rows)
        learnable.prepared(KINDS["choice"], where / "data")

    return make_once(common_folder(tmp_path_factory) / "xlnet-verbs", make)


def test_verbs_that_read_texts(samples: Path, command: Command, tmp_path: Path) -> None:
    model, texts = samples / "xlnet", samples / "texts.txt"
    assert "summary" in command.well("info", model).out
    assert "undamaged" in command.well("verify", model).out
    command.well("embed", model, texts, "--out", tmp_path / "v.npy")
    mean = np.stack([state.mean(0).numpy() for state in bertree.load(model).hidden(TEXTS)])
    assert np.allclose(np.load(tmp_path / "v.npy"), mean, atol=1e-5)
    command.well("similar", model, TEXTS[0], TEXTS[1])
    command.well("pairs", model, texts)
    command.well("cluster", model, texts, "--clusters", 2)
    command.well("index", "build", model, texts, "--out", tmp_path / "index")
    command.well("index", "query", tmp_path / "index", "lamp")
    command.well("features", model, texts, "--out", tmp_path / "features", "--layers", "sum-all")
    command.well("compare", model, model, "--seconds", "0.1", "--device", "cpu")
    command.well("fill", model, "a <mask> lamp")


def test_what_has_no_meaning_is_refused_in_one_line(samples: Path, command: Command, tmp_path: Path) -> None:
    model, texts = samples / "xlnet", samples / "texts.txt"
    on_task = ("finetune", model, "--data", samples / "data", "--out", tmp_path / "out", "--task")
    refused = {
        "generate: xlnet sees the text on both sides of a token": ("generate", model, "a lamp"),
        "perplexity: xlnet sees the text on both sides of a token": ("perplexity", model, texts),
        "ONNX: encoder has a query stream": ("convert", model, tmp_path / "onnx", "--to", "onnx"),
        "lm: the model does not read left to right": (*on_task, "choice", "lm=0.5"),
        "head 'bean': unknown; did you mean 'beam'": (*on_task, "squad", "head=bean"),
        "head: unknown setting": (*on_task, "sst-2", "head=beam"),
        "the text has no mask; put <mask>": ("fill", model, "a lamp"),
    }
    if linear_class(torch.int8) is not None:
        refused["int8: is for transformers with full attention"] = (
            "embed", model, texts, "--out", tmp_path / "v.npy", "--precision", "int8",
        )  # fmt: skip
    for line, arguments in refused.items():
        result = command(*arguments)
        assert result.code == 2
        assert len(result.lines) == 1
        assert line in result.lines[0]
    with pytest.raises(bertree.UserError, match=r"attentions: .* cannot be computed"):
        bertree.load(model).attentions(TEXTS[0])


def test_every_form_of_a_folder_computes_the_same(samples: Path, command: Command, tmp_path: Path) -> None:
    command.well("convert", samples / "xlnet", tmp_path / "copy", "--to", "bertree")
    assert (tmp_path / "copy/model.safetensors").read_bytes() == (samples / "xlnet/model.safetensors").read_bytes()
    command.well("convert", samples / "xlnet", tmp_path / "int8", "--to", "bertree", "--precision", "int8")
    command.well("verify", tmp_path / "int8")
    plain, small = (bertree.load(path).embed(TEXTS) for path in (samples / "xlnet", tmp_path / "int8"))
    assert 0 < np.abs(plain - small).max() < 0.1 * np.abs(plain).max()


def test_tasks_are_learned_judged_and_distilled(samples: Path, command: Command, tmp_path: Path) -> None:
    task = ("--task", "choice", "--data", samples / "data")
    command.well("finetune", samples / "xlnet", *task, "--out", tmp_path / "run", *STEP)
    model = tmp_path / "run" / "model"
    assert list(bertree.load(model).classes) == ["choice"]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["accuracy"]
    assert command.well("evaluate", model, *task, "--json").json["accuracy"] == pytest.approx(metrics)
    command.well("predict", model, "--file", samples / "data" / "dev.jsonl", "--json")
    for student in ("half", "bert-tiny", "bilstm"):
        command.well("distill", model, *task, "--student", student, "--out", tmp_path / student, "--seconds", 0, *STEP)
    frozen = ("--frozen", "sum-all", "lstm=4")
    command.well("finetune", samples / "xlnet", *task, "--out", tmp_path / "frozen", *STEP, *frozen)


def test_a_passage_with_its_questions(samples: Path, command: Command, tmp_path: Path) -> None:
    """RACE, as it is released."""
    task = ("--task", "race", "--data", learnable.race(tmp_path / "RACE"))
    command.well("finetune", samples / "xlnet", *task, "--out", tmp_path / "run", *STEP)
    report = command.well("evaluate", tmp_path / "run" / "model", *task, "--json").json
    assert set(report) >= {"accuracy", "accuracy-middle"}
    assert (
        bertree.load(tmp_path / "run" / "model").task["max_length"] == 64
    )  # the model's: its own training was no longer


def test_sentence_vectors_are_trained(samples: Path, command: Command, tmp_path: Path) -> None:
    arguments = ("--data", samples / "pairs.csv", "--loss", "ranking", "--text", "one", "--pair", "two")
    command.well("embeddings", "train", samples / "xlnet", *arguments, "--out", tmp_path / "run", *STEP, "pooling=cls")
    model = bertree.load(tmp_path / "run" / "model")
    assert model.vector.pooling == "cls"
    assert np.allclose(model.embed(TEXTS), np.stack([s[-1].numpy() for s in model.hidden(TEXTS)]), atol=1e-5)


def test_similarities_of_pairs_are_learned_and_judged(samples: Path, command: Command, tmp_path: Path) -> None:
    arguments = ("--data", samples / "sts.csv", "--text", "sentence1", "--pair", "sentence2", "--label", "score")
    train = ("embeddings", "train", samples / "xlnet", *arguments, "--loss", "cosine", "--dev", samples / "sts.csv")
    command.well(*train, "--out", tmp_path / "run", *STEP)
    result = command.well("embeddings", "evaluate", tmp_path / "run" / "model", *arguments, "--json")
    assert "spearman" in result.out


ONE_PHASE = (
    "phases.0.steps=2",
    "phases.0.max_length=32",
    "phases.0.batch_tokens=256",
    "schedule.warmup=1",
    "device=cpu",
)


@pytest.mark.process
def test_distillation_on_text(samples: Path, command: Command, tmp_path: Path) -> None:
    """The student's query stream learns what the teacher's predicts."""
    rows = [" ".join(str(row["text"]) for row in learnable.feelings(40, seed)) for seed in range(20)]
    (tmp_path / "text.txt").write_text("\n\n".join(rows))
    command.well(
        "prepare", tmp_path / "text.txt", "--tokenizer", samples / "xlnet", "--out", tmp_path / "store", "--workers", 1
    )
    arguments = (
        "distill",
        samples / "xlnet",
        "--store",
        tmp_path / "store",
        *ONE_PHASE,
        "run.eval_tokens=512",
        "--seconds",
        0,
    )
    arguments = (*arguments, "--out", tmp_path / "half")
    refused = {
        "data.masking: token: a teacher with a query stream (XLNet) was not trained for that": (),
        "distill.everywhere: a query stream predicts": ("data.masking=permutation", "distill.everywhere=true"),
        "by a second stream; set model.query_stream=true": ("data.masking=permutation", "model.preset=bert-tiny"),
    }
    for line, more in refused.items():
        result = command(*arguments, *more)
        assert (result.code, len(result.lines)) == (2, 1), result.err
        assert line in result.lines[0]
    result = command.well(*arguments, "data.masking=permutation", "distill.hidden=1", "distill.cos=1")
    assert "18 of 18 tensors from the teacher" in result.out
    student = bertree.load(tmp_path / "half" / "model")
    assert (student.architecture.layers, axes_of(student).query_stream) == (1, True)
