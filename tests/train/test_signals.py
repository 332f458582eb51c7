"""Signals: the first one ends a run in a saved state, whenever it comes; a second one counts only after a moment."""

import os
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
    with catch_signals() as signals:
        assert signals.caught is None
        send(number, 3)
        assert signals.caught == number
        with catch_signals() as inner:
            assert inner is signals
    assert signal.getsignal(number) is before


def test_a_second_one_after_a_moment_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with catch_signals():
        send(signal.SIGINT, 2)
        now += signals.GRACE
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_catches_nothing() -> None:
    received = []

    def work() -> None:
        with catch_signals() as caught, interrupt_once():
            received.append(caught.caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert received == [None]


def test_an_interrupt_is_not_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    raised = 0
    with interrupt_once():
        for _ in range(3):
            try:
                send(signal.SIGINT)
            except KeyboardInterrupt:
                raised += 1
    assert raised == 1


# While it is prepared (no step is taken yet), in a step, in an evaluation, in a save, at the end.
MOMENTS = ((0, 1), (0, 40), (1, 0), (2, 7), (1, 25))


def test_stopped_at_many_moments(token_store: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    arguments = (
        "pretrain",
        str(runs.recipe("bert", tmp_path)),
        "--store",
        str(token_store),
        "run.save_every=1000",
        "phases.0.batch_tokens=256",
        "phases.1.batch_tokens=256",
        "phases.1.steps=51",
    )
    assert runs.finish(*arguments, "--out", str(tmp_path / "whole"), log=log) == 0
    taken = 0
    for turn, (after, milliseconds) in enumerate(MOMENTS):
        number = (signal.SIGINT, signal.SIGTERM)[turn % 2]
        before = steps(out)
        log.write_text("")
        fault = f"signal:{number}:{after}:{milliseconds}"
        code = runs.finish(*arguments, "--out", str(out), "--resume", log=log, fault=fault)
        saved = "and saved" in log.read_text()
        assert "Traceback" not in log.read_text()
        assert code in (128 + number, -signal.SIGTERM), log.read_text()
        assert saved or not after, "a run that has taken a step saves it"
        assert steps(out) >= before + after, "nothing is lost"
        taken += after
    assert steps(out) >= taken
    assert runs.finish(*arguments, "--out", str(out), "--resume", log=log) == 0
    assert runs.results(out) == runs.results(tmp_path / "whole")


def steps(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "checkpoints").glob("step-*")), default=0)
