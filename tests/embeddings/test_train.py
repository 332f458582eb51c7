"""`bertree embeddings train`: every loss learns, what is written makes vectors for everyone, mistakes are one line."""

import json
import random
import tomllib
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import bertree
from bertree.config.settings import AtLeast
from bertree.embeddings import tuner
from bertree.model.network import Network
from bertree.model.pooling import PoolingConfig
from bertree.objectives import embedding_losses
from bertree.objectives.embedding_losses import TripletLoss
from bertree.objectives.objective import Loss
from bertree.tasks.metrics import spearman
from bertree.tasks.similarity import SimilarityTask
from tests.support import topics
from tests.support.command import Command
from tests.support.learnable import model, tokenizer
from tests.support.shared import suite_has
from tests.support.topics import files

SETTINGS = ("device=cpu", "lr=3e-3", "dropout=0", "max_length=32")
ENDS = "sts/dev.parquet"
FEW = ("epochs=1", "examples=64")  # where nothing has to be learned


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = files(tmp_path_factory.mktemp("sentences"))
    words = tokenizer()
    model(folder / "start", words)
    model(folder / "thin", words, layers=1)
    return folder


def arguments(place: Path, out: Path, data: str, *more: object, start: str = "start") -> list[object]:
    return ["embeddings", "train", place / start, "--data", place / data, "--out", out, *SETTINGS, *more]


LEARNED = [
    ("sts", "cosine", ("epochs=4", "batch=32", "lr=5e-3", "layers=sum-all", "normalize=true"), 0.8),
    ("nli", "triplet", ("epochs=2", "distance=cosine"), 0.7),
    ("nli", "ranking", ("epochs=2", "batch=32", "symmetric=true"), 0.7),
    ("pairs.csv", "ranking", ("epochs=3", "batch=32", "pooling=mean+max", "micro_tokens=200"), 0.7),
    ("sts", "cosine", ("epochs=4", "batch=32", "lr=5e-3"), 0.8),
    ("triplets.jsonl", "triplet", ("epochs=2", "pooling=cls"), 0.7),
]
COMPARED = [["concat=|u-v|,u*v", "pooling=max"], [], ["concat=u*v", "layers=sum-all"]]


