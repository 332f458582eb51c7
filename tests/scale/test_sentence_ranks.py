"""`bertree embeddings train` in several processes: equal to one, with negatives of all ranks or of each."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.command import Command
from tests.support.learnable import model, tokenizer
from tests.support.meshes import relative_difference
from tests.support.rank_commands import run_commands
from tests.support.shared import suite_has
from tests.support.topics import files

NEAR = 1e-5
# At least 20 losses; the last step of an epoch is smaller, so that ranks have unequal shares.
SETTINGS = ("device=cpu", "lr=1e-3", "eps=1e-4", "dropout=0", "max_length=32", "evaluations=1", "log_every=1")
KINDS = {
    "ranking": ("--loss", "ranking", "batch=22", "epochs=2"),
    "in pieces": ("--loss", "ranking", "batch=22", "epochs=2", "micro_tokens=300", "symmetric=true"),
    "softmax": ("--loss", "softmax", "batch=22"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = files(tmp_path_factory.mktemp("sentence-ranks"))
    model(folder / "start", tokenizer())
    return folder


def arguments(place: Path, out: Path, *more: str) -> list[str]:
    arguments = [
        "embeddings",
        "train",
        place / "start",
        "--data",
        place / "nli",
        "--dev",
        place / "sts" / "dev.parquet",
    ]
    return [*map(str, [*arguments, "--out", out]), *SETTINGS, *more]


def losses(out: Path) -> list[float]:
    lines = map(json.loads, (out / "seed-0" / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def difference(out: Path, other: Path) -> float:
    weights, wanted = (load_file(folder / "model" / "model.safetensors") for folder in (out, other))
    # Biases that change no softmax have a gradient of 0 but for rounding: they stay near the 0 they started from.
    names = [name for name in wanted if wanted[name].norm() > 1e-5]
    return max(relative_difference(weights[name], wanted[name], name) for name in names)


@pytest.mark.parametrize("name", suite_has(("in pieces",), KINDS))
def test_two_ranks_learn_what_one_device_learns(name: str, place: Path, tmp_path: Path, command: Command) -> None:
    alone, both = tmp_path / "alone", tmp_path / "both"
    command.well(*arguments(place, alone, *KINDS[name]))
    result = run_commands(tmp_path / "ranks", [arguments(place, both, *KINDS[name])] * 2)
    assert result.codes == [0, 0], result.texts
    assert "2 data ranks" in result.texts[0]
    assert result.texts[1] == ""
    assert len(losses(alone)) >= 20
    assert losses(both) == pytest.approx(losses(alone), rel=NEAR)
    assert difference(both, alone) < NEAR


MORE = (*KINDS["ranking"], "dropout=0.1", "epochs=1")


def test_negatives_of_each_rank_alone_are_another_loss(place: Path, tmp_path: Path) -> None:
    first = {}
    for name in ("true", "false"):
        values = arguments(place, tmp_path / name, *MORE, f"all_ranks={name}", "epochs=0.1")
        assert run_commands(tmp_path / f"{name}-ranks", [values] * 2).codes == [0, 0]
        first[name] = losses(tmp_path / name)[0]
    assert first["false"] < first["true"] - 0.1, "fewer wrong texts are found less often"


@pytest.mark.proof  # tests/scale/test_finetuning.py stops ranks of the same loop
def test_a_stopped_run_ends_in_the_same_bytes(place: Path, tmp_path: Path) -> None:
    whole, stopped = (tmp_path / name for name in ("whole", "stopped"))
    assert run_commands(tmp_path / "whole-ranks", [arguments(place, whole, *MORE)] * 2).codes == [0, 0]
    values = [arguments(place, stopped, *MORE)] * 2
    result = run_commands(tmp_path / "stopped-ranks", values, planted=("", "signal:15:5:0"))
    assert result.codes == [143, 143], result.texts
    again = run_commands(tmp_path / "again-ranks", values, {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert again.codes == [0, 0], again.texts
    models = [(out / "model" / "model.safetensors").read_bytes() for out in (whole, stopped)]
    assert models[0] == models[1]
