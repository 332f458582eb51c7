"""A fine-tuning run that is killed or stopped, however often, ends with the same bytes as one that is not."""

import json
import random
import signal
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import runs
from tests.support.learnable import Trained
from tests.support.shared import common_folder, make_once, suite_has

ENDED = (0, 1)  # 1: so few steps need not teach anything
KINDS = {
    "classification": ("epochs=2", "dropout=0.1"),
    "crf": ("epochs=3", "micro_tokens=200"),
    "squad2": ("epochs=8", "patience=2", "evaluations=3", "dropout=0.1"),  # which stops early
}


def arguments(trained: Trained, name: str, out: Path, *more: str) -> list[str]:
    trained(name)
    return [*map(str, trained.command(name, out)), *KINDS[name], *more]


class Whole(NamedTuple):
    """Each run without interruption, made by the first process that asks for it."""

    root: Path
    trained: Trained

    def __getitem__(self, name: str) -> Path:
        return make_once(self.root / name, partial(self._finetune, name)) / "out"

    def _finetune(self, name: str, folder: Path) -> None:
        folder.mkdir()
        code = runs.finish(*arguments(self.trained, name, folder / "out"), log=folder / "log")
        assert code in ENDED, (folder / "log").read_text()


@pytest.fixture(scope="session")
def whole(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(common_folder(tmp_path_factory) / "whole", trained)


@pytest.mark.parametrize("name", suite_has(["squad2"], KINDS))
def test_killed_at_random_moments(name: str, whole: Whole, trained: Trained, tmp_path: Path) -> None:
    moments, out, log = random.Random(name), tmp_path / "out", tmp_path / "log"
    values = arguments(trained, name, out)
    after = [moments.randint(1, 10) for _ in range(2)]
    runs.kill(*values, "--resume", log=log, after=after, moments=moments, fault="pause:0")
    assert runs.finish(*values, "--resume", log=log, fault="pause:0") in ENDED, log.read_text()
    runs.assert_same_run(out, whole[name])


def test_dead_before_the_model_and_after(whole: Whole, trained: Trained, tmp_path: Path) -> None:
    """The model is written, but the seed is not yet marked as done: it is done again, from its last checkpoint."""
    out, log = tmp_path / "out", tmp_path / "log"
    values = arguments(trained, "classification", out)
    for stage in ("header written:2", "half the tensors:1", "model:1"):
        assert runs.finish(*values, "--resume", log=log, fault=f"pause:0,{stage}") == 9, log.read_text()
    assert runs.newest_step(out)
    assert runs.finish(*values, "--resume", log=log) in ENDED, log.read_text()
    runs.assert_same_run(out, whole["classification"])


@pytest.mark.parametrize(
    ("number", "code"), suite_has([(signal.SIGINT, 130)], [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
)
def test_stopped_and_gone_on_with(number: int, code: int, whole: Whole, trained: Trained, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    values = arguments(trained, "classification", out)
    # Twice, as `timeout` and terminals do: to the process, and to its group.
    assert runs.finish(*values, log=log, fault=f"signal:{number}:8:5") == code, log.read_text()
    stopped = runs.newest_step(out)
    assert 8 <= stopped < 20
    assert f"stopped at step {stopped} of 20 and saved; go on with --resume" in log.read_text()
    assert not (out / "model").exists()
    assert not (out / "metrics.json").exists()
    assert runs.finish(*values, log=log) == 2, "without --resume a run is not written over"
    assert "holds a run already" in log.read_text()
    other = [word if not word.startswith("lr=") else "lr=1e-3" for word in values]
    assert runs.finish(*other, "--resume", log=log) == 2
    assert "was started with other data or settings" in log.read_text()
    assert runs.finish(*values, "--resume", log=log) in ENDED, log.read_text()
    events = [json.loads(line) for line in (out / "seed-0/metrics.jsonl").read_text().splitlines()]
    assert [e["text"] for e in events if e["kind"] == "event"] == ["started", f"resumed from step {stopped}"]
    runs.assert_same_run(out, whole["classification"])


def test_a_seed_that_is_done_is_not_done_again(whole: Whole, trained: Trained, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    values = arguments(trained, "classification", out, "--seeds", "2")
    runs.kill(*values, log=log, after=(24,), moments=random.Random(0), fault="pause:0")
    assert runs.newest_step(out, 1) > 0, "killed in the second seed"
    before = {path: path.stat().st_mtime_ns for path in (out / "seed-0").iterdir()}
    model = (out / "model" / "model.safetensors").read_bytes()
    assert model == (whole["classification"] / "model" / "model.safetensors").read_bytes()
    assert runs.finish(*values, "--resume", log=log) in ENDED, log.read_text()
    assert {path: path.stat().st_mtime_ns for path in (out / "seed-0").iterdir()} == before
    undisturbed = tmp_path / "undisturbed"
    assert runs.finish(*arguments(trained, "classification", undisturbed, "--seeds", "2"), log=log) in ENDED
    runs.assert_same_run(out, undisturbed)
    stamp = (out / "model" / "model.safetensors").stat().st_mtime_ns
    other = [word if not word.startswith("lr=") else "lr=1e-3" for word in values]
    assert runs.finish(*other, "--resume", log=log) == 2
    assert "seed-0: was trained with other settings" in log.read_text()
    assert runs.finish(*values, "--resume", log=log) in ENDED, "of a run that is done, the table"
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == stamp
