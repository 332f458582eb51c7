"""SQuAD: files that are right and wrong, windows that lose nothing, answers read back to the character."""

import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend

from bertree.errors import BertreeWarning, UserError
from bertree.files import Json
from bertree.tasks import squad_spans
from bertree.tasks.squad import SquadTask
from bertree.tasks.squad_read import Answer, SquadExample
from bertree.tasks.squad_windows import windows
from bertree.tasks.task import Unit
from bertree.text import training
from bertree.text.tokenizer import Tokenizer

HARBOUR = (
    "The harbour of Ålsund was dug in 1868–71 by the engineer Ida Vennström’s company.  It froze every\n"
    "winter until the (warm-water) outlet of the paper mill kept it open; 42 ships a day, 9 of them ferries, "
    "now call there. Its lighthouse, the “Old Lady”, is 31 m high and was painted red in 1903."
)
QUESTIONS = [
    ("Who dug the harbour?", "Ida Vennström"),
    ("When was it dug?", "1868–71"),
    ("How high is the lighthouse?", "31 m"),
    ("What is the lighthouse called?", "Old Lady"),
    ("What kept it open?", "(warm-water) outlet of the paper mill"),
    ("How many ships are ferries?", "9"),
]
SQUAD, SQUAD2 = SquadTask("squad"), SquadTask("squad2")


def example(question: str, text: str | None, context: str = HARBOUR, identity: str = "q") -> SquadExample:
    answers = () if text is None else (Answer(text, context.index(text)),)
    return SquadExample(identity, question, context, answers)


def harbour(text: str = HARBOUR) -> list[SquadExample]:
    return [example(question, answer, text, f"q{n}") for n, (question, answer) in enumerate(QUESTIONS)]


def question(identity: str = "q1", text: str = "1868–71", **more: object) -> Json:
    answer = {"text": text, "answer_start": HARBOUR.find(text)}
    return {"id": identity, "question": "When was it dug?", "answers": [answer]} | more


def layout(*questions: Json) -> Json:
    paragraph = {"context": HARBOUR, "qas": list(questions)}
    return {"version": "1.1", "data": [{"title": "Ålsund", "paragraphs": [paragraph]}]}


def written(folder: Path, data: object, name: str = "train.json") -> Path:
    raw = json.dumps(data).encode()
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)(raw)
    (folder / name).write_bytes(packed)
    return folder / name


@pytest.fixture(scope="session", params=["minilm", "wordpiece", "bpe", "untrimmed", "unigram"])
def tokenizer(request: pytest.FixtureRequest, minilm: Path) -> Tokenizer:
    """The real BERT vocabulary and small ones of all kinds; "untrimmed" offsets include a space before a word."""
    if request.param == "minilm":
        return Tokenizer.load(minilm)  # type: ignore[return-value]
    books = (Path(__file__).parent.parent.parent / "corpus" / "books.txt").read_text().split("\n\n")[:40]
    found = training.train(lambda: [*books, HARBOUR], request.param.replace("untrimmed", "bpe"), 700)
    if request.param == "untrimmed":
        data = json.loads(found.backend.to_str())
        assert data["post_processor"]["trim_offsets"]
        data["post_processor"]["trim_offsets"] = data["pre_tokenizer"]["trim_offsets"] = False
        return Tokenizer(Backend.from_str(json.dumps(data)), found.config)
    return found


def perfect(units: list[Unit]) -> list[np.ndarray]:
    """Logits of a head that has learned the units by heart."""
    made = []
    for unit in units:
        rows = np.zeros((len(unit.chosen or ()), 2), np.float32)
        rows[unit.answer[0], 0] = rows[unit.answer[1], 1] = 9
        made.append(rows)
    return made


# Files


@pytest.mark.parametrize("name", ["train.json", "train.json.gz", "train.json.xz"])
def test_reads_the_official_layout(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, layout(question(), question("q2", "Old Lady")), name)
    first, second = SQUAD.read([path])
    assert first == SquadExample("q1", "When was it dug?", HARBOUR, (Answer("1868–71", HARBOUR.index("1868–71")),))
    assert second.answers == (Answer("Old Lady", HARBOUR.index("Old Lady")),)
    assert [e.id for e in SQUAD2.read([path, path])] == ["q1", "q2", "q1", "q2"]


