"""`bertree distill --task`: every head, any student, a teacher that is asked once."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import bertree
from bertree.distillation import teacher
from bertree.errors import BertreeWarning
from bertree.interop import folder
from bertree.tasks.batches import logits
from bertree.text import tokenizer_training
from tests.support.command import Command
from tests.support.learnable import BAD, GOOD, WORDS, Row, Trained, feelings, model, write
from tests.support.lessons import FAST, command_of, taught
from tests.support.shared import suite_has


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many units the teacher was asked about, each time it was asked."""
    questions: list[int] = []
    inner = logits

    def ask(network: object, head: str, units: list[object], *more: object) -> object:
        questions.append(len(units))
        return inner(network, head, units, *more)

    monkeypatch.setattr(teacher, "logits", ask)
    return questions


def figures(out: Path) -> dict[str, object]:
    return json.loads((out / "metrics.json").read_text())


def losses(out: Path, seed: int = 0) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


TAUGHT = [
    ("classification", ("kind=hard", "epochs=4")),
    ("pair", ("kind=mse", "epochs=4")),
    ("regression", ("alpha=0.3", "epochs=3")),
    ("ner", ("temperature=4",)),
    ("squad2", ("epochs=3",)),
    ("choice", ("kind=soft", "alpha=0")),
]


@pytest.mark.parametrize(
    ("name", "settings"),
    suite_has([case for case in TAUGHT if case[0] in ("pair", "ner")], TAUGHT),
)
def test_half_of_the_teacher_learns(
    name: str, settings: tuple[str, ...], command: Command, trained: Trained, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = taught(command, trained, name, out, *settings)
    assert result.code == 0, result.err
    scores = figures(out)
    before = figures(trained(name))
    told = scores["distillation"]
    metric = scores["metric"]
    assert told["teacher"][metric] == pytest.approx(before[metric], abs=1e-9), "the same dev split, the same task"
    assert told["student"] == scores[metric]
    assert told["kept"] == pytest.approx(scores[metric] / before[metric])
    assert told["kept"] > 0.9
    assert f"{100 * told['kept']:.1f} % of it kept" in result.out
    page = (out / "report.html").read_text()
    assert "kept of the teacher" in page
    assert f"{100 * told['kept']:.1f} %" in page
    assert (told["kind"], told["temperature"]) == {
        "classification": ("hard", None), "pair": ("mse", None), "regression": ("mse", None), "ner": ("soft", 4.0),
    }.get(name, ("soft", 2.0))  # fmt: skip
    assert ("What the temperature does" in page) == (name != "regression")
    small = bertree.load(out / "model")
    assert small.architecture.layers == 1 < bertree.load(trained(name) / "model").architecture.layers
    recipe = tomllib.loads((out / "seed-0" / "recipe.toml").read_text())
    for setting in settings:
        key, value = setting.split("=")
        if key in recipe["distill"]:
            assert str(recipe["distill"][key]).removesuffix(".0") == value
    terms = {"hard", "soft"} if recipe["distill"]["alpha"] else {"soft"}
    alpha = {"kind=mse": 0.0, "alpha=0": 0.0, "alpha=0.3": 0.3}
    assert recipe["distill"]["alpha"] == next((alpha[setting] for setting in settings if setting in alpha), 0.5)
    rows = losses(out)
    assert all(terms <= set(row) for row in rows)
    weights = {"hard": recipe["distill"]["alpha"], "soft": 1 - recipe["distill"]["alpha"]}
    assert rows[0]["loss"] == pytest.approx(sum(weights[term] * rows[0][term] for term in terms), rel=1e-5)
    assert rows[-1]["soft"] < rows[0]["soft"]
    kept = load_file(out / teacher.SCORES_FILE)["scores"]
    assert f"({kept.nbytes:,} bytes)" in result.out + result.err


def test_a_run_of_finetune_knows_nothing_of_it(trained: Trained) -> None:
    out = trained("classification")
    assert "distill" not in tomllib.loads((out / "seed-0" / "recipe.toml").read_text())
    assert "distillation" not in figures(out)
    assert not (out / teacher.SCORES_FILE).exists()


def test_the_teacher_is_asked_once(command: Command, trained: Trained, tmp_path: Path, asked: list[int]) -> None:
    out, settings = tmp_path / "out", ("epochs=0.2",)
    assert taught(command, trained, "classification", out, *settings).code == 0
    assert sorted(asked) == [60, 240]
    kept = (out / teacher.SCORES_FILE).read_bytes()
    result = taught(command, trained, "classification", out, *settings, more=("--seeds", 3, "--resume"))
    assert result.code == 0, result.err
    assert sorted(asked) == [60, 240]
    assert len(figures(out)["seeds"]) == 3
    assert "kept_mean" in figures(out)["distillation"]
    assert (out / teacher.SCORES_FILE).read_bytes() == kept
    damaged = bytearray(kept)
    damaged[-3] ^= 1
    (out / teacher.SCORES_FILE).write_bytes(damaged)
    result = taught(command, trained, "classification", out, *settings, more=("--seeds", 3, "--resume"))
    assert result.code == 0
    assert "is damaged; the teacher's scores are computed again" in result.err
    assert len(asked) == 4
    assert (out / teacher.SCORES_FILE).read_bytes() == kept
    assert not list(out.rglob(".*"))


def test_scores_of_something_else_are_not_taken(tmp_path: Path) -> None:
    rows = [np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)]
    teacher.write_scores(tmp_path, teacher.TeacherScores(rows, {"accuracy": 0.5}), "this", 3)
    scores = teacher.read_scores(tmp_path, "this", [2, 1], 3)
    assert scores is not None
    assert [row.tolist() for row in scores.rows] == [row.tolist() for row in rows]
    assert scores.figures == {"accuracy": 0.5}
    assert teacher.read_scores(tmp_path, "that", [2, 1], 3) is None
    with pytest.warns(BertreeWarning, match="damaged"):
        assert teacher.read_scores(tmp_path, "this", [2, 2], 3) is None
    (tmp_path / teacher.SCORES_FILE).write_bytes(b"nothing of the kind")
    with pytest.warns(BertreeWarning, match="cannot be read"):
        assert teacher.read_scores(tmp_path, "this", [2, 1], 3) is None


