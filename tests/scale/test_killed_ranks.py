"""A run on several ranks of which one is killed, at any moment and however often, ends in the same bytes as one that is
not; and it may go on with another number of ranks."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from benchmarks.scale_kill import result_hashes
from bertree.errors import UserError
from bertree.verification.verify import verify
from tests.support import runs
from tests.support.rank_commands import run_commands, torchrun
from tests.support.shared import suite_has

# A mesh of two ranks for each family; Transformer-XL carries a memory from step to step.
MESHES = {
    "bert": ("scale.zero=3",),
    "albert": ("scale.tensor=2",),
    "transformer-xl": ("scale.zero=0",),
}


class Run:
    """A run of a family that is started again and again."""

    def __init__(self, family: str, folder: Path, store: Path, *more: str) -> None:
        self.out, self.store, self.output, self._starts, self._folder = folder / "out", store, "", 0, folder
        recipe = str(runs.recipe(family, folder))
        self.arguments = ("pretrain", recipe, "--store", str(store), "--out", str(self.out), *more)

    def start(self, *more: str, ranks: int = 2, planted: Sequence[str] = ()) -> Sequence[int | None]:
        self._starts += 1
        place = self._folder / f"start-{self._starts}"
        result = run_commands(place, [(*self.arguments, *more)] * ranks, planted=planted)
        self.output = "\n".join(result.texts)
        return result.codes


class Whole(dict[str, Run]):
    """Each family's run on its mesh without interruption."""

    def __init__(self, factory: pytest.TempPathFactory, store: Path) -> None:
        self._factory, self._store = factory, store

    def __missing__(self, family: str) -> Run:
        self[family] = run = Run(family, self._factory.mktemp(family), self._store, *MESHES[family])
        assert run.start() == [0, 0], run.output
        return run


@pytest.fixture(scope="module")
def whole(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory, token_store)


def metrics(out: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def events(out: Path) -> list[str]:
    return [line["text"] for line in metrics(out, "event")]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in metrics(out, "train")]


@pytest.mark.parametrize("family", suite_has(("bert",), MESHES))
def test_a_rank_killed_at_random_moments(family: str, whole: dict[str, Run], token_store: Path, tmp_path: Path) -> None:
    moments = random.Random(family)
    run = Run(family, tmp_path, token_store, *MESHES[family])
    for steps in (2, 3) if family == "bert" else (3,):
        rank = moments.randrange(2)
        fault = f"kill:{steps}:{moments.uniform(0, 30):.3f}"
        codes = run.start("--resume", planted=[fault if number == rank else "" for number in range(2)])
        assert codes[rank] == -9, run.output
        assert codes[1 - rank] != 0
    assert run.start("--resume") == [0, 0], run.output
    assert result_hashes(run.out) == result_hashes(whole[family].out)
    assert losses(run.out) == losses(whole[family].out)
    assert not list(run.out.rglob(".*")), "nothing half written is left"


@pytest.mark.proof  # test_resumed_elsewhere.py and test_commands.py go on with another number of ranks
@pytest.mark.parametrize("family", MESHES)
def test_a_run_goes_on_with_another_number_of_ranks(
    family: str, whole: dict[str, Run], token_store: Path, tmp_path: Path
) -> None:
    """Killed on two ranks, resumed by one process: the same losses and weights; the same files as from one device."""
    run = Run(family, tmp_path, token_store)
    assert -9 in run.start("--resume", *MESHES[family], planted=["", "kill:5:1"])
    assert run.start("--resume", ranks=1) == [0], run.output
    assert [text for text in events(run.out) if text.startswith("resumed from step")]
    assert losses(run.out) == pytest.approx(losses(whole[family].out), rel=1e-5)
    assert {path.name for path in (run.out / "model").iterdir()} == {
        path.name for path in (whole[family].out / "model").iterdir()
    }
    left, right = (load_file(r.out / "model" / "model.safetensors") for r in (run, whole[family]))
    assert left.keys() == right.keys()
    pairs = {name: (tensor - right[name]).norm() / tensor.norm().clamp(min=1e-12) for name, tensor in left.items()}
    # A bias of keys, which adds the same to all scores, has no gradient but noise.
    worst = max((difference, name) for name, difference in pairs.items() if not name.endswith("key.bias"))
    assert worst[0] < 1e-5, worst


def test_checkpoints_of_several_ranks_are_verified(whole: dict[str, Run], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole["bert"].out, run)
    checked = verify(run).checked
    assert [line for line in checked if line.startswith("checkpoints/step-00000010")] == [
        "checkpoints/step-00000010 by checksum"
    ]
    shard = run / "checkpoints" / "step-00000010" / "state-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    with pytest.raises(UserError, match=r"state-00002-of-00002.safetensors: is damaged"):
        verify(run)
    shard.unlink()
    with pytest.raises(UserError, match=r"state-00002-of-00002.safetensors: cannot be read"):
        verify(run)


def test_torchrun_starts_killed_ranks_again(whole: dict[str, Run], tmp_path: Path) -> None:
    """A rank dies while it writes a checkpoint; all ranks are started again and resume."""
    run = Run("bert", tmp_path, whole["bert"].store, *MESHES["bert"])
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "-m", "bertree")
    assert torchrun(*options, *run.arguments, log=tmp_path / "log", planted="half the tensors:5") == 0
    assert [text for text in events(run.out) if text.startswith("resumed from step")] == ["resumed from step 4"]
    assert result_hashes(run.out) == result_hashes(whole["bert"].out)
    assert losses(run.out) == losses(whole["bert"].out)