@pytest.mark.parametrize(("data", "loss", "more", "bar"), suite_has([*LEARNED[:2], LEARNED[3]], LEARNED))
def test_every_loss_learns(
    data: str, loss: str, more: tuple[str, ...], bar: float, place: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command.well(*arguments(place, out, data, "--loss", loss, "--dev", place / ENDS, *more))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["metric"] == "spearman"
    assert metrics["spearman"] > bar
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 80
    assert all(line["predicted"] == pytest.approx(5 * line["score"]) for line in lines)
    page = (out / "report.html").read_text()
    assert "Gold against predicted" in page
    trained = bertree.load(out / "model")
    assert not trained.classes
    assert trained.max_length == 32
    left, right = (trained.embed([str(line[side]) for line in lines]) for side in ("text", "pair"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert cosines == pytest.approx([line["score"] for line in lines], abs=1e-5)


@pytest.mark.parametrize("more", suite_has(COMPARED[:1], COMPARED))
def test_classes_of_pairs_are_learned(more: list[str], place: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command.well(*arguments(place, out, "nli", "--loss", "softmax", "epochs=4", "batch=32", "lr=6e-3", *more))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.5  # a third by chance
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert set(lines[0]["probabilities"]) == {"entailment", "neutral", "contradiction"}
    assert "Confusion of labels" in (out / "report.html").read_text()


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_three_commands_train_for_search(place: Path, command: Command, tmp_path: Path) -> None:
    draw = random.Random(0)
    documents = [{"id": str(n), "text": " ".join(words)} for n, words in enumerate(topics.TOPICS)]
    asked = [{"question": topics.about(draw, n % 4), "document": str(n % 4)} for n in range(240)]
    start = place / "thin"
    bertree.Index.build(bertree.load(start), documents, tmp_path / "index").close()
    questions, mined = write_rows(tmp_path / "asked.jsonl", asked[:200]), tmp_path / "mined.jsonl"
    command.well("index", "mine", tmp_path / "index", "--questions", questions, "--out", mined)
    train = ("embeddings", "train", start, "--data", mined, *SETTINGS, "batch=32", "patience=0")
    command.well(
        *train, "--loss", "cross", "--out", tmp_path / "reranker", "epochs=12", "lr=1e-2", "classifier_dropout=0"
    )
    teacher = ("--teacher", tmp_path / "reranker" / "model")
    shown = command.well(*train, *teacher, "--out", tmp_path / "student")
    assert f"{teacher[1]}: scores {4 * len({row['question'] for row in asked[:200]})} pairs" in shown.err
    with bertree.Index.build(bertree.load(tmp_path / "student/model"), documents, tmp_path / "better") as index:
        result = bertree.evaluate_search(index, asked[200:], rerank=bertree.load(teacher[1]))
    firsts = {scores.mode: scores.mean("first") for scores in result.modes}
    assert min(firsts["vectors"], firsts["reranked"]) > 0.9, firsts
    refused = {
        "teacher: is for the loss 'margin', not for 'ranking'": (*teacher, "--loss", "ranking"),
        "has no head for pairs": ("--teacher", start),
    }
    for line, options in refused.items():
        assert line in command(*train, *options, "--out", tmp_path / "none").err
    alone = command(*train[:3], "--data", place / "pairs.csv", *teacher, "--out", tmp_path / "none")
    assert "pairs.csv: no row has a negative for the teacher to compare" in alone.err


def test_simcse_needs_only_texts_and_dropout(place: Path, command: Command, tmp_path: Path) -> None:
    rows = [{"note": f"{row['question']} {n}"} for n, row in enumerate(topics.pairs(40))]
    write_rows(tmp_path / "texts.jsonl", rows)
    started = arguments(place, tmp_path / "out", str(tmp_path / "texts.jsonl"), "--loss", "simcse", "--text", "note")
    refused = command(*started)
    assert refused.code == 2
    assert "learns from dropout, and this model has none; set `dropout=0.1`" in refused.err
    shown = command.well(*started, "dropout=0.1", "batch=8", "epochs=1")
    assert "only find themselves" in shown.err
    assert bertree.load(tmp_path / "out" / "model").embed(["happy boat"]).shape == (1, 32)


def test_what_is_written_is_read_there(place: Path, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    out = tmp_path / "out"
    result = command.well(*arguments(place, out, "nli", "pooling=mean+max", "normalize=true", *FEW))
    assert "nli: holds pairs with labels, so the loss is softmax; choose another with --loss" in result.err
    texts = ["happy boat", "a gloomy road by the river", "Oslo"]
    ours = bertree.load(out / "model").embed(texts)
    assert ours.shape == (3, 64)
    theirs = SentenceTransformer(str(out / "model"), device="cpu")
    assert theirs.max_seq_length == 32
    assert np.abs(ours - theirs.encode(texts)).max() < 1e-5
    held = (out / "model" / "model.safetensors").read_bytes()
    assert b"compare" not in held
    assert b"heads" not in held
    assert b"cls.predictions" not in held


GUESSED = [
    ("nli", "softmax", "accuracy", 1, 0.0),  # how much these two learn is tested above
    ("sts", "cosine", "spearman", 1, 0.0),
    ("triplets.jsonl", "triplet", "accuracy", 2, 0.8),
    ("pairs.csv", "ranking", "mrr", 2, 0.1),
]


@pytest.mark.parametrize(("data", "guess", "metric", "epochs", "bar"), suite_has(GUESSED[1:3], GUESSED))
def test_guessed_and_judged_by_its_own_kind(
    data: str, guess: str, metric: str, epochs: int, bar: float, place: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = command.well(*arguments(place, out, data, f"epochs={epochs}", "batch=32", "lr=6e-3"))
    assert f"so the loss is {guess}" in result.err
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["metric"] == metric
    assert metrics[metric] > bar
    assert metrics["task"] == f"sentence-{guess}"
    assert (out / "report.html").stat().st_size > 4000
    assert (out / "seed-0" / "report.html").is_file()
    examples = metrics["examples"]
    if data.endswith((".jsonl", ".csv")):
        assert examples["train"] + examples["dev"] == (400 if data == "triplets.jsonl" else 480)


def test_it_goes_on_with_a_trained_model(place: Path, command: Command, tmp_path: Path) -> None:
    """NLI first, STS then, as in the paper; how vectors are made stays as it was."""
    first, second = tmp_path / "first", tmp_path / "second"
    command.well(*arguments(place, first, "nli", "--loss", "ranking", *FEW, "pooling=max", "normalize=true"))
    words = ["embeddings", "train", first / "model", "--data", place / "sts", "--out", second, *SETTINGS, *FEW]
    command.well(*words)
    vector = bertree.load(second / "model").vector
    assert (vector.pooling, vector.normalize) == ("max", True)


BOTH = [
    ("triplets.jsonl", "accuracy", ("epochs=12", "batch=32", "lr=1e-2")),
    ("nli", "accuracy", FEW),
    ("sts", "spearman", FEW),
    ("pairs.csv", "accuracy", FEW),
]


@pytest.mark.parametrize(("data", "metric", "more"), suite_has(BOTH[:3], BOTH))
def test_both_texts_at_once(
    data: str, metric: str, more: tuple[str, ...], place: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    settings = ("batch=16", "classifier_dropout=0", "patience=0", *more)
    start = "thin" if data == "triplets.jsonl" else "start"  # many epochs, until both texts are compared
    command.well(*arguments(place, out, data, "--loss", "cross", *settings, start=start))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["metric"] == metric
    if data == "triplets.jsonl":
        assert metrics[metric] > 0.75  # half are right by chance
    result = command.well("predict", out / "model", "happy boat\tsweet river", "--json")
    (line,) = [json.loads(text) for text in result.out.strip().splitlines()]
    if data == "sts":
        assert isinstance(line["predicted"], float)
    else:
        labels = {"nli": {"entailment", "neutral", "contradiction"}}.get(data, {"0", "1"})
        assert set(line["probabilities"]) == labels


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--loss", "cosin"), "--loss cosin: unknown, did you mean 'cosine'?"),
        (("poolin=cls",), "poolin: unknown setting, did you mean 'pooling'?"),
        (("pooling=middle",), "vector.pooling: unknown value 'middle'"),
        (("--loss", "cosine"), "holds pairs with labels, but the loss 'cosine' needs a score"),
        (("concat=u,w",), "concat: unknown part 'w'"),
        (("distance=far",), "loss.distance: unknown value 'far'"),
        (("scale=0",), "loss.scale: must be above 0"),
        (("margin=-1",), "loss.margin: must not be negative"),
        (("low=5",), "5 to 0 is no scale; give both, low=0 high=5"),
        (("layers=sum-last-four",), "needs 4 layers, but the encoder has 2"),
        (("metric=f1",), "metric 'f1': "),
        (("max_length=1000",), "max_length 1000: the model has only 64 positions"),
        (("crf=true",), "top.crf: needs a 'token' head"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    more: tuple[str, ...], message: str, place: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = command(*arguments(place, out, "nli", *more))
    assert result.code == 2
    assert message in result.err
    assert len([line for line in result.lines if "note:" not in line]) == 1
    assert not out.exists()


def test_a_dev_file_without_gold_and_one_of_another_kind(place: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    data = tmp_path / "mine.csv"
    data.write_text("title,body\nhappy,glad\nOslo,Riga\nred,blue\nfine,sweet\n")
    named = ("--text", "title", "--pair", "body")
    arguments = ["embeddings", "train", place / "start", "--data", data, "--out", out, *SETTINGS, *named, "epochs=1"]
    command.well(*arguments, "--dev", place / ENDS)
    assert json.loads((out / "metrics.json").read_text())["examples"] == {"train": 4, "dev": 80}
    result = command(*arguments[:-1], "--dev", place / "nothing.csv", "--out", tmp_path / "other")
    assert result.code == 2
    assert "nothing.csv: no such file" in result.err


@pytest.mark.parametrize(
    ("arguments", "margin"),
    [
        ((), 5.0),
        (("distance=cosine",), 0.5),
        (("normalize=true",), 0.5),
        (("normalize=true", "distance=manhattan"), 5.0),
        (("distance=cosine", "margin=0.2"), 0.2),
    ],
)
def test_a_margin_can_be_kept(arguments: tuple[str, ...], margin: float) -> None:
    config = tuner.load(arguments, SimilarityTask("sentence"), TripletLoss, PoolingConfig())
    assert config.loss.margin == margin
    assert config.train.batch == 16


def test_a_loss_of_ones_own_is_one_class(
    place: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_losses, "LOSSES", losses := dict(embedding_losses.LOSSES))
    monkeypatch.setattr(tuner, "LOSSES", losses)

    @embedding_losses.register_loss
    class Gap(embedding_losses.EmbeddingLoss):
        """The cosine of a pair must exceed that of its negative by a gap."""

        name = "gap"
        label = "a gap between cosines"
        reads = ("triplet",)
        needs = "triplets"
        batch = 8

        gap: Annotated[float, AtLeast(0)] = 0.5
        scale: float = 3.0  # not that of `ranking`

        def count(self, answers: Tensor) -> int:
            return len(answers)

        def __call__(self, network: Network, table_qwd: Tensor, answers: Tensor) -> Loss:
            cosines = torch.cosine_similarity(table_qwd[:, :1], table_qwd[:, 1:], dim=-1)
            return Loss((cosines[:, 1] - cosines[:, 0] + self.gap).relu().mul(self.scale).sum(), None)

    out = tmp_path / "out"
    command.well(*arguments(place, out, "nli", "--loss", "gap", "--dev", place / ENDS, "epochs=4", "gap=0.9"))
    recipe = tomllib.loads((out / "seed-0" / "recipe.toml").read_text())
    assert recipe["name"] == "sentence-gap"
    assert (recipe["loss"]["gap"], recipe["loss"]["scale"], recipe["train"]["batch"]) == (0.9, 3.0, 8)
    assert json.loads((out / "metrics.json").read_text())["spearman"] > 0.7
    result = command(*arguments(place, tmp_path / "other", "nli", "--loss", "gap", "gap=-1"))
    assert (result.code, "loss.gap" in result.err) == (2, True)
    result = command(*arguments(place, tmp_path / "other", "nli", "--loss", "gop"))
    assert (result.code, "'gap'" in result.err) == (2, True)


def test_a_dense_layer_on_a_frozen_encoder_moves_vectors_and_keeps_the_masks(
    place: Path, command: Command, tmp_path: Path
) -> None:
    """Before training the layer changes nothing; afterwards unrelated texts are less alike, and masks are as before."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    start, out = bertree.load(place / "start"), tmp_path / "out"
    words = ("--loss", "ranking", "epochs=2", "batch=32", "normalize=true", "frozen=last", "dense=32", "lr=1e-2")
    command.well(*arguments(place, out, "nli", *words))
    loaded = bertree.load(out / "model")
    assert [(layer.width, layer.activation) for layer in loaded.vector.dense] == [(32, "identity")]
    for name, tensor in start.network.state_dict().items():
        assert torch.equal(tensor, loaded.network.state_dict()[name]), name
    assert loaded.fill_mask("a happy [MASK]") == start.fill_mask("a happy [MASK]")
    texts = ["happy boat", "a gloomy road by the river", "Oslo"]
    before, after = start.similarity(texts, texts), loaded.similarity(texts, texts)
    assert after.mean() < before.mean() - 0.01
    theirs = SentenceTransformer(str(out / "model"), device="cpu")
    assert np.abs(loaded.embed(texts) - theirs.encode(texts)).max() < 1e-5
    # A run that goes on has the layer that is there.
    words = ("--loss", "ranking", *FEW, "frozen=last", "lr=1e-9")
    command.well(
        *("embeddings", "train", out / "model", "--data", place / "nli", "--out", tmp_path / "on", *SETTINGS, *words)
    )
    assert np.abs(bertree.load(tmp_path / "on" / "model").embed(texts) - loaded.embed(texts)).max() < 1e-5


def test_a_new_dense_layer_changes_no_vector(place: Path, command: Command, tmp_path: Path) -> None:
    words = ("--loss", "ranking", *FEW, "frozen=last", "dense=32", "lr=1e-9")
    command.well(*arguments(place, tmp_path / "out", "nli", *words))
    texts = ["happy boat", "a gloomy road by the river", "Oslo"]
    before, after = bertree.load(place / "start").embed(texts), bertree.load(tmp_path / "out" / "model").embed(texts)
    assert np.abs(before - after).max() < 1e-5


def test_vectors_can_be_truncated(place: Path, command: Command, tmp_path: Path) -> None:
    """Trained with 4 dimensions, the first 4 are worth more than those of vectors trained in full."""
    scores = {}
    rows = pq.read_table(place / ENDS).to_pylist()
    for name, more in (("full", ()), ("some", ("dimensions=32,4",))):
        command.well(*arguments(place, tmp_path / name, "nli", "--loss", "ranking", "epochs=3", "batch=32", *more))
        recipe = (tmp_path / name / "seed-0" / "recipe.toml").read_text()
        assert ("dimensions = [32, 4]" in recipe) == bool(more)
        assert ("dimensions" in recipe) == bool(more)
        trained = bertree.load(tmp_path / name / "model")
        left, right = (trained.embed([row[side] for row in rows])[:, :4] for side in ("sentence1", "sentence2"))
        cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
        scores[name] = spearman([row["score"] for row in rows], cosines)
    assert scores["some"] > scores["full"]
    assert scores["some"] > 0.6


@pytest.mark.parametrize(
    ("loss", "values", "message"),
    [
        ("ranking", "dimensions=64,8", "64 is more than the 32"),
        ("ranking", "dimensions=[0]", "loss.dimensions"),
        ("ranking", "dimensions=8,8", "must differ"),
        ("ranking", "dimensions=many", "loss.dimensions.0: must be a whole number"),
        ("softmax", "dimensions=8", "vectors of one width"),
    ],
)
def test_dimensions_are_checked(
    loss: str, values: str, message: str, place: Path, command: Command, tmp_path: Path
) -> None:
    result = command(*arguments(place, tmp_path / "out", "nli", "--loss", loss, values))
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "out").exists()
