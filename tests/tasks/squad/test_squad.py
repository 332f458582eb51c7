"""SQuAD: the best span of all, the choice of no answer, and what the task says of itself."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.tasks.squad import windows as spans
from bertree.tasks.squad.official import GoldAnswer, SquadExample
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Tokenizer
from tests.support.squad_samples import HARBOUR, SQUAD, SQUAD2, example, harbour


def slow_best(units: list[Unit], logits: list[np.ndarray], max_answer: int) -> float:
    """The best score by looking at every pair of tokens in every window, as the rule reads."""
    best = -np.inf
    for number, (unit, rows) in enumerate(zip(units, logits, strict=True)):
        for first in range(1, len(rows)):
            place = unit.source.begin + first - 1
            around = []
            for other in units:
                size = len(other.chosen or ()) - 1
                left, right = place - other.source.begin, other.source.begin + size - 1 - place
                around.append(min(left, right) + 0.01 * size if min(left, right) >= 0 else -1.0)
            if around.index(max(around)) != number:
                continue
            for last in range(first, min(first + max_answer, len(rows))):
                best = max(best, float(rows[first, 0]) + float(rows[last, 1]))
    return best


def test_the_best_span_is_the_best(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    numbers = np.random.default_rng(3)
    for max_length, max_answer in ((40, 4), (60, 30), (384, 3)):
        task = replace(SQUAD2, stride=9, max_answer=max_answer)
        units, _ = task.units([example("How high?", "31 m")], tokenizer, max_length)
        for _ in range(5):
            logits = [numbers.normal(size=(len(unit.chosen or ()), 2)).astype(np.float32) for unit in units]
            best = spans.best_spans(units, logits, max_answer, 20)
            assert best.spans[0].score == pytest.approx(slow_best(units, logits, max_answer))
            assert [span.score for span in best.spans] == sorted((s.score for s in best.spans), reverse=True)
            assert len({HARBOUR[span.start : span.end] for span in best.spans}) == len(best.spans) <= 20
            assert best.null == pytest.approx(min(float(rows[0].sum()) for rows in logits))


def beam_rows(numbers: np.random.Generator, tokens: int) -> np.ndarray:
    """What a `BeamSpanHead` gives of a window's tokens: some of them are first ones."""
    rows = numbers.normal(size=(tokens, 8)).astype(np.float32)
    rows[:, 1], rows[:, 2] = 0, rows[0, 2]
    first = 1 + numbers.permutation(tokens - 1)[:5]
    rows[first, 1] = 1 + np.arange(len(first))
    return rows


