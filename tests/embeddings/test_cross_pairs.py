"""`pairs --cross`: every pair of a small file, scored by a cross-encoder."""

import csv
from itertools import combinations
from pathlib import Path

import pytest

import bertree
from bertree.search.rerank import pair_score
from tests.support import learnable
from tests.support.command import Command

TEXTS = [str(row["text"]) for row in learnable.feelings(14, 3)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in [*TEXTS, "", TEXTS[0]]))
    return path


@pytest.fixture
def classifier(trained: learnable.Trained) -> Path:
    return trained("pair") / "model"


def test_the_best_pairs_of_all(classifier: Path, file: Path, tmp_path: Path, command: Command) -> None:
    model, every = bertree.load(classifier), list(combinations(range(len(TEXTS)), 2))
    predictions = model.predict([(TEXTS[i], TEXTS[j]) for i, j in every])
    scores = {
        (i + 1, j + 1): pair_score(prediction, "good") for (i, j), prediction in zip(every, predictions, strict=True)
    }
    expected = sorted((score for score in scores.values() if score >= 0.6), reverse=True)
    assert 0 < len(expected) < len(every)

    arguments = ("pairs", "--cross", classifier, file, "--label", "good", "--min-similarity", "0.6", "--device", "cpu")
    result = command.well(*arguments, "--json")
    pairs = result.json["pairs"]
    assert [pair["score"] for pair in pairs] == pytest.approx(expected, abs=1e-5)
    for pair in pairs:
        first, second = pair["rows"]
        assert pair["texts"] == [TEXTS[first - 1], TEXTS[second - 1]]
        assert pair["score"] == pytest.approx(scores[first, second], abs=1e-5)
    assert result.json["duplicates"] == [{"rows": [1, 16], "text": TEXTS[0]}]
    out = tmp_path / "pairs.csv"
    result = command.well(*arguments, "-k", "3", "--out", out)
    assert "91 pairs, about" in result.err
    assert [float(row["score"]) for row in csv.DictReader(out.open())] == [pair["score"] for pair in pairs[:3]]


def test_a_run_and_texts_from_memory(trained: learnable.Trained, file: Path) -> None:
    model = trained("pair")
    plain = bertree.find_pairs(model, file, cross=True, label="good", min_similarity=-10, k=1000, device="cpu")
    assert len(plain.pairs) == 91
    again = bertree.find_pairs(bertree.load(model), TEXTS, cross=True, label="good", min_similarity=-10, k=2)
    assert [pair["rows"] for pair in again.pairs] == [pair["rows"] for pair in plain.pairs[:2]]


def test_what_is_refused(
    classifier: Path, trained: learnable.Trained, file: Path, tmp_path: Path, command: Command
) -> None:
    refusals: dict[str, tuple[object, ...]] = {
        "only with --max-pairs 91": ("--cross", classifier, file, "--label", "good", "--max-pairs", "90"),
        "has no such class": ("--cross", classifier, file, "--label", "fine"),
        "has no head for pairs": ("--cross", trained.start, file),
        "--prompt: is for vectors": ("--cross", classifier, file, "--prompt", "query"),
        "--label: is the positive class of a cross-encoder": (classifier, file, "--label", "good"),
    }
    for message, arguments in refusals.items():
        result = command("pairs", *arguments, "--device", "cpu")
        assert result.code == 2, message
        assert message in result.err
