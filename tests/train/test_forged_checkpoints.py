"""Checkpoints that someone has changed: an older one is taken, with a note that names the file; never a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertree.files.formats import file_hash
from bertree.train.checkpoint_files import header_text
from tests.support import runs

LAST = 10


@pytest.fixture(scope="module")
def complete(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, ...], Path]:
    """Arguments of a run, and the folder of one that is complete and has all its checkpoints."""
    folder = tmp_path_factory.mktemp("complete")
    settings = ("schedule.growth=1", f"run.keep={LAST}")
    arguments = ("pretrain", str(runs.recipe("roberta", folder)), "--store", str(token_store), *settings)
    assert runs.finish(*arguments, "--out", str(folder / "out"), log=folder / "log") == 0, (folder / "log").read_text()
    return arguments, folder / "out"


def place(out: Path, step: int = LAST) -> Path:
    return out / "checkpoints" / f"step-{step:08d}"


def header(**changes: Any) -> Callable[[Path], None]:
    def forge(checkpoint: Path) -> None:
        path = checkpoint / "state.json"
        path.write_text(header_text(json.loads(path.read_text()) | changes))

    return forge


def extra(**changes: Any) -> Callable[[Path], None]:
    def forge(checkpoint: Path) -> None:
        content = json.loads((checkpoint / "state.json").read_text())
        header(extra=content["extra"] | changes)(checkpoint)

    return forge


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Change the tensors and make the checksum right again."""

    def forge(checkpoint: Path) -> None:
        path = checkpoint / "state.safetensors"
        content = load_file(path)
        change(content)
        save_file(content, path)
        header(sha256=file_hash(path))(checkpoint)

    return forge


def moment(tensors: dict[str, torch.Tensor]) -> str:
    return next(name for name in tensors if name.startswith("moments/exp_avg/"))


FORGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a step that is true": (header(step=True), "not the header"),
    "no extra": (header(extra=[1]), "not the header"),
    "tokens are infinite": (extra(tokens=float("inf")), "extra.tokens: must be a whole number"),
    "tokens are a list": (extra(tokens=[1]), "extra.tokens: must be a whole number"),
    "tokens are negative": (extra(tokens=-1), "extra.tokens: must not be negative"),
    "skipped is null": (extra(skipped=None), "extra.skipped: must be a whole number"),
    "skipped is text": (extra(skipped=""), "extra.skipped: must be a whole number"),
    "other skipped steps": (extra(skipped=3), "the optimizer has taken {step} steps, not {fewer}"),
    "seconds are a table": (extra(seconds={}), "extra.seconds: must be a number"),
    "seconds are text": (extra(seconds="x" * 5000), "extra.seconds: must be a number"),
    "waited is null": (extra(waited=None), "extra.waited: must be a number"),
    "a moment renamed": (tensors(lambda t: t.update(nope=t.pop(moment(t)))), "'nope', which the run does not know"),
    "a moment left out": (tensors(lambda t: t.pop(moment(t))), "is incomplete"),
    "a moment of nothing": (
        tensors(lambda t: t.update({"moments/exp_avg/nope": torch.zeros(1)})), "which the run does not know",
    ),
    "a moment of another kind": (
        tensors(lambda t: t.update({moment(t).replace("exp_avg", "other"): torch.zeros(1)})), "does not know",
    ),
    "a moment of another shape": (tensors(lambda t: t.update({moment(t): torch.zeros(1)})), "another shape or type"),
    "a moment of another type": (
        tensors(lambda t: t.update({moment(t): t[moment(t)].half()})), "another shape or type",
    ),
    "a weight that is no number": (
        tensors(lambda t: next(v for n, v in t.items() if n.startswith("weights/")).view(-1)[:1].fill_(torch.nan)),
        "holds numbers that are not finite",
    ),
    "a square below 0": (
        tensors(lambda t: t[moment(t).replace("exp_avg/", "exp_avg_sq/")].view(-1)[:1].fill_(-1)), "squares below 0",
    ),
    "a step count that is no number": (
        tensors(lambda t: t[moment(t).replace("exp_avg/", "step/")].fill_(torch.nan)), "is nan, not a number of steps",
    ),
    "no moments": (
        tensors(lambda t: [t.pop(n) for n in list(t) if n.startswith("moments/")]), "has taken 0 steps, not {step}",
    ),
    "not tensors at all": (
        lambda checkpoint: [(checkpoint / "state.safetensors").write_bytes(b"x" * 99),
                            header(sha256=file_hash(checkpoint / "state.safetensors"))(checkpoint)][1],
        "state.safetensors: is damaged",
    ),
}  # fmt: skip


RUNS = 3  # of all kinds, each in a checkpoint of its own


