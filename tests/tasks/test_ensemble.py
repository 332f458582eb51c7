"""Ensembles: the mean of what models predict, for every kind of task; what cannot be averaged is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.tasks.batches import Member, average
from bertree.tasks.registry import make_task
from bertree.tasks.task import Unit
from bertree.text import tokenizer_training
from bertree.text.tokenizer import Tokenizer
from tests.support import learnable
from tests.support.command import Command

CONTEXT = "the boat by the river and a red lamp on the stone"
KINDS: dict[str, tuple[str, list[str], list[Any]]] = {  # head, labels, rows
    "classification": ("sequence", ["bad", "good"], [("a fine boat", "good"), ("an awful tree", "bad"), ("it", "bad")]),
    "regression": ("sequence", [], [("a fine boat", 0.5), ("the stone", 2.0), ("a lamp", 1.0)]),
    "tagging": ("token", ["B", "O"], [(["the", "red", "boat"], ["O", "O", "B"]), (["Ada"], ["B"])]),
    "choice": (
        "choice",
        [],
        [{"context": "it is red", "question": "which?", "options": ["red", "blue", "a lamp"], "label": 0}],
    ),
    "squad": (
        "span",
        [],
        [{"id": "1", "question": "which?", "context": CONTEXT, "answers": {"text": ["boat"], "answer_start": [4]}}],
    ),
}


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return learnable.tokenizer()


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    """A tokenizer with shorter tokens."""
    return tokenizer_training.train(lambda: [" ".join(learnable.WORDS)] * 4, "wordpiece", 110, cased=True)


def model(path: Path, tokenizer: Tokenizer, kind: str, seed: int, labels: list[str] | None = None) -> Path:
    head, own, _ = KINDS[kind]
    labels = own if labels is None else labels
    values = {"vocab_size": tokenizer.size, "layers": 1, "width": 16, "heads": 2, "max_positions": 128}
    a = Transformer().with_values(values | {"init_std": 0.5})
    torch.manual_seed(seed)
    classes = len(labels) or (2 if head == "span" else 1)
    task = {"name": kind, "scheme": "plain"} if kind == "tagging" else {"name": kind}
    folder.write(Contents(a, build(a, {head: classes}), tokenizer, labels=labels, task=task), path)
    return path


def predictions(models: object, kind: str, **options: Any) -> list[dict[str, Any]]:
    (lines,) = bertree.evaluate(models, data=KINDS[kind][2], task=kind, device="cpu", **options).predictions.values()
    return lines


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_itself_predicts_what_it_predicts_alone(kind: str, words: Tokenizer, tmp_path: Path) -> None:
    loaded = model(tmp_path / "one", words, kind, 0)
    alone, together = predictions(loaded, kind), predictions([loaded, loaded, loaded], kind, ensemble=True)
    for line, expected in zip(together, alone, strict=True):
        exact = kind != "regression"
        assert line["predicted"] == (expected["predicted"] if exact else pytest.approx(expected["predicted"], rel=1e-5))
    assert [line["score"] for line in together] == pytest.approx([line["score"] for line in alone], rel=1e-5)


def test_probabilities_and_numbers_are_averaged_whatever_the_tokenizer(
    words: Tokenizer, letters: Tokenizer, tmp_path: Path
) -> None:
    for kind in ("classification", "regression", "choice"):
        paths = [model(tmp_path / f"{kind} a", words, kind, 0), model(tmp_path / f"{kind} b", letters, kind, 1)]
        single = [predictions(path, kind) for path in paths]
        for line, first, second in zip(predictions(paths, kind, ensemble=True), *single, strict=True):
            if kind == "regression":
                assert line["predicted"] == pytest.approx((first["predicted"] + second["predicted"]) / 2, rel=1e-5)
                continue
            mean = {key: (first["probabilities"][key] + second["probabilities"][key]) / 2 for key in _keys(line)}
            assert {key: line["probabilities"][key] for key in _keys(line)} == pytest.approx(mean, rel=1e-5)


def _keys(line: dict[str, Any]) -> list[Any]:
    shares = line["probabilities"]
    return list(shares) if isinstance(shares, dict) else list(range(len(shares)))


def test_tags_are_averaged_word_by_word_and_labels_by_name() -> None:
    """The second model reads the words in two windows, and has its labels in another order."""
    first, second = (make_task("tagging").with_labels(labels) for labels in (("A", "B"), ("B", "A")))
    member = Member(first, [Unit(0, (), [0, 1])], [np.array([[2.0, 0.0], [0.0, 0.0]], np.float32)])
    rows = [np.array([[0.0, 0.0]], np.float32), np.array([[3.0, 0.0]], np.float32)]
    two = Member(second, [Unit(0, (), [0]), Unit(0, (), [1])], rows)
    (mean,) = average([member, two])
    share, other = 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-3))
    assert np.exp(mean) == pytest.approx(
        np.array([[(share + 0.5) / 2, 1 - (share + 0.5) / 2], [(1.5 - other) / 2, (0.5 + other) / 2]]), rel=1e-5
    )


def test_what_cannot_be_averaged_is_refused_in_one_line(
    words: Tokenizer, letters: Tokenizer, tmp_path: Path, command: Command
) -> None:
    loaded = model(tmp_path / "one", words, "classification", 0)
    other = model(tmp_path / "other", words, "classification", 0, ["bad", "best"])
    spans = [model(tmp_path / f"span {n}", t, "squad", n) for n, t in enumerate((words, letters))]
    with pytest.raises(UserError, match="the models have different labels: bad, good and bad, best"):
        predictions([loaded, other], "classification", ensemble=True)
    with pytest.raises(UserError, match="the models need one tokenizer"):
        predictions(spans, "squad", ensemble=True)
    with pytest.raises(UserError, match="give two models or more"):
        predictions([loaded], "classification", ensemble=True)
    with pytest.raises(UserError, match="2 models: average their predictions with `ensemble=True`"):
        predictions([loaded, other], "classification")
    result = command("evaluate", loaded, other, "--task", "classification", "--data", tmp_path)
    assert result.code == 2
    assert "average their predictions with --ensemble" in result.err
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\nthe boat,good\na lamp,bad\n")
    result = command("evaluate", loaded, rows, rows)
    assert "rows.csv: is a file, not a model; name one file to score, after the models" in result.err
    assert (
        command.well("evaluate", loaded, rows, "--json").json
        == command.well("evaluate", loaded, "--data", rows, "--json").json
    )
