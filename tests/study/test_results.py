"""Figures of a study, from rows alone: shared seeds, exact and relative figures, curves, failures and their order."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertree.config.names import FOLDER as DEFAULT
from bertree.errors import BertreeWarning, UserError
from bertree.files.formats import Json
from bertree.study import execute, steps
from bertree.study.compare import compare_studies
from bertree.study.execute import run_study
from bertree.study.load import load_study
from bertree.study.plan import plan_study
from bertree.study.planned import PlannedStep
from bertree.study.report import markdown_table, study_page
from bertree.study.results import HOLDS, UNRESOLVED, StudyResults, read_results
from bertree.study.schedule import startable

STUDY = """
title = "Speed"
question = "Is it faster?"
paper = "Nobody (2026), Table 1"
varied = "model"
columns = [
    {name = "size", figure = "info.parameters", digits = 0, lower_is_better = true},
    {name = "loss", figure = "pretrain.loss", digits = 2, lower_is_better = true},
    {name = "faster", figure = "time.seconds", relative = "large", inverse = true},
    {name = "saved", figure = "time.seconds", minus = "large"},
]
steps = [
    {do = "pretrain", recipe = "bert-base"},
    {do = "info"},
    {do = "evaluate", objectives = ["mlm"]},
    {do = "time", measure = "training", recipe = "bert-base"},
]
cells = [{name = "large"}, {name = "small", set = {pretrain = ["layers=1"]}}]
patterns = [
    {claim = "smaller", column = "size", better = "small", worse = "large"},
    {claim = "better", column = "loss", better = "small", worse = "large"},
]
plots = [
    {step = "pretrain", x = "tokens", y = "loss"},
    {step = "pretrain", x = "seconds", y = "train.norm"},
    {kind = "scatter", x = "size", y = "loss"},
    {kind = "scatter", x = "size", y = "loss", title = "Two lines", lines = ["la", "sm"]},
]
[sizes.tiny]
suffix = "-tiny"
set = {pretrain = ["phases.0.batch_tokens=256"], time = ["phases.0.batch_tokens=256"]}
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "speed.toml"
    path.write_text(STUDY)
    return path


def row(cell: str, seed: int, step: str, figures: dict[str, float], **more: Any) -> Json:
    return {"cell": cell, "seed": seed, "step": step, "state": "done", "seconds": 1.0, "figures": figures, **more}


def test_shared_figures_count_once_exact_ones_have_no_spread_and_others_are_compared(study_file: Path) -> None:
    rows = []
    for cell, size, loss, seconds in (("large", 9, 3.0, 6.0), ("small", 4, 2.0, 2.0)):
        for seed in (0, 1):
            rows.append(row(cell, seed, "info", {"parameters": size}, folder=f"info-{cell}"))
            rows.append(row(cell, seed, "pretrain", {"loss": loss}, folder=f"pretrain-{cell}"))
            rows.append(row(cell, seed, "time", {"seconds": seconds}, do="time", folder=f"time-{cell}-{seed}"))
    sessions = [{"machine": "a GPU", "torch": "2", "jobs": jobs, "minutes": 1.5} for jobs in (2, 1)]
    killed = {"machine": "a GPU", "torch": "2", "jobs": 2}
    results = StudyResults(study=load_study(study_file), size="tiny", rows=rows, sessions=[*sessions, killed])
    smaller, better = results.verdicts()
    assert (smaller.state, smaller.difference, smaller.error) == (HOLDS, 5, 0)
    assert (better.state, better.difference, better.error) == (UNRESOLVED, 1, None), (
        "one training says nothing of the spread"
    )
    faster = results.estimate("small", "faster")
    saved = results.estimate("small", "saved")
    assert faster is not None
    assert saved is not None
    assert (faster.value, saved.value) == (3.0, -4.0)
    table = markdown_table(results)
    assert "| small | 4 | 2.00" in table, "the number of parameters has no spread"
    assert "- all cells: pretrain `phases.0.batch_tokens=256`" in table
    assert "- small: pretrain `layers=1`" in table
    assert "Nothing else ran beside the steps that measure time" in table
    assert "Up to 2 steps ran side by side" in table
    assert "Cost: 3.0 minutes of a GPU (torch 2), and 1 call that ended without noting the time." in table


