"""Signals: the first one ends a run in a saved state, whenever it comes; a second one counts only after a moment."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from bertree.train import signals
from bertree.train.signals import catch_signals, interrupt_once
from tests.support import runs


def send(number: int, times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_doubled_signal_is_one(number: int) -> None:
    before = signal.getsignal(number)
    with catch_signals() as found:
        assert found.caught is None
        send(number, 3)
        assert found.caught == number
        with catch_signals() as inner:
            assert inner is found
    assert signal.getsignal(number) is before


def test_a_second_one_after_a_moment_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "GRACE", 0.05)
    with catch_signals():
        send(signal.SIGINT, 2)
        time.sleep(0.1)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_catches_nothing() -> None:
    found = []

    def work() -> None:
        with catch_signals() as caught, interrupt_once():
            found.append(caught.caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]


def test_an_interrupt_is_not_doubled() -> None:
    raised = 0
    with interrupt_once():
        for _ in range(3):
            try:
                send(signal.SIGINT)
            except KeyboardInterrupt:
                raised += 1
    assert raised == 1


def stop_at(moment: float, number: int, *arguments: str, said: Path) -> int:
    """Start a command, send it a doubled signal after so many seconds, and return its exit code."""
    process = runs.start(*arguments, said=said, fault="slow:20")
    process.join(moment)
    if process.exitcode is None and process.pid is not None:
        for _ in range(2):
            os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode is not None, "the command hangs"
    return process.exitcode


def test_stopped_at_random_moments(token_store: Path, tmp_path: Path) -> None:
    """While it is prepared, in a step, in an evaluation, in a save, at the end."""
    moments, said = random.Random(3), tmp_path / "said"
    given = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(token_store), "run.save_every=1000")
    assert runs.finish(*given, "--out", str(tmp_path / "whole"), said=said) == 0
    codes = []
    for _ in range(8):
        number = moments.choice([signal.SIGINT, signal.SIGTERM])
        before = steps(tmp_path / "out")
        code = stop_at(
            moments.uniform(0.15, 0.7), number, *given, "--out", str(tmp_path / "out"), "--resume", said=said
        )
        codes.append(code)
        assert code in (0, 128 + number, -signal.SIGTERM), said.read_text()
        if code == 128 + number and "and saved" in said.read_text():
            assert steps(tmp_path / "out") >= before, "nothing is lost"
    assert "Traceback" not in said.read_text()
    assert runs.finish(*given, "--out", str(tmp_path / "out"), "--resume", said=said) == 0
    assert runs.results(tmp_path / "out") == runs.results(tmp_path / "whole")


def steps(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "checkpoints").glob("step-*")), default=0)
