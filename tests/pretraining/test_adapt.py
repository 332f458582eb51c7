"""`bertree adapt`: continued pretraining of any model, sized by itself, measured before and after."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import bertree
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.pretraining import adapted_recipe
from bertree.pretraining.adapt import compare_runs
from bertree.train.metrics_log import TrainingEvent
from tests.support.command import Command
from tests.support.learnable import feelings

QUICK = {"run.device": "cpu", "phases.0.max_length": 24, "phases.0.batch_tokens": 256, "run.eval_tokens": 512}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.txt").write_text("\n\n".join(str(row["text"]) for row in feelings(300, 0)))
    return folder


@pytest.fixture(scope="module")
def start(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with a tokenizer, mean pooling, and 64 positions of which 16 are trained."""
    folder = tmp_path_factory.mktemp("start")
    bertree.train_tokenizer(texts, folder / "tokenizer", vocab_size=200)
    bertree.prepare(texts, folder / "tokenizer", folder / "store", workers=1)
    small = {"layers": 1, "width": 32, "heads": 2, "ffn_width": 64, "max_positions": 64}
    settings = {"steps": 2, "max_length": 16, "batch_tokens": 256}
    bertree.pretrain(
        "roberta-base-tiny", store=folder / "store", out=folder / "run", model=small, device="cpu", **settings
    )
    return folder / "run" / "model"


def test_it_learns_the_text_and_scores_a_task(start: Path, texts: Path, tmp_path: Path) -> None:
    rows = "\n".join(f"{row['label']},{row['text']}" for row in feelings(100, 1))
    (tmp_path / "task.csv").write_text("label,text\n" + rows + "\n")
    steps: list[TrainingEvent] = []
    run = bertree.adapt(
        start, texts, out=tmp_path / "out", epochs=4, task="classification", data=tmp_path / "task.csv", seeds=2,
        on_step=steps.append, task_settings=["epochs=8", "batch=8", "lr=4e-3", "device=cpu"], lr=5e-3, **QUICK,
    )  # fmt: skip
    before, after, task = (run.metrics[key] for key in ("before", "after", "task"))
    assert after["loss"] < before["loss"] - 0.1
    assert [event.step for event in steps] == list(range(1, steps[-1].steps + 1))
    assert task["difference"] == pytest.approx(task["after"]["mean"] - task["before"]["mean"])
    assert len(task["before"]["seeds"]) == 2
    assert "Before and after" in run.report.read_text()
    assert run.model.max_length == 24, "the new positions are trained"
    kept = json.loads((tmp_path / "out" / "task-before" / "metrics.json").read_text())
    assert kept["task"] == "classification"


def test_a_stopped_run_ends_in_the_same_bytes(start: Path, texts: Path, tmp_path: Path, command: Command) -> None:
    settings = [f"{key}={value}" for key, value in QUICK.items()]
    words = ["adapt", start, texts, "phases.0.steps=6", "run.save_every=2", *settings]
    command.well(*words, "--out", tmp_path / "whole")
    run = tmp_path / "part"
    command.well(*words, "--out", run)
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    (run / "checkpoints" / "best.json").unlink(missing_ok=True)
    journal = run / "store" / "journal.json"
    journal.write_text("{}")  # as a power cut may leave it
    command.well(*words, "--out", run, "--resume")
    assert not journal.exists()
    name = "model.safetensors"
    assert (run / "model" / name).read_bytes() == (tmp_path / "whole" / "model" / name).read_bytes()
    again = command(*words, "--out", run)
    assert again.code == 2
    assert "holds a run already; resume it with --resume" in again.err


def test_a_model_that_became_worse_is_not_kept(start: Path, texts: Path, tmp_path: Path, command: Command) -> None:
    settings = [f"{key}={value}" for key, value in (QUICK | {"optim.lr": 0.5, "phases.0.steps": 2}).items()]
    words = ["adapt", start, texts, "--out", tmp_path / "out", *settings]
    for resume in ([], ["--resume"]):
        result = command(*words, *resume)
        assert result.code == 1
        assert "never lower after (at best" in result.err
        assert f"{tmp_path / 'out' / 'model'} is {start} as it was" in result.err
    before, after = (load_file(folder / "model.safetensors") for folder in (start, tmp_path / "out" / "model"))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    assert bertree.load(tmp_path / "out").max_length == 16, "as before: the new positions are not trained"


