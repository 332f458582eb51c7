"""Studies: every file is valid down to its models, a study is computed and resumed, and one rule gives the verdict."""

import json
import shutil
from pathlib import Path

import pytest

from bertree.batch import PretrainingLabels
from bertree.config.names import FOLDER as DEFAULT
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import BertreeWarning, UserError
from bertree.study.execute import run_study
from bertree.study.load import load_study, studies
from bertree.study.plan import plan_study
from bertree.study.report import markdown_table, study_report
from bertree.study.results import HOLDS, MIXED, REVERSED, UNRESOLVED, StudyResults

SMALL = """
title = "Masks"
question = "Do masks matter?"
paper = "Nobody (2026), Table 1"
varied = "masks"
columns = [
    {name = "mlm", figure = "held-out.mlm_accuracy", factor = 100, label = "MLM"},
    {name = "sst2", figure = "sst2.accuracy", factor = 100},
]
steps = [
    {do = "pretrain", recipe = "bert-base"},
    {do = "evaluate", name = "held-out", objectives = ["mlm", "nsp"]},
    {do = "finetune", name = "sst2", task = "sst-2", data = "SST-2"},
]
patterns = [{claim = "80 is better", column = "mlm", better = "80", worse = "none"}]

[[cells]]
name = "80"
published = {mlm = 60.0}

[[cells]]
name = "80 again"
set = {finetune = ["epochs=2"]}

[[cells]]
name = "none"
set = {pretrain = ["data.mask=0.0"]}
published = {mlm = 50.0}

[sizes.tiny]
suffix = "-tiny"
seeds = 2
set = {pretrain = ["phases.0.steps=3", "schedule.warmup=1", "phases.0.batch_tokens=256"], finetune = ["epochs=1"]}
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "masks.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "SST-2").mkdir()
    rows = [f"{word} film\t{label}" for word, label in (("good", 1), ("bad", 0))] * 8
    for split in ("train", "dev"):
        (folder / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def test_a_study_runs_shares_models_and_goes_on(study_file: Path, token_store: Path, tasks: Path) -> None:
    out = study_file.parent / "out"
    first = run_study(study_file, store=token_store, tasks=tasks, out=out, seeds=1, only=["80"])
    assert {row["cell"] for row in first.rows} == {"80"}
    results = run_study(study_file, store=token_store, tasks=tasks, out=out)
    assert [row.get("message") for row in results.rows] == [None] * len(results.rows)
    assert len(results.rows) == 3 * 2 * 3, "cells, seeds, steps"
    folders = {(row["cell"], row["step"]): row["folder"] for row in results.rows if row["seed"] == 0}
    assert folders["80", "pretrain"] == folders["80 again", "pretrain"] != folders["none", "pretrain"]
    assert folders["80", "sst2"] != folders["80 again", "sst2"]
    assert results.shared == ["held-out: 80, 80 again", "pretrain: 80, 80 again"]
    estimate = results.estimate("80", "mlm")
    assert estimate is not None
    assert estimate.seeds == 2
    assert "| 80 |" in (out / "table.md").read_text()
    page = (out / "report.html").read_text()
    assert "Nobody (2026), Table 1" in page
    assert "src=" not in page
    assert "difference from 80" in page
    assert "none, published: -10.00" in page
    assert "80 again, here: +0.00" in page, "it has the model of the first cell"
    # A step whose result is lost, as after a kill, is computed again with the same figures. What a power cut has kept
    # of a step that is done is removed.
    leftover = out / folders["80", "sst2"] / "run" / "checkpoints"
    leftover.mkdir()
    rows = (out / "rows.jsonl").read_text()
    lost = out / folders["none", "held-out"] / "result.json"
    lost.unlink()
    # A step that has begun with a model that is trained again begins anew.
    shutil.rmtree(out / folders["none", "pretrain"] / "run" / "model")
    stale = out / folders["none", "sst2"] / "run" / "stale"
    stale.touch()
    (out / folders["none", "sst2"] / "result.json").unlink()
    assert len(study_report(out).rows) == len(results.rows) - 2
    run_study(study_file, store=token_store, tasks=tasks, out=out)
    assert without_times((out / "rows.jsonl").read_text()) == without_times(rows)
    assert not leftover.exists()
    assert not stale.exists()
    # Of data that lies elsewhere with the same content nothing is computed again, of other content what reads it.
    moved = shutil.copytree(tasks, study_file.parent / "moved")
    same, cells = load_study(study_file), {"size": "tiny", "store": token_store, "seeds": 2}
    plans = [{step.folder for step in plan_study(same, **cells, tasks=folder).steps} for folder in (tasks, moved)]
    assert plans[0] == plans[1] == {row["folder"] for row in results.rows}
    with (moved / "SST-2" / "dev.tsv").open("a") as dev:
        dev.write("good\t1\n")
    changed = plans[0] - {step.folder for step in plan_study(same, **cells, tasks=moved).steps}
    assert changed == {row["folder"] for row in results.rows if row["step"] == "sst2"}
    # Another study does not go into its folder, and a dry run says so.
    other = study_file.with_name("other.toml")
    other.write_text(SMALL)
    for dry_run in (True, False):
        with pytest.raises(UserError, match="holds the study masks at size tiny; give another `out` for other"):
            run_study(other, store=token_store, tasks=tasks, out=out, dry_run=dry_run)


def without_times(rows: str) -> list[dict[str, object]]:
    kept = []
    for row in map(json.loads, rows.splitlines()):
        timed = ("per_s", "seconds")
        figures = row["figures"].items()
        row["figures"] = {name: value for name, value in figures if not any(part in name for part in timed)}
        kept.append({key: value for key, value in row.items() if key != "seconds"})
    return kept


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "none"', 'name = "80"', "cells: '80' is there twice"),
        ('recipe = "bert-base"', 'recipee = "bert-base"', "steps.0.recipee: unknown key, did you mean 'recipe'"),
        ('figure = "sst2.accuracy"', 'figure = "sst3.accuracy"', "'sst3' is unknown"),
        ("{mlm = 60.0}", "{mln = 60.0}", "published: 'mln' is unknown"),
        ("data.mask=0.0", "data.maks=0.0", "cell 'none': pretrain: .*data.maks"),
        ("data.mask=0.0", "data.masking=token+static9", "never repeat"),
        ('task = "sst-2"', 'task = "sst-9"', "sst-9"),
        ('data = "SST-2"', 'data = "SST-3"', "has no SST-3, which the step sst2 needs"),
        ("phases.0.batch_tokens=256", "phases.0.batch_tokens=2560000", "fewer than one batch"),
        ('set = {pretrain = ["data.mask=0.0"]}', "change = {pretain = {}}", "change: 'pretain' is unknown"),
        ('set = {pretrain = ["data.mask=0.0"]}', 'change = {sst2 = {frosen = "last"}}', "sst2.frosen: unknown key"),
        ('set = {pretrain = ["data.mask=0.0"]}', 'members = ["70"]', "members: '70' is unknown"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(
    study_file: Path, token_store: Path, tasks: Path, old: str, new: str, message: str
) -> None:
    study_file.write_text(SMALL.replace(old, new))
    with pytest.raises(UserError, match=message):
        run_study(study_file, store=token_store, tasks=tasks, out=study_file.parent / "out")
    assert not (study_file.parent / "out").exists()


def test_a_note_that_many_steps_have_is_shown_once(study_file: Path, token_store: Path) -> None:
    study_file.write_text(SMALL.replace('"schedule.warmup=1", ', ""))
    with pytest.warns(BertreeWarning) as caught:
        run_study(study_file, store=token_store, dry_run=True)
    assert len([warning for warning in caught if "schedule.warmup" in str(warning.message)]) == 1


def test_unknown_names_are_refused(study_file: Path, token_store: Path) -> None:
    with pytest.raises(UserError, match=r"'bert-sise': no such study; did you mean 'bert-size'.*`bertree study list`"):
        load_study("bert-sise")
    with pytest.raises(UserError, match="has no cell '8', did you mean '80'"):
        run_study(study_file, store=token_store, only=["8"])
    with pytest.raises(UserError, match="has no size 'paper'; there are: tiny"):
        run_study(study_file, store=token_store, size="paper")
    with pytest.raises(UserError, match="needs a token store"):
        run_study(study_file)
    with pytest.raises(UserError, match="no such folder; `tasks` is the folder with the data"):
        run_study(study_file, store=token_store, tasks=study_file.parent / "nowhere")
    with pytest.raises(UserError, match="give the name of a study"):
        run_study()
    with pytest.raises(UserError, match="is not the folder of a study"):
        study_report(token_store)


@pytest.mark.parametrize(
    ("better", "worse", "state"),
    [
        ([60.0, 60.2, 60.4], [50.0, 50.4, 50.2], HOLDS),
        ([50.0, 50.2], [60.0, 60.4], REVERSED),
        ([50.0, 60.0], [52.0, 57.0], UNRESOLVED),
        ([60.0], [50.0], UNRESOLVED),  # one seed says nothing about the spread
    ],
)
def test_the_rule_for_patterns(study_file: Path, better: list[float], worse: list[float], state: str) -> None:
    rows = [
        {"cell": cell, "seed": seed, "step": "held-out", "state": "done", "figures": {"mlm_accuracy": value / 100}}
        for cell, values in (("80", better), ("none", worse))
        for seed, value in enumerate(values)
    ]
    results = StudyResults(study=load_study(study_file), size="tiny", rows=rows)
    (verdict,) = results.verdicts()
    assert verdict.state == results.verdict == state
    assert verdict.published == pytest.approx(10.0)
    assert state in results.sentence


def test_a_study_with_patterns_that_hold_and_others_that_do_not_is_mixed(study_file: Path) -> None:
    swapped = '{claim = "none is better", column = "mlm", better = "none", worse = "80"}'
    study_file.write_text(SMALL.replace('worse = "none"}]', f'worse = "none"}}, {swapped}]'))
    rows = [
        {
            "cell": cell,
            "seed": seed,
            "step": "held-out",
            "state": "done",
            "figures": {"mlm_accuracy": value + seed / 100},
        }
        for cell, value in (("80", 0.6), ("none", 0.5))
        for seed in (0, 1)
    ]
    results = StudyResults(study=load_study(study_file), size="tiny", rows=rows)
    assert results.verdict == MIXED
    assert "holds here in part. Of 2 claims, 1 holds, 1 is reversed." in results.sentence


def test_averages_and_published_figures_of_two_sources_are_shown(study_file: Path) -> None:
    more = ('{name = "both", mean = ["mlm", "mlm", "sst2"]}', '{name = "size", digits = 0}')
    text = SMALL.replace('    {name = "sst2"', f'    {more[0]}, {more[1]},\n    {{name = "sst2"')
    text = text.replace("{mlm = 50.0}", "{mlm = 50.0, size = 8}\nalso_published = {mlm = 51.0, both = 44.0}")
    study_file.write_text(text)
    figures = {"held-out": {"mlm_accuracy": 0.6}, "sst2": {"accuracy": 0.9}}
    rows = [
        {"cell": "none", "seed": seed, "step": step, "state": "done", "figures": figures[step]}
        for seed, step in ((0, "held-out"), (0, "sst2"), (1, "held-out"))
    ]
    results = StudyResults(study=load_study(study_file), size="tiny", rows=rows)
    estimate = results.estimate("none", "both")
    assert estimate is not None
    assert (round(estimate.value, 6), estimate.seeds) == (70.0, 1), "of the seed that has both, one of them twice"
    assert "| none | 60.0 ± 0.0 (50.0; 51.0) | 70.0 (–; 44.0) | – (8) | 90.0 |" in markdown_table(results)
    study_file.write_text(text.replace('"mlm", "mlm"', '"mml"'))
    with pytest.raises(UserError, match="columns: 'both': mean: 'mml' is unknown"):
        load_study(study_file)


def test_columns_of_other_columns_cells_and_steps(study_file: Path) -> None:
    columns = """columns = [
        {name = "mlm", figure = "sst2.accuracy held-out.mlm_accuracy", factor = 100},
        {name = "seconds", figure = "held-out.seconds"},
        {name = "per_second", ratio = ["mlm", "seconds"]},
        {name = "times", figure = "held-out.seconds", relative = "80", inverse = true},
        {name = "share", figure = "held-out.mlm_accuracy", relative = "80"},
    ]"""
    start, end = SMALL.index("columns = ["), SMALL.index("steps = [")
    rest = SMALL[end:].replace('name = "80"', 'name = "80"\nsteps = ["pretrain", "held-out"]', 1)
    study_file.write_text(SMALL[:start] + columns + "\n" + rest)
    figures = {"80": {"mlm_accuracy": 0.8, "seconds": 4.0}, "none": {"mlm_accuracy": 0.6, "seconds": 8.0}}
    rows = [{"cell": cell, "seed": 0, "step": "held-out", "figures": values} for cell, values in figures.items()]
    rows.append({"cell": "none", "seed": 0, "step": "sst2", "figures": {"accuracy": 0.9}})
    results = StudyResults(study=load_study(study_file), size="tiny", rows=rows)
    shown = {}
    for column in results.study.columns:
        estimate = results.estimate("none", column)
        assert estimate is not None
        shown[column.name] = round(estimate.value, 6)
    assert shown == {"mlm": 90.0, "seconds": 8.0, "per_second": 11.25, "times": 0.5, "share": 0.75}
    assert results.estimate("80", "mlm") is not None, "of the second step, where a cell does not have the first"
    study_file.write_text(study_file.read_text().replace('["mlm", "seconds"]', '["mlm"]'))
    with pytest.raises(UserError, match="columns: 'per_second': ratio: must be two columns"):
        load_study(study_file)


def test_a_model_folder_is_recognized_by_its_content(tmp_path: Path, tasks: Path) -> None:
    for name in ("model", "copy"):
        shutil.copytree(DEFAULT, tmp_path / name)

    def identity(model: Path | str) -> str:
        (tmp_path / "of-a-folder.toml").write_text(
            'title = "T"\nquestion = "Q?"\npaper = "P"\nvaried = "nothing"\ncells = [{name = "only"}]\n'
            'columns = [{name = "sst2", figure = "finetune.accuracy"}]\n'
            f'steps = [{{do = "finetune", model = "{model}", task = "sst-2", data = "SST-2"}}]\n[sizes.tiny]\n'
        )
        study = load_study(tmp_path / "of-a-folder.toml")
        return plan_study(study, "tiny", tasks=tasks, store=None, seeds=1).steps[0].identity

    same = identity(tmp_path / "model")
    assert identity(tmp_path / "copy") == identity("default") == same
    (tmp_path / "copy" / "README.md").write_text("another model")
    assert identity(tmp_path / "copy") != same
    with pytest.raises(UserError, match="nowhere"):
        identity("nowhere")


def test_studies_are_listed_by_name() -> None:
    assert studies()["bert-size"].cell("L12 H768 A12").published["perplexity"] == 3.99


def test_static_masks_repeat_and_dynamic_ones_do_not(token_store: Path) -> None:
    """After E epochs a sequence has been seen with min(N, E) different masks, or with E if masks are dynamic."""
    for masking, expected in (("token+static2", 2), ("token+static9", 4), ("token", 4)):
        stream = Stream(Store.open(token_store), masking=masking, batch_tokens=256, max_length=32)
        masks = {tuple(PretrainingLabels.of(stream.example(5, epoch)).predicted[0].tolist()) for epoch in range(4)}
        assert len(masks) == expected, masking
