"""Windows over a context: as the tokenizer itself would make them, nothing lost, answers to the character."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from bertree.errors import UserError
from bertree.tasks.squad import windows as spans
from bertree.tasks.squad.official import GoldAnswer, SquadExample
from bertree.tasks.squad.windows import windows
from bertree.tasks.task import Unit
from bertree.text import tokenizer_training
from bertree.text.tokenizer import Tokenizer
from tests.support.squad_samples import HARBOUR, QUESTIONS, SQUAD, SQUAD2, example, harbour


@pytest.fixture(scope="session", params=["minilm", "wordpiece", "bpe", "untrimmed", "unigram"])
def tokenizer(request: pytest.FixtureRequest, minilm: Path) -> Tokenizer:
    """The real BERT vocabulary and small ones of all kinds; "untrimmed" offsets include a space before a word."""
    if request.param == "minilm":
        return Tokenizer.load(minilm)
    books = (Path(__file__).parents[3] / "corpus" / "books.txt").read_text().split("\n\n")[:40]
    trained = tokenizer_training.train(lambda: [*books, HARBOUR], request.param.replace("untrimmed", "bpe"), 700)
    if request.param == "untrimmed":
        data = json.loads(trained.backend.to_str())
        assert data["post_processor"]["trim_offsets"]
        data["post_processor"]["trim_offsets"] = data["pre_tokenizer"]["trim_offsets"] = False
        return Tokenizer(Backend.from_str(json.dumps(data)), trained.config)
    return trained


def perfect(units: list[Unit]) -> list[np.ndarray]:
    """Logits of a head that has learned the units by heart."""
    logits = []
    for unit in units:
        rows = np.zeros((len(unit.chosen or ()), 2), np.float32)
        rows[unit.answer[0], 0] = rows[unit.answer[1], 1] = 9
        logits.append(rows)
    return logits


def test_windows_hold_every_token_and_every_answer() -> None:
    for tokens in (0, 1, 5, 99, 100, 101, 228, 229, 1000):
        for room, stride, answer in ((100, 128, 30), (100, 20, 30), (3, 128, 30), (1, 1, 1), (317, 128, 30)):
            slices = windows(tokens, room, stride, answer)
            assert {token for begin, end in slices for token in range(begin, end)} == set(range(tokens))
            assert all(end - begin <= room for begin, end in slices)
            assert len(slices) == 1 or slices[-2][1] < tokens, "none is there for nothing"
            length = min(answer, room // 2)
            for first in range(tokens - length + 1):
                assert any(begin <= first and first + length <= end for begin, end in slices)
    assert windows(300, 200, 64, 30) == [(0, 200), (64, 264), (128, 300)]


def test_one_window_is_the_tokenizers_own_pair(tokenizer: Tokenizer) -> None:
    examples = [*harbour(), example("", None), example("Why  so\nlate?", None, " ( leading and trailing )\n")]
    units, cut = SQUAD2.units(examples, tokenizer, 512)
    assert cut == (0, 0)
    for number, (unit, record) in enumerate(zip(units, examples, strict=True)):
        pair = tokenizer.backend.encode(record.question, record.context)
        assert unit.example == number
        assert unit.sequences[0].ids == pair.ids
        assert (unit.sequences[0].segments or [0] * len(pair.ids)) == pair.type_ids
        assert unit.chosen is not None
        assert unit.chosen[0] == 0
        assert list(unit.chosen[1:]) == [n for n, part in enumerate(pair.sequence_ids) if part == 1]


def test_several_windows_are_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    # The library overlaps by so many tokens, we step by so many: the same windows if both are told the same.
    (record,) = [example("How high is it?", "31 m", HARBOUR * 3)]
    special = tokenizer.backend.num_special_tokens_to_add(True)
    room = 64 - special - len(tokenizer.backend.encode(record.question, add_special_tokens=False).ids)
    units, _ = replace(SQUAD, stride=10, max_answer=5).units([record], tokenizer, 64)
    try:
        tokenizer.backend.enable_truncation(64, stride=room - 10, strategy="only_second")
        whole = tokenizer.backend.encode(record.question, record.context)
    finally:
        tokenizer.backend.no_truncation()
    assert len(units) > 5
    assert [unit.sequences[0].ids for unit in units] == [part.ids for part in (whole, *whole.overflowing)]


def test_answers_come_back_to_the_character(tokenizer: Tokenizer) -> None:
    for text in (HARBOUR, HARBOUR.upper() + "\n\n" + HARBOUR):
        examples = [
            SquadExample(e.id, e.question, text, tuple(GoldAnswer(a.text, text.index(a.text)) for a in e.answers or ()))
            for e in harbour()
        ]
        for max_length in (64, 512):
            task = replace(SQUAD, max_answer=60)
            units, _ = task.units(examples, tokenizer, max_length)
            lines = task.predict(examples, units, perfect(units))
            assert [line["gold"] for line in lines] == [[answer] for _, answer in QUESTIONS]
            for line in lines:
                assert text[line["start"] : line["end"]] == line["predicted"]
                # A piece may reach beyond an answer that ends within it, never into white space.
                assert line["gold"][0] in line["predicted"]
                assert len(line["predicted"]) <= len(line["gold"][0]) + 4
                assert line["predicted"] == line["predicted"].strip()
            if tokenizer.size > 10_000:
                assert task.score(examples, lines) == {"exact": 1.0, "f1": 1.0}


def test_training_uses_the_first_answer_and_marks_windows_without_it(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    context = "one two three four five six seven eight nine ten eleven twelve"
    first = SquadExample("q", "which ?", context, (GoldAnswer("nine ten", 40), GoldAnswer("one", 0)))
    task = replace(SQUAD2, stride=4, max_answer=2)
    units, _ = task.units([first, replace(first, answers=()), replace(first, answers=None)], tokenizer, 13)
    # Room for 8 tokens of context beside [CLS] which ? [SEP] ... [SEP].
    assert [unit.answer for unit in units] == [(0, 0), (5, 6), (0, 0), (0, 0), None, None]
    assert [unit.source.begin for unit in units] == [0, 4, 0, 4, 0, 4]
    assert units[1].chosen == [0, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [tokenizer.token(units[1].sequences[0].ids[units[1].chosen[n]]) for n in (5, 6)] == ["nine", "ten"]
    part, _ = task.units([replace(first, answers=(GoldAnswer("ine t", 41),))], tokenizer, 64)
    assert part[0].answer == (9, 10), "tokens that the answer touches"


def test_only_long_questions_are_cut(tokenizer: Tokenizer) -> None:
    long = example("why " * 100, "31 m")
    size = len(tokenizer.backend.encode(long.question, add_special_tokens=False).ids)
    units, cut = SQUAD.units([*harbour(), long], tokenizer, 384)
    assert cut == (1, size - 64)
    assert units[-1].sequences[0].dropped == size - 64
    assert units[-1].chosen is not None
    special = tokenizer.backend.num_special_tokens_to_add(True)
    assert len(units[-1].sequences[0].ids) == special + 64 + len(units[-1].chosen) - 1
    with pytest.raises(UserError, match="max_length 4: leaves no room"):
        SQUAD.units([long], tokenizer, 4)


def test_white_space_is_no_answer(tokenizer: Tokenizer) -> None:
    text = "so \n\n\n  \t be it"
    (unit,), _ = SQUAD.units([SquadExample("q", "?", text, ())], tokenizer, 64)
    context = unit.source.context
    blank = [n for n in range(len(context.ids)) if context.ends[n] <= context.starts[n]]
    rows = np.zeros((len(context.ids) + 1, 2), np.float32)
    for number in blank:
        rows[number + 1] = 9
    best = spans.best_spans([unit], [rows], 30, 20)
    assert best.spans
    assert all(span.start < span.end for span in best.spans)
    assert all(text[span.start : span.end] == text[span.start : span.end].strip() for span in best.spans)
