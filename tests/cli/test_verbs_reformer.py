"""Every verb on a Reformer, of whole documents: it works, or one line says what would."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertree
from tests.support import learnable
from tests.support.command import Command
from tests.support.reformer import long_texts, save_reformer
from tests.support.shared import common_folder, make_once

STEP = ("device=cpu", "batch=8", "epochs=0.2", "lr=1e-3")


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reads both ways, one that reads left to right, long texts and the files of tasks, made once."""

    def make(where: Path) -> None:
        words = learnable.tokenizer()
        where.mkdir()
        save_reformer(where / "both", words)
        save_reformer(where / "ltr", words, causal=True)
        texts = [str(row["text"]) for row in long_texts(12)]
        (where / "texts.txt").write_text("\n".join(texts) + "\n")
        (where / "documents.txt").write_text("\n\n".join(texts) + "\n")
        (where / "book.txt").write_text(" ".join(texts))
        learnable.write(where / "data" / "train.jsonl", long_texts(40))
        learnable.write(where / "data" / "dev.jsonl", long_texts(8, seed=1))

    return make_once(common_folder(tmp_path_factory) / "reformer-verbs", make)


def texts_of(samples: Path) -> list[str]:
    return (samples / "texts.txt").read_text().splitlines()


@pytest.mark.slow
def test_verbs_that_read_texts(samples: Path, command: Command, tmp_path: Path) -> None:
    model, texts = samples / "both", samples / "texts.txt"
    assert "chunked,lsh" in command.well("info", model, "--length", 512).out
    assert "undamaged" in command.well("verify", model).out
    command.well("embed", model, texts, "--out", tmp_path / "v.npy")
    states = bertree.load(model).hidden(texts_of(samples))
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.shape == (12, 64), "both streams"
    assert min(len(state) for state in states) > 100
    assert np.allclose(vectors, np.stack([state.mean(0).numpy() for state in states]), atol=1e-5)
    command.well("similar", model, *texts_of(samples)[:2])
    command.well("index", "build", model, texts, "--chunk", 128, "--out", tmp_path / "index")
    command.well("index", "query", tmp_path / "index", "lamp")
    command.well("features", model, texts, "--out", tmp_path / "features", "--layers", "sum-all")
    command.well("fill", model, "a [MASK] lamp")
    command.well("convert", model, tmp_path / "copy", "--to", "bertree")
    assert (tmp_path / "copy/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_text_has_the_same_vector_alone_and_among_others(samples: Path) -> None:
    model = bertree.load(samples / "both")
    texts = texts_of(samples)
    together = model.embed(texts)
    alone = np.stack([model.embed([text])[0] for text in texts])
    assert np.allclose(together, alone, atol=1e-5)


def test_left_to_right(samples: Path, command: Command) -> None:
    model = samples / "ltr"
    (line,) = command.well("generate", model, "a lamp", "--tokens", 40, "--seed", 3, "--json").out.splitlines()
    assert json.loads(line) == json.loads(
        command.well("generate", model, "a lamp", "--tokens", 40, "--seed", 3, "--json").out
    )
    assert 0 < len(json.loads(line)["ids"]) <= 40
    whole = command.well("perplexity", model, samples / "book.txt", "--context", 1024, "--json").json
    windows = command.well("perplexity", model, samples / "book.txt", "--context", 64, "--json").json
    assert whole["tokens"] == windows["tokens"] > 2000
    assert whole["context_mean"] > 400 > 64 > windows["context_mean"]


def test_a_task_of_whole_documents(samples: Path, command: Command, tmp_path: Path) -> None:
    """Nothing is cut at a length that the texts fit into; a run is evaluated at the length it was trained at."""
    task = ("--task", "classification", "--data", samples / "data")
    result = command.well("finetune", samples / "both", *task, "--out", tmp_path / "run", *STEP, "max_length=1024")
    assert "do not fit" not in result.out + result.err
    model = tmp_path / "run" / "model"
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["cut"] == {}
    assert bertree.load(model).task["max_length"] == 1024
    assert command.well("evaluate", model, *task, "--json").json["accuracy"] == pytest.approx(metrics["accuracy"])
    command.well("predict", model, "--file", samples / "texts.txt", "--json")
    result = command.well("finetune", samples / "ltr", *task, "--out", tmp_path / "ltr", *STEP, "max_length=128")
    assert "examples do not fit into 128 tokens" in result.out + result.err
    command.well("distill", model, *task, "--student", "half", "--out", tmp_path / "half", "--seconds", 0, *STEP)


def test_passages_with_their_questions(samples: Path, command: Command, tmp_path: Path) -> None:
    """RACE, uncut."""
    task = ("--task", "race", "--data", learnable.race(tmp_path / "RACE"))
    command.well("finetune", samples / "both", *task, "--out", tmp_path / "run", *STEP, "max_length=1024")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["cut"] == {}


def test_sentence_vectors_are_trained(samples: Path, command: Command, tmp_path: Path) -> None:
    learnable.write(tmp_path / "pairs.csv", [{"one": f"a lamp {i}", "two": f"the road {i}"} for i in range(20)])
    arguments = ("--data", tmp_path / "pairs.csv", "--loss", "ranking", "--text", "one", "--pair", "two")
    command.well("embeddings", "train", samples / "both", *arguments, "--out", tmp_path / "run", *STEP)
    assert bertree.load(tmp_path / "run" / "model").embed(["a lamp"]).shape == (1, 64)


@pytest.mark.process
def test_what_cannot_work_is_refused_in_one_line(samples: Path, command: Command, tmp_path: Path) -> None:
    both, ltr, store = samples / "both", samples / "ltr", tmp_path / "store"
    command.well("prepare", samples / "documents.txt", "--tokenizer", both, "--out", store, "--workers", 1, "-q")
    pretrain = ("pretrain", "reformer-tiny", "--store", store, "--out", tmp_path / "out", "data.held_out_share=0.3")
    task = ("finetune", both, "--task", "classification", "--data", samples / "data", "--out", tmp_path / "out")
    refused = {
        "max_length: 256 is more than the model's 64 positions (axial_shape=8,8); set model.axial_shape=32,8": (
            *pretrain, "model.axial_shape=8,8",
        ),
        "buckets: each hash has as many buckets on either side of 0, so numbers must be even: 2, not 1": (
            *pretrain, "model.buckets=1",
        ),
        "lsh_chunk_length: must be at least 1, not 0": (*pretrain, "model.lsh_chunk_length=0"),
        "next: with chunked,lsh attention a token sees the one it must predict; set model.look_ahead=false": (
            *pretrain, "model.look_ahead=true",
        ),
        "max_length 2000: the model has only 1024 positions": (*task, "max_length=2000"),
        "context: ltr has 1,024 positions, so windows cannot have 2,000 tokens": (
            "perplexity", ltr, samples / "book.txt", "--context", 2000,
        ),
        "tokens: a prompt of ": ("generate", ltr, "a lamp", "--tokens", 2000),
        "generate: both sees the text on both sides of a token": ("generate", both, "a lamp"),
    }  # fmt: skip
    for line, arguments in refused.items():
        result = command(*arguments)
        assert (result.code, len(result.lines)) == (2, 1), (line, result.err)
        assert line in result.lines[0]
