"""Checkpoints: whole or not there, verified when read, few; and what a run does when one fails it."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from bertree.config.sections import OPTIMIZERS, OptimSettings
from bertree.errors import UserError
from bertree.train import checkpoint, checkpoint_files
from bertree.train import keep as keep_module
from bertree.train.checkpoint import CheckpointFolder, check_optimizer_state, restore
from bertree.train.keep import KeepNewestAndBest
from bertree.train.optimizer import build_optimizer
from tests.support import runs
from tests.support.shared import suite_has

UNUSED = ("loop", "checkpoints", "eval_every", "evaluate", "samples", "write_model")  # what a report does not need


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))


def trained(name: str = "adamw", steps: int = 3, seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net = network(seed)
    optimizer = build_optimizer(net, OptimSettings(name=name, lr=0.1))
    for _ in range(steps):
        step(net, optimizer)
    return net, optimizer


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.arange(8.0).view(2, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit": (lambda folder: flip(folder / "state.safetensors"), "state.safetensors: is damaged"),
    "cut off": (lambda folder: os.truncate(folder / "state.safetensors", 100), "state.safetensors: is damaged"),
    "empty": (lambda folder: (folder / "state.safetensors").write_bytes(b""), "state.safetensors: is damaged"),
    "no tensors": (lambda folder: (folder / "state.safetensors").unlink(), "state.safetensors: cannot be read"),
    "no header": (lambda folder: (folder / "state.json").unlink(), "state.json: cannot be read"),
    "half a header": (lambda folder: os.truncate(folder / "state.json", 20), "state.json: is not valid JSON"),
    "a number in the header": (
        lambda folder: edit(folder / "state.json", '"tokens": ', '"tokens": 1'),
        "state.json: is damaged",
    ),
    "another's header": (lambda folder: (folder / "state.json").write_text('{"step": 1}'), "not the header"),
}


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is noted about checkpoints."""
    lines: list[str] = []
    monkeypatch.setattr(checkpoint, "note", lines.append)
    return lines


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_taken(damage: str, tmp_path: Path, notes: list[str]) -> None:
    kept = CheckpointFolder(tmp_path, keep=3)
    for number in (10, 20, 30):
        kept.save(number, *trained(steps=number // 10), {"tokens": number})
    spoil, reason = DAMAGES[damage]
    spoil(kept.path(30))
    checkpoint = kept.read_newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.extra) == (20, {"tokens": 20})
    assert len(notes) == 1
    assert reason in notes[0]
    assert "step-00000030" in notes[0]
    spoil(kept.path(20))
    spoil(kept.path(10))
    notes.clear()
    with pytest.raises(UserError, match="no good checkpoint before it, so start a new run") as error:
        kept.read_newest()
    assert "step-00000010" in str(error.value)
    assert len(notes) == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_moments_come_back(name: str, tmp_path: Path, notes: list[str]) -> None:
    net, optimizer = trained(name)
    CheckpointFolder(tmp_path).save(3, net, optimizer)
    checkpoint = CheckpointFolder(tmp_path).read_newest()
    assert checkpoint is not None
    assert not notes
    again = network(seed=7)
    other = build_optimizer(again, OptimSettings(name=name, lr=0.1))
    check_optimizer_state(checkpoint, again, other, 3)
    restore(checkpoint, again, other)
    for _ in range(2):
        step(net, optimizer)
        step(again, other)
    for left, right in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)
    larger = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))
    with pytest.raises(UserError, match="another model"):
        restore(checkpoint, larger, build_optimizer(larger, OptimSettings()))


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    kept = CheckpointFolder(tmp_path, keep=2)
    for number, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.5), (5, 2.6)):
        kept.save(number, *trained())
        kept.mark_best(number, loss, 0)
    assert kept.steps() == [5, 4, 2]
    assert kept.best() == {"step": 2, "loss": 1.0, "phase": 0}
    kept.mark_best(5, float("nan"), 0)
    assert kept.best() == {"step": 2, "loss": 1.0, "phase": 0}
    kept.mark_best(4, 2.5, 1)
    assert kept.best() == {"step": 4, "loss": 2.5, "phase": 1}, "losses of different phases do not compare"
    kept.mark_best(5, 0.5, 0)
    assert kept.steps() == [5, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.json", "step-00000004", "step-00000005"]


def test_a_damaged_one_does_not_push_out_good_ones(tmp_path: Path, notes: list[str]) -> None:
    kept = CheckpointFolder(tmp_path, keep=1)
    kept.save(10, *trained())
    kept.mark_best(10, 1.0, 0)
    kept.save(20, *trained())
    flip(kept.path(20) / "state.safetensors")
    kept.read_newest()
    notes.clear()
    kept.save(15, *trained())  # as a run that went on from step 10 does
    checkpoint = kept.read_newest()
    assert checkpoint is not None
    assert checkpoint.step == 15
    assert not notes


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_a_full_disk_loses_nothing(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = CheckpointFolder(tmp_path, keep=1)
    net, optimizer = trained()
    kept.save(1, net, optimizer)

    def fail(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(checkpoint_files, "save_file", fail)
    with pytest.raises(UserError, match=r"No space left on device.*step 1 is intact.*`resume=True`"):
        kept.save(2, net, optimizer)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert kept.read_newest() is not None


def test_a_report_that_is_new_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((1000.0, 1000.0, 1001.0, 1000.0 + keep_module.REPORT_PAUSE, 2000.0))
    written: list[Path] = []
    monkeypatch.setattr(keep_module, "write_run_report", written.append)
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    keep = KeepNewestAndBest(out=tmp_path, **dict.fromkeys(UNUSED))
    counts = []
    for _ in range(3):
        keep.after_save(None, CheckpointFolder(tmp_path))
        counts.append(len(written))
    assert counts == [1, 1, 2]


# The command.


@pytest.fixture(scope="module")
def small(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, ...], Path]:
    """Arguments of a run, and the folder of one that is complete."""
    folder = tmp_path_factory.mktemp("small")
    arguments = ("pretrain", str(runs.recipe("bert", folder)), "--store", str(token_store))
    assert runs.finish(*arguments, "--out", str(folder / "out"), log=folder / "log") == 0
    return arguments, folder / "out"


def test_a_run_with_damaged_checkpoints(small: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    arguments, whole = small
    out, log = tmp_path / "out", tmp_path / "log"
    steps = CheckpointFolder(whole / "checkpoints").steps()
    for damaged in (1, len(steps)):  # the newest: the one before it is taken; then all of them: the user must decide
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(whole, out)
        shutil.rmtree(out / "model")
        for number in steps[:damaged]:
            flip(out / "checkpoints" / f"step-{number:08d}" / "state.safetensors")
        log.write_text("")
        assert runs.finish(*arguments, "--out", str(out), "--resume", log=log) == (2 if damaged == len(steps) else 0)
        assert log.read_text().count("is damaged") == damaged
        if damaged == len(steps):
            assert "there is no good checkpoint before it, so start a new run" in log.read_text()
        else:
            assert runs.results(out) == runs.results(whole)


def test_no_room_for_a_checkpoint(small: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    arguments, whole = small
    out = tmp_path / "out"
    state = next((whole / "checkpoints").glob("step-*/state.safetensors")).stat().st_size
    fault = f"room:{state - 1000}"
    log = tmp_path / "log"
    assert runs.finish(*arguments, "--out", str(out), log=log, fault=fault) == 2
    errors = [line for line in log.read_text().splitlines() if line.startswith("bertree: ")]
    assert len(errors) == 1
    assert "Traceback" not in log.read_text()
    assert "File too large" in errors[0]
    assert "there is no earlier one" in errors[0]
    assert runs.finish(*arguments, "--out", str(out), "--resume", "run.save_every=3", log=log, fault="tidy:2") == 9
    assert runs.finish(*arguments, "--out", str(out), "--resume", log=log, fault=fault) == 2
    assert "the checkpoint of step 6 is intact" in log.read_text()
    assert runs.finish(*arguments, "--out", str(out), "--resume", log=log) == 0
    assert runs.results(out) == runs.results(whole)


@pytest.mark.parametrize("number", suite_has([signal.SIGTERM], [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_saves_and_stops(number: int, small: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    arguments, whole = small
    out, log = tmp_path / "out", tmp_path / "log"
    fault = f"signal:{number}:2:1"
    code = runs.finish(*arguments, "--out", str(out), "run.save_every=100", log=log, fault=fault)
    assert code == 128 + number, log.read_text()
    assert "and saved; go on with --resume" in log.read_text()
    assert len(CheckpointFolder(out / "checkpoints").steps()) == 1
    assert not (out / "model").exists()
    assert runs.finish(*arguments, "--out", str(out), "--resume", log=log) == 0
    assert runs.results(out) == runs.results(whole)


def test_runs_are_not_mixed(small: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    arguments, whole = small
    log, before = tmp_path / "log", (whole / "metrics.jsonl").read_bytes()
    wrong = {
        "holds a run already": (),
        "was started with another optim.lr": ("--resume", "optim.lr=1e-5"),
        "was started with another phases.1.steps": ("--resume", "phases.1.steps=6"),
        "was started with another model.layers": ("--resume", "model.layers=3"),
    }
    for reason, more in wrong.items():
        log.write_text("")
        assert runs.finish(*arguments, "--out", str(whole), *more, log=log) == 2
        assert reason in log.read_text()
        assert len(log.read_text().splitlines()) == 1
    assert (whole / "metrics.jsonl").read_bytes() == before
    assert runs.finish(*arguments, "--out", str(whole), "--resume", "run.log_every=7", log=log) == 0


PROGRAM = """
import shlex, sys
from bertree.__main__ import main
for line in sys.argv[1:]:
    sys.argv[1:] = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
assert "torch.optim" in sys.modules
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_a_killed_run_goes_on_in_a_process_of_its_own_that_imports_no_compiler(
    small: tuple[tuple[str, ...], Path], token_store: Path, tmp_path: Path
) -> None:
    arguments, whole = small
    out = tmp_path / "out"
    runs.kill(*arguments, "--out", str(out), log=tmp_path / "log", after=(2,), moments=random.Random(0))
    other = ("pretrain", str(runs.recipe("xlnet", tmp_path)), "--store", str(token_store), "optim.name=muon")
    other += ("phases.0.steps=2", "phases.1.steps=1", "schedule.warmup=1", "--out", str(tmp_path / "other"))
    lines = [shlex.join([*arguments, "--out", str(out), "--resume"]), shlex.join(other)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", PROGRAM, *lines]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"
    assert runs.results(out) == runs.results(whole)