def test_a_file_without_a_version_or_without_answers(tmp_path: Path) -> None:
    data = layout(question(), {"id": "q2", "question": "Why?"})
    del data["version"]
    known, unknown = SQUAD.read([written(tmp_path, data)])
    assert known.answers
    assert unknown.answers is None
    with pytest.raises(UserError, match=r"question q2: has no gold answers"):
        SQUAD.score([known, unknown], [{"predicted": "x"}] * 2)


def test_questions_without_an_answer(tmp_path: Path) -> None:
    impossible = question(is_impossible=True, answers=[], plausible_answers=[{"text": "1903", "answer_start": 1}])
    path = written(tmp_path, layout(question("q0", is_impossible=False), impossible))
    assert [bool(e.answers) for e in SQUAD2.read([path])] == [True, False]
    with pytest.raises(UserError, match=r"train.json: question q1: is marked .* 'squad2'$"):
        SQUAD.read([path])
    with pytest.raises(UserError, match=r"question q1: has no answer; .* 'squad2'$"):
        SQUAD.read([written(tmp_path, layout(question(answers=[])))])
    with pytest.raises(UserError, match=r"question q1: is marked as one without an answer but has answers"):
        SQUAD2.read([written(tmp_path, layout(question(is_impossible=True)))])


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("1868–71", HARBOUR.index("1868") - 4, "1868–71"),
        (" 1868–71 ", HARBOUR.index("1868") + 3, "1868–71"),
        ("company. It froze every winter", HARBOUR.index("company"), "company.  It froze every\nwinter"),
        ("the", HARBOUR.index("the paper") + 2, "the"),  # the nearest of several
    ],
)
def test_an_answer_beside_its_place_is_put_right(tmp_path: Path, text: str, start: int, found: str) -> None:
    path = written(tmp_path, layout(question(answers=[{"text": text, "answer_start": start}])))
    with pytest.warns(BertreeWarning, match="train.json: 1 answers .* put right"):
        (read,) = SQUAD.read([path])
    assert read.answers is not None
    assert read.answers[0].text == found
    assert read.answers[0].start is not None
    assert HARBOUR.startswith(found, read.answers[0].start)
    assert abs(read.answers[0].start - start) <= 10