def test_true_answers_alone_are_fine_tuning(command: Command, trained: Trained, tmp_path: Path) -> None:
    """alpha=1 on a student with weights of its own: the very run of `finetune`."""
    settings = ("alpha=1", "epochs=0.5")
    assert taught(command, trained, "squad2", tmp_path / "a", *settings, student=trained.start).code == 0
    arguments = [*trained.command("squad2", tmp_path / "b"), "epochs=0.5"]
    command.well(*arguments)
    both = [(tmp_path / out / "model" / "model.safetensors").read_bytes() for out in "ab"]
    assert both[0] == both[1]
    assert "soft" not in losses(tmp_path / "a")[0]


def turned(source: Path, target: Path) -> Path:
    """The same model with its classes in the opposite order."""
    contents = folder.read(source)
    order = list(range(len(contents.labels)))[::-1]
    head = next(iter(contents.network.heads.values())).out
    with torch.no_grad():
        head.weight.copy_(head.weight[order].clone())
        head.bias.copy_(head.bias[order].clone())
    contents.labels = contents.labels[::-1]
    folder.write(contents, target)
    return target


@pytest.mark.parametrize("name", ["classification", "ner"])
def test_labels_in_another_order(name: str, command: Command, trained: Trained, tmp_path: Path) -> None:
    other = turned(trained(name) / "model", tmp_path / "turned")
    plain, mapped = tmp_path / "plain", tmp_path / "mapped"
    words = command_of(trained, name, plain, "epochs=0.3")
    command.well(*words)
    command.well("distill", other, *command_of(trained, name, mapped, "epochs=0.3")[2:])
    kept = [load_file(out / teacher.SCORES_FILE)["scores"] for out in (plain, mapped)]
    assert np.array_equal(*kept)
    assert figures(plain)["distillation"]["teacher"] == figures(mapped)["distillation"]["teacher"]
    names = ("model/model.safetensors", "model/bertree.toml", "predictions.jsonl")
    assert [(plain / file).read_bytes() for file in names] == [(mapped / file).read_bytes() for file in names]


def test_classes_without_names_are_taken_in_order(command: Command, trained: Trained, tmp_path: Path) -> None:
    """Of a model from elsewhere, which says only LABEL_0, LABEL_1; its dev split is held out of the one file."""
    contents = folder.read(trained("classification") / "model")
    contents.labels, contents.task = ["LABEL_0", "LABEL_1"], {}
    folder.write(contents, tmp_path / "nameless")
    data = write(tmp_path / "all.csv", feelings(100, 2))
    arguments = ("--task", "classification", "--data", data, *FAST, "epochs=1")
    command.well("distill", tmp_path / "nameless", "--out", tmp_path / "out", *arguments)
    scores = figures(tmp_path / "out")
    assert scores["distillation"]["teacher"]["accuracy"] > 0.95
    assert scores["examples"] == {"train": 90, "dev": 10}
    assert bertree.load(tmp_path / "out" / "model").labels == ["bad", "good"]


