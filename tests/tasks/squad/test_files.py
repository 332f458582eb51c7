"""SQuAD files that are right and wrong, and which of a folder is which."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from bertree.errors import BertreeWarning, UserError
from bertree.files.formats import Json
from bertree.tasks.squad.official import GoldAnswer, SquadExample
from bertree.tasks.squad.task import SquadTask
from tests.support.learnable import tokenizer
from tests.support.squad_samples import HARBOUR, SQUAD, SQUAD2


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


@pytest.mark.parametrize("name", ["train.json", "train.json.gz", "train.json.xz"])
def test_reads_the_official_layout(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, layout(question(), question("q2", "Old Lady")), name)
    first, second = SQUAD.read([path])
    assert first == SquadExample("q1", "When was it dug?", HARBOUR, (GoldAnswer("1868–71", HARBOUR.index("1868–71")),))
    assert second.answers == (GoldAnswer("Old Lady", HARBOUR.index("Old Lady")),)
    assert [e.id for e in SQUAD2.read([path, path])] == ["q1", "q2", "q1", "q2"]


def test_a_file_without_a_version_or_without_answers(tmp_path: Path) -> None:
    data = layout(question(), {"id": "q2", "question": "Why?"})
    del data["version"]
    examples, unknown = SQUAD.read([written(tmp_path, data)])
    assert examples.answers
    assert unknown.answers is None
    with pytest.raises(UserError, match=r"question q2: has no gold answers"):
        SQUAD.score([examples, unknown], [{"predicted": "x"}] * 2)


def test_questions_without_an_answer(tmp_path: Path) -> None:
    impossible = question(is_impossible=True, answers=[], plausible_answers=[{"text": "1903", "answer_start": 1}])
    path = written(tmp_path, layout(question("q0", is_impossible=False), impossible))
    assert [bool(e.answers) for e in SQUAD2.read([path])] == [True, False]
    with pytest.raises(UserError, match=r"train\.json: question q1: .*'squad2'"):
        SQUAD.read([path])
    with pytest.raises(UserError, match=r"question q1: .*no answer.*'squad2'"):
        SQUAD.read([written(tmp_path, layout(question(answers=[])))])
    with pytest.raises(UserError, match=r"question q1: .*without an answer"):
        SQUAD2.read([written(tmp_path, layout(question(is_impossible=True)))])


@pytest.mark.parametrize(
    ("text", "start", "answer"),
    [
        ("1868–71", HARBOUR.index("1868") - 4, "1868–71"),
        (" 1868–71 ", HARBOUR.index("1868") + 3, "1868–71"),
        ("company. It froze every winter", HARBOUR.index("company"), "company.  It froze every\nwinter"),
        ("the", HARBOUR.index("the paper") + 2, "the"),  # the nearest of several
    ],
)
def test_an_answer_beside_its_place_is_put_right(tmp_path: Path, text: str, start: int, answer: str) -> None:
    path = written(tmp_path, layout(question(answers=[{"text": text, "answer_start": start}])))
    with pytest.warns(BertreeWarning, match=r"train\.json: 1 answers"):
        (read,) = SQUAD.read([path])
    assert read.answers is not None
    assert read.answers[0].text == answer
    assert read.answers[0].start is not None
    assert HARBOUR.startswith(answer, read.answers[0].start)
    assert abs(read.answers[0].start - start) <= 10


@pytest.mark.parametrize("name", ["train.json", "my-dev.json", "test.json"])
@pytest.mark.parametrize("start", [5, -1, 9999, *(HARBOUR.index("1868") + away for away in (-30, -15, 15))])
def test_an_answer_that_is_not_there_is_scored_but_not_learned(tmp_path: Path, name: str, start: int) -> None:
    text = "1868–71" if start > 5 else "in 1999"
    absent = {"text": text, "answer_start": start}
    good = question("q0")["answers"][0]
    path = written(
        tmp_path, layout(question("q0"), question(answers=[good, absent]), question("q2", answers=[absent])), name
    )
    first, second, third = SQUAD.read([path])
    with pytest.warns(BertreeWarning, match=r"json: 2 answers"):
        SQUAD.units([first, second, third], tokenizer(), 64)
    assert third.answers == (GoldAnswer(text, None),)
    perfect = [{"predicted": "1868–71"}, {"predicted": text}, {"predicted": text}]
    assert SQUAD.score([first, second, third], perfect)["exact"] == 1.0
    SQUAD.check_training([first])
    for examples, bad in (([first, second], "q1"), ([third], "q2")):
        with pytest.raises(UserError) as caught:
            SQUAD.check_training(examples)
        assert str(caught.value).startswith(f"{path}: question {bad}: ")
        assert "\n" not in str(caught.value)


def test_questions_on_one_context_stay_together(tmp_path: Path) -> None:
    data = layout(question(), question("q2"))
    data["data"].append({"paragraphs": [{"context": "Another.", "qas": [{"id": "q3", "question": "Why?"}]}]})
    groups = [SQUAD.group(example) for example in SQUAD.read([written(tmp_path, data)])]
    assert groups[0] == groups[1] is not None
    assert groups[2] not in (None, groups[0])


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ([], "must hold a JSON object"),
        ({}, "the file: has no 'data'"),
        ({"data": {}}, "'data' must be a list"),
        ({"data": []}, "holds no questions"),
        ({"data": [{"paragraphs": []}]}, "holds no questions"),
        ({"data": [3]}, "article 1: must be an object"),
        ({"data": [{"title": "x"}]}, "article 1: has no 'paragraphs'"),
        ({"data": [{"paragraphs": [{"context": 3, "qas": []}]}]}, "paragraph 1: 'context' must be a text"),
        ({"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}, "paragraph 1: its context is empty"),
        (layout({"question": "Why?"}), "question 1: has no 'id'"),
        (layout(question(identity=7)), "question 1: 'id' must be a text"),
        (layout(question(question=None)), "question q1: 'question' must be a text"),
        (layout(question(answers="x")), "question q1: 'answers' must be a list"),
        (layout(question(answers=[{"text": "x"}])), "question q1: has no 'answer_start'"),
        (layout(question(answers=[{"text": "T", "answer_start": True}])), "'answer_start' must be a whole number"),
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
    names_read = names(tmp_path / "a", SQUAD, *both, *extra)
    assert names_read == {"train": "train-v1.1.json", "dev": "squad-v1.1-dev.json.xz"}
    two = names(tmp_path / "b", SQUAD2, *both, *extra)
    assert two == {"train": "squad-v2.0-train-part.json.xz", "dev": "dev-v2.0.json"}
    assert names(tmp_path / "c", SQUAD, "my_dev.json", "my_test.json.gz") == {
        "dev": "my_dev.json",
        "test": "my_test.json.gz",
    }
    with pytest.raises(UserError, match=r"dev: dev-v1\.1\.json, dev2-v1\.1\.json"):
        names(tmp_path / "d", SQUAD, "dev-v1.1.json", "dev2-v1.1.json", "train.json")
    with pytest.raises(UserError, match="holds no train"):
        names(tmp_path / "e", SQUAD, *extra)
    assert SQUAD.splits(tmp_path / "a" / "train-v1.1.json") == {"train": (tmp_path / "a" / "train-v1.1.json",)}
