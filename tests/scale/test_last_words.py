"""torchrun ends all ranks when one has failed, so the others leave after rank 0, which says why."""

import signal
import time

import pytest

from bertree.cli import main


@pytest.mark.parametrize(("rank", "job", "waits"), [("1", "job", True), ("0", "job", False), ("1", "", False)])
def test_ranks_that_torchrun_started_wait_for_the_line_of_rank_0(
    rank: str, job: str, waits: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": job}.items():
        monkeypatch.setenv(name, value)
    slept: list[float] = []
    handlers: dict[int, object] = {}
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    with pytest.raises(SystemExit) as stopped:
        main._fail("a mistake")
    assert stopped.value.code == 2
    assert (slept, list(handlers)) == (([main.ERROR_WAIT], [signal.SIGTERM]) if waits else ([], []))
    assert capsys.readouterr().err == ("bertree: a mistake\n" if rank == "0" else "")
