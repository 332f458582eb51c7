"""Classification and regression from a file to a score: examples, units, predictions."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertree.errors import BertreeWarning, UserError
from bertree.tasks.columns import TextExample
from bertree.tasks.files import read_inputs
from bertree.tasks.glue import glue_task
from bertree.tasks.text import TextTask, text_task
from bertree.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    loaded = Tokenizer.load(minilm)
    assert loaded is not None
    return loaded


def test_own_files_of_every_kind(tmp_path: Path) -> None:
    rows = [('good, "very"\ngood', "yes"), ("bad", "no"), ("so so", "")]
    (tmp_path / "a.csv").write_text('body,kind\n"good, ""very""\ngood",yes\nbad,no\nso so,\n')
    (tmp_path / "a.tsv").write_text('body\tkind\n"good, ""very""\ngood"\tyes\nbad\tno\nso so\t\n')
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": b, "kind": k or None}) + "\n" for b, k in rows))
    table = pyarrow.table({"body": [b for b, _ in rows], "kind": [k or None for _, k in rows]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    task = text_task(text="body", label="kind")
    (tmp_path / "a.json").write_text(json.dumps([{"body": b, "kind": k or None} for b, k in rows]))
    for kind in ("csv", "tsv", "jsonl", "json", "parquet"):
        with pytest.warns(BertreeWarning, match="1 of 3 rows have no gold answer"):
            examples = task.read([tmp_path / f"a.{kind}"])
        assert [(e.text, e.gold) for e in examples] == [(b, k or None) for b, k in rows], kind
        assert task.labels_in(examples) == ("no", "yes")
    assert task.settings() == {"text": "body", "pair": None, "label": "kind"}
    assert text_task(**task.settings()) == task


def labeled(*labels: str) -> list[TextExample]:
    return [TextExample(str(n), "x", None, label, "f.tsv", n) for n, label in enumerate(labels, 2)]


def test_labels_are_discovered_in_order() -> None:
    task = text_task()
    assert task.labels_in(labeled("10", "9", "-1", "9")) == ("-1", "9", "10")
    assert task.labels_in(labeled("b", "10", "9")) == ("10", "9", "b")
    assert text_task("regression").classes == 1
    assert task.with_labels(["a", "b"]).classes == 2
    with pytest.raises(UserError, match=r"f\.tsv: .*label 'a'"):
        task.labels_in(labeled("a", "a"))


def test_a_training_file_without_labels_says_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,lable\nx,1\n")
    for kind in ("classification", "regression"):
        task = text_task(kind)
        with pytest.raises(UserError, match=r"column 'label'.*: text, lable;.*'lable'"):
            task.labels_in(task.read([path]))
    path.write_text("text,label\nx,\n")
    with pytest.raises(UserError, match=r"no row has a gold answer"):
        task.labels_in(task.read([path]))


def test_a_label_that_training_did_not_have(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "dev.csv"
    path.write_text("text,label\nx,a\ny,c\n")
    task = text_task().with_labels(["a", "b"])
    message = r"dev\.csv: line 3: label 'c'.*\(a, b\)"
    with pytest.raises(UserError, match=message):
        task.read([path])
    with pytest.raises(UserError, match=message):  # read before the labels were known
        task.units(text_task().read([path]), tokenizer, 16)


def test_what_is_not_text_or_not_a_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": 1}\n{"text": 5, "label": 1}\n')
    with pytest.raises(UserError, match=r"a\.jsonl: line 2: .*text.*int 5"):
        text_task().read([path])
    path.write_text('{"text": "x", "label": 1}\n{"text": null, "label": 1}\n')
    with pytest.raises(UserError, match=r"a\.jsonl: line 2: .*text.*empty"):
        text_task().read([path])
    path.write_text('{"text": "x", "label": 1.5}\n{"text": "y", "label": Infinity}\n')
    with pytest.raises(UserError, match=r"a\.jsonl: line 2: .*score 'inf'"):
        text_task("regression").read([path])
    with pytest.raises(UserError, match=r"task 'regresion'.*'regression'"):
        text_task("regresion")


def test_units_are_cut_and_counted(tokenizer: Tokenizer) -> None:
    task = text_task(pair="other").with_labels(["a", "b"])
    examples = [
        TextExample("0", "one two", "three", "b"),
        TextExample("1", "one " * 30, "two " * 5, None),
        TextExample("2", "one " * 30, "two " * 30, "a"),
    ]
    units, cut = task.units(examples, tokenizer, 16)
    assert [unit.example for unit in units] == [0, 1, 2]
    assert [unit.answer for unit in units] == [1, None, 0]
    assert [len(unit.sequences[0].ids) for unit in units] == [6, 16, 16]
    assert units[1].sequences[0].segments == [0] * 10 + [1] * 6
    assert units[2].sequences[0].segments == [0] * 8 + [1] * 8
    assert cut == (2, (30 + 5 - 13) + (60 - 13))
    (single,), none = text_task().units([TextExample("0", "one")], tokenizer, 16)
    assert (single.sequences[0].segments, single.answer, none) == (None, None, (0, 0))
    (score,), _ = text_task("regression").units([TextExample("0", "one", None, 2.5)], tokenizer, 16)
    assert score.answer == 2.5


def test_many_examples_keep_their_order(tokenizer: Tokenizer) -> None:
    examples = [TextExample(str(n), f"number {n}") for n in range(5000)]
    units, _ = text_task().units(examples, tokenizer, 16)
    for n in (0, 2047, 2048, 4999):
        assert units[n].example == n
        assert units[n].sequences[0] == tokenizer.encode([f"number {n}"])[0]


def test_predictions_and_scores(tokenizer: Tokenizer) -> None:
    task = glue_task("mrpc")
    examples = [
        TextExample("0", "a", "b", "1"),
        TextExample("1", "c", "d", "0"),
        TextExample("2", "e", "f", "1"),
        TextExample("3", "g", "h"),
    ]
    units, _ = task.units(examples, tokenizer, 16)
    rows = np.array([[0, np.log(3)], [1, 1000], [2, 1], [1, 0]], np.float32)
    predictions = task.predict(examples, units, list(rows))
    assert predictions[0]["probabilities"] == pytest.approx({"0": 0.25, "1": 0.75})
    assert predictions[0]["score"] == pytest.approx(0.75)
    assert {key: predictions[0][key] for key in ("text", "pair", "gold", "predicted")} == {
        "text": "a",
        "pair": "b",
        "gold": "1",
        "predicted": "1",
    }
    assert "gold" not in predictions[3]
    assert [line["predicted"] for line in predictions] == ["1", "1", "0", "0"]
    assert task.score(examples, predictions) == {"accuracy": pytest.approx(1 / 3), "f1": pytest.approx(0.5)}
    json.dumps(predictions)
    with pytest.raises(UserError, match="no gold answers"):
        task.score(examples[3:], predictions[3:])


def test_a_regression_predicts_numbers(tokenizer: Tokenizer) -> None:
    task = glue_task("sts-b")
    examples = [TextExample(str(n), "a", "b", float(n)) for n in range(4)]
    units, _ = task.units(examples, tokenizer, 16)
    predictions = task.predict(examples, units, [np.array([value], np.float32) for value in (0.5, 1, 9, 4)])
    assert [line["predicted"] for line in predictions] == [0.5, 1, 9, 4]
    assert "probabilities" not in predictions[0]
    assert task.score(examples, predictions)["spearman"] == pytest.approx(0.8)


def parsed(task: TextTask, record: str | dict[str, str]) -> tuple[str, str | None]:
    example = task.parse(record)
    assert example.gold is None
    return example.text, example.pair


def test_what_predict_is_given() -> None:
    single, pair = glue_task("sst-2"), glue_task("mnli")
    assert parsed(single, " a\tb ") == ("a\tb", None)
    assert parsed(single, {"text": "a"}) == parsed(single, {"sentence": "a", "label": "1"}) == ("a", None)
    assert parsed(pair, "a\tb") == parsed(pair, {"text": "a", "pair": "b"}) == ("a", "b")
    assert parsed(pair, {"premise": "a", "hypothesis": "b"}) == ("a", "b")
    assert parsed(glue_task("imdb"), "a<br />b") == ("a b", None)
    for line in ("a", "a\tb\tc"):
        with pytest.raises(UserError, match=r"mnli.*two texts.*tab"):
            pair.parse(line)
    with pytest.raises(UserError, match=r"'pair'.*sentence2, hypothesis.*: text"):
        pair.parse({"text": "a"})


def test_predict_reads_the_column_of_the_training_first() -> None:
    task = text_task(text="body", pair="other")
    assert parsed(task, {"text": "no", "pair": "no", "body": "a", "other": "b"}) == ("a", "b")
    assert parsed(task, {"text": "a", "pair": "b"}) == ("a", "b")
    with pytest.raises(UserError, match="'body' is empty"):
        task.parse({"body": None, "text": "a", "other": "b"})
    with pytest.raises(UserError, match="line 3: 'other' holds int 3"):
        task.parse({"body": "a", "other": 3}, "mail.csv: line 3")


def test_a_named_label_column_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "dev.csv"
    path.write_text("text,kind\nx,1\n")
    for task in (text_task(), text_task(label="label")):  # nobody named one: these have no answers
        assert [(e.text, e.gold) for e in task.read([path])] == [("x", None)]
    assert [e.gold for e in text_task(label="kind").read([path])] == ["1"]
    for kind in ("classification", "regression"):
        with pytest.raises(UserError, match=r"dev\.csv: .*column 'knd'.*'kind'"):
            text_task(kind, label="knd").read([path])
    named = text_task(label="knd")
    assert named.parse({"text": "x"}).gold is None
    assert text_task(**named.settings()) == named


def test_too_many_labels_are_no_labels(tmp_path: Path) -> None:
    (path := tmp_path / "many.csv").write_text("text,label\n" + "".join(f"a,{n}\n" for n in range(10_001)))
    task = text_task()
    with pytest.raises(UserError, match=r"many\.csv: has 10,001 different labels.*`label`"):
        task.labels_in(task.read([path]))


def test_a_wide_table_is_refused_in_a_short_line(tmp_path: Path) -> None:
    names = [f"column{n}" for n in range(100_000)]
    (path := tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("x" * 100_000) + "\n")
    for read in (lambda: text_task().read([path]), lambda: list(read_inputs(text_task(), path))):
        with pytest.raises(UserError, match=r"wide\.csv.*'text'.*100,000 in all") as error:
            read()
        assert len(str(error.value)) < 1000 + len(str(path))
