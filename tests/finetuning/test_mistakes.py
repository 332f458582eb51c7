"""What a user can get wrong in fine-tuning: one line that says what, exit code 2, and nothing is left behind."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import bertree
from tests.support import learnable
from tests.support.command import Command
from tests.support.learnable import Trained, write

ROWS = learnable.feelings(40)
GOOD, TAGS = ROWS[0], learnable.tagged(20)
Files = dict[str, object]
CSV: Files = {"train.csv": ROWS, "dev.csv": learnable.feelings(10, 1)}
BODY: Files = {"train.csv": [{"body": row["text"], "label": row["label"]} for row in ROWS]}
SQUAD: Files = {"train-v1.1.json": learnable.squad(20), "dev-v1.1.json": learnable.squad(5, 1)}


def misplaced() -> object:
    data = learnable.squad(5)
    data["data"][0]["paragraphs"][3]["qas"][0]["answers"][0]["text"] = "orange"
    return data


def unanswered(count: int, seed: int = 0) -> object:
    data = learnable.squad(count, seed)
    for paragraph in data["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    return data


def bare(rows: list[dict[str, object]], name: str) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != name} for row in rows]


# Files, what is asked for after `finetune MODEL --data DATA --out OUT`, and what the line must say.
FINETUNE: dict[str, tuple[Files, str, str]] = {
    "no text column": (BODY, "--task classification", "there are: body, label; name yours with --text"),
    "column": (CSV, "--task classification --text body", "has no column 'body'; there are: text, label"),
    "both columns": (
        CSV,
        "--task classification --text body --label kind",
        "has no columns 'body', 'kind'; there are: text, label; name yours with --text, --label",
    ),
    "pair column": (CSV, "--task classification --pair other", "has no column 'other'; there are: text, label"),
    "label column": (CSV, "--task classification --label kind", "has no column 'kind'; there are: text, label"),
    "unknown label in dev": (
        CSV | {"dev.csv": [GOOD, GOOD | {"label": "meh"}]}, "--task classification",
        "dev.csv: line 3: label 'meh' is not among those of the training set (bad, good)",
    ),
    "one class": ({"train.csv": [GOOD] * 20}, "--task classification", "all rows have the same label"),
    "no gold in training": (
        {"train.csv": bare(ROWS, "label")},
        "--task classification",
        "no column 'label'; there are: text; name yours with --label",
    ),
    "no gold in dev": (CSV | {"dev.csv": bare(ROWS, "label")}, "--task classification", "no example has a gold answer"),
    "no gold in dev squad": (
        SQUAD | {"dev-v1.1.json": unanswered(5)}, "--task squad", "dev-v1.1.json: no example has a gold answer",
    ),
    "no gold in train squad": (
        SQUAD | {"train-v1.1.json": unanswered(5)}, "--task squad", "train-v1.1.json: no example has a gold answer",
    ),
    "no gold in choice": (
        {"train.jsonl": bare(learnable.choices(20), "label")}, "--task choice",
        "train.jsonl: no example has a gold answer",
    ),
    "answer elsewhere": (
        SQUAD | {"train-v1.1.json": misplaced()}, "--task squad", "question q0-3: an answer is not in its context",
    ),
    "other tags": (
        {"train.jsonl": TAGS, "dev.jsonl": [{"words": ["Ada"], "tags": ["NNP"]}]}, "--task ner",
        "dev.jsonl: line 1: tag 'NNP' is not of an entity",
    ),
    "other entities": (
        {"train.jsonl": TAGS, "dev.jsonl": [{"words": ["Ada"], "tags": ["B-GPE"]}]}, "--task tagging",
        "dev.jsonl: line 1: tag 'B-GPE' is not in the training data; known: O, B-LOC",
    ),
    "empty": (CSV | {"train.csv": ""}, "--task classification", "train.csv: is empty"),
    "empty tags": ({"train.txt": ""}, "--task ner", "train.txt: holds no sentence"),
    "garbage": (
        {"train.tsv": bytes(range(256)) * 9}, "--task classification", "train.tsv: line 2: is not UTF-8 text",
    ),
    "garbage tags": ({"train.txt": bytes(range(256)) * 9}, "--task ner", "is not UTF-8 text"),
    "garbage parquet": ({"train.parquet": bytes(range(256)) * 9}, "--task classification", "train.parquet"),
    "garbage squad": ({"train.json": bytes(range(256)) * 9}, "--task squad", "is not UTF-8 text"),
    "no number": (
        {"train.csv": [{"text": "a", "label": 1}, {"text": "b", "label": "high"}]}, "--task regression",
        "line 3: the score 'high' is not a number",
    ),
    "no training file": ({"dev.csv": ROWS}, "--task classification", "has no training file; give one with --train"),
    "too few": ({"train.csv": ROWS[:1]}, "--task regression --label text", "is not a number"),
    "unknown task": (CSV, "--task clasification", "unknown task, did you mean 'classification'"),
    "unknown setting": (CSV, "--task classification epoch=3", "epoch: unknown setting, did you mean 'epochs'"),
    "unknown section": (CSV, "--task classification trian.epochs=3", "unknown key, did you mean 'train'"),
    "not a setting": (CSV, "--task classification nonsense", "expected key=value"),
    "setting of another task": (CSV, "--task classification stride=3", "stride: unknown setting"),
    "setting of a task": (CSV, "--task classification task.stride=3", "task.stride: is not a setting"),
    "batch": (CSV, "--task classification batch=0", "train.batch: must be at least 1"),
    "epochs": (CSV, "--task classification epochs=0", "train.epochs: must be above 0"),
    "infinite": (CSV, "--task classification epochs=inf", "train.epochs: must be finite"),
    "no whole number": (CSV, "--task classification batch=2.5", "train.batch: must be a whole number"),
    "metric": (CSV, "--task classification metric=acuracy", "did you mean 'accuracy'"),
    "dropout": (CSV, "--task classification dropout=1.5", "dropout: must lie in [0, 1)"),
    "dropout word": (CSV, "--task classification dropout=much", "model.dropout: must be a number"),
    "axis": (CSV, "--task classification model.layers=3", "model.layers: only dropout"),
    "layers": (CSV, "--task classification --frozen lst", "did you mean 'last'"),
    "too few layers": (CSV, "--task classification --frozen concat-last-four", "needs 4 layers, but the encoder"),
    "crf": (CSV, "--task classification crf=true", "crf: chooses the tags of words, but classification has none"),
    "crf by its section": (SQUAD, "--task squad readout.crf=true", "crf: chooses the tags of words, but squad"),
    "length": (CSV, "--task classification max_length=65", "max_length 65: the model has only 64 positions"),
    "short": (CSV, "--task classification max_length=2", "leaves no room for text"),
    "columns of a known task": (CSV, "--task sst-2 --text body", "--text: sst-2 has its own columns"),
    "threshold": (SQUAD, "--task squad max_answer=0", "max_answer 0: must be at least 1"),
    "device": (CSV, "--task classification device=warp", "run.device 'warp'"),
    "seeds": (CSV, "--task classification --seeds 0", "--help"),
    "many seeds": (CSV, "--task classification --seeds 1_000", "'--seeds': 1_000"),
    "no tags": ({"train.jsonl": bare(TAGS, "tags")}, "--task tagging", "train.jsonl: the sentences have no tags; "),
    "too few sentences": ({"train.jsonl": TAGS[:1]}, "--task tagging", "train.jsonl: has only 1 example, "),
}  # fmt: skip


def put(files: Files, folder: Path) -> Path:
    folder.mkdir()
    for name, rows in files.items():
        if isinstance(rows, str | bytes):
            (folder / name).write_bytes(rows.encode() if isinstance(rows, str) else rows)
        else:
            write(folder / name, rows)
    return folder


@pytest.mark.parametrize("case", FINETUNE)
def test_finetune(case: str, trained: Trained, command: Command, tmp_path: Path) -> None:
    files, asked, reason = FINETUNE[case]
    data = put(files, tmp_path / "data")
    words = asked.split(" ")
    words = words if any(word.startswith("device=") for word in words) else [*words, "device=cpu"]
    result = command("finetune", trained.start, "--data", data, "--out", tmp_path / "out", *words)
    assert result.code == 2, result.out
    assert len(result.lines) == 1, result.err
    assert reason in result.err
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_places(trained: Trained, command: Command, tmp_path: Path) -> None:
    data = put(CSV, tmp_path / "data")
    (tmp_path / "file").write_text("")
    (tmp_path / "run" / "seed-0").mkdir(parents=True)
    task = ("--task", "classification")
    wrong: dict[str, tuple[object, ...]] = {
        "holds a run already": (trained.start, *task, "--data", data, "--out", "run"),
        "is a file": (trained.start, *task, "--data", data, "--out", "file"),
        "nowhere: no such file or folder": (trained.start, *task, "--data", "nowhere"),
        "no data given": (trained.start, *task),
        "dev.csv: has no training file": (trained.start, *task, "--dev", data / "dev.csv"),
        "give --tokenizer FOLDER": ("bert-tiny", *task, "--data", data),
        "unknown preset": ("bert-tny", *task, "--data", data),
        "./nowhere: no such folder": ("./nowhere", *task, "--data", data),
        "holds no tokenizer": (trained.start, *task, "--data", data, "--tokenizer", tmp_path),
    }
    command._patch.chdir(tmp_path)
    for reason, words in wrong.items():
        result = command("finetune", *words)
        errors = [line for line in result.lines if not line.startswith("bertree: note: ")]
        assert (result.code, len(errors)) == (2, 1), result.err
        assert reason in result.err or reason == "unknown preset"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file", "run"]
    assert not list((tmp_path / "run" / "seed-0").iterdir())


EVALUATE: dict[str, tuple[str, str]] = {
    "head": (
        "--task squad --data SQUAD",
        "squad needs a model with a 'span' head, but its heads: sequence; fine-tune it first",
    ),
    "score": ("--task regression --data CSV", "needs one score, but the model's head has 2 classes"),
    "labels": ("--task mnli --data CSV", "mnli has the labels entailment, neutral, contradiction, but the model's"),
    "split": ("--task classification --data CSV --split test", "has no split 'test'; there are: train, dev"),
    "submission": ("--task classification --data CSV --submission OUT", "there is no submission format"),
    "data": ("--task classification --data nowhere", "nowhere: no such file or folder"),
    "unknown": ("--task sst3 --data CSV", "did you mean 'sst-2'"),
    "length": ("--task classification --data CSV --max-length 100", "the model has only 64 positions"),
    "unknown label": ("--task classification --data OTHER", "label 'meh' is not among those"),
}


@pytest.mark.parametrize("case", EVALUATE)
def test_evaluate(case: str, trained: Trained, command: Command, tmp_path: Path) -> None:
    asked, reason = EVALUATE[case]
    places = {"CSV": put(CSV, tmp_path / "csv"), "SQUAD": put(SQUAD, tmp_path / "squad"), "OUT": tmp_path / "out"}
    places["OTHER"] = put({"dev.csv": [GOOD | {"label": "meh"}]}, tmp_path / "other")
    words = [places.get(word, word) for word in asked.split(" ")]
    result = command("evaluate", trained("classification") / "model", *words)
    assert (result.code, len(result.lines)) == (2, 1), result.err
    assert reason in result.err
    assert not (tmp_path / "out").exists()


def test_features_and_students(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(bertree.UserError, match="`layers=last4`: did you mean 'last'"):
        bertree.write_features(trained.start, ["a"], tmp_path / "out", layers="last4")
    with pytest.raises(bertree.UserError, match="haf: no such folder or preset; did you mean 'half'"):
        bertree.distill(trained("classification"), student="haf", data=ROWS, out=tmp_path / "out")


def test_predict(trained: Trained, command: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a\n")
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "garbage.txt").write_bytes(bytes(range(256)))
    model = trained("classification") / "model"
    wrong: dict[str, tuple[object, ...]] = {
        "this model has no task head": (trained.start, "a"),
        "give texts or --file, not both": (model, "a", "--file", tmp_path / "text.txt"),
        "line 2: is not valid JSON": (model, "--file", tmp_path / "broken.jsonl"),
        "is not UTF-8 text": (model, "--file", tmp_path / "garbage.txt"),
        "nowhere.txt: cannot be read": (model, "--file", tmp_path / "nowhere.txt"),
        "tets.txt: no such file": (model, tmp_path / "tets.txt"),
        "an object needs 'text' as text": (model, '{"body": "a"}'),
        "text 1: is not valid JSON": (model, '{"text": }'),
    }
    for reason, words in wrong.items():
        result = command("predict", *words)
        assert (result.code, len(result.lines)) == (2, 1), result.err
        assert reason in result.err


def broken(change: Callable[[str], str], source: Path, target: Path) -> Path:
    """A model folder whose bertree.toml somebody has changed."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    text = (target / "bertree.toml").read_text()
    assert change(text) != text
    (target / "bertree.toml").write_text(change(text))
    return target


