"""`embeddings evaluate`, `similar`, `pairs` and `cluster` as a user runs them, on real weights."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

import bertree
from bertree.cli.embeddings import _percent
from bertree.model.pooling import PoolingConfig
from tests.support.command import Command
from tests.support.topics import JUDGED

TOPICS = [
    "How do I send goods back?",
    "How can I return an item?",
    "What is the way to return goods?",
    "My parcel has not arrived.",
    "The parcel has still not come.",
    "Our parcel has not come yet.",
    "The cello is my favourite instrument.",
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("first", "second", "points"), *JUDGED])
    return path


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TOPICS, "", TOPICS[0]]) + "\n")
    return path


def columns() -> tuple[str, ...]:
    return "--text", "first", "--pair", "second", "--label", "points"


def test_evaluate_with_its_baselines(command: Command, minilm: Path, table: Path, tmp_path: Path) -> None:
    words = sorted({word.strip(".").lower() for a, b, _ in JUDGED for word in f"{a} {b}".split()})
    draw = np.random.default_rng(0).standard_normal((len(words), 5))
    glove = tmp_path / "glove.txt"
    glove.write_text("".join(f"{w} {' '.join(f'{x:.4f}' for x in row)}\n" for w, row in zip(words, draw, strict=True)))
    out = tmp_path / "judged"
    arguments = (
        "embeddings",
        "evaluate",
        minilm,
        "--pooling",
        "cls",
        "--pooling",
        "mean",
        "--glove",
        glove,
        "--data",
        table,
    )
    result = command.well(*arguments, *columns(), "--out", out, "--json")
    report = json.loads(result.out)
    assert report == json.loads((out / "metrics.json").read_text())
    names = [encoder["pooling"] for encoder in report["encoders"]]
    assert names == ["cls", "mean", "mean", "mean of content words"]
    model, gold = bertree.load(minilm), [points for _, _, points in JUDGED]
    for encoder in report["encoders"][:2]:
        model.vector = PoolingConfig(pooling=encoder["pooling"], normalize=True)
        first, second = (model.embed([pair[side] for pair in JUDGED]) for side in (0, 1))
        values = (first * second).sum(1)
        figures = encoder["sets"]["pairs"]["all"]
        assert figures["spearman"]["cosine"] == pytest.approx(100 * spearmanr(gold, values).statistic)
        assert figures["pearson"]["dot"] == pytest.approx(100 * pearsonr(gold, values).statistic, abs=1e-3)
        assert figures["pearson"]["manhattan"] == pytest.approx(
            100 * pearsonr(gold, -np.abs(first - second).sum(1)).statistic, abs=1e-3
        )
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 4 * len(JUDGED)
    assert (lines[0]["text"], lines[0]["gold"], lines[0]["line"]) == (JUDGED[0][0], 4.6, 2)
    assert "<svg" in (out / "report.html").read_text()
    again = command(*arguments, *columns(), "--out", out)
    assert (again.code, "exists already" in again.err) == (2, True)


def test_evaluate_several_sets_as_tables(command: Command, minilm: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("STS12-en-test", "STS13-en-test")):
        folder = tmp_path / "sts" / name
        folder.mkdir(parents=True)
        for part in ("news", "forum")[: number + 1]:
            (folder / f"STS.input.{part}.txt").write_text("".join(f"{a}\t{b}\n" for a, b, _ in JUDGED))
            (folder / f"STS.gs.{part}.txt").write_text("".join(f"{points}\n" for _, _, points in JUDGED[:-1]) + "\n")
    result = command.well("embeddings", "evaluate", minilm, "--data", tmp_path / "sts")
    assert "STS12: 5 pairs" in result.out
    assert "STS13: 10 pairs" in result.out
    assert "weighted mean" in result.out
    assert "average" in result.out
    assert "STS13: 2 pairs have no gold" in result.err
    assert "nan" not in result.out.lower()


def test_evaluate_says_where_there_is_no_correlation(command: Command, minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "same.csv").write_text("sentence1,sentence2,score\na,a,1\nb,b,2\nc,c,3\n")
    result = command.well("embeddings", "evaluate", minilm, "--data", tmp_path / "same.csv", "--json")
    figures = json.loads(result.out)["encoders"][0]["sets"]["same"]["all"]
    assert figures["spearman"]["cosine"] is None
    assert "is the same for all pairs, so there is no correlation" in result.err


def test_evaluate_mistakes(command: Command, minilm: Path, table: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    for arguments, says in (
        ((minilm, "--data", tmp_path / "none"), "no such file or folder"),
        ((minilm, "--data", table), "has no column"),
        (("--data", table, *columns()), "name a model, or --glove"),
        ((minilm, "--data", table, *columns(), "--pooling", "men"), "did you mean 'mean'"),
        ((minilm, "--data", table, *columns(), "--out", tmp_path / "full"), "holds mine.txt"),
        ((minilm, "--data", table, *columns(), "--glove", tmp_path / "no.txt"), "cannot be read"),
        ((tmp_path / "no", "--data", table, *columns()), "no such folder"),
    ):
        result = command("embeddings", "evaluate", *arguments)
        assert (result.code, says in result.err) == (2, True), result.err
        assert result.err.count("\n") == 1


def test_similar_of_two_texts(command: Command, minilm: Path) -> None:
    model = bertree.load(minilm)
    expected = float(model.similarity(TOPICS[0], TOPICS[1])[0, 0])
    cosine, _, reading = command.well("similar", minilm, TOPICS[0], TOPICS[1]).out.partition("  ")
    assert float(cosine) == pytest.approx(expected, abs=1e-4)
    report = json.loads(command.well("similar", minilm, TOPICS[0], TOPICS[1], "--json").out)
    assert report["cosine"] == pytest.approx(expected, abs=1e-5)
    assert report["percentile"] == pytest.approx(float(model.percentile(expected)), abs=0.05)
    assert float(reading.split()[3]) == pytest.approx(report["percentile"], abs=1)
    assert reading.endswith("% of random pairs\n")


def test_percentages_are_rounded_down() -> None:
    assert [_percent(value) for value in (0, 53.9, 98.99, 99.619, 99.999, 100)] == [
        *("0 %", "53 %", "98 %", "99.61 %", "99.99 %", "100 %"),
    ]


def test_similar_says_what_was_cut_and_what_is_empty(command: Command, minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n")
    errors = command.well("similar", minilm, "word " * 600, tmp_path / "a.txt").err
    assert "the first text: 1 texts cut to 256 tokens" in errors
    assert "a.txt: 1 of 3 rows are empty" in errors
    assert "the second text is empty" in command.well("similar", minilm, "One.", " ").err
    assert f"{tmp_path}: is a folder too" in command.well("similar", minilm, tmp_path, "One.").err


def test_similar_of_files(command: Command, minilm: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("I want to give it back.\nI play music.\n")
    result = command.well("similar", minilm, tmp_path / "asked.txt", texts, "-k", "2", "--json")
    first, second = (json.loads(line) for line in result.out.splitlines())
    assert first["matches"][0]["row"] in (1, 2, 3, 9)
    assert (second["row"], second["matches"][0]["row"], len(second["matches"])) == (2, 7, 2)
    result = command.well("similar", minilm, "I play music.", texts, "-k", "100")
    assert "7  The cello is my favourite instrument." in result.out.splitlines()[1]
    result = command("similar", minilm, "nothing.txt", texts)
    assert (result.code, "no such file" in result.err) == (2, True)


def test_pairs(command: Command, minilm: Path, texts: Path, tmp_path: Path) -> None:
    result = command.well("pairs", minilm, texts, "--min-similarity", "0.5", "--json")
    report = json.loads(result.out)
    model = bertree.load(minilm)
    every = model.similarity(TOPICS, TOPICS)
    expected = {(i + 1, j + 1) for i in range(7) for j in range(i + 1, 7) if every[i, j] >= 0.5}
    assert {tuple(pair["rows"]) for pair in report["pairs"]} == expected != set()
    assert report["duplicates"] == [{"rows": [1, 9], "text": TOPICS[0]}]
    out = tmp_path / "pairs.csv"
    command.well("pairs", minilm, texts, "--min-similarity", "0.5", "-k", "2", "--out", out)
    rows = list(csv.DictReader(out.open()))
    assert [row["text1"] for row in rows] == [pair["texts"][0] for pair in report["pairs"][:2]]
    assert [float(row["cosine"]) for row in rows] == [pair["cosine"] for pair in report["pairs"][:2]]
    assert "same    1, 9" in command.well("pairs", minilm, texts, "--duplicates").out
    assert "no two texts" in command.well("pairs", minilm, texts, "--min-similarity", "0.999").out


def test_vectors_of_embed_are_taken_instead_of_the_model(
    command: Command, minilm: Path, texts: Path, tmp_path: Path
) -> None:
    command.well("embed", minilm, texts, "--out", tmp_path / "v.npy")
    plain = command.well("pairs", minilm, texts, "--min-similarity", "0.5", "--json").out
    taken = command.well(
        "pairs", minilm, texts, "--min-similarity", "0.5", "--json", "--vectors", tmp_path / "v.npy"
    ).out
    assert [p["rows"] for p in json.loads(taken)["pairs"]] == [p["rows"] for p in json.loads(plain)["pairs"]]


def test_cluster_by_likeness(command: Command, minilm: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "clusters.jsonl"
    result = command.well("cluster", minilm, texts, "--min-similarity", "0.6", "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["row"] for row in rows] == list(range(1, 10))
    labels = [row["cluster"] for row in rows]
    assert labels[0] == labels[1] == labels[2] == labels[8] == 1
    assert labels[3] == labels[4] == labels[5] == 2
    assert labels[6] is None
    assert labels[7] is None
    assert "1 texts belong to no cluster" in result.out
    assert "1 empty rows belong to no cluster" in result.err


def test_cluster_into_so_many(command: Command, minilm: Path, texts: Path) -> None:
    arguments = ("cluster", minilm, texts, "--clusters", "3", "--seed", "4", "--json")
    output = command.well(*arguments).out
    assert output == command.well(*arguments).out
    report = json.loads(output)
    assert [cluster["size"] for cluster in report["clusters"]] == [4, 3, 1]
    assert set(report["clusters"][0]["rows"]) == {1, 2, 3, 9}
    assert report["clusters"][2]["central"] == {"row": 7, "text": TOPICS[6]}


def test_mistakes_are_one_line(command: Command, minilm: Path, texts: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text("alone\n")
    (tmp_path / "there.csv").write_text("")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for arguments, says in (
        (("cluster", minilm, file, "--clusters", "2"), "one.txt has 1 text; ask for fewer"),
        (("cluster", minilm, texts, "--min-similarity", "2"), "a cosine lies between -1 and 1"),
        (("cluster", minilm, texts, "--out", tmp_path / "there.csv"), "exists already"),
        (("cluster", minilm, texts, "--out", tmp_path / "there.xls"), "give it such an ending"),
        (("cluster", minilm, tmp_path / "table.csv"), "which column is the text"),
        (("pairs", minilm, file), "pairs need two"),
        (("pairs", minilm, tmp_path / "no.txt"), "no such file"),
        (("pairs", minilm, texts, "--vectors", tmp_path / "no.npy"), "cannot be read"),
        (("similar", tmp_path / "no", "a", "b"), "no such folder"),
    ):
        result = command(*arguments)
        assert (result.code, says in result.err) == (2, True), result.err
        assert [line for line in result.err.splitlines() if "note:" not in line][1:] == []
