"""The log of a run: resumed without a step twice, whatever was left of it."""

import json
import math
from pathlib import Path

from bertree.train.metrics_log import MetricsLog


def test_a_resumed_log_drops_later_steps(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.write("train", step, {"loss": math.inf if step == 2 else 1 / 3})
    log.write("end", 3, {})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed while writing
    log = MetricsLog(tmp_path, 2)
    log.write("train", 3, {"loss": 0.5})
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.333333), (2, None), (3, 0.5)]


def test_separators_of_lines_that_are_not_ours(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.write("sample", 1, {"text": "one\u2028two\x85three"})
    log.close()
    MetricsLog(tmp_path, 1).close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().split("\n")[:-1]
    assert json.loads(line)["text"] == "one\u2028two\x85three"
