"""A taught run that is killed or stopped ends with the same bytes as one that is not."""

import json
import random
import signal
from pathlib import Path

import pytest

from bertree.distillation import teacher
from bertree.run_folder import TEMPERATURE
from tests.support import runs
from tests.support.learnable import Trained
from tests.support.lessons import command_of


def arguments(trained: Trained, out: Path) -> list[str]:
    return [*map(str, command_of(trained, "classification", out, "epochs=2", "dropout=0.1"))]


@pytest.fixture(scope="module")
def whole(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    assert runs.finish(*arguments(trained, place / "out"), log=place / "log") == 0, (place / "log").read_text()
    return place / "out"


def newest(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "seed-0" / "checkpoints").glob("step-*")), default=0)


def same(left: Path, right: Path) -> None:
    names = ("model/model.safetensors", "model/bertree.toml", "metrics.json", "predictions.jsonl", teacher.SCORES_FILE)
    names += (TEMPERATURE,)
    for name in names:
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    assert not list(left.rglob(".*"))
    assert json.loads((left / "metrics.json").read_text())["distillation"]["kept"] > 0


def test_killed_and_gone_on_with(whole: Path, trained: Trained, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    values = arguments(trained, out)
    runs.kill(*values, "--resume", log=log, after=(3, 9), moments=random.Random(0), fault="pause:0")
    assert runs.finish(*values, "--resume", log=log, fault="pause:0") == 0, log.read_text()
    same(out, whole)


def test_stopped_and_gone_on_with(whole: Path, trained: Trained, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    values = arguments(trained, out)
    assert runs.finish(*values, log=log, fault=f"signal:{signal.SIGINT}:12:5") == 130, log.read_text()
    assert 12 <= newest(out) < 30
    assert runs.finish(*values, "alpha=0.9", "--resume", log=log) == 2
    assert "was started with other data or settings" in log.read_text()
    assert runs.finish(*values, "--resume", log=log) == 0, log.read_text()
    same(out, whole)