def test_what_a_folder_remembers_is_not_trusted(trained: Trained, command: Command, tmp_path: Path) -> None:
    squad, classes = trained("squad2") / "model", trained("classification") / "model"
    question = json.dumps({"question": "which ?", "context": "the boat"})
    wrong = [
        (broken(lambda t: t.replace("stride = 128", 'stride = "x"'), squad, tmp_path / "1"), question, "task.stride"),
        (broken(lambda t: t.replace("stride = 128", "stride = 0"), squad, tmp_path / "2"), question, "stride 0"),
        (broken(lambda t: t.replace('"squad2"', '"squad3"'), squad, tmp_path / "3"), question, "squad3: unknown task"),
        (
            broken(lambda t: t.replace('"classification"', '"ner"'), classes, tmp_path / "4"),
            "a",
            "needs a model with a 'token' head",
        ),
    ]
    for model, text, reason in wrong:
        result = command("predict", model, text)
        assert (result.code, len(result.lines)) == (2, 1), result.err
        assert reason in result.err
    for number, value in enumerate(('"x"', "-3", "1000000", "true")):
        change = {"max_length = 64": f"max_length = {value}"}
        model = broken(lambda t, c=change: t.replace(*next(iter(c.items()))), classes, tmp_path / f"m{number}")
        assert "good" in command.well("predict", model, "happy").out


def test_bytes_that_are_not_text(command: Command, trained: Trained, tmp_path: Path) -> None:
    data = put({"train.tsv": bytes(range(256)) * 9}, tmp_path / "data")
    result = command("finetune", trained.start, "--task", "classification", "--data", data, "--out", tmp_path / "out")
    assert result.code == 2
    assert result.err.startswith(f"bertree: {data / 'train.tsv'}: line 2: is not UTF-8 text")
    assert len(result.lines) == 1
    assert not (tmp_path / "out").exists()
