"""SQuAD's exact match and F1 over normalized words, by the rules of each version's official script.

Both versions lower-case the text, remove ASCII punctuation and articles, and collapse white space; the best gold
answer of a question counts. They differ if nothing is left of a text: in version 1.1 two empty texts have an F1 of 0,
in version 2.0 they have 1, since "no answer" is an answer there. A question without a prediction scores 0 here; the
script of version 2.0 stops with an error.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.tasks.intervals import Statistic

Figures = NDArray[np.float64]
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class QuestionScores(NamedTuple):
    """One score per question."""

    exact: Figures
    f1: Figures


class BestThreshold(NamedTuple):
    """The best score that a threshold on the null odds can give: questions with odds up to it are answered."""

    share: float
    threshold: float


@lru_cache(maxsize=1 << 16)  # the gold answers of a question are often the same text
def normalize(text: str) -> str:
    """Lower-case a text and remove ASCII punctuation, articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(gold: str, predicted: str) -> float:
    """Return 1 if both texts are the same after normalizing."""
    return float(normalize(gold) == normalize(predicted))


def f1(gold: str, predicted: str, empty_counts: bool) -> float:
    """Return the overlap of two bags of words. `empty_counts`: two empty bags agree (version 2.0)."""
    expected, actual = normalize(gold).split(), normalize(predicted).split()
    if not expected or not actual:
        return float(empty_counts and expected == actual)
    common = sum((Counter(expected) & Counter(actual)).values())
    if common == 0:
        return 0.0
    # The same order of operations as the scripts', so that the last bit agrees.
    precision, recall = common / len(actual), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def score_questions(golds: Sequence[Sequence[str]], predicted: Sequence[str | None], version: int) -> QuestionScores:
    """Return exact match and F1 of every question; `golds` has its gold texts, none if it has no answer (version 2)."""
    counted = QuestionScores(np.zeros(len(golds)), np.zeros(len(golds)))
    for number, (texts, text) in enumerate(zip(golds, predicted, strict=True)):
        if text is None:
            continue
        expected = set(texts) if version == 1 else {gold for gold in texts if normalize(gold)} or {""}
        counted.exact[number] = max((exact(gold, text) for gold in expected), default=0.0)
        counted.f1[number] = max((f1(gold, text, version == 2) for gold in expected), default=0.0)
    return counted


def mean_score(figures: Figures, questions: NDArray[np.bool_] | None = None) -> float:
    """Return the mean over the selected questions; 0 if there are none."""
    figures = figures if questions is None else figures[questions]
    # A plain sum, as the scripts do: numpy adds in pairs and may differ in the last bit.
    return sum(figures.tolist()) / len(figures) if len(figures) else 0.0


def best_threshold(
    counted: Figures, answered: Sequence[bool], has_answer: Sequence[bool], odds: Sequence[float]
) -> BestThreshold:
    """Search as the script of version 2.0: return the first threshold on the null odds with the highest mean score.

    `counted` is the score of each question if it is answered, `answered` whether its prediction is not empty. If
    answering nothing is best, the script returns 0, whatever the odds are."""
    answerable = np.asarray(has_answer, bool)
    order = np.argsort(np.asarray(odds, np.float64), kind="stable")
    change = np.where(answerable, counted, -np.asarray(answered, np.float64))[order]
    totals = np.concatenate([[np.float64((~answerable).sum())], change]).cumsum()
    where = int(totals.argmax())
    return BestThreshold(float(totals[where]) / max(len(order), 1), float(odds[order[where - 1]]) if where else 0.0)


def best_statistic(
    counted: Figures, answered: Sequence[bool], has_answer: Sequence[bool], odds: Sequence[float]
) -> Statistic:
    """Return the score of `best_threshold` for samples of the questions, in each of which the threshold is searched."""
    change_n = np.where(np.asarray(has_answer, bool), counted, -np.asarray(answered, np.float64))
    rows_n3 = np.stack([np.asarray(odds, np.float64), change_n, 1.0 - np.asarray(has_answer, np.float64)], 1)

    def best(counts_bm: Figures, cells_m3: Figures) -> Figures:
        order = np.argsort(cells_m3[:, 0], kind="stable")
        totals_bm = (counts_bm * cells_m3[:, 1])[:, order].cumsum(1)
        scores_b: Figures = (np.maximum(totals_bm.max(1), 0) + counts_bm @ cells_m3[:, 2]) / counts_bm.sum(1)
        return scores_b

    return Statistic(rows_n3, best)


def best_null_odds(answering: Figures, refusing: Figures, odds: Sequence[float]) -> float:
    """Return the null odds below which questions are answered for the highest mean score.

    Unlike the script's, this threshold separates no questions with equal odds, lies half way between two odds so that
    rounding does not matter, and works if answering nothing, or everything, is best."""
    order = np.argsort(np.asarray(odds, np.float64), kind="stable")
    if not len(order):
        return 0.0
    ascending = np.asarray(odds, np.float64)[order]
    totals = np.concatenate([[0.0], (answering - refusing)[order]]).cumsum()
    parts = np.concatenate([[True], ascending[1:] > ascending[:-1], [True]])
    where = int(np.where(parts, totals, -np.inf).argmax())
    low = float(ascending[where - 1]) if where else float(ascending[0]) - 2.0
    high = float(ascending[where]) if where < len(order) else low + 2.0
    middle = low + (high - low) / 2
    return middle if middle > low else high