def again(complete: tuple[tuple[str, ...], Path], tmp_path: Path) -> tuple[tuple[str, ...], Path, Path]:
    """The command that resumes a copy of the run without its model; the copy, and what is said."""
    arguments, whole = complete
    out = shutil.copytree(whole, tmp_path / "out")
    shutil.rmtree(out / "model")
    return (*arguments, "--out", str(out), "--resume"), out, tmp_path / "log"


def notes(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("bertree: note: ")]


@pytest.mark.parametrize("number", range(RUNS))
def test_forged_checkpoints_are_passed_over(
    number: int, complete: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    command, out, log = again(complete, tmp_path)
    kinds = dict(zip(range(LAST, 1, -1), list(FORGED)[number::RUNS], strict=False))
    for step, kind in kinds.items():
        FORGED[kind][0](place(out, step))
    assert runs.finish(*command, log=log) == 0, log.read_text()
    for note, (step, kind) in zip(notes(log)[: len(kinds)], kinds.items(), strict=True):
        assert FORGED[kind][1].format(step=step, fewer=step - 3) in note, kind
        assert place(out, step).name in note
        assert len(note) < 500
    assert runs.results(out) == runs.results(complete[1])


def test_a_step_beyond_the_end_is_passed_over(complete: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    command, out, log = again(complete, tmp_path)
    header(step=99)(shutil.copytree(place(out), place(out, 99)))
    assert runs.finish(*command, log=log) == 0, log.read_text()
    assert "step-00000099" in notes(log)[0]
    assert "is of step 99, but the run has 10" in notes(log)[0]
    shutil.rmtree(place(out, 99), ignore_errors=True)
    assert runs.results(out) == runs.results(complete[1])


def test_two_that_are_swapped_leave_none(complete: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    command, out, log = again(complete, tmp_path)
    for step in range(1, LAST - 1):
        shutil.rmtree(place(out, step))
    left, right = place(out), place(out, LAST - 1)
    left.rename(out / "aside")
    right.rename(left)
    (out / "aside").rename(right)
    for step in (LAST, LAST - 1):
        header(step=step)(place(out, step))
    assert runs.finish(*command, log=log) == 2, log.read_text()
    assert "the optimizer has taken 9 steps, not 10" in notes(log)[0]
    assert place(out).name in notes(log)[0]


def test_weights_of_another_model_stop_the_run(complete: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    command, out, log = again(complete, tmp_path)
    tensors(lambda t: t.update(**{"weights/more": torch.zeros(1)}))(place(out))
    assert runs.finish(*command, log=log) == 2
    assert "step 10 is of another model" in log.read_text()
    assert len(log.read_text().splitlines()) == 1


def test_odd_names_are_not_checkpoints(complete: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    command, out, log = again(complete, tmp_path)
    names = ("step-²", "step-8", "step-00000008.old", "step-" + "9" * 200, "step-0000000x", "step-")
    for name in names:
        (out / "checkpoints" / name).mkdir()
    assert runs.finish(*command, log=log) == 0, log.read_text()
    assert "note" not in log.read_text()
    for name in names:
        assert (out / "checkpoints" / name).is_dir(), "which is not ours to remove"
    assert (out / "model" / "model.safetensors").read_bytes() == (
        complete[1] / "model" / "model.safetensors"
    ).read_bytes()


def test_a_damaged_log_is_no_reason_to_stop(complete: tuple[tuple[str, ...], Path], tmp_path: Path) -> None:
    command, out, log = again(complete, tmp_path)
    lines = (out / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"loss"', b'"l\xa2ss"')
    lines[2] = b'{"kind": "train", "step": 2, "loss": NaN}\n'
    lines[3] = b'{"step": ' + b"9" * 5000 + b"}\n"
    lines[4] = b"[" * 100_000 + b"\n"
    lines[5] = b'{"kind": "train", "step": 5, "loss": 1e999}\n'
    lines[6] = b'{"kind": "train", "step": 6, "note": "\\ud800"}\n'
    (out / "metrics.jsonl").write_bytes(b"".join(lines))
    assert runs.finish(*command, log=log) == 0, log.read_text()
    assert "metrics.jsonl: 6 damaged lines are dropped" in log.read_text()
    assert runs.results(out) == runs.results(complete[1])
    assert all(json.loads(line)["kind"] for line in (out / "metrics.jsonl").read_text().splitlines())


def test_a_damaged_best_checkpoint_does_not_stop_the_end(
    complete: tuple[tuple[str, ...], Path], tmp_path: Path
) -> None:
    command, out, log = again(complete, tmp_path)
    shutil.copytree(place(out, LAST - 1), place(out, 4), dirs_exist_ok=True)
    (out / "checkpoints" / "best.json").write_text('{"step": 4, "loss": 0.5, "phase": 1}')
    assert runs.finish(*command, log=log) == 0, log.read_text()
    assert "step-00000004" in log.read_text()
    assert "model-best is not written" in log.read_text()
    assert runs.results(out) == runs.results(complete[1])
