"""A run that is killed, at any moment and however often, ends with the same bytes as one that is not."""

import json
import random
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

from tests.support import faults, runs
from tests.support.shared import common_folder, make_once, suite_has

# The one that dies at every stage of a save needs more steps.
LONGER = {"albert": ("phases.0.steps=9", "phases.1.steps=5", "run.eval_every=4")}


class Whole(NamedTuple):
    """Each family's run without interruption, made by the first process that asks for it. It saves less often."""

    root: Path
    store: Path

    def __getitem__(self, family: str) -> Path:
        return make_once(self.root / family, partial(self._pretrain, family)) / "out"

    def _pretrain(self, family: str, folder: Path) -> None:
        folder.mkdir()
        arguments = ("pretrain", str(runs.recipe(family, folder)), "--store", str(self.store), *LONGER.get(family, ()))
        code = runs.finish(*arguments, "--out", str(folder / "out"), "run.save_every=9", log=folder / "log")
        assert code == 0, (folder / "log").read_text()


@pytest.fixture(scope="session")
def whole(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(common_folder(tmp_path_factory) / "pretrained", token_store)


def metrics(out: Path, *kinds: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] in kinds]


def newest(out: Path) -> int:
    return max((int(path.name[5:]) for path in (out / "checkpoints").glob("step-*")), default=0)


@pytest.mark.parametrize("family", suite_has(("bert", "xlnet"), runs.RECIPES))
def test_killed_at_random_moments(family: str, whole: Whole, token_store: Path, tmp_path: Path) -> None:
    moments, out, log = random.Random(family), tmp_path / "out", tmp_path / "log"
    arguments = ("pretrain", str(runs.recipe(family, tmp_path)), "--store", str(token_store), "--out", str(out))
    arguments += LONGER.get(family, ())
    runs.kill(*arguments, "--resume", log=log, after=(1, 2), moments=moments)
    assert runs.finish(*arguments, "--resume", log=log) == 0, log.read_text()
    assert runs.results(out) == runs.results(whole[family])
    assert not list(out.rglob(".*")), "nothing half written is left"
    steps = [line["step"] for line in metrics(out, "train")]
    assert steps == list(range(1, len(steps) + 1)), "each step is written down once"
    for kind, keys in (("train", ("loss", "norm", "lr", "tokens", "epoch")), ("eval", ("loss", "perplexity"))):
        left, right = ([[line[key] for key in keys] for line in metrics(o, kind)] for o in (out, whole[family]))
        assert left == right
    assert metrics(out, "sample") == metrics(whole[family], "sample")
    assert bool(metrics(out, "sample")) == (family not in runs.UNMASKED), "where masks are filled"
    held = set(load_file(max((out / "checkpoints").glob("step-*")) / "state.safetensors"))
    carried = {f"state/{slot}/{name}" for slot in (0, 1) for name in ("memory", "lengths")}
    assert carried & held == (carried if family in runs.REMEMBERING else set()), "the memory is part of a checkpoint"


def test_dead_at_every_stage_of_a_save(whole: Whole, token_store: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    arguments = ("pretrain", str(runs.recipe("albert", tmp_path)), "--store", str(token_store), "--out", str(out))
    arguments += LONGER["albert"]
    before = 0
    for stage in faults.STAGES:  # each goes on from where the one before died
        count = 1 if stage in ("best marked", "model") else 2
        assert runs.finish(*arguments, "--resume", log=log, fault=f"{stage}:{count}") == 9, stage
        assert newest(out) > before, stage
        before = newest(out)
    assert runs.finish(*arguments, "--resume", log=log) == 0
    assert runs.results(out) == runs.results(whole["albert"])
    assert not list(out.rglob(".*")), "nothing half written is left"
