"""Fine-tuning a reversible model with hashed attention and dropout on long texts: killed, it ends in the same bytes."""

import random
from pathlib import Path

import pytest

from tests.support import learnable, runs
from tests.support.reformer import long_texts, save_reformer


@pytest.mark.proof  # test_resume.py kills the same loop, tests/pretraining/test_reversible.py a reversible model
def test_killed_at_random_moments(tmp_path: Path) -> None:
    model = save_reformer(tmp_path / "model", learnable.tokenizer())
    learnable.write(tmp_path / "data" / "train.jsonl", long_texts(24, most=150))
    learnable.write(tmp_path / "data" / "dev.jsonl", long_texts(8, seed=1, most=150))
    task = ("finetune", str(model), "--task", "classification", "--data", str(tmp_path / "data"))
    settings = ("device=cpu", "batch=4", "epochs=2", "dropout=0.1", "max_length=512", "micro_tokens=300")
    log = tmp_path / "log"
    assert runs.finish(*task, *settings, "--out", str(tmp_path / "whole"), log=log) == 0, log.read_text()
    arguments = (*task, *settings, "--out", str(tmp_path / "killed"), "--resume")
    runs.kill(*arguments, log=log, after=(4,), moments=random.Random("reformer"), fault="pause:0")
    assert runs.newest_step(tmp_path / "killed") > 0
    assert runs.finish(*arguments, log=log, fault="pause:0") == 0, log.read_text()
    runs.assert_same_run(tmp_path / "killed", tmp_path / "whole")