def test_an_answer_that_is_not_there(tmp_path: Path) -> None:
    data = layout(question(answers=[{"text": "in 1999", "answer_start": 5}]))
    with pytest.raises(UserError, match=r"train.json: question q1: an answer text that does not stand in its context"):
        SQUAD.read([written(tmp_path, data)])
    far = layout(question(answers=[{"text": "1868–71", "answer_start": 100}]))
    with pytest.raises(UserError, match="does not stand in its context"):
        SQUAD.read([written(tmp_path, far)])
    # For scoring the text is enough.
    (read,) = SQUAD.read([written(tmp_path, data, "my-dev.json")])
    assert read.answers == (Answer("in 1999", None),)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ([], "must hold a JSON object"),
        ({}, "the file: has no 'data'"),
        ({"data": {}}, "'data' must be a list"),
        ({"data": []}, "holds no questions"),
        ({"data": [{"paragraphs": []}]}, "holds no questions"),
        ({"data": [3]}, "article 1: must be an object"),
        ({"data": [{"title": "x"}]}, "article 1: has no 'paragraphs'; there are: title"),
        ({"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}, "paragraph 1: 'context' must be a text"),
        ({"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}, "paragraph 1: its context is empty"),
        (layout({"question": "Why?"}), "question 1: has no 'id'"),
        (layout(question(identity=7)), "question 1: 'id' must be a text"),  # type: ignore[arg-type]
        (layout(question(question=None)), "question q1: 'question' must be a text"),
        (layout(question(answers="x")), "question q1: 'answers' must be a list"),
        (layout(question(answers=[{"text": "x"}])), "question q1: has no 'answer_start'; there are: text"),
        (layout(question(answers=[{"text": "T", "answer_start": True}])), "'answer_start' must be a whole number"),
        (layout(question(answers=[{"text": "T", "answer_start": -1}])), "answer_start -1 lies outside"),
        (layout(question(answers=[{"text": "T", "answer_start": 9999}])), "answer_start 9999 lies outside"),
        (layout(question(answers=[{"text": " ", "answer_start": 0}])), "an answer text that is empty"),
        (layout(question(is_impossible="no")), "'is_impossible' must be true or false"),
    ],
)
def test_wrong_files(tmp_path: Path, data: object, line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        SQUAD.read([written(tmp_path, data)])
    assert str(caught.value).startswith(str(tmp_path / "train.json"))
    assert "\n" not in str(caught.value)


def test_damaged_files(tmp_path: Path) -> None:
    for suffix in (".gz", ".xz"):
        path = written(tmp_path, layout(question()), f"train.json{suffix}")
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(UserError, match="is damaged or cut off"):
            SQUAD.read([path])
        path.write_bytes(b"{}")
        with pytest.raises(UserError, match="is damaged or cut off"):
            SQUAD.read([path])
    (tmp_path / "a.json").write_bytes(b"{\xff}")
    with pytest.raises(UserError, match="is not UTF-8"):
        SQUAD.read([tmp_path / "a.json"])
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        SQUAD.read([tmp_path / "a.json"])
    with pytest.raises(UserError, match="cannot be read"):
        SQUAD.read([tmp_path / "none.json"])


def names(folder: Path, task: SquadTask, *files: str) -> dict[str, str]:
    folder.mkdir()
    for name in files:
        (folder / name).write_text("")
    return {split: " ".join(path.name for path in paths) for split, paths in task.splits(folder).items()}


def test_splits_by_name(tmp_path: Path) -> None:
    both = ("train-v1.1.json", "squad-v1.1-dev.json.xz", "dev-v2.0.json", "squad-v2.0-train-part.json.xz")
    extra = ("squadshifts-new_wiki.json.xz", "notes-dev.txt", ".dev.json", "development.json")
    one = names(tmp_path / "a", SQUAD, *both, *extra)
    assert one == {"train": "train-v1.1.json", "dev": "squad-v1.1-dev.json.xz"}
    two = names(tmp_path / "b", SQUAD2, *both, *extra)
    assert two == {"train": "squad-v2.0-train-part.json.xz", "dev": "dev-v2.0.json"}
    assert names(tmp_path / "c", SQUAD, "my_dev.json", "my_test.json.gz") == {
        "dev": "my_dev.json",
        "test": "my_test.json.gz",
    }
    with pytest.raises(UserError, match=r"several files for dev \(dev-v1.1.json, dev2-v1.1.json\); give the file"):
        names(tmp_path / "d", SQUAD, "dev-v1.1.json", "dev2-v1.1.json", "train.json")
    with pytest.raises(UserError, match="no SQuAD files"):
        names(tmp_path / "e", SQUAD, *extra)
    assert SQUAD.splits(tmp_path / "a" / "train-v1.1.json") == {"train": (tmp_path / "a" / "train-v1.1.json",)}


# Windows


def test_windows_hold_every_token_and_every_answer() -> None:
    for tokens in (0, 1, 5, 99, 100, 101, 228, 229, 1000):
        for room, stride, answer in ((100, 128, 30), (100, 20, 30), (3, 128, 30), (1, 1, 1), (317, 128, 30)):
            found = windows(tokens, room, stride, answer)
            assert {token for begin, end in found for token in range(begin, end)} == set(range(tokens))
            assert all(end - begin <= room for begin, end in found)
            assert len(found) == 1 or found[-2][1] < tokens, "none is there for nothing"
            length = min(answer, room // 2)
            for first in range(tokens - length + 1):
                assert any(begin <= first and first + length <= end for begin, end in found)
    assert windows(300, 200, 64, 30) == [(0, 200), (64, 264), (128, 300)]


def test_one_window_is_the_tokenizers_own_pair(tokenizer: Tokenizer) -> None:
    examples = [*harbour(), example("", None), example("Why  so\nlate?", None, " ( leading and trailing )\n")]
    units, cut = SQUAD2.units(examples, tokenizer, 512)
    assert cut == (0, 0)
    for number, (unit, one) in enumerate(zip(units, examples, strict=True)):
        pair = tokenizer.backend.encode(one.question, one.context)
        assert unit.example == number
        assert unit.sequences[0].ids == pair.ids
        assert (unit.sequences[0].segments or [0] * len(pair.ids)) == pair.type_ids
        assert unit.chosen is not None
        assert unit.chosen[0] == 0
        assert list(unit.chosen[1:]) == [n for n, part in enumerate(pair.sequence_ids) if part == 1]


def test_several_windows_are_the_tokenizers_own(tokenizer: Tokenizer) -> None:
    # The library overlaps by so many tokens, we step by so many: the same windows if both are told the same.
    (one,) = [example("How high is it?", "31 m", HARBOUR * 3)]
    special = tokenizer.backend.num_special_tokens_to_add(True)
    room = 64 - special - len(tokenizer.backend.encode(one.question, add_special_tokens=False).ids)
    units, _ = replace(SQUAD, stride=10, max_answer=5).units([one], tokenizer, 64)
    try:
        tokenizer.backend.enable_truncation(64, stride=room - 10, strategy="only_second")
        whole = tokenizer.backend.encode(one.question, one.context)
    finally:
        tokenizer.backend.no_truncation()
    assert len(units) > 5
    assert [unit.sequences[0].ids for unit in units] == [part.ids for part in (whole, *whole.overflowing)]


def test_answers_come_back_to_the_character(tokenizer: Tokenizer) -> None:
    for text in (HARBOUR, HARBOUR.upper() + "\n\n" + HARBOUR):
        examples = [
            SquadExample(e.id, e.question, text, tuple(Answer(a.text, text.index(a.text)) for a in e.answers or ()))
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
    first = SquadExample("q", "which ?", context, (Answer("nine ten", 40), Answer("one", 0)))
    task = replace(SQUAD2, stride=4, max_answer=2)
    units, _ = task.units([first, replace(first, answers=()), replace(first, answers=None)], tokenizer, 13)
    # Room for 8 tokens of context beside [CLS] which ? [SEP] ... [SEP].
    assert [unit.answer for unit in units] == [(0, 0), (5, 6), (0, 0), (0, 0), None, None]
    assert [unit.source.begin for unit in units] == [0, 4, 0, 4, 0, 4]
    assert units[1].chosen == [0, 4, 5, 6, 7, 8, 9, 10, 11]
    assert [tokenizer.token(units[1].sequences[0].ids[units[1].chosen[n]]) for n in (5, 6)] == ["nine", "ten"]
    part, _ = task.units([replace(first, answers=(Answer("ine t", 41),))], tokenizer, 64)
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


# Answers


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
            found = squad_spans.find(units, logits, max_answer, 20)
            assert found.spans[0].score == pytest.approx(slow_best(units, logits, max_answer))
            assert [span.score for span in found.spans] == sorted((s.score for s in found.spans), reverse=True)
            assert len({HARBOUR[span.start : span.end] for span in found.spans}) == len(found.spans) <= 20
            assert found.null == pytest.approx(min(float(rows[0].sum()) for rows in logits))


def test_the_limit_and_the_order_of_tokens_hold(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    one = example("Which?", None, "alpha beta gamma delta")
    units, _ = SQUAD.units([one], tokenizer, 64)
    rows = np.zeros((len(units[0].chosen or ()), 2), np.float32)
    rows[0] = 50  # the null token is no answer in 1.1
    words = [0, *(list(units[0].source.context.starts).index(one.context.index(w)) + 1 for w in one.context.split())]
    rows[words[1], 0], rows[words[2], 0], rows[words[1], 1], rows[-1, 1] = 5, 4.5, 3, 9

    def said(limit: int) -> str:
        return replace(SQUAD, max_answer=limit).predict([one], units, [rows])[0]["predicted"]

    size = len(rows) - 1
    assert said(size) == "alpha beta gamma delta"
    assert said(size - 1) == "beta gamma delta"
    rows[words[2], 0], rows[-1, 0] = 0, 1
    assert said(1) == "delta"  # 1 + 9 rather than alpha's 5 + at most 3


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
    given = line_of(SQUAD2, minilm, 3, 5)
    assert (given["predicted"], HARBOUR[given["start"] : given["end"]]) == ("31 m", "31 m")
    assert given["null_odds"] == pytest.approx(-2)
    assert given["score"] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-4)
    assert given["gold"] == ["31 m"]
    for tied in (line_of(SQUAD2, minilm, 5, 5), line_of(replace(SQUAD2, threshold=2.0), minilm, 3, 5)):
        # s_best > s_null + threshold, strictly
        assert (tied["predicted"], tied["start"], tied["end"]) == ("", None, None)
        assert tied["best"]["predicted"] == "31 m"
    none = line_of(replace(SQUAD2, threshold=2.5), minilm, 3, 5)
    assert none["score"] == pytest.approx(1 / (1 + np.exp(2)), rel=1e-4)
    # Another threshold, from the line alone.
    assert SQUAD2.decided([none]) == [given]
    assert replace(SQUAD2, threshold=2.5).decided([given]) == [none]
    assert json.loads(json.dumps(none)) == none
    plain = line_of(SQUAD, minilm, 30, 5)
    assert plain["predicted"] == "31 m"
    assert list(plain) == ["id", "question", "context", "gold", "predicted", "start", "end", "score"]


def decided(task: SquadTask, rows: list[tuple[str | None, str, float]]) -> tuple[list[SquadExample], list[Json]]:
    """Questions with a gold text or none, what is found for each, and the odds of no answer."""
    examples, lines = [], []
    for number, (gold, found, odds) in enumerate(rows):
        answers = () if gold is None else (Answer(gold, None),)
        examples.append(SquadExample(f"q{number}", "?", HARBOUR, answers))
        best = {"predicted": found, "start": 0, "end": len(found), "score": 0.5}
        lines.append({"id": f"q{number}", "null_odds": odds, "null_score": 0.5, "best": best})
    return examples, task.decided(lines)


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
    tuned = SQUAD2.tuned(examples, lines)
    assert tuned.threshold == -2.5
    assert tuned.score(examples, tuned.decided(lines))["f1"] == pytest.approx(scores["best_f1"])
    assert tuned.settings() == {"stride": 128, "max_answer": 30, "threshold": -2.5}
    assert SQUAD.tuned(examples, lines) is SQUAD
    # Nothing is worth answering.
    examples, lines = decided(SQUAD2, [(None, "x", -4.0), (None, "y", 1.0)])
    tuned = SQUAD2.tuned(examples, lines)
    assert tuned.score(examples, tuned.decided(lines))["exact"] == 1


def test_scores_of_version_1() -> None:
    examples = harbour()[:3]
    lines = [{"id": e.id, "predicted": text} for e, text in zip(examples, ("Ida", "the 1868–71", ""), strict=True)]
    assert SQUAD.score(examples, lines) == pytest.approx({"exact": 1 / 3, "f1": (2 / 3 + 1 + 0) / 3})


def test_submission(minilm: Path) -> None:
    line = line_of(SQUAD2, minilm, 3, 5)
    assert SQUAD2.submission([], [line]) == ("predictions.json", '{"q": "31 m"}')
    name, text = SQUAD2.null_odds([line])
    assert name == "null_odds.json"
    assert json.loads(text) == {"q": pytest.approx(-2)}
    with pytest.raises(UserError, match="same id"):
        SQUAD2.submission([], [line, line])
    with pytest.raises(UserError, match="squad2"):
        SQUAD.null_odds([line])


def test_what_predict_is_given(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer is not None
    from_line = SQUAD.parse("How high?\tIt is 31 m high.\n")
    assert from_line == SQUAD.parse({"question": "How high?", "context": "It is 31 m high."})
    assert SQUAD.parse({"id": 7, "question": "a", "context": "b\ud800"}) == SquadExample("7", "a", "b\ufffd")
    for wrong in ("no tab", "question only\t ", {"question": "a"}, {"question": "a", "context": 3}):
        with pytest.raises(UserError):
            SQUAD.parse(wrong)  # type: ignore[arg-type]
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
    with pytest.raises(UserError, match="task 'squat': unknown; did you mean 'squad'"):
        SquadTask("squat")
    for name in ("stride", "max_answer", "best"):
        with pytest.raises(UserError, match=f"{name} 0: must be at least 1"):
            replace(SQUAD, **{name: 0})
    assert (SQUAD.classes, SQUAD.head, SQUAD.metric, SQUAD.max_length) == (2, "span", "f1", 384)
