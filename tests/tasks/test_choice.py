"""Questions with options: read, laid out as pairs, predicted and scored."""

import csv
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.tasks.choice import FORMS, ChoiceExample, ChoiceTask
from bertree.text.tokenizer import Tokenizer

CHOICE = {name: ChoiceTask(name) for name in FORMS}
PASSAGE = {
    "id": "high7.txt",
    "article": "The ferry left at noon.\nNobody waved, \"except\" the cook.",
    "questions": ["Who waved?", "The ferry left at  _  .", "It is a_tale."],
    "options": [["the cook", "nobody", "a dog", "the crew"], ["noon", "six", "dawn", "dusk"], ["sad", "true"]],
    "answers": ["A", "A", "B"],
}  # fmt: skip
OWN = {"context": "Snow fell.", "question": "What fell?", "options": ["rain", "snow"], "label": 1}
HELLA = {
    "ctx_a": "A man climbs a ladder.",
    "ctx_b": "he",
    "endings": ["paints a wall.", "swims off.", "eats it."],
    "label": "0",
}


def put(folder: Path, name: str, *records: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "\n".join(r if isinstance(r, str) else json.dumps(r) for r in records).encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


def swag(folder: Path, name: str, labeled: bool = True) -> Path:
    header = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
    header += [f"ending{i}" for i in range(4)] + ["label"] * labeled
    rows = [
        ["0", "v1", "3", "s", "A cook stirs, slowly.", "She", "g", "sings.", "says \"yes\",\nthen no.", "x", "y", "1"],
        ["1", "v2", "4", "s", "A boat drifts.", "The sailor", "gen", "a", "b", "c", "d", "3"],
    ]  # fmt: skip
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([header, *(row[: len(header)] for row in rows)])
    return folder / name


def test_swag(tmp_path: Path) -> None:
    task = CHOICE["swag"]
    for name in ("train.csv", "val.csv"):
        swag(tmp_path, name)
    swag(tmp_path, "test.csv", labeled=False)
    splits = task.splits(tmp_path)
    assert {split: paths[0].name for split, paths in splits.items()} == {
        "train": "train.csv",
        "dev": "val.csv",
        "test": "test.csv",
    }
    examples = task.read(splits["train"])
    assert examples[0] == ChoiceExample(
        "A cook stirs, slowly.", "She", ("sings.", 'says "yes",\nthen no.', "x", "y"), 1
    )
    assert [example.answer for example in examples] == [1, 3]
    assert [example.answer for example in task.read(splits["test"])] == [None, None]


def test_hellaswag(tmp_path: Path) -> None:
    put(tmp_path, "validation.jsonl.xz", HELLA, HELLA | {"label": 2, "ctx_b": ""}, HELLA | {"label": ""})
    splits = CHOICE["hellaswag"].splits(tmp_path)
    assert list(splits) == ["dev"]
    examples = CHOICE["hellaswag"].read(splits["dev"])
    assert [example.answer for example in examples] == [0, 2, None]
    assert examples[0].context == "A man climbs a ladder."
    assert len(examples[0].options) == 3


def test_race_as_it_is_handed_out(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        put(tmp_path, f"RACE/{split}/middle/1.txt", PASSAGE)
        put(tmp_path, f"RACE/{split}/high/2.txt", PASSAGE)
    for data in (tmp_path, tmp_path / "RACE"):
        splits = CHOICE["race"].splits(data)
        assert {split: len(paths) for split, paths in splits.items()} == {"train": 2, "dev": 2, "test": 2}
        examples = CHOICE["race"].read(splits["dev"])
        assert [example.level for example in examples] == ["high"] * 3 + ["middle"] * 3
        assert [example.answer for example in examples[:3]] == [0, 0, 1]
        assert len(examples[2].options) == 2


def test_race_in_lines(tmp_path: Path) -> None:
    put(tmp_path, "train-middle.jsonl.xz", PASSAGE, PASSAGE)
    put(tmp_path, "dev-middle.jsonl", PASSAGE)
    put(tmp_path, "dev-high.jsonl.xz", PASSAGE)
    splits = CHOICE["race"].splits(tmp_path)
    assert {split: len(paths) for split, paths in splits.items()} == {"train": 1, "dev": 2}
    assert len(CHOICE["race"].read(splits["train"])) == 6
    assert {example.level for example in CHOICE["race"].read(splits["dev"])} == {"middle", "high"}
    single = {"example_id": "middle12.txt", "article": "x", "question": "y", "options": ["a", "b"], "answer": "B"}
    examples = CHOICE["race"].read([put(tmp_path, "test.jsonl", PASSAGE, single)])
    assert [example.level for example in examples] == ["high"] * 3 + ["middle"]
    assert examples[3].answer == 1
    for text in (json.dumps([PASSAGE, single]), f"{json.dumps(PASSAGE)}\n{json.dumps(single)}"):
        assert CHOICE["race"].read([put(tmp_path, "test.json", text)]) == examples
    assert CHOICE["race"].read([put(tmp_path, "test.json", json.dumps(PASSAGE, indent=1))]) == examples[:3]


@pytest.mark.parametrize(
    ("options", "label", "answer"),
    [
        (["rain", "snow"], 1, 1),
        (["rain", "snow"], "b", 1),
        (["rain", "snow"], "1", 1),
        (["rain", "snow"], "snow", 1),
        (["1", "2", "0"], "0", 2),  # an option's text comes before an index
        (["B", "A"], "A", 1),
        (["rain", "snow"], None, None),
    ],
)
def test_own_labels(tmp_path: Path, options: list[str], label: object, answer: int | None) -> None:
    path = put(tmp_path, "train.jsonl", {"context": "c", "options": options, "label": label})
    assert CHOICE["choice"].read([path]) == [ChoiceExample("c", "", tuple(options), answer)]


@pytest.mark.parametrize(
    ("task", "record", "says"),
    [
        ("choice", OWN | {"label": 2}, "0 to 1, A to B"),
        ("choice", OWN | {"label": "C"}, "label 'C'"),
        ("choice", OWN | {"label": "sleet"}, "label 'sleet'"),
        ("choice", OWN | {"label": True}, "label 'True'"),
        ("choice", OWN | {"label": [1]}, "label '[1]'"),
        ("choice", OWN | {"options": ["one"]}, "1 options"),
        ("choice", OWN | {"options": "one"}, "'options' must be a list"),
        ("choice", OWN | {"options": ["a", 2]}, "'options' must be a list of texts"),
        ("choice", {"contxt": "x", "options": ["a", "b"]}, "'contxt'"),
        ("choice", OWN | {"context": 3}, "'context' must be a text"),
        ("hellaswag", {"ctx_a": "x", "ctx_b": "y"}, "'endings'"),
        ("hellaswag", HELLA | {"label": "3"}, "label '3'"),
        ("swag", {"sent1": "x", "sent2": "y"}, "has no field 'ending0'"),
        ("race", PASSAGE | {"answers": ["A"]}, "3 questions, 3 lists of options and 1 answers"),
        ("race", PASSAGE | {"answers": ["A", "E", "A"]}, "label 'E'"),
        ("race", PASSAGE | {"options": [["a", "b"], "x", ["c", "d"]]}, "'options' must be a list"),
        ("race", {"article": "x"}, "no field 'questions'"),
        ("race", "{", "JSON"),
    ],
)  # fmt: skip
def test_a_broken_record_is_reported_with_its_line(tmp_path: Path, task: str, record: object, says: str) -> None:
    good = {"choice": OWN, "hellaswag": HELLA, "race": PASSAGE}.get(task)
    good = good or {"sent1": "a", "sent2": "b", "ending0": "c", "ending1": "d"}
    with pytest.raises(UserError) as error:
        CHOICE[task].read([put(tmp_path, "a.jsonl", good, record)])
    assert says in str(error.value)
    assert "a.jsonl: line 2: " in str(error.value)
    assert "\n" not in str(error.value)


def test_more_mistakes(tmp_path: Path) -> None:
    swag(tmp_path, "train.csv")
    with (tmp_path / "train.csv").open("a") as file:
        file.write("3,short\n")
    with pytest.raises(UserError, match=r"train\.csv: line 5: .*2 columns.* 12"):
        CHOICE["swag"].read([tmp_path / "train.csv"])
    with pytest.raises(UserError, match="holds no question"):
        CHOICE["race"].read([put(tmp_path, "a.jsonl")])
    with pytest.raises(UserError, match="line 1: is not valid JSON"):
        CHOICE["race"].read([put(tmp_path, "middle/1.txt", "{")])
    with pytest.raises(UserError, match="needs an object"):
        CHOICE["race"].parse("a line")
    with pytest.raises(UserError, match="3 questions"):
        CHOICE["race"].parse(PASSAGE)
    with pytest.raises(UserError, match="unknown"):
        ChoiceTask("swagg")
    with pytest.raises(UserError, match="holds no train"):
        CHOICE["hellaswag"].splits(tmp_path)


def test_a_passage_is_parsed_into_all_its_questions() -> None:
    examples = CHOICE["race"].parse_all(PASSAGE)
    assert [example.question for example in examples] == PASSAGE["questions"]
    assert {example.answer for example in examples} == {None}
    assert {CHOICE["race"].group(example) for example in examples} == {PASSAGE["article"]}
    assert examples[1].options == ("noon", "six", "dawn", "dusk")
    fields = {"article": "x", "question": "y", "options": ["a", "b"]}
    for task, record in (("race", fields), ("race", OWN), ("choice", OWN), ("hellaswag", HELLA)):
        assert CHOICE[task].parse_all(record) == [CHOICE[task].parse(record)]
    with pytest.raises(UserError, match="'questions' is empty"):
        CHOICE["race"].parse_all(PASSAGE | {"questions": [], "options": []})
    assert CHOICE["choice"].group(ChoiceExample("", "q", ("a", "b"))) is None


def test_parse_has_no_gold() -> None:
    assert CHOICE["choice"].parse(OWN).answer is None
    assert CHOICE["hellaswag"].parse(HELLA).answer is None
    assert CHOICE["race"].parse(OWN) == ChoiceExample("Snow fell.", "What fell?", ("rain", "snow"))
    example = CHOICE["race"].parse({"article": "x", "question": "y", "options": ["a", "b"], "answer": "A"})
    assert example == ChoiceExample("x", "y", ("a", "b"))


def test_pairs_are_those_of_the_tokenizer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    task = CHOICE["race"]
    examples = task.read([put(tmp_path, "a.jsonl", PASSAGE)])
    units, cut = task.units(examples, tokenizer, 256)
    assert cut == (0, 0)
    article = 'The ferry left at noon. Nobody waved, "except" the cook.'
    seconds = [
        ["Who waved? the cook", "Who waved? nobody", "Who waved? a dog", "Who waved? the crew"],
        [f"The ferry left at {time} ." for time in ("noon", "six", "dawn", "dusk")],
        ["It is asadtale.", "It is atruetale."],
    ]
    for unit, texts, answer in zip(units, seconds, (0, 0, 1), strict=True):
        assert list(unit.sequences) == tokenizer.encode([(article, text) for text in texts])
        assert unit.answer == answer
        assert unit.chosen is None


def test_continuations_and_own_blanks(tokenizer: Tokenizer) -> None:
    (unit,), _ = CHOICE["swag"].units([ChoiceExample("A b.", "She _", ("c", "d"))], tokenizer, 64)
    assert unit.sequences[0] == tokenizer.encode([("A b.", "She _ c")])[0]
    assert unit.answer is None
    asked = [ChoiceExample("", "Is my_name __ here?", ("c", "\\1")), ChoiceExample("x", "my_name", ("c", "d"))]
    units, _ = CHOICE["choice"].units(asked, tokenizer, 64)
    assert units[0].sequences[1] == tokenizer.encode([("", "Is my_name \\1 here?")])[0]
    assert units[1].sequences[0] == tokenizer.encode([("x", "my_name c")])[0]


def test_only_the_context_is_cut(tokenizer: Tokenizer) -> None:
    context = " ".join(["one two three four five six seven"] * 6)
    example = ChoiceExample(context, "Who?", ("you", "they all, every one of them"), 1)
    whole = tokenizer.encode([(context, f"Who? {option}") for option in example.options])
    special = tokenizer.backend.num_special_tokens_to_add(True)
    for task, from_start in (("race", True), ("hellaswag", False)):
        (unit,), cut = CHOICE[task].units([example], tokenizer, 40)
        first = tokenizer.backend.encode(context, add_special_tokens=False).ids
        for sequence, option, full in zip(unit.sequences, example.options, whole, strict=True):
            second = tokenizer.backend.encode(f"Who? {option}", add_special_tokens=False).ids
            left = 40 - special - len(second)
            fitting = first[:left] if from_start else first[-left:]
            assert len(sequence.ids) == 40
            assert sequence.dropped == len(full.ids) - 40
            at = sequence.ids.index(fitting[0])
            assert sequence.ids[at : at + left] == fitting
            assert sequence.ids[-len(second) - 1 : -1] == second
            assert sequence.segments is not None
            assert len(sequence.segments) == 40
        assert cut == (1, max(len(full.ids) - 40 for full in whole))  # it is one context
    tight = special + 3  # less than the question and the option need: the option's end stays
    (unit,), cut = CHOICE["race"].units([example], tokenizer, tight)
    asked = [len(tokenizer.backend.encode(f"Who? {o}", add_special_tokens=False).ids) for o in example.options]
    of_context = len(first) - min(max(3 - length, 0) for length in asked)
    assert cut == (1, of_context + sum(max(length - 3, 0) for length in asked))
    end = tokenizer.backend.encode("Who? they all, every one of them", add_special_tokens=False).ids[-3:]
    assert unit.sequences[1].ids[-4:-1] == end
    assert len(unit.sequences[1].ids) == tight
    with pytest.raises(UserError, match="no room"):
        CHOICE["race"].units([example], tokenizer, special)


def test_a_passage_is_tokenised_once(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    class Counting:
        def __init__(self, backend: Any) -> None:
            self.backend, self.seen = backend, []

        def __getattr__(self, name: str) -> object:
            return getattr(self.backend, name)

        def encode_batch_fast(self, texts: list[str], **options: object) -> object:
            self.seen += texts
            return self.backend.encode_batch_fast(texts, **options)

    tokenizer = Tokenizer(tokenizers["bpe"].backend)
    tokenizer.backend = counting = Counting(tokenizer.backend)
    examples = CHOICE["race"].read([put(tmp_path, "a.jsonl", PASSAGE)])
    CHOICE["race"].units(examples, tokenizer, 128)
    assert sum("Nobody waved" in text for text in counting.seen) == 1
    assert sum(" " in text for text in counting.seen) == 1 + 4 + 4 + 2  # the tokenizer is tried on single words


def test_lines_and_scores(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> None:
    task = CHOICE["race"]
    paths = [put(tmp_path, f"dev-{level}.jsonl", PASSAGE) for level in ("middle", "high")]
    examples = task.read(paths)
    units, _ = task.units(examples, tokenizers["wordpiece"], 128)
    answers = [0, 0, 1, 0, 3, 0]
    logits = [np.eye(len(u.sequences), dtype=np.float32)[:, [a]] for u, a in zip(units, answers, strict=True)]
    lines = task.predict(examples, units, logits)
    assert lines[4]["gold"] == 0
    assert lines[4]["predicted"] == 3
    assert lines[4]["answer"] == "dusk"
    assert lines[4]["question"] == "The ferry left at  _  ."
    assert lines[4]["score"] == pytest.approx(np.e / (np.e + 3))
    assert lines[4]["probabilities"] == pytest.approx([1 / (np.e + 3)] * 3 + [np.e / (np.e + 3)])
    assert json.loads(json.dumps(lines)) == lines
    scores = task.score(examples, lines)
    assert scores == {"accuracy": pytest.approx(4 / 6), "accuracy-middle": 1, "accuracy-high": pytest.approx(1 / 3)}
    own = CHOICE["choice"]
    (line,) = own.predict([own.parse(OWN)], own.units([own.parse(OWN)], tokenizers["bpe"], 32)[0], logits[2:3])
    assert "gold" not in line
    assert line["answer"] == "snow"


def test_what_the_head_is_told() -> None:
    for name, task in CHOICE.items():
        assert (task.head, task.classes, task.labels, task.metric) == ("choice", 1, (), "accuracy")
        assert task.max_length == {"swag": 128, "hellaswag": 192, "race": 512, "choice": 512}[name]
        assert ChoiceTask(name, max_length=64).max_length == 64
        assert task.with_labels(()).classes == 1