def test_curves_of_all_seeds_are_one_line_for_each_cell(study_file: Path) -> None:
    rows = []
    for cell in ("large", "small"):
        for seed in (0, 1):
            evaluations = [{"step": n, "tokens": 100 * n, "seconds": n * (1 + seed), "loss": 5 - n} for n in (1, 2, 3)]
            training = [{"step": n, "tokens": 100 * n, "seconds": n * (1 + seed), "norm": n} for n in (1, 2, 3)]
            curve = {"eval": evaluations, "train": training}
            rows.append(row(cell, seed, "pretrain", {"loss": 2.0 + seed}, curve=curve, folder=f"{cell}-{seed}"))
            rows.append(row(cell, seed, "info", {"parameters": 5}, folder=f"info-{cell}"))
    page = study_page(StudyResults(study=load_study(study_file), size="tiny", rows=rows))
    for title in ("loss over tokens", "norm over seconds", "loss over size"):
        assert title in page
    assert page.count('data-name="small"') == 2
    assert [page.count(f'data-name="{line}"') for line in ("here", "la", "sm")] == [1, 1, 1]


Compute = Callable[[PlannedStep, Path, Path], dict[str, float]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[PlannedStep]:
    """Steps that train nothing: they note that they were called."""
    calls: list[PlannedStep] = []

    def compute(planned: PlannedStep, folder: Path, out: Path) -> dict[str, float]:
        calls.append(planned)
        steps.model_path(planned.model_step, folder, "")
        if planned.step.do == "pretrain" and "layers=1" in planned.settings:
            raise UserError("the gradient is not finite") if planned.seed else RuntimeError("no memory is left")
        (out / "model").mkdir(parents=True)
        return {"loss": 2.0, "parameters": 4.0, "seconds": 1.0}

    monkeypatch.setattr(execute, "STEPS", dict.fromkeys(steps.STEPS, compute))
    return calls


def test_failed_and_diverged_cells_are_shown_and_what_needs_them_is_not_computed(
    study_file: Path, token_store: Path, fake: list[PlannedStep]
) -> None:
    out = study_file.parent / "out"
    results = run_study(study_file, store=token_store, out=out)
    states = {(row["seed"], row["step"]): row["state"] for row in results.rows if row["cell"] == "small"}
    assert states[0, "pretrain"] == "failed"
    assert states[1, "pretrain"] == "diverged"
    assert states[0, "evaluate"] == states[1, "info"] == "not computed"
    assert {row["state"] for row in results.rows if row["cell"] == "large"} == {"done"}
    table = (out / "table.md").read_text()
    assert "- small: seed 0, pretrain: failed (RuntimeError: no memory is left (error.txt))" in table
    assert "- small: seed 1, evaluate: not computed (the step pretrain has made no model)" in table
    # What failed is tried again, what diverged is not.
    fake.clear()
    run_study(study_file, store=token_store, out=out)
    assert {(step.step.key, step.seed) for step in fake} == {
        ("pretrain", 0), ("info", 0), ("evaluate", 0), ("info", 1), ("evaluate", 1),
    }  # fmt: skip


def test_a_copy_without_the_runs_continues(
    study_file: Path, tmp_path: Path, token_store: Path, fake: list[PlannedStep]
) -> None:
    run_study(study_file, store=token_store, out=tmp_path / "out", only=["large"])
    copy = shutil.copytree(tmp_path / "out", tmp_path / "copy", ignore=shutil.ignore_patterns("steps"))
    fake.clear()
    results = run_study(study_file, store=token_store, out=copy)
    assert {step.cell for step in fake} == {"small"}
    assert {row["cell"] for row in results.rows} == {"large", "small"}
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert [row for row in results.rows if row["cell"] == "large"] == rows
    shutil.rmtree(copy / "steps")
    for change, message in (
        ({"folder": "steps/../../elsewhere"}, "is no folder of a step"),
        ({"folder": None}, "'None' is no folder of a step"),
        ({"seconds": "1"}, "seconds is missing or of another type"),
    ):
        (copy / "rows.jsonl").write_text("\n".join(map(json.dumps, [rows[0] | change, *rows[1:]])))
        with pytest.raises(UserError, match=message):
            run_study(study_file, store=token_store, out=copy)
        with pytest.raises(UserError, match=message):
            read_results(copy)
    assert not (tmp_path / "elsewhere").exists()


def test_a_cell_that_is_not_finished_shows_none_of_the_figures_of_its_other_steps(study_file: Path) -> None:
    text = STUDY.replace('"pretrain.loss"', '"evaluate.mlm_loss pretrain.loss"')
    study_file.write_text(text.replace('{name = "large"}', '{name = "large", steps = ["pretrain", "info"]}'))
    rows = [row(cell, 0, "pretrain", {"loss": 3.0}) for cell in ("large", "small")]
    results = StudyResults(study=load_study(study_file), size="tiny", rows=rows)
    shown = [results.estimate(cell, "loss") for cell in ("large", "small")]
    assert [estimate and estimate.value for estimate in shown] == [3.0, None]


def test_the_seconds_of_a_step_include_those_before_a_signal(
    study_file: Path, token_store: Path, fake: list[PlannedStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> dict[str, float]:
        raise steps.Stopped(15)

    out = study_file.parent / "out"
    with monkeypatch.context() as patched:
        patched.setattr(execute, "STEPS", dict.fromkeys(steps.STEPS, stop))
        assert run_study(study_file, store=token_store, out=out, only=["large"], seeds=1).signal == 15
    (spent,) = out.glob("steps/*/seconds.json")
    spent.write_text('{"seconds": 1000}')
    results = run_study(study_file, store=token_store, out=out, only=["large"], seeds=1)
    assert results.rows[0]["seconds"] >= 1000
    assert not spent.exists()
    assert "2 have no figures here" in results.sentence, "of the claims on cells that were not computed"


def test_the_estimate_takes_what_was_measured(study_file: Path, token_store: Path, fake: list[PlannedStep]) -> None:
    options: dict[str, Any] = {"store": token_store, "out": study_file.parent / "out", "only": ["large"]}
    with pytest.warns(BertreeWarning, match="on two CPU cores, as the study file estimates"):
        run_study(study_file, **options, seeds=1)
    with pytest.warns(BertreeWarning, match="8 of 12 steps to compute; about 0 s as measured here"):
        run_study(study_file, **options, seeds=3, dry_run=True)


def test_two_folders_are_compared_by_their_standard_errors(study_file: Path, tmp_path: Path) -> None:
    for name, losses in (("one", (2.0, 2.2)), ("two", (3.0, 3.2))):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "study.toml").write_text(STUDY)
        plan = {"study": "speed", "size": "tiny", "shared": [], "steps": []}
        (folder / "plan.json").write_text(json.dumps(plan))
        rows = [
            row("large", seed, "pretrain", {"loss": loss}, folder=f"steps/{seed}") for seed, loss in enumerate(losses)
        ]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (difference,) = compare_studies(tmp_path / "one", tmp_path / "two").differences
    assert difference.difference == pytest.approx(1.0)
    assert difference.error == pytest.approx(math.sqrt(2 * 0.02 / 2))
    assert difference.resolved
    assert (
        "| large | loss | 2.10 (2) | 3.10 (2) | +1.000 ± 0.141 | differ |"
        in compare_studies(tmp_path / "one", tmp_path / "two").table
    )
    with pytest.raises(UserError, match="is not the folder of a study"):
        compare_studies(tmp_path / "one", tmp_path)


def test_a_model_takes_the_place_of_pretraining(tmp_path: Path, token_store: Path, fake: list[PlannedStep]) -> None:
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "train.tsv").write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 4)
    (tmp_path / "study.toml").write_text(
        'title = "T"\nquestion = "Q?"\npaper = "P"\nvaried = "nothing"\ncells = [{name = "a"}, {name = "b"}]\n'
        'columns = [{name = "loss", figure = "taught.loss"}]\n'
        'steps = [{do = "pretrain", name = "first", recipe = "bert-base", seeded = false},\n'
        '{do = "finetune", name = "teacher", model = "first", task = "sst-2", data = "SST-2", seeded = false},\n'
        '{do = "finetune", name = "features", task = "sst-2", data = "SST-2", frozen = "last"},\n'
        '{do = "finetune", name = "alone", model = "bilstm", task = "sst-2", data = "SST-2"},\n'
        '{do = "distill", name = "taught", model = "teacher", student = "half", task = "sst-2", data = "SST-2"}]\n'
        '[sizes.tiny]\nsuffix = "-tiny"\nset = {first = ["phases.0.steps=2"]}\n'
    )
    shutil.copytree(DEFAULT, tmp_path / "copy")
    out, call = tmp_path / "out", {"study": tmp_path / "study.toml", "tasks": tmp_path, "seeds": 1}
    results = run_study(**call, model="default", out=out)
    begins = {planned.step.key: (planned.model, planned.model_step and planned.model_step.step.key) for planned in fake}
    assert begins == {
        "teacher": ("default", None),
        "features": ("default", None),
        "alone": ("bilstm", None),
        "taught": ("", "teacher"),
    }
    (alone,) = (planned for planned in fake if planned.step.key == "alone")
    assert alone.tokenizer == DEFAULT, "a preset reads the tokens of the model"
    table = markdown_table(results)
    assert "Nothing was pretrained: all cells begin with the model `default`." in table
    assert "phases.0.steps" not in table
    assert markdown_table(read_results(out)) == table
    steps_of_a_copy = plan_study(
        load_study(tmp_path / "study.toml"), "tiny", store=None, tasks=tmp_path, seeds=1, model=str(tmp_path / "copy")
    ).steps
    assert {step.identity for step in steps_of_a_copy} == {planned.identity for planned in fake}
    with pytest.raises(UserError, match="begins with `model=default`; give another `out` for this"):
        run_study(**call, store=token_store, out=out)
    with pytest.raises(UserError, match="nowhere"):
        run_study(**call, model="nowhere", out=tmp_path / "other")