def test_teacher_and_student_side_by_side(command: Command, trained: Trained, tmp_path: Path) -> None:
    words = command_of(trained, "classification", tmp_path / "out", "epochs=0.2")
    result = command.well(*words, "--seconds", "0.3")
    comparison = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [model["name"] for model in comparison["models"]] == ["teacher", "student"]
    assert comparison["models"][0]["encoder"] == 2 * comparison["models"][1]["encoder"]
    assert comparison["scores"]["accuracy"][1] == figures(tmp_path / "out")["accuracy"]
    assert "ms" in result.out
    assert "Teacher and student" in (tmp_path / "out" / "report.html").read_text()


def test_some_of_the_teachers_labels_are_enough(command: Command, trained: Trained, tmp_path: Path) -> None:
    """Those who happen to have examples of one class only still get a student that knows both."""
    write(tmp_path / "data" / "train.csv", [row for row in feelings(120) if row["label"] == "good"])
    write(tmp_path / "data" / "dev.csv", feelings(30, 1))
    arguments = ("--task", "classification", "--data", tmp_path / "data", *FAST, "epochs=1")
    result = command.well(
        "distill", turned(trained("classification") / "model", tmp_path / "t"), "--out", tmp_path / "out", *arguments
    )
    assert bertree.load(tmp_path / "out" / "model").labels == ["good", "bad"], "the teacher's order"
    assert "label" not in result.err


def test_a_teacher_of_another_task_is_told(command: Command, trained: Trained, tmp_path: Path) -> None:
    trained("squad2")
    words = command_of(trained, "squad", tmp_path / "out", "epochs=0.1")
    words[1] = trained("squad2") / "model"
    assert "was fine-tuned for squad2, not for squad" in command.well(*words).err


