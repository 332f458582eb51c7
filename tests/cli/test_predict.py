"""New texts through fine-tuned models, and an encoder's states for every word."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.readout import Readout
from tests.support import learnable
from tests.support.command import Command, CommandResult
from tests.support.learnable import Trained


def objects(result: CommandResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.out.splitlines()]


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_classes(trained: Trained, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("classification") / "model"
    texts = ["the boat is happy", "a stale  road ", "{not json"]
    predictions = objects(command.well("predict", model, *texts, "--json"))
    assert [line["predicted"] for line in predictions[:2]] == ["good", "bad"]
    assert [line["text"] for line in predictions] == ["the boat is happy", "a stale  road", "{not json"]
    assert all("gold" not in line for line in predictions)
    for line in predictions:
        assert sum(line["probabilities"].values()) == pytest.approx(1.0)
        assert line["score"] == line["probabilities"][line["predicted"]] == max(line["probabilities"].values())
    plain = command.well("predict", model, *texts).out.splitlines()
    assert [line.split("\t")[0] for line in plain] == [line["predicted"] for line in predictions]
    (tmp_path / "lines.txt").write_text("the boat is happy\r\n\n" + '{"text": "a stale  road "}\n{not json\n')
    assert objects(command.well("predict", model, "--file", tmp_path / "lines.txt", "--json")) == predictions
    typed(monkeypatch, "the boat is happy\n\na stale  road \n{not json\n")
    assert objects(command.well("predict", model, "-", "--json")) == predictions
    rows = [{"text": text, "label": "?"} for text in texts]
    for name in ("rows.csv", "rows.tsv", "rows.jsonl", "rows.parquet"):
        learnable.write(tmp_path / name, rows)
        assert objects(command.well("predict", model, "--file", tmp_path / name, "--json")) == predictions, name


def test_pairs(trained: Trained, command: Command) -> None:
    model = trained("pair") / "model"
    inputs = ("on is by\ta glad boat", '{"text": "on is by", "pair": "a broken boat"}', '{"one": "is", "two": "awful"}')
    predictions = objects(command.well("predict", model, *inputs, "--json"))
    assert [line["predicted"] for line in predictions] == ["good", "bad", "bad"]
    assert [line["pair"] for line in predictions] == ["a glad boat", "a broken boat", "awful"]
    result = command("predict", model, "one text only")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "two texts" in result.err


def test_scores(trained: Trained, command: Command) -> None:
    model = trained("regression") / "model"
    texts = ["happy fine glad the boat", "the boat", "stale awful bitter the boat"]
    scores = [line["predicted"] for line in objects(command.well("predict", model, *texts, "--json"))]
    assert scores[0] > scores[1] > scores[2]
    shown = [float(line.split("\t")[0]) for line in command.well("predict", model, *texts).out.splitlines()]
    assert shown == pytest.approx(scores, abs=1e-3)


TEXT = "  the  boat (Ada\u00a0Emil), to\tOslo—and Otto's 😀 Porto."


@pytest.mark.parametrize("name", ["ner", "crf"])
def test_entities_stand_in_the_line_as_it_was_given(
    name: str, trained: Trained, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained(name) / "model"
    long = "the boat " * 60 + "to Ada Greta " + "on the road " * 30 + "from Lyon"
    typed(monkeypatch, f"{TEXT}\n{long}\n")
    short, windowed = objects(command.well("predict", model, "--json"))
    assert short["text"] == TEXT
    assert windowed["text"] == long
    for line, text in ((short, TEXT), (windowed, long)):
        assert all(text[e["start"] : e["end"]] == e["text"] for e in line["entities"])
        assert all((e["score"] is None) == (name == "crf") for e in line["entities"])
    words = [e["text"] for e in short["entities"]]
    assert any("Ada" in word for word in words)
    assert any("Oslo" in word for word in words)
    assert len(windowed["words"]) == 215
    assert {"Ada", "Lyon"} <= {e["text"].split(" ")[0] for e in windowed["entities"]}
    lines = command.well("predict", model, '{"words": ["to", "Ada", "Emil"]}', "the boat").out.splitlines()
    assert lines[0] == "to Ada Emil"
    assert lines[1].split("\t")[:3] == ["  PER", "Ada Emil", "3-11"]
    assert lines[2:] == ["the boat", "  no entity"]
    assert command("predict", model, "   ", "--json").code == 2
    assert command.well("predict", model, "{x} the boat").out.startswith("{x} the boat")


@pytest.mark.parametrize("name", ["squad", "squad2"])
def test_answers_stand_in_the_context_as_it_was_given(name: str, trained: Trained, command: Command) -> None:
    model, asked = trained(name) / "model", "which colour is it ?"
    context = "  the \u00a0boat   is\tblue  on the river"
    long = "the boat on a road " * 30 + "is purple by the lamp " + "in a garden " * 20
    predictions = objects(command.well("predict", model, "--question", asked, context, long, "--json"))
    for line, text, answer in zip(predictions, (context, long), ("blue", "purple"), strict=True):
        assert line["context"] == text
        assert line["predicted"] == text[line["start"] : line["end"]]
        assert line["predicted"] == answer or text is long  # the model has never seen the end of a window
    record = json.dumps({"question": asked, "context": context})
    # Beside another text a score may be rounded differently.
    line = predictions[0]
    near = {key: pytest.approx(value, abs=1e-4) if isinstance(value, float) else value for key, value in line.items()}
    assert objects(command.well("predict", model, record, f"{asked}\t{context}", "--json")) == [near, near]
    shown = command.well("predict", model, record).out.rstrip("\n").split("\t")
    assert shown[0] == "blue"
    assert shown[2] == f"{context.index('blue')}-{context.index('blue') + 4}"
    if name == "squad2":
        (line,) = objects(command.well("predict", model, "--question", asked, "the boat is on it", "--json"))
        assert (line["predicted"], line["start"]) == ("", None)
        assert command.well("predict", model, "--question", asked, "the boat is on it").out.startswith("no answer\t")
    for wrong in ("no tab", f"{asked}\t  "):
        result = command("predict", model, wrong)
        assert (result.code, len(result.lines)) == (2, 1)


def test_options(trained: Trained, command: Command) -> None:
    model = trained("choice") / "model"
    record = {"context": "the boat is", "question": "which is it ?", "options": ["a stale road", "the glad tree"]}
    (predictions,) = objects(command.well("predict", model, json.dumps(record), "--json"))
    assert (predictions["predicted"], predictions["answer"]) == (1, "the glad tree")
    assert len(predictions["probabilities"]) == 2
    assert command.well("predict", model, json.dumps(record)).out.startswith("1\tthe glad tree\t")
    result = command("predict", model, "no object")
    assert (result.code, len(result.lines)) == (2, 1)


def test_nothing_to_predict(
    trained: Trained, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.txt").write_text("")
    for name in ("classification", "ner", "squad", "choice"):
        model = trained(name) / "model"
        typed(monkeypatch, "")
        assert "standard input: nothing to predict: the input is empty" in command("predict", model).err
        assert command("predict", model, "--file", tmp_path / "empty.txt", "--json").code == 2
    assert f"{tmp_path / 'empty.txt'}: nothing to predict" in command("predict", model, tmp_path / "empty.txt").err


def test_more_lines_than_are_taken_at_once(trained: Trained, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = learnable.feelings(50, 7)
    model = trained("classification") / "model"
    whole = command.well("predict", model, *(row["text"] for row in rows), "--json").out
    monkeypatch.setattr("bertree.cli.finetune.CHUNK", 7)
    cut = command.well("predict", model, *(row["text"] for row in rows), "--json").out
    assert [line["predicted"] for line in map(json.loads, cut.splitlines())] == [row["label"] for row in rows]
    assert [json.loads(x)["predicted"] for x in whole.splitlines()] == [row["label"] for row in rows]


def test_a_model_whose_classes_have_no_names(trained: Trained, command: Command, tmp_path: Path) -> None:
    """transformers writes no names where there are two classes without any."""
    path = learnable.model(tmp_path / "two", trained.words, heads={"sequence": 2}, pooler=True)
    (path / "bertree.toml").unlink()
    config = json.loads((path / "config.json").read_text())
    del config["id2label"], config["label2id"]
    (path / "config.json").write_text(json.dumps(config))
    (predictions,) = objects(command.well("predict", path, "the boat", "--json"))
    assert set(predictions["probabilities"]) == {"LABEL_0", "LABEL_1"}


def test_longer_than_the_model_was_trained_with(trained: Trained, command: Command) -> None:
    result = command("predict", trained("classification") / "model", "the boat", "--max-length", 65)
    assert (result.code, result.lines) == (2, ["bertree: max_length 65: the model has only 64 positions"])
    result = command.well("predict", trained("classification") / "model", "the " * 70)
    assert "1 of 1 examples do not fit into 64 tokens" in result.err


# Features


@pytest.fixture(scope="module")
def deep(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable.model(tmp_path_factory.mktemp("deep") / "model", trained.words, layers=5)


LINES = ["  the boatful (Ada)  is stale", "", "Oslo", "road " * 100]
WIDTHS = {
    "last": 32, "embeddings": 32, "second-to-last": 32, "sum-last-four": 32, "concat-last-four": 128, "sum-all": 32,
}  # fmt: skip


def test_features_are_the_states_of_first_sub_words(deep: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(LINES) + "\n")
    result = command.well("features", deep, tmp_path / "text.txt", "--out", tmp_path / "out", "--layers", "last")
    rows = np.load(tmp_path / "out" / "features.npy")
    assert rows.dtype == np.float32
    index = [json.loads(line) for line in (tmp_path / "out" / "words.jsonl").read_text().splitlines()]
    assert [line["text"] for line in index] == LINES
    assert [line["row"] for line in index] == [0, 7, 7, 8]
    assert len(rows) == sum(len(line["words"]) for line in index) == 108
    assert "108 words x 32" in result.out
    for line in index:
        assert [line["text"][start:end] for start, end in line["offsets"]] == line["words"]
    model = bertree.load(deep)
    for line in index[:3]:
        if not line["words"]:
            continue
        encoding = model.tokenizer.backend.encode(line["text"])
        starts = [at for at, _ in encoding.offsets]
        specials = encoding.special_tokens_mask
        firsts = [
            next(n for n, at in enumerate(starts) if at == start and not specials[n]) for start, _ in line["offsets"]
        ]
        (states,) = model.hidden([line["text"]])
        assert np.allclose(rows[line["row"] :][: len(firsts)], states[firsts].numpy(), atol=1e-5)
    assert len(encoding.ids) < 64 < 100, "and the last line is read in windows"
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("layers", WIDTHS)
def test_layers_that_can_be_read(layers: str, deep: Path, command: Command, tmp_path: Path) -> None:
    learnable.write(tmp_path / "text.jsonl", [{"words": ["the", "boat"]}, {"text": "Ada, to Oslo"}])
    command.well("features", deep, tmp_path / "text.jsonl", "--out", tmp_path / "out", "--layers", layers)
    rows = np.load(tmp_path / "out" / "features.npy")
    assert rows.shape == (6, WIDTHS[layers])
    model = bertree.load(deep)
    (encoded,) = model.tokenize(["the boat"])
    with torch.no_grad():
        states = list(model.network.encoder.states(Batch.pack([encoded.ids])))
    expected = {
        "last": states[5],
        "embeddings": states[0],
        "second-to-last": states[4],
        "sum-last-four": torch.stack(states[2:]).mean(0),
        "concat-last-four": torch.cat(states[2:], -1),
        "sum-all": torch.stack(states[1:]).mean(0),
    }[layers]
    assert np.allclose(rows[:2], expected[1:3].numpy(), atol=1e-5)


def test_features_of_a_tagger_with_a_top_of_its_own(deep: Path, command: Command, tmp_path: Path) -> None:
    """Learned weights are used if they are of the same layers; an LSTM is not a state of the encoder."""
    start = bertree.load(deep)
    (tmp_path / "text.txt").write_text("the boat\n")
    features = []
    for number, top in enumerate(
        (Readout("last"), Readout("sum-all"), Readout("sum-all", lstm=4), Readout("sum-last-four"))
    ):
        network = build(start.architecture, {"token": 3}, top)
        network.load_state_dict(start.network.state_dict(), strict=False)
        if network.features is not None:
            torch.nn.init.constant_(network.features.join.scale, 3.0)
        path = tmp_path / f"model{number}"
        folder.write(Contents(start.architecture, network, start.tokenizer, ["O", "B-X", "I-X"]), path)
        out = tmp_path / f"out{number}"
        command.well("features", path, tmp_path / "text.txt", "--out", out, "--layers", "sum-all")
        features.append(np.load(out / "features.npy"))
    plain, same, below, other = features
    assert np.allclose(same, 3 * plain, atol=1e-4)
    assert np.array_equal(same, below)
    assert np.array_equal(other, plain)


def test_features_refused(deep: Path, trained: Trained, command: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the boat\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    wrong = {
        "holds no words": ("features", deep, tmp_path / "empty.txt"),
        "did you mean 'sum-all'": ("features", deep, tmp_path / "text.txt", "--layers", "sum-al"),
        "needs 4 layers, but the encoder has 2": ("features", trained.start, tmp_path / "text.txt"),
        "nowhere.txt": ("features", deep, tmp_path / "nowhere.txt"),
        "only 64 positions": ("features", deep, tmp_path / "text.txt", "--max-length", 100),
    }
    for reason, words in wrong.items():
        result = command(*words, "--out", tmp_path / "out")
        assert (result.code, len(result.lines)) == (2, 1), result.err
        assert reason in result.err
        assert not (tmp_path / "out").exists()


def column_lines(rows: list[learnable.Row], prefix: str = "", separator: str = "\t") -> str:
    """One word a line with its tag, an empty line after each sentence."""
    both = (zip(row["words"], row["tags"], strict=True) for row in rows)
    return "\n".join("".join(f"{prefix}{word}{separator}{tag}\n" for word, tag in row) for row in both)


def write_columns(data: Path, ending: str, prefix: str, train: int = 160) -> Path:
    """The three splits as files of two columns; return the last."""
    data.mkdir()
    for split, rows in {"train": (train, 0), "dev": (40, 1), "test": (40, 2)}.items():
        (data / f"{split}{ending}").write_text(column_lines(learnable.tagged(*rows), prefix))
    return data / f"test{ending}"


def check_tags(command: Command, model: Path, data: Path, test: Path) -> None:
    """A tagger scores and predicts the words and tags of the files."""
    arguments = ("evaluate", model, "--task", "ner", "--json", "--data")
    scores = command.well(*arguments, data, "--split", "test").json
    assert scores["f1"] > 0.9
    assert command.well(*arguments, test).json["f1"] == scores["f1"]
    lines = objects(command.well("predict", model, "--file", test, "--json"))
    assert [line["words"] for line in lines] == [row["words"] for row in learnable.tagged(40, 2)]
    assert all("gold" not in line for line in lines)
    right = sum(line["predicted"] == row["tags"] for line, row in zip(lines, learnable.tagged(40, 2), strict=True))
    assert right > 30


def test_two_columns_with_a_tab_from_training_to_prediction(trained: Trained, command: Command, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    test = write_columns(data, ".tsv", "en:")
    arguments = ("--task", "ner", "--data", data, "--out", out)
    command.well("finetune", trained.start, *arguments, *learnable.SETTINGS, *learnable.KINDS["ner"].settings)
    check_tags(command, out / "model", data, test)


@pytest.mark.parametrize(("ending", "prefix"), [(".tsv", ""), ("", "en:"), (".txt", ""), (".conll", "")])
def test_files_of_two_columns_have_many_names(
    ending: str, prefix: str, trained: Trained, command: Command, tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    test = write_columns(data, ending, prefix, 20)
    arguments = ("--task", "ner", "--data", data, "--out", out)
    command.well("finetune", trained("ner") / "model", *arguments, *learnable.SETTINGS, "epochs=1", "lr=1e-6")
    assert json.loads((out / "metrics.json").read_text())["examples"] == {"train": 20, "dev": 40}
    check_tags(command, out / "model", data, test)


def test_named_columns_are_remembered_by_every_task(command: Command, tmp_path: Path) -> None:
    start = learnable.model(tmp_path / "start", learnable.tokenizer())
    rows = [{"tokens": row["words"], "ner_tags": row["tags"]} for row in learnable.tagged(40)]
    file = learnable.write(tmp_path / "train.jsonl", rows)
    arguments = ("--task", "ner", "--data", file)
    named = ("--text", "tokens", "--label", "ner_tags")
    command.well("finetune", start, *arguments, *named, "--out", tmp_path / "out", *learnable.SETTINGS, "epochs=1")
    assert "f1" in command.well("evaluate", tmp_path / "out/model", *arguments, "--json").json
    assert len(objects(command.well("predict", tmp_path / "out/model", "--file", file, "--json"))) == 40


@pytest.mark.parametrize("name", ["classification", "pair", "regression", "ner", "crf", "squad", "squad2", "choice"])
def test_a_file_that_is_evaluated_can_be_predicted(
    name: str, trained: Trained, command: Command, tmp_path: Path
) -> None:
    model, data = trained(name) / "model", trained.root / name / "data"
    (file,) = (path for path in data.iterdir() if path.name.startswith(("dev", "valid")))
    task = learnable.KINDS[name].options[1]
    command.well("evaluate", model, "--task", task, "--data", file, "--out", tmp_path / "scores")
    scored = [json.loads(line) for line in (tmp_path / "scores" / "predictions.jsonl").read_text().splitlines()]
    predictions = objects(command.well("predict", model, "--file", file, "--json"))
    assert [line["predicted"] for line in predictions] == [line["predicted"] for line in scored]
    assert all("gold" not in line for line in predictions)


def test_a_text_of_words_is_no_column_file(trained: Trained, command: Command, tmp_path: Path) -> None:
    """Lines of as many words each, as in a poem, are texts unless every one of them ends with a tag."""
    (tmp_path / "poem.txt").write_text("the boat to Oslo\nthe road to Riga\nthe lamp of Ada\n")
    predictions = objects(command.well("predict", trained("ner") / "model", "--file", tmp_path / "poem.txt", "--json"))
    assert [len(line["words"]) for line in predictions] == [4, 4, 4]
    (tmp_path / "words.tsv").write_text("id\ttext\n1\tthe boat to Oslo\n")
    (line,) = objects(command.well("predict", trained("ner") / "model", "--file", tmp_path / "words.tsv", "--json"))
    assert line["words"] == ["the", "boat", "to", "Oslo"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.jsonl", '{"text": "a"}\n{"foo": "b"}\n', "rows.jsonl: line 2: "),
        ("rows.csv", "foo,bar\n1,2\n", "rows.csv: line 2: "),
        ("empty.csv", "text\n", "empty.csv"),
        ("empty.txt", "\n", "empty.txt"),
    ],
)
def test_mistakes_in_a_file_name_it(
    name: str, text: str, message: str, trained: Trained, command: Command, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    result = command("predict", trained("classification") / "model", "--file", tmp_path / name)
    assert result.code == 2
    assert str(tmp_path / message) in result.lines[-1]
