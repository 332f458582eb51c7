"""What several seeds came to: which is the best, which has learned nothing, mean and deviation of the others."""

import json
import math
from collections.abc import Sequence
from statistics import mean, stdev

import numpy as np

from bertree.files import Json

ALIKE = 10  # predictions at least, to call a run degenerate when all are the same
SPREAD = 0.01  # of predicted scores, as a share of the gold ones', below which they count as the same
BESIDE = ("seed", "best_step", "diverged", "run")  # in a seed's result, what is not a score


def _value(result: Json, metric: str) -> float:
    value = result.get(metric)
    return float(value) if isinstance(value, int | float) else -math.inf


def rank(result: Json, metric: str) -> tuple[bool, float]:
    """A seed that has learned nothing comes after every one that has, whatever its score."""
    return not result["diverged"], _value(result, metric)


def degenerate(lines: Sequence[Json]) -> str | bool:
    """Why a run that came to its end has learned nothing, or False."""
    said, asked = [line["predicted"] for line in lines], [line["gold"] for line in lines if "gold" in line]
    if said and isinstance(said[0], list):  # tags: those of all words
        said, asked = [tag for tags in said for tag in tags], [tag for tags in asked for tag in tags]
    if len(said) < ALIKE or len(set(map(json.dumps, asked))) < 2:
        return False
    close = isinstance(said[0], float) and not np.ptp(said) > SPREAD * np.ptp(asked)
    alike = close or len(set(map(json.dumps, said))) == 1
    return "every prediction is the same" if alike else False


def summary(results: Sequence[Json], metric: str) -> Json:
    """The best seed's scores and, of several, how they spread. A seed that has diverged counts for nothing."""
    best = max(results, key=lambda result: rank(result, metric))
    values = [_value(result, metric) for result in results if not result["diverged"]]
    found: Json = {key: value for key, value in best.items() if key not in BESIDE}
    found |= {"metric": metric, "best_seed": best["seed"]}
    if len(results) > 1:
        found |= {"mean": mean(values) if values else None, "std": stdev(values) if len(values) > 1 else None}
        found |= {"best": best.get(metric), "diverged": [r["seed"] for r in results if r["diverged"]]}
    return found | {"seeds": [{key: value for key, value in r.items() if key != "run"} for r in results]}


def beside(found: Json, teacher: Json, metric: str) -> Json:
    """A student's score beside its teacher's, and the share of it that is kept; None where that says nothing."""
    its = _value(teacher, metric)
    shares = {"kept": found.get(metric)} | ({"kept_mean": found["mean"]} if "mean" in found else {})
    sensible = its > 0 and math.isfinite(its)
    kept = {name: value / its if sensible and value is not None else None for name, value in shares.items()}
    return {"teacher": teacher, "student": found.get(metric), **kept}


def beside_line(told: Json, metric: str) -> str:
    """The same for people."""
    both = {"teacher": told["teacher"].get(metric), "student": told["student"]}
    shown = ", ".join(f"{name} {'-' if value is None else f'{100 * value:.2f}'}" for name, value in both.items())
    kept = "" if told["kept"] is None else f", {100 * told['kept']:.1f} % of it kept"
    return f"{metric.replace('_', ' ')}: {shown}{kept}"