def test_a_model_is_refused_where_cells_pretrain_in_different_ways_or_not_at_all(study_file: Path) -> None:
    with pytest.raises(UserError, match="its cells pretrain in different ways, so `model=default` cannot take"):
        run_study(study_file, model="default")
    with pytest.raises(UserError, match="zero-memory: its cells pretrain no model, so `model=default` cannot take"):
        run_study("zero-memory", model="default")


def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "own.txt").write_text("text")
    (tmp_path / "bilstm").mkdir()
    tasks = tmp_path / "tasks"
    for name in ("SST-2", "QQP", "MNLI"):
        (tasks / name).mkdir(parents=True)
        (tasks / name / "train.tsv").write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 4)
    taught: dict[str, Any] = {"study": "bilstm-glue", "model": "default", "tasks": tasks, "skip": ["qqp", "mnli"]}
    for message, call in (
        ("device 'gpu': cannot be used here", {"device": "gpu"}),
        ("seeds: must be 0 to 1,000, not -1", {"seeds": -1}),
        ("steps: must be at least 0, not -2", {"steps": -2}),
        ("data: holds other files; give another `out`", {"out": "data"}),
        ("own.txt: is a file; give another `out`", {"out": "data/own.txt"}),
        ("own.txt: is a file; `tasks` is the folder", {"tasks": "data/own.txt"}),
        ("no step is left to compute; give `tasks`", {"study": "distil-speed"}),
        ("nowhere: no such folder or preset", taught | {"model": "nowhere"}),
        ("the chosen cells pretrain no model, so", taught | {"only": ["BiLSTM"]}),
        ("bilstm: is a preset here, but a file or folder of this name hides it", taught),
    ):
        with pytest.raises(UserError, match=message):
            run_study(**({"study": "zero-memory", "out": "new", "dry_run": True} | call))
    (tmp_path / "bilstm").rmdir()
    with pytest.raises(UserError, match="bilstm: would hide the preset 'bilstm', which the study uses"):
        run_study(**taught, out="bilstm", dry_run=True)
    assert not (tmp_path / "new").exists()


