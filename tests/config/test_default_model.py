"""The bundled model: found by its name by every verb and, if it is there, worth having."""

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch

import bertree
from bertree.cli import main
from bertree.config import names
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.interop.description import read_description
from bertree.model.presets import preset
from bertree.text.tokenizer import Tokenizer
from tests.support.batches import axes_of

REAL = names.FOLDER
MOST = 16_000_000  # bytes, all files together
SECTIONS = ("What it is", "How it was made", "Data and licenses", "Scores", "Limits", "Use")
EASY = {  # what may stand there
    "The capital of France is [MASK].": {"paris"},
    "She opened the [MASK] and walked into the room.": {"door"},
    "There are seven days in a [MASK].": {"week"},
    "He drank a glass of [MASK].": {"water", "wine", "milk", "beer", "whisky", "whiskey", "brandy"},
    "Washington is the capital of the United [MASK] of America.": {"states"},
    "They have two children, a boy and a [MASK].": {"girl"},
    "She has lived in London for many [MASK].": {"years"},
    "He lives in New [MASK] City.": {"york"},
    "The earth moves around the [MASK].": {"sun"},
    "The king and the [MASK] sat on their thrones.": {"queen"},
}
real = pytest.mark.skipif(not REAL.is_dir(), reason="the default model is not in this checkout: src/bertree/default")


