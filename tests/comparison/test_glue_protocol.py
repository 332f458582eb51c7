"""The protocol for GLUE: rates are chosen without the dev split, and a protocol that was stopped ends with the same."""

import json
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest

import bertree
from bertree.comparison import glue_protocol
from bertree.comparison.glue_scores import GlueProtocol
from bertree.errors import UserError
from bertree.finetuning.config import FineTuneConfig
from bertree.inference.load import Run
from bertree.tasks.glue import TEXT_TASKS
from tests.support import learnable
from tests.support.command import Command

RATES = (1e-6, 8e-3)  # one that learns nothing, and one that does
FIXED = (glue_protocol.RATES, glue_protocol.SEEDS, glue_protocol.HELD_OUT, glue_protocol.MOST_HELD_OUT)


@pytest.fixture(autouse=True)
def two_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glue_protocol, "RATES", RATES)
    monkeypatch.setattr(glue_protocol, "SEEDS", 2)


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return learnable.model(tmp_path / "encoder", learnable.tokenizer(), layers=1)


def glue_folder(path: Path, rows: int = 160, flip: bool = False) -> Path:
    """SST-2 whose dev labels are right, or all wrong."""
    for split, count in (("train", rows), ("dev", 40)):
        wrong = flip and split == "dev"
        sentences = [
            {"sentence": row["text"], "label": int((row["label"] == "good") != wrong)}
            for row in learnable.feelings(count, len(split))
        ]
        learnable.write(path / "SST-2" / f"{split}.tsv", sentences)
    return path


def pairs_folder(path: Path, names: dict[str, tuple[str, str]]) -> Path:
    """Tasks of pairs, each with its two labels."""
    for name, (good, bad) in names.items():
        for split, count in (("train", 40), ("dev", 12)):
            rows = [
                {"sentence1": row["one"], "sentence2": row["two"], "label": good if row["kind"] == "good" else bad}
                for row in learnable.pairs(count, len(split))
            ]
            learnable.write(path / name / f"{split}.tsv", rows)
    return path


def run(model: Path, data: Path, out: Path, **settings: Any) -> GlueProtocol:
    with learnable.one_thread():
        protocol = bertree.glue(protocol=model, data=data, out=out, device="cpu", **settings).protocol
    assert protocol is not None
    return protocol


def test_what_moves_scores_changes_only_with_the_version() -> None:
    optim, settings = FineTuneConfig().optim, glue_protocol.SETTINGS
    lengths = {name: TEXT_TASKS[name].max_length for name in glue_protocol.TASKS}
    assert glue_protocol.VERSION == 1
    assert FIXED == ((2e-5, 4e-5, 8e-5, 1.6e-4), 3, 0.1, 2000)
    assert [settings[name] for name in ("epochs", "batch", "warmup", "shape", "evaluations")] == [
        3,
        32,
        0.1,
        "linear",
        0,
    ]
    assert (optim.name, optim.betas, optim.eps, optim.layer_decay) == ("adamw", (0.9, 0.999), 1e-8, 1.0)
    assert lengths == dict.fromkeys(glue_protocol.TASKS, 128) | {"rte": 256}


def test_the_dev_split_chooses_nothing(encoder: Path, tmp_path: Path) -> None:
    right, wrong = (
        run(encoder, glue_folder(tmp_path / str(flip), flip=flip), tmp_path / f"out {flip}").rows["sst-2"]
        for flip in (False, True)
    )
    assert right.choices == wrong.choices
    assert right.rate == wrong.rate == 8e-3
    assert right.score is not None
    assert right.score > 0.6
    assert wrong.score == pytest.approx(1 - right.score)
    assert [(choice.training_rows, choice.held_out_rows) for choice in right.choices] == [(144, 16)] * 2
    assert (right.training_rows, right.dev_rows, len(right.scores)) == (160, 40, 2)