def test_rows_of_other_settings_are_noted_and_bars_in_names_are_no_borders(tmp_path: Path) -> None:
    results = run_study("zero-memory", out=tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    plan["steps"][0]["folder"] += "0"
    (tmp_path / "out" / "plan.json").write_text(json.dumps(plan))
    with pytest.warns(BertreeWarning, match="1 step of earlier calls had other text, data or settings"):
        run_study("zero-memory", out=tmp_path / "out", dry_run=True)
    named = replace(results.study, varied="|u-v|")
    assert r"| \|u-v\| |" in markdown_table(replace(results, study=named))


def test_a_template_is_a_study(tmp_path: Path, token_store: Path) -> None:
    path = tmp_path / "mine.toml"
    run_study(template=path)
    plan = plan_study(load_study(path), "tiny", store=token_store, tasks=None, seeds=1)
    assert [step.step.do for step in plan.steps] == ["pretrain", "evaluate"] * 2
    with pytest.raises(UserError, match="exists already"):
        run_study(template=path)
    run_study("bert-size", template=tmp_path / "size.toml")
    assert load_study(tmp_path / "size.toml").title == load_study("bert-size").title


def test_a_study_is_tried_out_with_few_steps(study_file: Path, token_store: Path, fake: list[PlannedStep]) -> None:
    out = study_file.parent / "out"
    run_study(study_file, store=token_store, out=out, only=["large"], steps=3, seeds=1)
    assert "phases.0.steps=3" in fake[0].settings
    assert fake[-1].step.rounds == 1
    assert "Only tried out, with 3 steps" in (out / "table.md").read_text()
    with pytest.raises(UserError, match="`steps=3` there, 0 now"):
        run_study(study_file, store=token_store, out=out, only=["large"], seeds=1)


def test_timed_steps_wait_until_nothing_else_runs(study_file: Path, token_store: Path) -> None:
    steps = plan_study(load_study(study_file), "tiny", store=token_store, tasks=None, seeds=1).steps
    pretraining = [step for step in steps if step.step.do == "pretrain"]
    unfinished = {step.identity for step in steps}
    assert startable(steps, 4, unfinished, 4) == pretraining, "others need their models"
    left = [step for step in steps if step not in pretraining]
    unfinished -= {step.identity for step in pretraining}
    assert {step.step.do for step in startable(left, 4, unfinished, 4)} == {"info", "evaluate"}
    timed = [step for step in steps if step.step.do == "time"]
    assert startable(timed, 3, unfinished, 4) == [], "one process is busy"
    assert startable(timed, 4, unfinished, 4) == timed[:1]