@pytest.fixture
def made_up(tmp_path: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder in the place of the default model, and an empty folder to be in."""
    place = tmp_path / "package" / "default"
    a = preset("bert-tiny").architecture.with_values({"residual": "pre-norm", "embedding_width": 32, "segments": 0})
    model = random_model(a, {"mask": 0}, seed=3)
    model.tokenizer = Tokenizer.load(minilm)
    model.save(place, precision="int8")
    (place / "README.md").write_text("# A made-up card\n")
    monkeypatch.setattr(names, "FOLDER", place)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return place


def verb(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bertree", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    return int(stopped.value.code or 0)


def test_it_is_loaded_by_its_name(made_up: Path) -> None:
    model = bertree.load("default")
    assert model.trained
    assert axes_of(model).residual == "pre-norm"
    assert torch.equal(model.hidden(["A text."])[0], bertree.load(made_up).hidden(["A text."])[0])
    assert len(model.fill_mask("A [MASK].", 3)) == 3


def test_a_path_of_that_name_wins(made_up: Path, small_folder: Path) -> None:
    shutil.copytree(small_folder, "default")
    assert axes_of(bertree.load("default")).residual == "post-norm"
    assert axes_of(bertree.load(Path("default").absolute())).residual == "post-norm"
    shutil.rmtree("default")
    assert axes_of(bertree.load("default")).residual == "pre-norm"
    with pytest.raises(UserError, match=r"\./default: no such folder"):
        bertree.load("./default")  # written as a path, it is one


def test_a_stripped_install_says_so(
    made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(made_up)
    convert = ("convert", "default", "x", "--to", "bertree")
    for arguments in (("fill", "default", "A [MASK]."), ("info", "default"), convert):
        assert verb(monkeypatch, *arguments) == 2
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1
        assert "bundled model is missing" in errors
    assert verb(monkeypatch, "info") == 0
    assert "info default" not in capsys.readouterr().out


def test_a_name_almost_right(made_up: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'default'"):
        bertree.load("defualt")


def test_info(made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb(monkeypatch, "info", "default") == 0
    output = capsys.readouterr().out
    assert f"in {made_up}, " in output
    assert f"its card: {made_up / 'README.md'}" in output
    assert "pre-norm" in output
    assert verb(monkeypatch, "info", "default", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["name"], report["folder"]) == ("default", str(made_up))
    assert report["architecture"]["embedding_width"] == 32
    assert verb(monkeypatch, "info", "default", "layers=1") == 0
    assert "default layers=1" in capsys.readouterr().out
    assert verb(monkeypatch, "info") == 0
    assert "bertree info default" in capsys.readouterr().out


@pytest.mark.process
def test_every_verb_knows_it(
    made_up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{label},a {word} day" for label, word in (("good", "sunny"), ("bad", "rainy")) for _ in range(12)]
    Path("days.csv").write_text("label,text\n" + "\n".join(rows) + "\n")
    Path("text.txt").write_text("It was a day.\nIt was a night.\n" * 3 + "\n" + "Another one.\nAnd more of it.\n" * 3)
    assert verb(monkeypatch, "fill", "default", "A [MASK].", "--json") == 0
    task = ("--task", "classification", "--data", "days.csv", "--out", "days", "epochs=1", "device=cpu")
    assert verb(monkeypatch, "finetune", "default", *task) == 0
    assert verb(monkeypatch, "predict", "days/model", "a day", "--device", "cpu") == 0
    features = ("--layers", "sum-all", "--out", "states", "--device", "cpu")
    assert verb(monkeypatch, "features", "default", "text.txt", *features) == 0
    assert verb(monkeypatch, "convert", "default", "copy", "--to", "bertree", "--precision", "int8") == 0
    for name in ("model.safetensors", "bertree.toml"):
        assert Path("copy", name).read_bytes() == (made_up / name).read_bytes()
    capsys.readouterr()
    for arguments, message in (
        (("predict", "default", "a text"), "no task head"),
        (("evaluate", "default", "--task", "classification", "--data", "days.csv"), "default: "),
    ):
        assert verb(monkeypatch, *arguments) == 2
        assert message in capsys.readouterr().err
    assert verb(monkeypatch, "prepare", "text.txt", "--tokenizer", "default", "--out", "store", "--workers", "1") == 0
    going_on = ("model.start=default", "phases.0.steps=2", "schedule.warmup=1", "run.device=cpu")
    what = ("phases.0.batch_tokens=256", "data.held_out_share=0.5", "data.format=doc-sentences", "objective.nsp=0")
    code = verb(monkeypatch, "pretrain", "bert-base-tiny", "--store", "store", "--out", "run", *going_on, *what)
    assert code == 0, capsys.readouterr().err
    assert bertree.load("run/model").architecture.embedding_width == 32


@real
def test_the_real_one_fits_and_is_described() -> None:
    files = [path for path in REAL.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST
    assert read_description(REAL / "bertree.toml").storage == "int8"
    headings = {line.lstrip("# ").strip() for line in (REAL / "README.md").read_text().splitlines() if line[:1] == "#"}
    assert set(SECTIONS) <= headings, f"the card lacks {set(SECTIONS) - headings}"


@real
def test_the_real_one_works_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("it asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.chdir(tmp_path)
    model = bertree.load("default")
    assert model.tokenizer is not None
    right = 0
    for text, answers in EASY.items():
        candidates = model.fill_mask(text, 5)
        right += any(candidate.token in answers for candidate in candidates)
    assert right >= 6, f"{right} of {len(EASY)} easy masks filled"


@real
def test_the_real_one_is_stored_as_it_would_be_again(tmp_path: Path) -> None:
    bertree.load("default").save(tmp_path / "again", precision="int8")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (REAL / "model.safetensors").read_bytes()


@real
def test_the_real_one_keeps_unrelated_sentences_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    others = ["Shares lost much of their value today.", "A cat sleeps on the warm stones."]
    scores = bertree.load("default").similarity(["The stock market fell sharply."], others)[0]
    assert scores[0] > 0.5
    assert scores[1] < 0.3


@real
def test_transformers_reads_the_real_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    monkeypatch.chdir(tmp_path)
    assert verb(monkeypatch, "convert", "default", "folder", "--to", "huggingface", "--quiet") == 0
    ours, theirs = bertree.load("default"), AutoModelForMaskedLM.from_pretrained("folder")
    assert ours.tokenizer is not None
    text = next(iter(EASY))
    ids = torch.tensor([ours.tokenizer.encode([text])[0].ids])
    with torch.no_grad():
        probabilities = theirs(ids).logits[ids == ours.tokenizer.id_of("mask")].softmax(-1)[0]
    for candidate in ours.fill_mask(text, 5):
        assert abs(float(probabilities[candidate.id]) - candidate.probability) < 1e-5
