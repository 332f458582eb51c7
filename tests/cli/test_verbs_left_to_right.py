"""Every verb on left-to-right models: it works, or one line says why it has no meaning."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bertree
from bertree.inference.cpu_linear import linear_class
from bertree.model.transformer import TransformerEncoder
from bertree.text.tokenizer import Tokenizer
from tests.support import learnable
from tests.support.command import Command
from tests.support.left_to_right import MEMBERS, gpt_tokenizer, save_member
from tests.support.shared import common_folder, make_once, suite_has

TEXTS = ["a lamp on the road", "the river and the stone by the window", "happy", "a lamp on the table"]
STEP = ("device=cpu", "batch=8", "epochs=0.1", "lr=1e-3")
FEW = ("gpt1-both", "transformer-xl")  # two directions, and a memory; many verbs on the others are proofs
FULL = "is for transformers with full attention"


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory, token_store: Path) -> Path:
    """Small models, texts and the files of a task, made once."""

    def make(where: Path) -> None:
        where.mkdir()
        words = Tokenizer.load(token_store.parent / "tokenizer")
        assert words is not None
        for name in MEMBERS:
            save_member(name, where / name, gpt_tokenizer() if name.startswith("gpt") else words)
        (where / "texts.txt").write_text("\n".join(TEXTS) + "\n")
        learnable.write(where / "pairs.csv", [{"one": f"a lamp {i}", "two": f"the road {i}"} for i in range(40)])
        learnable.prepared(learnable.KINDS["choice"], where / "data")

    return make_once(common_folder(tmp_path_factory) / "left-to-right-verbs", make)


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_has(FEW, MEMBERS))
def test_verbs_that_read_texts(name: str, samples: Path, command: Command, tmp_path: Path) -> None:
    model, texts = samples / name, samples / "texts.txt"
    assert " token predicted" in command.well("info", model, "--length", 32).out
    assert "undamaged" in command.well("verify", model).out
    command.well("embed", model, texts, "--out", tmp_path / "v.npy")
    loaded = bertree.load(model)
    states = loaded.hidden(TEXTS)
    mean = np.stack([state.mean(0).numpy() for state in states])
    assert np.allclose(np.load(tmp_path / "v.npy"), mean, atol=1e-5), "every part of the model is in its vectors"
    command.well("similar", model, TEXTS[0], TEXTS[1])
    command.well("pairs", model, texts)
    command.well("cluster", model, texts, "--clusters", 2)
    command.well("index", "build", model, texts, "--out", tmp_path / "index")
    command.well("index", "query", tmp_path / "index", "lamp")
    command.well("features", model, texts, "--out", tmp_path / "features", "--layers", "sum-all")
    command.well("compare", model, samples / "ctrl", "--seconds", "0.1", "--device", "cpu")


@pytest.mark.parametrize("name", MEMBERS)
def test_what_has_no_meaning_is_refused_in_one_line(name: str, samples: Path, command: Command, tmp_path: Path) -> None:
    model = samples / name
    refused = {
        "cannot fill a mask; continue a text": ("fill", model, "a [MASK] lamp"),
        f"ONNX: {FULL}": ("convert", model, tmp_path / "onnx", "--to", "onnx"),
    }
    if linear_class(torch.int8) is not None:
        refused[f"int8: {FULL}"] = (
            "embed", model, samples / "texts.txt", "--out", tmp_path / "v.npy", "--precision", "int8",
        )  # fmt: skip
    for line, arguments in refused.items():
        result = command(*arguments)
        assert result.code == 2
        assert len(result.lines) == 1
        assert line in result.lines[0]


@pytest.mark.parametrize("name", suite_has(FEW, MEMBERS))
def test_every_form_of_a_folder_computes_the_same(name: str, samples: Path, command: Command, tmp_path: Path) -> None:
    command.well("convert", samples / name, tmp_path / "copy", "--to", "bertree")
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == (samples / name / "model.safetensors").read_bytes()
    command.well("convert", samples / name, tmp_path / "int8", "--to", "bertree", "--precision", "int8")
    command.well("verify", tmp_path / "int8")
    plain, small = (bertree.load(path).embed(TEXTS) for path in (samples / name, tmp_path / "int8"))
    assert 0 < np.abs(plain - small).max() < 0.1 * np.abs(plain).max()


@pytest.mark.parametrize("name", MEMBERS)
def test_attentions_are_those_of_the_network_or_refused(name: str, samples: Path) -> None:
    model = bertree.load(samples / name)
    if name.startswith("transformer-xl") or name == "gpt1-both":
        with pytest.raises(bertree.UserError, match="cannot be computed"):
            model.attentions(TEXTS[0])
        return
    attentions = model.attentions(TEXTS[0])
    assert torch.allclose(attentions.sum(-1), torch.ones(()))
    assert torch.equal(attentions, attentions.tril()), "no token sees those after it"
    encoder = model.network.encoder
    assert isinstance(encoder, TransformerEncoder)
    block = encoder.stack.attention[0]
    with torch.no_grad():
        batch = model.batch([TEXTS[0]])
        x_th = encoder.stack.residual.read(encoder.embeddings(batch), block)
        v_tnd = block.part.project(x_th)[2]
        mixed = torch.einsum("nqk,knd->qnd", attentions[0], v_tnd)
        assert torch.allclose(block.part.out(mixed.flatten(1)), block.part(x_th, batch), atol=1e-5)


@pytest.mark.parametrize("name", suite_has(FEW, MEMBERS))
def test_tasks_are_learned_judged_and_distilled(name: str, samples: Path, command: Command, tmp_path: Path) -> None:
    data = samples / "data"
    task = ("--task", "choice", "--data", data)
    command.well("finetune", samples / name, *task, "--out", tmp_path / "run", *STEP)
    model = tmp_path / "run" / "model"
    assert list(bertree.load(model).classes) == ["choice"]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())["accuracy"]
    assert command.well("evaluate", model, *task, "--json").json["accuracy"] == pytest.approx(metrics)
    command.well("predict", model, "--file", data / "dev.jsonl", "--json")
    command.well("distill", model, *task, "--out", tmp_path / "half", "--seconds", 0, *STEP)
    frozen = ("--frozen", "sum-all", "lstm=4")
    command.well("finetune", samples / name, *task, "--out", tmp_path / "frozen", *STEP, *frozen)


@pytest.mark.parametrize("name", suite_has(FEW, MEMBERS))
def test_sentence_vectors_are_trained(name: str, samples: Path, command: Command, tmp_path: Path) -> None:
    arguments = ("--data", samples / "pairs.csv", "--loss", "ranking", "--text", "one", "--pair", "two")
    command.well("embeddings", "train", samples / name, *arguments, "--out", tmp_path / "run", *STEP, "pooling=last")
    model = bertree.load(tmp_path / "run" / "model")
    assert model.vector.pooling == "last"
    states = model.hidden(TEXTS)
    assert np.allclose(model.embed(TEXTS), np.stack([s[-1].numpy() for s in states]), atol=1e-5)


TEXT = ("phases.0.steps=2", "phases.0.max_length=32", "phases.0.batch_tokens=256", "schedule.warmup=1", "device=cpu")


def test_distillation_on_text(samples: Path, token_store: Path, command: Command, tmp_path: Path) -> None:
    arguments = ("--store", token_store, "--out", tmp_path / "half", *TEXT, "run.eval_tokens=512", "--seconds", 0)
    refused = {
        "a teacher with causal attention was not trained for that": ("ctrl",),
        "has a memory of the text before": ("transformer-xl", "data.masking=next"),
        "must be the teacher's, causal": ("ctrl", "data.masking=next", "model.attention=full"),
        "model.memory: a student reads every sequence alone": (
            "ctrl", "data.masking=next", "model.positions=relative", "model.memory=8",
        ),
    }  # fmt: skip
    for line, (name, *more) in refused.items():
        result = command("distill", samples / name, *arguments, *more)
        assert (result.code, len(result.lines)) == (2, 1), result.err
        assert line in result.lines[0]
    terms = ("distill.relation=1", "distill.hidden=1", "distill.cos=1")
    command.well("distill", samples / "ctrl", *arguments, "data.masking=next", *terms)
    assert bertree.load(tmp_path / "half" / "model").architecture.layers == 1