@pytest.fixture(scope="module")
def stranger(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student that cuts words into other pieces."""
    text = " ".join(WORDS)
    words = tokenizer_training.train(lambda: [text] * 4, "bpe", 450)
    return model(tmp_path_factory.mktemp("stranger") / "model", words, layers=1)


@pytest.mark.parametrize("name", suite_has(["choice"], ["classification", "choice"]))
def test_another_tokenizer(name: str, command: Command, trained: Trained, stranger: Path, tmp_path: Path) -> None:
    """Each reads its own tokens; the scores are the same as with the teacher's own, and the student learns."""
    own, other = tmp_path / "own", tmp_path / "other"
    command.well(*command_of(trained, name, own, "epochs=0.1", "alpha=0"))
    command.well(*command_of(trained, name, other, "alpha=0", student=stranger))
    kept = [load_file(out / teacher.SCORES_FILE)["scores"] for out in (own, other)]
    np.testing.assert_allclose(*kept, atol=1e-5)
    assert figures(other)["distillation"]["kept"] > 0.8
    assert bertree.load(other / "model").tokenizer.size == bertree.load(stranger).tokenizer.size


def test_a_preset_reads_with_its_teachers_tokenizer(command: Command, trained: Trained, tmp_path: Path) -> None:
    """And every seed begins with weights of its own."""
    weights = []
    for seed in (0, 1):
        out = tmp_path / str(seed)
        settings = ("epochs=0.1", "lr=1e-9", f"seed={seed}")
        result = taught(command, trained, "classification", out, *settings, student="bert-tiny")
        assert result.code == 1, "nothing can be learned at this rate"
        model = bertree.load(out / "model")
        assert model.tokenizer.size == trained.words.size
        assert model.architecture.width == 128
        weights.append(model.network.encoder.embeddings.tokens.weight)
    assert not torch.allclose(*weights, atol=1e-3)


def test_layers_that_are_asked_for(command: Command, trained: Trained, tmp_path: Path) -> None:
    """With rate next to nothing the student still is what it began with: the layer that was named."""
    matches = []
    before = bertree.load(trained("ner") / "model").network.state_dict()
    for layer in (1, 2):
        out = tmp_path / str(layer)
        command.well(*command_of(trained, "ner", out, "epochs=0.1", "lr=1e-9", more=("--layers", str(layer))))
        state = bertree.load(out / "model").network.state_dict()
        name = next(name for name in state if "ffn" in name and name.endswith("weight"))
        teacher_tensors = [
            tensor for key, tensor in before.items() if "ffn" in key and tensor.shape == state[name].shape
        ]
        matches.append([torch.allclose(state[name], tensor, atol=1e-5) for tensor in teacher_tensors].index(True))
        assert torch.allclose(state["heads.token.out.weight"], before["heads.token.out.weight"], atol=1e-5)
    assert matches[0] != matches[1]


def few(folder_: Path, labeled: int) -> tuple[Path, Path]:
    """The training texts with all but a few labels taken away, and those few alone."""
    every: list[Row] = feelings(240)
    some = [row | ({} if number < labeled else {"label": ""}) for number, row in enumerate(every)]
    dev = feelings(60, 1)
    for name, rows in (("all", some), ("few", every[: max(1, labeled)])):
        write(folder_ / name / "train.csv", rows)
        write(folder_ / name / "dev.csv", dev)
    return folder_ / "all", folder_ / "few"


def test_a_teacher_makes_up_for_labels(command: Command, trained: Trained, tmp_path: Path) -> None:
    """The same student, the same number of steps: with a teacher for the texts without labels, and without."""
    whole, part = few(tmp_path, 6)
    start = model(tmp_path / "start", trained.words, layers=1)
    teacher_ = trained("classification") / "model"
    arguments = ("--task", "classification", *FAST[2:], "patience=0")
    taught_, plain = tmp_path / "taught", tmp_path / "plain"
    command.well(
        "distill", teacher_, *FAST[:2], "--data", whole, "--student", start, "--out", taught_, *arguments, "epochs=4"
    )
    command.well("finetune", start, "--data", part, "--out", plain, *arguments, "epochs=60")
    steps = [losses(out)[-1]["step"] for out in (taught_, plain)]
    assert steps == [60, 60]
    scores_ = [figures(out)["accuracy"] for out in (taught_, plain)]
    assert scores_[0] > 0.95
    assert scores_[0] > scores_[1] + 0.1
    seen_words = {word for row in feelings(240)[:6] for word in str(row["text"]).split()} & {*GOOD, *BAD}
    assert len(seen_words) < 8, "or there would be nothing to make up for"


def test_no_label_at_all(command: Command, trained: Trained, tmp_path: Path) -> None:
    whole, _ = few(tmp_path, 0)
    result = command.well(
        "distill", trained("classification") / "model", "--task", "classification", "--data", whole,
        "--out", tmp_path / "out", *FAST, "epochs=4",
    )  # fmt: skip
    assert "no training example has a label" in result.out + result.err
    assert figures(tmp_path / "out")["accuracy"] > 0.9
    assert losses(tmp_path / "out")[0]["hard"] == 0


def apart(left: Path, right: Path, data: Path) -> float:
    """How far a model's spans are from another's, in nats: the mean of the divergences of starts and of ends."""
    models = [bertree.load(path) for path in (left, right)]
    task = models[0].find_task()
    units, _ = task.units(task.read([data]), models[0].required_tokenizer, 64)
    total = 0.0
    for rows in zip(*(logits(draw.network, task.head, units) for draw in models), strict=True):
        shares = [np.exp(x - x.max(0)) / np.exp(x - x.max(0)).sum(0) for x in rows]
        total += float((shares[0] * np.log(shares[0] / shares[1])).sum()) / 2
    return total / len(units)


def test_the_second_step_on_squad(command: Command, trained: Trained, tmp_path: Path) -> None:
    """DistilBERT's: a student that is a model of its own, taught while it is fine-tuned. After the same steps it is
    nearer to its teacher than one that was told the answers alone, and answers as well."""
    start = model(tmp_path / "start", trained.words, layers=1)
    scores = {}
    for alpha in (0.0, 0.5, 1.0):
        out = tmp_path / str(alpha)
        result = taught(command, trained, "squad", out, "epochs=2", "patience=0", f"alpha={alpha}", student=start)
        assert result.code == 0, result.err
        assert figures(out)["distillation"]["kept"] > 0.9
        data = trained.root / "squad" / "data" / "dev-v1.1.json"
        scores[alpha] = apart(trained("squad") / "model", out / "model", data)
    assert scores[0.0] < scores[0.5] < scores[1.0]
    assert scores[0.0] < 0.85 * scores[1.0]


REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "no head": ("ner", {"teacher": "start"}, "cannot teach ner; fine-tune it first (bertree finetune, --task ner)"),
    "crf": ("crf", {}, "has a CRF, which scores whole sequences"),
    "crf asked for": ("ner", {"settings": ("crf=true",)}, "crf: scores whole sequences of tags"),
    "another tokenizer, tokens": ("ner", {"student": "stranger"}, "reads with another tokenizer than"),
    "another tokenizer, spans": ("squad", {"student": "stranger"}, "scores single tokens"),
    "no such student": ("ner", {"student": "bert-tinny"}, "bert-tiny"),
    "layers of a folder": ("ner", {"student": "start", "more": ("--layers", "1")}, "has weights of its own"),
    "too many layers": ("ner", {"more": ("--layers", "1,2")}, "the student has 1 layer,"),
    "no such layer": ("ner", {"more": ("--layers", "3")}, "3 is not one of the teacher's layers 1 to 2"),
    "another width": ("ner", {"student": "bert-tiny", "more": ("--layers", "1,2")}, "no layer fits"),
    "copies of tags": ("ner", {"settings": ("copies=3",)}, "copies: rewrites texts and pairs, but ner"),
    "alpha": ("ner", {"settings": ("alpha=1.5",)}, "distill.alpha: must lie between 0 and 1, not 1.5"),
    "kind": ("ner", {"settings": ("kind=sofd",)}, "distill.kind: unknown value 'sofd'"),
    "temperature": ("ner", {"settings": ("temperature=0",)}, "distill.temperature: must be above 0"),
    "words": ("ner", {"settings": ("masking=0.7", "replacing=0.7")}, "are shares of the same words, not 1.4"),
    "name": ("ner", {"settings": ("temprature=3",)}, "temperature"),
    "sectioned name": ("ner", {"settings": ("distill.alfa=1",)}, "distill.alfa: unknown key, did you mean 'alpha'"),
    "tokenizer of half": ("ner", {"more": ("--tokenizer", "x")}, "half of a teacher reads with its tokenizer"),
    "a preset is no teacher": ("ner", {"teacher": "bert-tiny"}, "bert-tiny: no such folder"),
    "a model without the head": ("ner", {"teacher": "default"}, "default: has no 'token' head, so it cannot teach ner"),
    "one score": ("classification", {"teacher": "regression"}, "does not know the label"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_line(case: str, command: Command, trained: Trained, stranger: Path, tmp_path: Path) -> None:
    name, changes, expected = REFUSED[case]
    places = {"start": trained.start, "stranger": stranger, "regression": trained.root / "regression" / "out" / "model"}
    if changes.get("teacher") == "regression":
        trained("regression")
    student = changes.get("student", "half")
    student, settings = places.get(str(student), student), changes.get("settings", ())
    words = command_of(trained, name, tmp_path / "out", *settings, student=student, more=changes.get("more", ()))
    if "teacher" in changes:
        words[1] = places.get(str(changes["teacher"]), changes["teacher"])
    result = command(*words)
    assert result.code != 0
    assert len([line for line in result.lines if "note: " not in line]) == 1, result.err
    assert expected in result.err
    assert not (tmp_path / "out").exists()


def test_a_label_the_teacher_does_not_know(command: Command, trained: Trained, tmp_path: Path) -> None:
    rows = [row | {"label": "neither"} if number < 20 else row for number, row in enumerate(feelings(60))]
    write(tmp_path / "data" / "train.csv", rows)
    write(tmp_path / "data" / "dev.csv", feelings(20, 1))
    result = command(
        "distill", trained("classification") / "model", "--task", "classification", "--data", tmp_path / "data",
        "--out", tmp_path / "out", *FAST,
    )  # fmt: skip
    assert result.code == 2
    assert len(result.lines) == 1
    assert "does not know the label 'neither' of the training examples, only bad, good; fine-tune it" in result.err


def test_windows_longer_than_the_teacher_reads(command: Command, trained: Trained, tmp_path: Path) -> None:
    long = model(tmp_path / "long", trained.words, layers=1, max_positions=128)
    result = taught(command, trained, "squad", tmp_path / "out", "max_length=100", student=long)
    assert result.code == 2
    assert "max_length 100: the teacher has only 64 positions" in result.err
    assert "set max_length=64" in result.err
    result = taught(command, trained, "squad", tmp_path / "out", "epochs=0.2", student=long)
    assert result.code == 0, result.err
    assert tomllib.loads((tmp_path / "out" / "seed-0" / "recipe.toml").read_text())["train"]["max_length"] == 64
