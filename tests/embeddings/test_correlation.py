"""Correlations against scipy's, their means over parts, and what is said where there are none."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import distance
from scipy.stats import pearsonr, spearmanr

from bertree.embeddings import correlation
from bertree.embeddings.correlation import MEASURES, EncoderScores, evaluation_page
from bertree.embeddings.sts import PairPart, PairSet
from bertree.embeddings.word_vectors import WordVectors, words_of
from bertree.errors import UserError
from tests.support.pages import Page


def part(name: str, gold: list[float]) -> PairPart:
    texts = tuple(f"{name} {n}" for n in range(len(gold)))
    lines = tuple(range(1, len(gold) + 1))
    return PairPart(name=name, file=f"{name}.txt", first=texts, second=texts, gold=np.array(gold), lines=lines)


def vectors(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 7)).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_scipy_with_ties(seed: int) -> None:
    draw = np.random.default_rng(seed)
    gold = draw.integers(0, 4, 60).astype(float)  # nearly everything is tied
    first, second = np.round(vectors(60, seed)), np.round(vectors(60, seed + 100))
    scores = correlation.measures(first, second)
    figures = correlation.correlations(gold, scores)
    theirs = {
        "cosine": [1 - distance.cosine(a, b) for a, b in zip(first, second, strict=True)],
        "dot": [float(a @ b) for a, b in zip(first, second, strict=True)],
        "euclidean": [-distance.euclidean(a, b) for a, b in zip(first, second, strict=True)],
        "manhattan": [-distance.cityblock(a, b) for a, b in zip(first, second, strict=True)],
    }
    for measure in MEASURES:
        assert np.allclose(scores[measure], theirs[measure], atol=1e-6)
        assert figures["pearson"][measure] == pytest.approx(100 * pearsonr(gold, scores[measure]).statistic)
        assert figures["spearman"][measure] == pytest.approx(100 * spearmanr(gold, scores[measure]).statistic)


def test_more_alike_is_more_for_every_measure() -> None:
    first = np.array([[1, 0], [1, 0], [1, 0]], np.float32)
    second = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
    for values in correlation.measures(first, second).values():
        assert values[0] > values[1] > values[2]


def test_the_three_ways_to_sum_up_parts() -> None:
    pairs = PairSet("set", (part("a", [1, 2, 3, 4, 5]), part("b", [5, 1, 4])))
    sides = [(vectors(5, 1), vectors(5, 2)), (vectors(3, 3), vectors(3, 4))]
    scores = correlation.score_set(pairs, sides)
    each = [scores.parts[name]["spearman"]["dot"] for name in ("a", "b")]
    assert scores.mean is not None
    assert scores.weighted is not None
    assert scores.mean["spearman"]["dot"] == pytest.approx(sum(each) / 2)
    assert scores.weighted["spearman"]["dot"] == pytest.approx((5 * each[0] + 3 * each[1]) / 8)
    dots = np.concatenate([(a.astype(float) * b).sum(1) for a, b in sides])
    gold = [1, 2, 3, 4, 5, 5, 1, 4]
    assert scores.overall["spearman"]["dot"] == pytest.approx(100 * spearmanr(gold, dots).statistic)
    assert [name for name, _ in scores.rows] == ["all", "mean", "weighted mean", "a", "b"]


def test_one_part_has_one_figure() -> None:
    scores = correlation.score_set(PairSet("set", (part("a", [1, 2, 3]),)), [(vectors(3, 1), vectors(3, 2))])
    assert [name for name, _ in scores.rows] == ["all"]


def test_where_all_is_the_same_there_is_no_correlation_and_that_is_said() -> None:
    pairs = PairSet("set", (part("a", [1, 2, 3]), part("b", [2, 2, 2])))
    same = np.ones((3, 7), np.float32)
    scores = correlation.score_set(pairs, [(same, same), (vectors(3, 1), vectors(3, 2))])
    assert scores.parts["a"]["spearman"]["cosine"] is None
    assert scores.mean is not None
    assert scores.mean["pearson"]["dot"] is None
    assert scores.overall["spearman"]["cosine"] is not None
    lines = correlation.undefined(pairs, scores)
    assert any("set, a: cosine, dot, euclidean, manhattan is the same" in line for line in lines)
    assert any("set, b: gold is the same" in line for line in lines)


def test_a_vector_of_zeros_is_like_nothing() -> None:
    scores = correlation.measures(np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32))
    assert scores["cosine"].tolist() == [0.0, 0.0]


def test_one_pair_is_too_few() -> None:
    with pytest.raises(UserError, match="needs two"):
        correlation.check(PairSet("set", (part("a", [1]),)))


def test_the_page_says_what_came_out() -> None:
    pairs = PairSet("my set", (part("p", [float(n % 6) for n in range(60)]),))
    scores = correlation.score_set(pairs, [(vectors(60, 1), vectors(60, 2))])
    value = scores.overall["spearman"]["cosine"]
    page = Page(evaluation_page("run", [pairs], [EncoderScores("an encoder", 7, (scores,), value)]))
    assert page.seen.count("circle") == 60
    assert f"Sentence similarity: {value:.2f} on my set" in page.text
    low, high = scores.intervals["spearman"]
    assert low < value < high
    assert page.row("an encoder") == ["7", f"{value:.2f}{low:.1f} to {high:.1f}"]
    assert page.titles() == ["an encoder"]


def glove(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_mean_of_words(tmp_path: Path) -> None:
    path = glove(tmp_path / "g.txt", ["dog 1 0", "run 0 1", "do 2 2", "n't 4 4", "well 0 8", "known 8 0"])
    table = WordVectors.read(path)
    assert table.dimension == 2
    assert table.mean("Dog, RUN!").tolist() == [0.5, 0.5]
    assert table.mean("don't").tolist() == [3.0, 3.0]
    assert table.mean("well-known").tolist() == [4.0, 4.0]
    assert table.embed(["xyzzy", ""]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_only_the_words_that_are_needed_are_read(tmp_path: Path) -> None:
    path = glove(tmp_path / "g.txt", ["dog 1 0", "broken here", "run 0 1", ". . . 1 2", "well 3 3"])
    table = WordVectors.read(path, words_of(["A dog.", "well-done"]))
    assert set(table.rows) == {"dog", "well"}
    with pytest.raises(UserError, match="line 2: is not a word and its numbers"):
        WordVectors.read(path)
    with pytest.raises(UserError, match="none of the words"):
        WordVectors.read(path, words_of(["unheard"]))


def test_the_most_frequent_words_can_be_left_out(tmp_path: Path) -> None:
    names = ["the", *(f"w{n}" for n in range(99)), "dog"]
    table = WordVectors.read(glove(tmp_path / "g.txt", [f"{name} {n} 1" for n, name in enumerate(names)]))
    assert table.embed(["the dog"]).tolist() == [[50.0, 1.0]]
    assert table.embed(["the dog", "the"], content=True).tolist() == [[100.0, 1.0], [0.0, 1.0]]


def test_other_forms_of_word_files(tmp_path: Path) -> None:
    import lzma

    packed = tmp_path / "g.txt.xz"
    packed.write_bytes(lzma.compress(b"2 3\ndog 1 2 3\nrun 4 5 6\n"))  # word2vec's form says how many there are
    assert WordVectors.read(packed).table.tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(UserError, match="line 2: has 1 numbers"):
        WordVectors.read(glove(tmp_path / "short.txt", ["dog 1 2", "run 1"]))
    with pytest.raises(UserError, match="holds no vectors"):
        WordVectors.read(glove(tmp_path / "empty.txt", [""]))
    with pytest.raises(UserError, match="cannot be read"):
        WordVectors.read(tmp_path / "nothing.txt")