def test_the_best_of_a_beam_is_the_best(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    numbers = np.random.default_rng(4)
    for max_length, max_answer in ((40, 4), (60, 30), (384, 3)):
        task = replace(SQUAD2, stride=9, max_answer=max_answer, head="beam")
        asked = [example("How high?", "31 m")]
        units, _ = task.units(asked, tokenizer, max_length)
        for _ in range(5):
            logits = [beam_rows(numbers, len(unit.chosen or ())) for unit in units]
            # For each first token alone, the scores of all pairs are those of the plain head.
            pairs = [np.full((5, len(rows), 2), -1e9, np.float32) for rows in logits]
            for rows, some in zip(logits, pairs, strict=True):
                for place in range(1, 6):
                    if (rows[:, 1] == place).any():
                        some[place - 1, rows[:, 1] == place, 0] = rows[rows[:, 1] == place, 0]
                        some[place - 1, :, 1] = rows[:, 2 + place]
            best = max(slow_best(units, [some[place] for some in pairs], max_answer) for place in range(5))
            chosen = spans.best_spans(units, logits, max_answer, 20, beam=True)
            scores = [span.score for span in chosen.spans]
            assert scores[0] == pytest.approx(best, rel=1e-6)
            assert scores == sorted(scores, reverse=True)
            odds = min(float(rows[0, 2]) for rows in logits)
            (line,) = task.predict(asked, units, logits)
            assert line["null_odds"] == pytest.approx(odds)
            assert line["null_score"] == pytest.approx(1 / (1 + np.exp(-odds)))
            assert line["best"]["score"] == pytest.approx(
                (1 - line["null_score"]) * np.exp(best) / np.exp(scores).sum()
            )
            assert (line["predicted"] == "") == (odds >= 0)


def test_a_window_without_tokens_has_no_beam(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    task = replace(SQUAD2, head="beam")
    asked = [SquadExample("q", "Which?", "\u00ad", None)]
    units, _ = task.units(asked, tokenizer, 64)
    assert [len(unit.chosen) for unit in units] == [1]
    (line,) = task.predict(asked, units, [np.ones((1, 8), np.float32)])
    assert (line["predicted"], line["null_odds"], line["score"]) == ("", 0.0, 1.0)


def test_the_limit_and_the_order_of_tokens_hold(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    item = example("Which?", None, "alpha beta gamma delta")
    units, _ = SQUAD.units([item], tokenizer, 64)
    rows = np.zeros((len(units[0].chosen or ()), 2), np.float32)
    rows[0] = 50  # the null token is no answer in 1.1
    words = [
        0,
        *(list(units[0].source.context.starts).index(item.context.index(w)) + 1 for w in item.context.split()),
    ]
    rows[words[1], 0], rows[words[2], 0], rows[words[1], 1], rows[-1, 1] = 5, 4.5, 3, 9

    def prediction(limit: int) -> str:
        return replace(SQUAD, max_answer=limit).predict([item], units, [rows])[0]["predicted"]

    size = len(rows) - 1
    assert prediction(size) == "alpha beta gamma delta"
    assert prediction(size - 1) == "beta gamma delta"
    rows[words[2], 0], rows[-1, 0] = 0, 1
    assert prediction(1) == "delta"  # 1 + 9 rather than alpha's 5 + at most 3


def test_most_around_a_token() -> None:
    # Token 3 has one token on its narrow side in both windows; the second window is longer.
    first, second = spans.most_context([(0, 5), (2, 8)])
    assert first.tolist() == [True, True, True, False, False]
    assert second.tolist() == [False, True, True, True, True, True]
    # The same on both sides: the first window.
    assert [own.tolist() for own in spans.most_context([(0, 3), (1, 4)])] == [[True, True, False], [False, True, True]]


def line_of(task: SquadTask, minilm: Path, null: float, span: float) -> Json:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    examples = [example("How high?", "31 m")]
    units, _ = task.units(examples, tokenizer, 384)
    rows = np.full((len(units[0].chosen or ()), 2), -20, np.float32)
    rows[0] = null / 2
    rows[units[0].answer[0], 0] = rows[units[0].answer[1], 1] = span / 2
    return task.predict(examples, units, [rows])[0]


def test_no_answer_wins_or_not(minilm: Path) -> None:
    line = line_of(SQUAD2, minilm, 3, 5)
    assert (line["predicted"], HARBOUR[line["start"] : line["end"]]) == ("31 m", "31 m")
    assert line["null_odds"] == pytest.approx(-2)
    assert line["score"] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-4)
    assert line["gold"] == ["31 m"]
    for tied in (line_of(SQUAD2, minilm, 5, 5), line_of(replace(SQUAD2, threshold=2.0), minilm, 3, 5)):
        # s_best > s_null + threshold, strictly
        assert (tied["predicted"], tied["start"], tied["end"]) == ("", None, None)
        assert tied["best"]["predicted"] == "31 m"
    none = line_of(replace(SQUAD2, threshold=2.5), minilm, 3, 5)
    assert none["score"] == pytest.approx(1 / (1 + np.exp(2)), rel=1e-4)
    # Another threshold, from the line alone.
    assert SQUAD2.apply_tuning([none]) == [line]
    assert replace(SQUAD2, threshold=2.5).apply_tuning([line]) == [none]
    assert json.loads(json.dumps(none)) == none
    plain = line_of(SQUAD, minilm, 30, 5)
    assert plain["predicted"] == "31 m"
    assert list(plain) == ["id", "question", "context", "gold", "predicted", "start", "end", "score"]


def decided(task: SquadTask, rows: list[tuple[str | None, str, float]]) -> tuple[list[SquadExample], list[Json]]:
    """Questions with a gold text or none, what is found for each, and the odds of no answer."""
    examples, lines = [], []
    for number, (gold, row, odds) in enumerate(rows):
        answers = () if gold is None else (GoldAnswer(gold, None),)
        examples.append(SquadExample(f"q{number}", "?", HARBOUR, answers))
        best = {"predicted": row, "start": 0, "end": len(row), "score": 0.5}
        lines.append({"id": f"q{number}", "null_odds": odds, "null_score": 0.5, "best": best})
    return examples, task.apply_tuning(lines)


def test_scores_and_threshold_of_version_2() -> None:
    rows = [("red", "red", -3.0), (None, "x", -1.0), ("blue sea", "blue", 1.0), (None, "y", 3.0), ("tea", "tea", 2.0)]
    examples, lines = decided(SQUAD2, rows)
    assert [line["predicted"] for line in lines] == ["red", "x", "", "", ""]
    scores = SQUAD2.score(examples, lines)
    assert scores == pytest.approx(
        {
            "exact": 2 / 5,
            "f1": 2 / 5,
            "has_answer_exact": 1 / 3,
            "has_answer_f1": 1 / 3,
            "no_answer_exact": 1 / 2,
            "no_answer_f1": 1 / 2,
            # Answered in the order of odds: exact 3 2 2 3 2, F1 3 2 2.67 3.67 2.67
            "best_exact": 3 / 5,
            "best_exact_threshold": -3.0,
            "best_f1": (3 + 2 / 3) / 5,
            "best_f1_threshold": 2.0,
        }
    )
    tuned = SQUAD2.tune(examples, lines)
    assert tuned.threshold == -2.5
    assert tuned.score(examples, tuned.apply_tuning(lines))["f1"] == pytest.approx(scores["best_f1"])
    assert tuned.settings() == {"stride": 128, "max_answer": 30, "threshold": -2.5}
    assert SQUAD.tune(examples, lines) is SQUAD
    # Nothing is worth answering.
    examples, lines = decided(SQUAD2, [(None, "x", -4.0), (None, "y", 1.0)])
    tuned = SQUAD2.tune(examples, lines)
    assert tuned.score(examples, tuned.apply_tuning(lines))["exact"] == 1


def test_scores_of_version_1() -> None:
    examples = harbour()[:3]
    lines = [{"id": e.id, "predicted": text} for e, text in zip(examples, ("Ida", "the 1868–71", ""), strict=True)]
    assert SQUAD.score(examples, lines) == pytest.approx({"exact": 1 / 3, "f1": (2 / 3 + 1 + 0) / 3})


def test_submission(minilm: Path) -> None:
    line = line_of(SQUAD2, minilm, 3, 5)
    files = SQUAD2.submission([], [line])
    assert files["predictions.json"] == '{"q": "31 m"}'
    assert json.loads(files["null_odds.json"]) == {"q": pytest.approx(-2)}
    with pytest.raises(UserError, match="same id"):
        SQUAD2.submission([], [line, line])
    assert list(SQUAD.submission([], [line])) == ["predictions.json"]


def test_what_predict_is_given(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    from_line = SQUAD.parse("How high?\tIt is 31 m high.\n")
    assert from_line == SQUAD.parse({"question": "How high?", "context": "It is 31 m high."})
    assert SQUAD.parse({"id": 7, "question": "a", "context": "b\ud800"}) == SquadExample("7", "a", "b\ufffd")
    for wrong in ("no tab", "question only\t ", {"question": "a"}, {"question": "a", "context": 3}):
        with pytest.raises(UserError):
            SQUAD.parse(wrong)
    # A context without a single token: no answer, in both versions.
    nothing = SQUAD.parse("Why?\t\u200b")
    for task in (SQUAD, SQUAD2):
        units, _ = task.units([from_line, nothing], tokenizer, 64)
        lines = task.predict(
            [from_line, nothing], units, [np.zeros((len(u.chosen or ()), 2), np.float32) for u in units]
        )
        assert "gold" not in lines[0]
        assert (lines[1]["predicted"], lines[1]["start"]) == ("", None)
        assert json.loads(json.dumps(lines, allow_nan=False))


def test_wrong_settings() -> None:
    with pytest.raises(UserError, match=r"task 'squat'.*'squad'"):
        SquadTask("squat")
    for name in ("stride", "max_answer", "best"):
        with pytest.raises(UserError, match=f"{name} 0: .*at least 1"):
            replace(SQUAD, **{name: 0})
    with pytest.raises(UserError, match="head 'beem': unknown; did you mean 'beam'"):
        replace(SQUAD, head="beem")
    assert replace(replace(SQUAD, head="beam"), stride=5).head == "beam-span"
    assert SQUAD.for_heads({"beam-span": 0}).head == "beam-span"
    assert replace(SQUAD, head="beam").for_heads({"span": 2}).head == "span"
    assert (SQUAD.classes, SQUAD.head, SQUAD.metric, SQUAD.max_length) == (2, "span", "f1", 384)
