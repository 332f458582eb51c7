"""Fine-tuning on rows in memory: the same model as from a file of these rows, and resumed only with the same rows."""

import json
from pathlib import Path
from typing import Any

import pytest

import bertree
from bertree.tasks.registry import make_task
from tests.support import learnable

ROWS = learnable.feelings(24)
SETTINGS = {"task": "classification", "epochs": 1, "batch": 8, "device": "cpu", "lr": 3e-3}


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    return learnable.model(tmp_path / "encoder", learnable.tokenizer(), layers=1)


def test_rows_train_as_their_file_does(encoder: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "files").mkdir()
    for name, rows in (("train", ROWS), ("dev", ROWS[:8])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = {"train": ROWS, "dev": ROWS[:8]}
    with learnable.one_thread():
        from_files = bertree.finetune(encoder, data=folder, out=tmp_path / "a", **SETTINGS)
        from_memory = bertree.finetune(encoder, data=splits, out=tmp_path / "b", **SETTINGS)
        again = bertree.finetune(encoder, data=folder, out=tmp_path / "b", resume=True, **SETTINGS)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (from_files, from_memory, again)]
    assert weights[0] == weights[1] == weights[2]
    with pytest.raises(bertree.UserError, match="was trained with other settings or data"):
        bertree.finetune(encoder, data={**splits, "train": ROWS[1:]}, out=tmp_path / "b", resume=True, **SETTINGS)
    assert not [path for path in from_memory.folder.rglob("*.*") if b"bertree-" in path.read_bytes()]
    scores = bertree.evaluate(from_memory.model, task="classification", data={"test": ROWS[:8]}, split="test")
    assert scores.metrics["examples"] == 8
    assert len(from_memory.model.predict(ROWS)) == len(ROWS)


def test_tuples_are_scored_whatever_the_columns_were_called(encoder: Path, tmp_path: Path) -> None:
    rows = [{"body": row["text"], "kind": row["label"]} for row in ROWS]
    columns = {"text": "body", "label": "kind"}
    run = bertree.finetune(encoder, data=rows, out=tmp_path / "a", frozen=True, task="classification", **columns)
    tuples = [(row["text"], row["label"]) for row in ROWS]
    scores = [bertree.evaluate(run.model, data=data, split="test").metrics for data in (tuples, rows)]
    assert scores[0] == scores[1]
    with pytest.raises(bertree.UserError, match="has no columns 'body', 'kind'"):
        bertree.evaluate(run.model, data=tuples, text="body")


def test_questions_as_rows(tmp_path: Path) -> None:
    context = "Moby Dick was written by Herman Melville in 1851."
    answers = {"text": ["Herman Melville"], "answer_start": [25]}
    row = {"id": 7, "context": context, "question": "Who wrote it?", "answers": answers}
    unanswered = {"context": context, "question": "Who read it?", "answers": {"text": [], "answer_start": []}}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(unanswered)}\n")
    task = make_task("squad2")
    first, second = task.read(task.splits(tmp_path)["train"])
    assert (first.id, first.answers) == ("7", (("Herman Melville", 25),))
    assert (second.id, second.answers) == ("2", ())


def test_what_a_tiny_dev_split_cannot_tell_is_asked_of_the_training_split(
    encoder: Path, trained: learnable.Trained, tmp_path: Path
) -> None:
    rows = [*ROWS, {"text": " ", "label": ROWS[0]["label"]}]
    dev = [next(row for row in ROWS if row["label"] == label) for label in sorted({row["label"] for row in ROWS})]
    settings: dict[str, Any] = {"task": "classification", "data": {"train": rows, "dev": dev}, "lr": 1e-9}
    with learnable.one_thread():
        with pytest.warns(bertree.BertreeWarning, match=f"train: 1 of {len(rows)} examples has an empty text"):
            stuck = bertree.finetune(encoder, out=tmp_path / "a", epochs=1, **settings)
        learned = bertree.finetune(trained("classification") / "model", out=tmp_path / "b", epochs=1, **settings)
    assert (stuck.learned, learned.learned) == (False, True)


def test_a_dev_split_chooses_nothing_where_it_must_not(encoder: Path, tmp_path: Path) -> None:
    opposite = [{**row, "label": "bad" if row["label"] == "good" else "good"} for row in ROWS[:8]]

    def run(name: str, dev: list[dict[str, Any]] | None, **settings: object) -> tuple[bertree.Run, bytes]:
        data = {"train": ROWS} | ({} if dev is None else {"dev": dev})
        made = bertree.finetune(encoder, data=data, out=tmp_path / name, **SETTINGS | {"epochs": 8} | settings)
        return made, (made.folder / "model" / "model.safetensors").read_bytes()

    with learnable.one_thread():
        alone = run("alone", None, ignore_dev=True)
        ignored = run("ignored", opposite, ignore_dev=True)
        last = [run(f"last {number}", dev, evaluations=0) for number, dev in enumerate((ROWS[:8], opposite))]
    assert ignored[0].metrics == alone[0].metrics
    assert ignored[0].metrics["examples"] == {"train": 22, "dev": 2}
    assert ignored[1] == alone[1]
    assert last[0][1] == last[1][1], "the weights after the last step, whatever they score"
    assert last[0][0].metrics["accuracy"] == pytest.approx(1 - last[1][0].metrics["accuracy"])
    assert [sum(row["kind"] == "eval" for row in made.history) for made, _ in last] == [1, 1]
