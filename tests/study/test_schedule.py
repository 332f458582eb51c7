"""Steps of a study side by side: what may begin, and how a signal ends them."""

import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertree.console import note
from bertree.errors import BertreeWarning
from bertree.study.schedule import compute_all, startable
from bertree.study.steps import Stopped
from bertree.train.signals import catch_signals
from tests.support.processes import PATIENCE


def step(name: str, kind: str = "pretrain", needs: tuple[Any, ...] = ()) -> Any:
    """Return what the schedule reads of a step."""
    return SimpleNamespace(identity=name, step=SimpleNamespace(do=kind), needs=needs)


def wait_for_signal(planned: Any, folder: Path, keep: bool) -> str:
    """Tell that a step is running, then take very long."""
    (folder / planned.identity).touch()
    time.sleep(600)
    return "done"


def end_beside_one_that_saves(planned: Any, folder: Path, keep: bool) -> str:
    """Take step b until a signal comes, then a moment more; end step a when b runs in the other process."""
    if planned.identity == "b":
        with catch_signals() as signals:
            (folder / "b").touch()
            while signals.caught is None:
                time.sleep(0.05)
            time.sleep(1)
            (folder / "saved").touch()
        raise Stopped(signals.caught)
    while not (folder / "b").exists():
        time.sleep(0.05)
    (folder / "a").touch()
    return "done"


def compute_with_a_note(planned: Any, folder: Path, keep: bool) -> str:
    """Compute nothing, and note something about it."""
    note(f"about {planned.identity}")
    note("about all")
    return "done"


def test_timed_steps_begin_when_nothing_else_can_and_all_processes_are_free() -> None:
    first, timed = step("first"), step("timed", "time")
    later = step("later", needs=(first,))
    assert startable([timed, later, first], 2, {"first"}, 2) == [first]
    assert startable([timed, later], 1, {"first"}, 2) == []
    assert startable([timed], 2, set(), 2) == [timed]


@pytest.mark.process
def test_signal_to_the_study_alone_ends_the_steps_that_run_beside_it(tmp_path: Path) -> None:
    def send_when_running() -> None:
        while not any(tmp_path.iterdir()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send_when_running, daemon=True).start()
    progress: Any = SimpleNamespace(finish=lambda step: "")
    with pytest.raises(Stopped) as stopped:
        compute_all([step("a")], tmp_path, 2, wait_for_signal, progress, ())
    assert stopped.value.args == (signal.SIGTERM,)


@pytest.mark.process
@pytest.mark.parametrize("to_all", [True, False], ids=["to all processes", "to the study"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_lets_steps_save_while_another_process_waits(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals, to_all: bool
) -> None:
    def send_when_running() -> None:
        while not (tmp_path / "a").exists():
            time.sleep(0.05)
        time.sleep(0.5)  # its process waits for another step
        for process in multiprocessing.active_children() if to_all else ():
            os.kill(process.pid or 0, number)
        os.kill(os.getpid(), number)

    threading.Thread(target=send_when_running, daemon=True).start()
    progress: Any = SimpleNamespace(finish=lambda step: "")
    faulthandler.dump_traceback_later(PATIENCE / 10, exit=True)  # a lock that nobody gives back hangs for ever
    with pytest.raises(Stopped) as stopped:
        compute_all([step("a"), step("b")], tmp_path, 2, end_beside_one_that_saves, progress, ())
    faulthandler.cancel_dump_traceback_later()
    assert stopped.value.args == (number,)
    assert (tmp_path / "saved").exists()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_notes_of_steps_are_those_of_the_first_process_and_each_is_shown_once(tmp_path: Path, jobs: int) -> None:
    progress: Any = SimpleNamespace(finish=lambda step: "")
    with pytest.warns(BertreeWarning) as caught:
        compute_all([step("a"), step("b")], tmp_path, jobs, compute_with_a_note, progress, ())
    assert sorted(str(warning.message) for warning in caught) == ["about a", "about all", "about b"]
