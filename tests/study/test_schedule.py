"""Steps of a study side by side: what may begin, and how a signal ends them."""

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


def step(name: str, kind: str = "pretrain", needs: tuple[Any, ...] = ()) -> Any:
    """Return what the schedule reads of a step."""
    return SimpleNamespace(identity=name, step=SimpleNamespace(do=kind), needs=needs)


def wait_for_signal(planned: Any, folder: Path, keep: bool) -> str:
    """Tell that a step is running, then take very long."""
    (folder / planned.identity).touch()
    time.sleep(600)
    return "done"


def end_beside_one_that_waits(planned: Any, folder: Path, keep: bool) -> str:
    """Take very long in step b; end step a when b runs in the other process."""
    if planned.identity == "b":
        return wait_for_signal(planned, folder, keep)
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
def test_interrupt_of_a_terminal_ends_the_study_without_a_traceback_of_idle_processes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupt_when_running() -> None:
        while not (tmp_path / "a").exists():
            time.sleep(0.05)
        time.sleep(0.5)  # its process waits for another step
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGINT)  # a terminal interrupts all processes
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt_when_running, daemon=True).start()
    progress: Any = SimpleNamespace(finish=lambda step: "")
    with pytest.raises(Stopped):
        compute_all([step("a"), step("b")], tmp_path, 2, end_beside_one_that_waits, progress, ())
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.process)])
def test_notes_of_steps_are_those_of_the_first_process_and_each_is_shown_once(tmp_path: Path, jobs: int) -> None:
    progress: Any = SimpleNamespace(finish=lambda step: "")
    with pytest.warns(BertreeWarning) as caught:
        compute_all([step("a"), step("b")], tmp_path, jobs, compute_with_a_note, progress, ())
    assert sorted(str(warning.message) for warning in caught) == ["about a", "about all", "about b"]
