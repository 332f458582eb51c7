"""`bertree finetune` in several processes: equal to one, stopped, resumed, refused."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support import learnable
from tests.support.command import Command
from tests.support.learnable import SETTINGS, Trained
from tests.support.meshes import relative_difference
from tests.support.rank_commands import RankOutputs, run_commands
from tests.support.shared import suite_has

NEAR = 1e-5
# 49 examples: the last step of an epoch has one, so that one of two ranks has none.
SHORT = ("batch=16", "epochs=2", "evaluations=2", "eps=1e-4")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, count, seed in (("train", 49, 0), ("dev", 20, 1)):
        rows = [json.dumps(row) for row in learnable.feelings(count, seed)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def arguments(start: Path, data: Path, out: Path, *more: str) -> list[str]:
    arguments = ["finetune", str(start), "--task", "classification", "--data", str(data), "--out", str(out)]
    return [*arguments, *SETTINGS, *SHORT, *more]


def assert_near(out: Path, other: Path) -> None:
    weights, wanted = (load_file(folder / "model" / "model.safetensors") for folder in (out, other))
    assert weights.keys() == wanted.keys()
    # Biases that change no softmax have a gradient of 0 but for rounding: they stay near the 0 they started from.
    names = [name for name in wanted if max(weights[name].norm(), wanted[name].norm()) > 1e-5]
    assert all(name.endswith("bias") for name in wanted.keys() - set(names))
    worst = max((relative_difference(weights[name], wanted[name], name), name) for name in names)
    assert worst[0] < NEAR, worst


def assert_ended(outputs: RankOutputs) -> None:
    """Both ranks came to the end: with 0, or with 1 because so short a run has learned nothing."""
    learned = not any("no seed has learned the task" in text for text in outputs.texts)
    assert outputs.codes == [0 if learned else 1] * 2, outputs.texts


@pytest.mark.parametrize("more", suite_has(["micro_tokens=50"], ["", "micro_tokens=50", "frozen=last"]))
def test_two_ranks_learn_what_one_device_learns(
    more: str, trained: Trained, data: Path, tmp_path: Path, command: Command
) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    command.well(*arguments(trained.start, data, alone, *more.split()))
    values = arguments(trained.start, data, both, *more.split())
    result = run_commands(tmp_path / "ranks", [values, values])
    assert_ended(result)
    assert "2 data ranks" in result.texts[0]
    assert result.texts[1] == ""
    assert_near(both, alone)
    assert sorted(path.name for path in both.iterdir()) == sorted(path.name for path in alone.iterdir())
    scores = [json.loads((out / "metrics.json").read_text()) for out in (alone, both)]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]


@pytest.mark.parametrize("name", suite_has(["squad2"], ["crf", "squad2"]))
def test_other_heads_learn_the_same_on_two_ranks(name: str, trained: Trained, tmp_path: Path, command: Command) -> None:
    trained(name)  # writes the data
    alone, both = tmp_path / "alone", tmp_path / "both"
    first, second = ([*map(str, trained.command(name, out)), "epochs=1", "eps=1e-4"] for out in (alone, both))
    command.well(*first)
    result = run_commands(tmp_path / "ranks", [second, second])
    assert result.codes == [0, 0], result.texts
    assert_near(both, alone)


def test_a_signal_to_one_rank_stops_both_and_they_end_in_the_same_bytes(
    trained: Trained, data: Path, tmp_path: Path, command: Command
) -> None:
    outs = [tmp_path / "whole", tmp_path / "stopped"]
    whole, stopped = (arguments(trained.start, data, out, "dropout=0.1") for out in outs)
    assert_ended(run_commands(tmp_path / "whole-ranks", [whole] * 2))
    result = run_commands(tmp_path / "stopped-ranks", [stopped] * 2, planted=("", "signal:15:5:0"))
    assert result.codes == [143, 143], result.texts
    assert "and saved; go on with --resume" in result.texts[0]
    again = run_commands(tmp_path / "again-ranks", [stopped] * 2, {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert_ended(again)
    models = [(out / "model" / "model.safetensors").read_bytes() for out in outs]
    assert models[0] == models[1]


def test_a_mistake_of_one_rank_stops_both(trained: Trained, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    values = [arguments(trained.start, folder, out) for folder in (data, tmp_path / "nothing")]
    result = run_commands(tmp_path / "ranks", values)
    assert result.codes == [2, 2], result.texts
    assert "rank 1: " in result.texts[0]
    assert str(tmp_path / "nothing") in result.texts[0]
    assert result.texts[1] == ""
    assert not out.exists()
