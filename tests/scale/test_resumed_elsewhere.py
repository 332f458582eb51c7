"""A run that is stopped and goes on on another mesh, twice: one process, data ranks, tensor ranks."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support import runs
from tests.support.command import Command
from tests.support.rank_commands import run_commands

NEAR = 1e-5


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return runs.recipe("bert", tmp_path)


def test_a_run_of_one_process_goes_on_on_data_ranks_and_then_on_tensor_ranks(
    recipe: Path, token_store: Path, tmp_path: Path, command: Command
) -> None:
    whole, moved = tmp_path / "whole", tmp_path / "moved"

    def pretrain(out: Path, *more: str) -> list[str]:
        return ["pretrain", str(recipe), "--store", str(token_store), "--out", str(out), "run.save_every=100", *more]

    command.well(*pretrain(whole, "--quiet"))
    log = tmp_path / "log"
    assert runs.finish(*pretrain(moved), log=log, fault="signal:15:1:0") == 143, log.read_text()
    sharded = pretrain(moved, "--resume", "scale.zero=3")
    result = run_commands(tmp_path / "data-ranks", [sharded] * 2, planted=("", "signal:15:1:0"))
    assert result.codes == [143, 143], result.texts
    split = pretrain(moved, "--resume", "scale.tensor=2")
    assert run_commands(tmp_path / "tensor-ranks", [split] * 2).codes == [0, 0]
    assert (moved / "metrics.jsonl").read_text().count("resumed from step") == 2
    weights, wanted = (load_file(out / "model" / "model.safetensors") for out in (moved, whole))
    names = [name for name in wanted if not name.endswith("key.bias")]  # steps of rounding
    assert max(float((weights[name] - wanted[name]).norm() / wanted[name].norm()) for name in names) < NEAR
