"""Whether a run has learned its task, and what to try if it has not."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bertree.files.formats import Json
from bertree.finetuning import config as configs
from bertree.finetuning.tuner import FineTuning
from bertree.tasks.intervals import interval, label_statistics

FEWEST_PREDICTIONS = 10  # fewer may all be the same by chance, without the run being degenerate
FEWEST_FOR_CHANCE = 30  # predictions; with fewer, a run that has learned something may look like chance
LEAST_SPREAD = 0.01  # of predicted numbers, as a share of the gold ones'; below it they count as the same
FEW_STEPS = 50
RATE_FACTOR = 10  # a learning rate that differs this much from the usual one is the first suspect
NEARLY_ALL = 0.9  # share of one class that leaves little else to learn


def degenerate_reason(lines: Sequence[Json]) -> str | bool:
    """Return why a finished run has learned nothing, or False: the value of "diverged" in a seed's result."""
    predicted, gold = [line["predicted"] for line in lines], [line["gold"] for line in lines if "gold" in line]
    tags = bool(predicted) and isinstance(predicted[0], list)
    if tags:  # those of all words
        predicted, gold = [tag for each in predicted for tag in each], [tag for each in gold for tag in each]
    if len(predicted) < FEWEST_PREDICTIONS or len(set(map(json.dumps, gold))) < 2:
        return False
    close = isinstance(predicted[0], float) and not np.ptp(predicted) > LEAST_SPREAD * np.ptp(gold)  # or NaN
    if close:
        return "every prediction is the same"
    if len(set(map(json.dumps, predicted))) > 1:
        return not tags and _chance(gold, predicted)
    most, count = Counter(map(str, gold)).most_common(1)[0]
    label = str(predicted[0])
    why = f", the most frequent label ({100 * count / len(gold):.0f} %)" if label == most else ""
    return f"every prediction is the same: {label:.40}{why}"


def _chance(gold: Sequence[object], predicted: Sequence[object]) -> str | bool:
    """Return a reason if predicted classes are as good as the most frequent one and unrelated to the gold labels."""
    pairs = [(g, p) for g, p in zip(gold, predicted, strict=False) if isinstance(g, str) and isinstance(p, str)]
    if len(gold) != len(predicted) or not len(pairs) == len(gold) >= FEWEST_FOR_CHANCE:
        return False
    label, count = Counter(g for g, _ in pairs).most_common(1)[0]
    right = sum(g == p for g, p in pairs)
    matthews = label_statistics(("matthews",), *map(list, zip(*pairs, strict=True)))["matthews"]
    if right > count or interval(matthews)[0] > 0:
        return False
    share, always = 100 * right / len(pairs), 100 * count / len(pairs)
    return f"accuracy {share:.2f} is not above that of always answering '{label:.40}' ({always:.2f})"


def advice(tuner: FineTuning, results: Sequence[Json]) -> str:
    """Return what to try after a run of which no seed has learned anything, by its likeliest cause."""
    config, rate = tuner.config, tuner.config.optim.lr
    usual = configs.learning_rate(replace(config, optim=replace(config.optim, lr=0.0)), tuner.architecture)
    steps = max(1, math.ceil(tuner.steps_per_epoch * config.train.epochs))
    answers = Counter(unit.answer for unit in tuner.train.units if type(unit.answer) is int)
    most = max(answers.values(), default=0) / max(1, answers.total())
    if all(result.get(tuner.task.metric) is None for result in results):
        return f"the gradient was not finite: try a lower lr than {rate:g} (usual here: {usual:g}) or a longer warmup"
    if rate * RATE_FACTOR <= usual:
        return f"lr={rate:g} is far too low: leave it out, or try {usual:g}"
    if rate >= usual * RATE_FACTOR:
        return f"lr={rate:g} is far too high: leave it out, or try {usual:g}"
    if steps < FEW_STEPS:
        many = math.ceil(FEW_STEPS * 2 * config.train.epochs / steps)
        return f"{steps} step{'s are' if steps != 1 else ' is'} too few: try epochs={many}, or a smaller batch"
    if most > NEARLY_ALL and tuner.task.labels:
        label = tuner.task.labels[answers.most_common(1)[0][0]]
        return f"{100 * most:.0f} % of the training examples are '{label:.40}': leave some of them out, or add others"
    return f"try a lower lr than {rate:g}, a longer warmup than {config.train.warmup:g} or more epochs"
