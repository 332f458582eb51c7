"""A run that trains vectors and is killed, however often, ends with the same bytes as one that is not."""

import random
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.learnable import model, tokenizer
from tests.support.shared import suite_has
from tests.support.topics import files

SETTINGS = ("device=cpu", "lr=3e-3", "dropout=0.1", "max_length=32", "evaluations=2")
KINDS = {
    "softmax": ("--loss", "softmax", "epochs=0.7", "batch=16", "layers=sum-all"),
    "ranking": ("--loss", "ranking", "epochs=2", "batch=16", "micro_tokens=500"),  # in pieces
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = files(tmp_path_factory.mktemp("resumed"))
    model(folder / "start", tokenizer())
    return folder


@pytest.mark.parametrize("name", suite_has(["ranking"], KINDS))
def test_killed_at_random_moments(name: str, place: Path, tmp_path: Path) -> None:
    log, whole, out = tmp_path / "log", tmp_path / "whole", tmp_path / "out"

    def command_for(folder: Path) -> list[str]:
        fixed = ("--data", place / "nli", "--dev", place / "sts" / "dev.parquet", "--out", folder)
        return list(map(str, ["embeddings", "train", place / "start", *fixed, *KINDS[name], *SETTINGS]))

    assert runs.finish(*command_for(whole), log=log) == 0, log.read_text()
    moments = random.Random(name)
    after = [moments.randint(1, 6) for _ in range(2)]
    runs.kill(*command_for(out), "--resume", log=log, after=after, moments=moments, fault="pause:0")
    assert runs.finish(*command_for(out), "--resume", log=log, fault="pause:0") == 0, log.read_text()
    runs.assert_same_run(out, whole)
    assert runs.finish(*command_for(out)[:-1], "--resume", "evaluations=3", log=log) == 2
    assert "with other settings or data" in log.read_text()
