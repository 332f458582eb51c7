"""Results of several seeds: the best one, those that learned nothing, mean and standard deviation of the others."""

import json
import math
from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np

from bertree.files.formats import Json

FEWEST_PREDICTIONS = 10  # for calling a run degenerate because all of them are the same
LEAST_SPREAD = 0.01  # of predicted numbers, as a share of the gold ones'; below it they count as the same
NOT_SCORES = ("seed", "best_step", "diverged", "run")  # other keys of a seed's result


def _value(result: Json, metric: str) -> float:
    value = result.get(metric)
    return float(value) if isinstance(value, int | float) else -math.inf


def rank(result: Json, metric: str) -> tuple[bool, float]:
    """Return a sort key: seeds that learned nothing come before all others, whatever their scores."""
    return not result["diverged"], _value(result, metric)


def degenerate_reason(lines: Sequence[Json]) -> str | bool:
    """Return why a finished run has learned nothing, or False."""
    predicted, gold = [line["predicted"] for line in lines], [line["gold"] for line in lines if "gold" in line]
    if predicted and isinstance(predicted[0], list):  # tags: those of all words
        predicted, gold = [tag for tags in predicted for tag in tags], [tag for tags in gold for tag in tags]
    if len(predicted) < FEWEST_PREDICTIONS or len(set(map(json.dumps, gold))) < 2:
        return False
    close = isinstance(predicted[0], float) and not np.ptp(predicted) > LEAST_SPREAD * np.ptp(gold)
    alike = close or len(set(map(json.dumps, predicted))) == 1
    return "every prediction is the same" if alike else False


def summary(results: Sequence[Json], metric: str) -> Json:
    """Return the best seed's scores and, for several seeds, mean and deviation of those that have not diverged."""
    best = max(results, key=lambda result: rank(result, metric))
    values = [_value(result, metric) for result in results if not result["diverged"]]
    found: Json = {key: value for key, value in best.items() if key not in NOT_SCORES}
    found |= {"metric": metric, "best_seed": best["seed"]}
    if len(results) > 1:
        found |= {"mean": mean(values) if values else None, "std": stdev(values) if len(values) > 1 else None}
        found |= {"best": best.get(metric), "diverged": [r["seed"] for r in results if r["diverged"]]}
    return found | {"seeds": [{key: value for key, value in r.items() if key != "run"} for r in results]}


def compare_to_teacher(found: Json, teacher: Json, metric: str) -> Json:
    """Return the scores of student and teacher, and the share of the teacher's that is kept (None if undefined)."""
    reference = _value(teacher, metric)
    shares = {"kept": found.get(metric)} | ({"kept_mean": found["mean"]} if "mean" in found else {})
    defined = reference > 0 and math.isfinite(reference)
    kept = {name: value / reference if defined and value is not None else None for name, value in shares.items()}
    return {"teacher": teacher, "student": found.get(metric), **kept}


def teacher_line(told: Json, metric: str) -> str:
    """Return the result of `compare_to_teacher` as one line."""
    both = {"teacher": told["teacher"].get(metric), "student": told["student"]}
    shown = ", ".join(f"{name} {'-' if value is None else f'{100 * value:.2f}'}" for name, value in both.items())
    kept = "" if told["kept"] is None else f", {100 * told['kept']:.1f} % of it kept"
    return f"{metric.replace('_', ' ')}: {shown}{kept}"