def test_a_stopped_protocol_continues_to_the_same_report(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, report = glue_folder(tmp_path / "glue", 40), Path(glue_protocol.REPORT)
    whole = run(encoder, data, tmp_path / "whole")
    trained: list[float] = []
    monkeypatch.setattr(glue_protocol, "finetune", stopping(trained, at=2))
    stopped = run(encoder, data, tmp_path / "parts")
    assert stopped.signal == SIGTERM
    assert [choice.rate for choice in stopped.rows["sst-2"].choices] == [1e-6]
    assert run(encoder, data, tmp_path / "parts") == whole
    assert run(encoder, data, tmp_path / "parts") == whole
    assert trained == [1e-6, 8e-3, 8e-3, whole.rows["sst-2"].rate], "what is finished is not trained again"
    assert (tmp_path / "parts" / report).read_bytes() == (tmp_path / "whole" / report).read_bytes()
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["glue.json", "runs"]


def stopping(trained: list[float], at: int) -> Callable[..., Run]:
    """Return `finetune` that lists its rates; a signal stops its call number `at`."""

    def finetune(*arguments: Any, **settings: Any) -> Run:
        trained.append(settings["lr"])
        if len(trained) == at:
            return Run(settings["out"], signal=SIGTERM)
        return bertree.finetune(*arguments, **settings)

    return finetune


def test_small_tasks_start_from_the_mnli_model_in_rows_of_their_own(encoder: Path, tmp_path: Path) -> None:
    entailed = ("entailment", "not_entailment")
    data = pairs_folder(tmp_path / "glue", {"MNLI": ("entailment", "neutral"), "RTE": entailed, "QNLI": entailed})
    with pytest.warns(UserWarning, match="has no folder of qqp, sst-2, cola, sts-b, mrpc"):
        protocol = run(encoder, data, tmp_path / "out", from_mnli=True)
    assert list(protocol.rows) == ["mnli", "rte", "rte from mnli"]
    metrics = json.loads((tmp_path / "out" / "runs" / "rte-from-mnli" / "metrics.json").read_text())
    assert metrics["model"] == str(tmp_path / "out" / "runs" / "mnli" / "model")
    scores = {name: row.score or 0.0 for name, row in protocol.rows.items()}
    assert protocol.averages == {
        "average": pytest.approx((scores["mnli"] + scores["rte"]) / 2),
        "average from mnli": pytest.approx((scores["mnli"] + scores["rte from mnli"]) / 2),
    }


def test_the_verb_prints_rates_and_scores(encoder: Path, tmp_path: Path, command: Command) -> None:
    arguments = ["glue", "--protocol", encoder, "--data", glue_folder(tmp_path / "glue", 40), "--out", tmp_path / "out"]
    arguments += ["--examples", 20, "--device", "cpu"]
    with learnable.one_thread():
        shown = command.well(*arguments).out
    assert "sst-2, lr 1e-6: accuracy" in shown
    assert "at most 20 training rows" in shown
    again = command.well(*arguments, "--json").json["protocol"]
    row = again["rows"]["sst-2"]
    assert (row["training_rows"], row["choices"][0]["training_rows"], row["choices"][0]["held_out_rows"]) == (20, 18, 2)
    assert again["version"] == glue_protocol.VERSION
    assert again["averages"] == {"average": pytest.approx(sum(row["scores"]) / 2)}


def test_what_cannot_be_scored_is_refused_in_one_line(encoder: Path, tmp_path: Path) -> None:
    data, out = glue_folder(tmp_path / "glue", 40), tmp_path / "out"
    without_dev = glue_folder(tmp_path / "no dev", 40)
    (without_dev / "SST-2" / "dev.tsv").unlink()
    cases: dict[str, dict[str, Any]] = {
        "give the folder that holds them": {"protocol": encoder},
        "no such folder": {"protocol": encoder, "data": tmp_path / "nothing"},
        "holds no folder of a task": {"protocol": encoder, "data": encoder},
        "has no dev file": {"protocol": encoder, "data": without_dev},
        "needs the folder MNLI": {"protocol": encoder, "data": data, "from_mnli": True},
        "must be at least 20": {"protocol": encoder, "data": data, "examples": 5},
        "goes neither with runs": {"protocol": encoder, "data": data, "runs": [out]},
        "are for `protocol`": {"runs": [out], "data": data},
        "cannot be used": {"protocol": encoder, "data": data, "device": "tpu:0"},
    }
    for message, arguments in cases.items():
        with pytest.raises(UserError, match=message):
            bertree.glue(**{"out": out, "device": "cpu"} | arguments)
        assert not out.exists()
    with pytest.raises(UserError, match="holds other files"):
        run(encoder, data, data)


def test_another_model_or_a_damaged_report_is_refused(encoder: Path, tmp_path: Path) -> None:
    data, out = glue_folder(tmp_path / "glue", 40), tmp_path / "out"
    run(encoder, data, out)
    other = learnable.model(tmp_path / "other", learnable.tokenizer(), layers=2)
    with pytest.raises(UserError, match="was begun with another digest"):
        run(other, data, out)
    glue_folder(data, 44)
    with pytest.raises(UserError, match=r"was begun with another data\.sst-2"):
        run(encoder, data, out)
    report = json.loads((out / "glue.json").read_text())
    report["rows"]["sst-2"]["rate"] = "fast"
    (out / "glue.json").write_text(json.dumps(report))
    with pytest.raises(UserError, match=r"glue\.json: rows\.sst-2\.rate: must be a number"):
        run(encoder, data, out)
