"""What a run says while it goes."""

import time
from typing import Any

import pytest

from bertree.console import showing
from bertree.train import progress
from bertree.train.progress import Progress

LINE = {
    "kind": "train",
    "step": 10,
    "loss": 7.9,
    "mlm": 7.2,
    "nsp": 0.69,
    "lr": 1e-4,
    "tokens_per_s": 20111.0,
    "phase": 0,
}
EVALUATION = {"kind": "eval", "step": 100, "seconds": 6.1, "loss": 5.7, "perplexity": 164.0, "nsp_accuracy": 0.63}


def test_a_log_is_useful_and_short(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with showing(), Progress(400, 0) as shown:
        for step in range(1, 201):
            now += 0.5
            shown.step(step)
            shown.train(LINE | {"step": step})
            if step % 100 == 0:
                shown.evaluation(EVALUATION | {"step": step})
        shown.say("[b]saved[/b]")
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "step 1/400 · loss 7.900 (MLM 7.200, NSP 0.690) · 20,111 tokens/s · lr 1e-4 · 3 min 20 s left"
    assert lines[-1] == "[b]saved[/b]"
    assert lines[-2].startswith("step 200/400 · held-out")
    assert lines[-3].startswith("step 200/400 · loss 7.900"), "the last figures are not lost, and come in order"
    assert "step 100/400 · held-out: loss 5.700, perplexity 164, pair accuracy 63.0 %" in lines
    assert len([line for line in lines if "tokens/s" in line]) == 6, (
        "one at first, every 30 s, and before each evaluation"
    )


@pytest.mark.parametrize("fields", [{}, {"step": 1, "loss": None, "lr": None, "mfu": float("nan"), "odd": "[/x]"}])
@pytest.mark.parametrize("quiet", [True, False])
def test_odd_fields(fields: dict[str, Any], quiet: bool) -> None:
    with Progress(10, 2, quiet=quiet) as shown:
        shown.train(fields)
        shown.evaluation(fields)
        shown.step(3)


def test_a_step_costs_nothing() -> None:
    with Progress(100_000, 0, quiet=False) as shown:
        started = time.perf_counter()
        for step in range(20_000):
            shown.step(step)
        assert (time.perf_counter() - started) / 20_000 < 20e-6
