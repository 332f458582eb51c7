"""How many threads a run takes: idle cores, the model's width, the environment, and what a resumed run began with."""

import json
from pathlib import Path

import pytest
import torch

from bertree.engines import local
from bertree.errors import BertreeWarning
from bertree.train import device_setup

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("usable", "busy", "width", "expected"),
    [(2, 0.1, 128, 2), (2, 2.0, 768, 1), (16, 3.2, 768, 13), (64, 0.0, 128, 4), (1, 0.0, 16, 1)],
)
def test_the_rule(usable: int, busy: float, width: int, expected: int) -> None:
    assert device_setup.choose_threads(usable, busy, width) == expected


def test_a_run_takes_them_and_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setattr(device_setup, "available_cores", lambda: 16)
    monkeypatch.setattr(device_setup, "busy_cores", lambda: 4.0)
    for name in device_setup.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    device_setup.set_threads(768, CPU, tmp_path, resume=False)
    (tmp_path / "environment.json").write_text(json.dumps({"threads": 3}))
    device_setup.set_threads(768, CPU, tmp_path, resume=True)
    device_setup.set_threads(768, torch.device("cuda"), tmp_path, resume=False)
    assert taken == [12, 3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.warns(BertreeWarning, match="OMP_NUM_THREADS=1: most of the 16 cores .* to use 12"):
        device_setup.set_threads(768, CPU, tmp_path, resume=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    with pytest.warns(BertreeWarning, match="more threads than the 16 cores here"):
        device_setup.set_threads(768, CPU, tmp_path, resume=False)
    assert len(taken) == 2, "the environment is respected"


def test_busy_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([([100, 100], [50, 50]), ([200, 200], [150, 60])])
    monkeypatch.setattr(local, "_core_times", lambda: next(times))
    assert local.busy_cores(seconds=0) == pytest.approx(0.9)
