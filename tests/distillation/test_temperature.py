"""What a temperature does: the digits of the textbook example by hand, every kind of answer, and what a page shows."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertree.distillation.teacher import temperature_effect
from bertree.finetuning.evaluate import EncodedSplit
from bertree.finetuning.page import finetuning_page
from bertree.report.calibration import calibrate
from bertree.report.temperature import TemperatureEffect, read_temperature
from bertree.tasks.registry import make_task
from bertree.tasks.task import Unit
from tests.support.pages import Page

DIGITS = [str(digit) for digit in range(10)]
SEVEN = np.log(np.array([0.0125, 0.1, *[0.0125] * 5, 0.8, *[0.0125] * 2]))  # likely a 7, perhaps a 1


def effect_of(head: str, logits: list[np.ndarray], answers: list[Any], used: float = 2.0) -> TemperatureEffect:
    kinds = {"sequence": "classification", "token": "ner", "choice": "choice", "span": "squad"}
    task: Any = make_task(kinds[head])
    task = task.with_labels(DIGITS) if head in ("sequence", "token") else task
    record: Any = {"context": "a", "question": "b", "options": ["x", "y", "z"]} if head == "choice" else "a seven"
    examples = [task.parse(record) for _ in logits] if head in ("sequence", "choice") else [None] * len(logits)
    units = [Unit(n, (), answer=answer) for n, answer in enumerate(answers)]
    return temperature_effect(head, task.labels, EncodedSplit(examples, units), units, logits, used)


def test_a_seven_that_may_be_a_one() -> None:
    effect = effect_of("sequence", [SEVEN[None]], [7], used=3.0)
    (example,) = effect.examples
    assert (example.gold, example.texts, example.classes[:2]) == ("7", ("a seven",), ("7", "1"))
    assert example.classes[-1] == "5 others"
    for temperature, *shares in zip(effect.temperatures, *example.shares, strict=True):
        powers = np.exp(SEVEN / temperature)
        assert shares[:2] == pytest.approx((powers / powers.sum())[[7, 1]].tolist())
        assert sum(shares) == pytest.approx(1)
    at_one, at_three = effect.at(1), effect.temperatures.index(3.0)
    assert [shares[at_one] for shares in example.shares[:2]] == pytest.approx([0.8, 0.1])
    assert example.shares[0][0] == pytest.approx(1), "T near 0: one class"
    assert example.shares[0][-1] < 0.14, "a large T: all alike"
    assert np.all(np.diff(effect.entropy) > 0)
    p = np.exp(SEVEN)
    assert effect.entropy[at_one] == pytest.approx(-(p * np.log(p)).sum() / np.log(10))
    assert effect.calibration_error[at_one] == pytest.approx(0.2)
    assert effect.entropy[at_three] > 0.9


def test_every_head_has_its_answers() -> None:
    random = np.random.default_rng(0)
    words = random.normal(size=(4, 10))
    effect = effect_of("token", [words], [[3, -100, 1, 2]])
    assert (effect.answers, effect.examples) == (4, ())
    shares = np.exp(words) / np.exp(words).sum(1, keepdims=True)
    right = (words.argmax(1) == [3, -1, 1, 2]).astype(float)
    labeled = [0, 2, 3]
    plain = calibrate(shares.max(1)[labeled], right[labeled])
    assert plain is not None
    assert effect.calibration_error[effect.at(1)] == pytest.approx(plain.error)
    effect = effect_of("choice", [random.normal(size=(3, 1)) for _ in range(9)], [1] * 8 + [None])
    assert effect.answers == 9
    assert {example.gold for example in effect.examples} <= {"y", None}
    assert all(sum(share[0] for share in example.shares) == pytest.approx(1) for example in effect.examples)
    effect = effect_of("span", [random.normal(size=(n, 2)) for n in (5, 8)], [(0, 1), (2, 2)])
    assert (effect.answers, effect.examples) == (4, ()), "start and end of each, over tokens"
    assert effect_of("sequence", [SEVEN[None]], [None]).best is None


def test_a_page_shows_the_temperature_that_was_used(tmp_path: Path) -> None:
    task: Any = make_task("classification").with_labels(DIGITS)
    effect = effect_of("sequence", [SEVEN[None]] * 3, [7, 7, 1])
    lines = [{"text": "a", "gold": "7", "predicted": "7", "score": 0.9}]
    metrics = {"distillation": {"teacher_model": "t", "kept": None, "teacher": {}, "kind": "soft", "temperature": 2.0}}
    path = tmp_path / "temperature.json"
    path.write_text(json.dumps(asdict(effect)))
    assert read_temperature(tmp_path) == effect
    page = Page(finetuning_page(tmp_path, task, metrics, {"dev": lines}))
    assert "learned the teacher's probabilities at T = 2." in page.text
    assert {"Entropy, as a share of the largest", "Calibration error", "Example 1"} <= set(page.titles())
    assert "7: 80 %, 1: 10 %" in page.text
    for broken in ("{", json.dumps(asdict(replace(effect, entropy=(0.5,))))):
        path.write_text(broken)
        assert "temperature.json" in Page(finetuning_page(tmp_path, task, metrics, {"dev": lines})).text
