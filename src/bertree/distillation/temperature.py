"""Compute what a temperature does to a teacher's answers on the dev split: distributions, entropy, calibration.

An answer is a softmax over the classes of a text or of a word, over the options of a question, or over the tokens of a
passage (start and end): whatever the head's scores compete in. A number has no distribution.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertree.finetuning.evaluate import EncodedSplit
from bertree.objectives.supervised import HEAD_KINDS
from bertree.report.calibration import calibrate
from bertree.report.history import Floats
from bertree.report.temperature import SoftenedExample, TemperatureEffect
from bertree.tasks.metrics import softmax
from bertree.tasks.task import INPUT_FIELDS, Logits, Unit

TEMPERATURES = tuple(round(2 ** (step / 4), 3) for step in range(-12, 17))  # from 1/8 to 16
NUMBERS = 4_000_000  # most logits that are used
EXAMPLES, CLASSES = 6, 5  # that are shown
ROOM = 240  # characters of a text


def temperature_effect(
    head: str,
    labels: Sequence[str],
    split: EncodedSplit[Any],
    units: Sequence[Unit],
    logits: Sequence[Logits],
    used: float,
) -> TemperatureEffect:
    """Return the effect on the answers of a split, at many temperatures and the one that is used. Of a large split only
    the first answers are used. `labels` are the names of the head's classes, if they have names."""
    temperatures = tuple(sorted({*TEMPERATURES, used}))
    rows = list(_answers(head, units, logits))
    widest = max(len(row) for row, _, _ in rows)
    rows = rows[: max(1, NUMBERS // widest)]
    logits_nc = np.full((len(rows), widest), -np.inf)
    for logits_c, (row, _, _) in zip(logits_nc, rows, strict=True):
        logits_c[: len(row)] = row
    gold_n = np.array([gold for _, gold, _ in rows])
    largest_n = np.log(np.maximum(np.isfinite(logits_nc).sum(1), 2))
    labeled = gold_n >= 0
    entropy, errors = [], []
    for temperature in temperatures:
        shares_nc = softmax(logits_nc / temperature)
        entropy_n = -(shares_nc * np.log(np.where(shares_nc > 0, shares_nc, 1))).sum(1) / largest_n
        entropy.append(float(entropy_n.mean()))
        right_n = (shares_nc.argmax(1) == gold_n).astype(np.float64)
        calibration = calibrate(shares_nc.max(1)[labeled], right_n[labeled])
        errors += [calibration.error] if calibration else []
        if temperature == 1:
            order = np.argsort(entropy_n, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, EXAMPLES).astype(int))]  # from the surest answer on
    examples = [
        _example(labels, split.examples[rows[n][2]], logits_nc[n], int(gold_n[n]), temperatures)
        for n in (() if HEAD_KINDS[head].reads_tokens else chosen)
    ]
    return TemperatureEffect(
        temperatures=temperatures,
        entropy=tuple(entropy),
        calibration_error=tuple(errors),
        answers=len(rows),
        examples=tuple(examples),
    )


def _answers(head: str, units: Sequence[Unit], logits: Sequence[Logits]) -> Iterator[tuple[Logits, int, int]]:
    """Yield each answer's scores, the index of the gold one (negative: not known), and the number of its example."""
    for unit, scores in zip(units, logits, strict=True):
        rows = scores.T if HEAD_KINDS[head].competing else scores
        golds = [-1] * len(rows) if unit.answer is None else np.atleast_1d(unit.answer).tolist()
        yield from ((row, gold, unit.example) for row, gold in zip(rows, golds, strict=True))


def _example(
    labels: Sequence[str], example: Any, logits_c: Floats, gold: int, temperatures: Sequence[float]
) -> SoftenedExample:
    values = (getattr(example, name, None) for name in INPUT_FIELDS)
    texts = [value for value in values if isinstance(value, str) and value]
    names = labels or example.options
    shares_tc = np.array([softmax(logits_c[: len(names)] / temperature) for temperature in temperatures])
    likeliest = np.argsort(-logits_c[: len(names)], kind="stable")[: CLASSES if len(names) > CLASSES + 1 else None]
    classes, shares = [names[n] for n in likeliest], [shares_tc[:, n] for n in likeliest]
    if len(classes) < len(names):
        classes.append(f"{len(names) - len(classes)} others")
        shares.append(1 - shares_tc[:, likeliest].sum(1))
    return SoftenedExample(
        texts=tuple(text[:ROOM] + ("…" if len(text) > ROOM else "") for text in texts),
        gold=names[gold] if gold >= 0 else None,
        classes=tuple(classes),
        shares=tuple(tuple(np.clip(of_class, 0, 1).tolist()) for of_class in shares),
    )