def test_the_best_model_is_kept_and_measured(start: Path, texts: Path, tmp_path: Path) -> None:
    rising = {"lr": 0.3, "warmup": 40, "steps": 40, "eval_every": 4, "save_every": 4}
    run = bertree.adapt(start, texts, out=tmp_path / "out", **rising, **QUICK)
    losses = [row["loss"] for row in run.history if row.get("kind") == "eval"]
    assert run.learned
    assert run.metrics["after"]["loss"] == min(losses) < losses[-1]
    again = bertree.adapt(run.folder / "model", texts, out=tmp_path / "again", steps=1, **QUICK)
    assert again.metrics["before"]["loss"] == pytest.approx(min(losses), abs=1e-4)


def test_texts_in_memory_are_read_as_those_of_a_file(start: Path, texts: Path, tmp_path: Path) -> None:
    lines = (texts / "a.txt").read_text().splitlines()
    rows = [{"body": line} for line in lines if line]
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    runs = [
        bertree.adapt(start, corpus, out=tmp_path / name, text="body", steps=2, **QUICK)
        for name, corpus in (("file", table), ("rows", rows))
    ]
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]
    assert not [path for path in runs[1].folder.rglob("*.*") if path.is_file() and b"/bertree-" in path.read_bytes()]
    bertree.adapt(start, rows, out=tmp_path / "rows", text="body", steps=2, resume=True, **QUICK)
    with pytest.raises(bertree.UserError, match="corpus: must be a path, or rows in memory"):
        bertree.adapt(start, 3, out=tmp_path / "none")


def test_sizes_follow_text_and_model(start: Path, texts: Path, tmp_path: Path) -> None:
    run = bertree.adapt(start, texts, out=tmp_path / "out", steps=2, device="cpu")
    recipe = bertree.recipe(run.folder / "recipe.toml")
    assert recipe.phases[0].max_length == 16, "what the model has learned"
    assert recipe.phases[0].batch_tokens == 1024, "little text"
    assert recipe.data.format == "doc-sentences"
    assert recipe.schedule.warmup == 1
    assert recipe.optim.lr == pytest.approx(2e-4 * (2 * 1024 / 3e5) ** 0.5, rel=0.01), "few tokens"
    longer = ["phases.0.steps=7777"]
    store = run.folder / "store"
    unsized = adapted_recipe.unsized_recipe(str(start), str(store), 0, 0, longer)
    model, opened = bertree.load(start), Store.open(store)
    many = adapted_recipe.sized_recipe(unsized, model, opened, "cuda", minutes=0, epochs=0, overrides=longer)
    assert many.optim.lr == 8e-4, "many tokens"
    assert many.run.eval_every % many.run.save_every == 0, "the best model must have been saved"


def test_mistakes(start: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model folder; to train a model from scratch"):
        bertree.adapt("bert-tiny", texts, out=tmp_path / "out")
    with pytest.raises(UserError, match="give `task` and `data` together"):
        bertree.adapt(start, texts, out=tmp_path / "out", task="sst-2")
    with pytest.raises(UserError, match=r"`minutes`: phases.0.steps says the same"):
        bertree.adapt(start, texts, out=tmp_path / "out", minutes=1, steps=3)
    with pytest.raises(UserError, match="lrr: unknown setting"):
        bertree.adapt(start, texts, out=tmp_path / "out", lrr=3)
    assert not (tmp_path / "out").exists()


def test_the_interval_of_a_difference() -> None:
    def run(*scores: float) -> dict[str, object]:
        seeds = [{"seed": seed, "accuracy": score, "diverged": False} for seed, score in enumerate(scores)]
        return {"metric": "accuracy", "task": "sst-2", "examples": {"dev": 9}, "seeds": seeds}

    interval = compare_runs(run(0.5, 0.6, 0.7), run(0.6, 0.7, 0.9))
    assert interval["difference"] == pytest.approx(0.4 / 3)
    assert interval["uncertainty"] == pytest.approx(4.303 * 0.057735 / 3**0.5, rel=1e-3)
    assert compare_runs(run(0.5), run(0.6))["uncertainty"] is None
