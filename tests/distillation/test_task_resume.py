"""A taught run that is killed or stopped ends with the same bytes as one that is not."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from bertree.distillation import teacher_scores
from tests.support import runs
from tests.support.learnable import Trained
from tests.support.lessons import command_of


def arguments(trained: Trained, out: Path) -> list[str]:
    return [*map(str, command_of(trained, "classification", out, "epochs=4", "dropout=0.1"))]


@pytest.fixture(scope="module")
def whole(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    assert runs.finish(*arguments(trained, place / "out"), said=place / "said") == 0, (place / "said").read_text()
    return place / "out"


def newest(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "seed-0" / "checkpoints").glob("step-*")), default=0)


def same(one: Path, other: Path) -> None:
    names = ("model/model.safetensors", "model/bertree.toml", "metrics.json", "predictions.jsonl", teacher_scores.FILE)
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    assert not list(one.rglob(".*"))
    assert json.loads((one / "metrics.json").read_text())["distillation"]["kept"] > 0


def test_killed_and_gone_on_with(whole: Path, trained: Trained, tmp_path: Path) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    given = arguments(trained, out)
    codes = []
    for target in (3, 17, 40):
        process = runs.start(*given, "--resume", said=said, fault="pause:0,slow:3")
        while process.exitcode is None and newest(out) < target:
            time.sleep(0.001)
        process.kill()
        process.join()
        codes.append(process.exitcode)
    assert codes.count(-9) >= 2, said.read_text()
    assert runs.finish(*given, "--resume", said=said, fault="pause:0") == 0, said.read_text()
    same(out, whole)


def test_stopped_and_gone_on_with(whole: Path, trained: Trained, tmp_path: Path) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    given = arguments(trained, out)
    process = runs.start(*given, said=said, fault="slow:20")
    while process.exitcode is None and " held-out: " not in (said.read_text() if said.exists() else ""):
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 130, said.read_text()
    assert 0 < newest(out) < 60
    assert runs.finish(*given, "alpha=0.9", "--resume", said=said) == 2
    assert "was started with other data or settings" in said.read_text()
    assert runs.finish(*given, "--resume", said=said) == 0, said.read_text()
    same(out, whole)
