"""`bertree distill` in several processes, on text and on a task: equal to one, stopped, resumed, refused."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.command import Command
from tests.support.learnable import Trained
from tests.support.lessons import command_of
from tests.support.meshes import relative_difference
from tests.support.rank_commands import run_commands
from tests.support.shared import suite_has

NEAR = 1e-5
TEACHER = """
extends = "bert-base-tiny"
[model]
layers = 4
width = 32
heads = 2
max_positions = 64
[data]
held_out_share = 0.1
[schedule]
warmup = 1
[run]
device = "cpu"
eval_tokens = 512
[[phases]]
steps = 3
max_length = 32
batch_tokens = 512
"""
SETTINGS = (
    *("phases.0.batch_tokens=512", "phases.0.max_length=32", "phases.0.steps=10", "data.held_out_share=0.1"),
    *("schedule.warmup=3", "optim.lr=1e-3", "optim.eps=1e-6", "run.device=cpu", "run.log_every=1"),
    *("run.eval_tokens=512", "run.micro_tokens=256"),  # two micro-batches a step, as two ranks have
)
NARROW = ("model.layers=2", "model.width=16", "model.heads=2", "model.ffn_width=32", "model.max_positions=64")
STUDENTS = {
    "of another shape": ("--student", "bert-mini", *NARROW, "distill.hidden=1.0", "distill.relation=1.0"),
    "with a cache": ("distill.cos=0.0", "distill.top_k=8"),
}


@pytest.fixture(scope="module")
def teacher(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bertree.pretraining.pretrain import pretrain

    folder = tmp_path_factory.mktemp("teacher")
    (folder / "teacher.toml").write_text(TEACHER)
    return pretrain(folder / "teacher.toml", store=token_store, out=folder / "run").folder / "model"


def on_text(teacher: Path, store: Path, out: Path, name: str, *more: str) -> list[str]:
    arguments = ["distill", str(teacher), "--store", str(store), "--out", str(out), "--seconds", "0", *STUDENTS[name]]
    return [*arguments, *(("--cache", f"{out}-cache") if name == "with a cache" else ()), *SETTINGS, *more]


def losses(log: Path) -> list[float]:
    lines = map(json.loads, log.read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def difference(out: Path, other: Path) -> float:
    weights, wanted = (load_file(folder / "model" / "model.safetensors") for folder in (out, other))
    assert weights.keys() == wanted.keys()
    # Gradients of the bias of keys are 0 but for rounding.
    names = [name for name in wanted if not name.endswith(("key.bias", "k_lin.bias")) and wanted[name].norm() > 1e-5]
    return max(relative_difference(weights[name], wanted[name], name) for name in names)


@pytest.mark.parametrize("name", suite_has(["of another shape"], STUDENTS))
def test_a_student_learns_on_two_ranks_what_it_learns_on_one_device(
    name: str, teacher: Path, token_store: Path, tmp_path: Path, command: Command
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    command.well(*on_text(teacher, token_store, alone, name))
    result = run_commands(tmp_path / "ranks", [on_text(teacher, token_store, both, name)] * 2)
    assert result.codes == [0, 0], result.texts
    assert result.texts[1] == ""
    metrics, wanted = (losses(out / "metrics.jsonl") for out in (both, alone))
    assert len(wanted) == 10
    assert metrics == pytest.approx(wanted, rel=NEAR)
    assert difference(both, alone) < NEAR


@pytest.mark.proof  # tests/scale/test_commands.py stops ranks that pretrain, by the same loop
def test_a_student_that_is_stopped_on_two_ranks_goes_on_to_the_same_bytes(
    teacher: Path, token_store: Path, tmp_path: Path
) -> None:
    name, outs = "of another shape", [tmp_path / "whole", tmp_path / "stopped"]
    whole, stopped = (on_text(teacher, token_store, out, name) for out in outs)
    assert run_commands(tmp_path / "whole-ranks", [whole] * 2).codes == [0, 0]
    result = run_commands(tmp_path / "stopped-ranks", [stopped] * 2, planted=("", "signal:15:5:0"))
    assert result.codes == [143, 143], result.texts
    again = run_commands(tmp_path / "again-ranks", [stopped] * 2, {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert again.codes == [0, 0], again.texts
    models = [(out / "model" / "model.safetensors").read_bytes() for out in outs]
    assert models[0] == models[1]


def test_a_task_is_learned_from_a_teacher_on_two_ranks_as_on_one_device(
    trained: Trained, tmp_path: Path, command: Command
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    more = ("epochs=2", "dropout=0", "eps=1e-4", "log_every=1")
    first, second = ([*map(str, command_of(trained, "classification", out, *more))] for out in (alone, both))
    command.well(*first)
    result = run_commands(tmp_path / "ranks", [second, second])
    assert result.codes == [0, 0], result.texts
    assert result.texts[1] == ""
    metrics, wanted = (losses(out / "seed-0" / "metrics.jsonl") for out in (both, alone))
    assert len(wanted) >= 20
    assert metrics == pytest.approx(wanted, rel=NEAR)
    assert difference(both, alone) < NEAR
    assert (both / "teacher.safetensors").read_bytes() == (alone / "teacher.safetensors").read_bytes()


def test_a_sharded_student_is_refused(teacher: Path, token_store: Path, tmp_path: Path, command: Command) -> None:
    result = command(*on_text(teacher, token_store, tmp_path / "out", "with a cache", "scale.zero=3"))
    assert result.code == 2
    assert "scale.zero: every rank has a full copy of a student" in result.err
    assert not (tmp_path / "out").exists()
