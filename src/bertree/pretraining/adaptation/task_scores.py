"""The scores of two models on a task, fine-tuned with the same seeds: their difference and its uncertainty."""

import math
from statistics import mean, stdev

from bertree.files.formats import Json

# 97.5 % quantiles of Student's t distribution for 1, 2, 3 ... degrees of freedom; beyond them nearly the normal one's.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def compare_runs(before: Json, after: Json) -> Json:
    """Compare two fine-tuning runs by their metrics.json: the score of each seed, means, and the mean difference with
    the half width of its 95 % interval over seeds (None with one seed). A seed gives both runs the same order of
    examples and the same first weights of the head, so differences are taken seed by seed."""
    metric = str(before["metric"])
    pairs = [
        (float(first[metric]), float(second[metric]))
        for first, second in zip(before["seeds"], after["seeds"], strict=True)
        if not first["diverged"] and not second["diverged"]
    ]
    differences = [second - first for first, second in pairs]
    result: Json = {"name": before["task"], "metric": metric, "examples": before["examples"]["dev"]}
    for name, scores in zip(("before", "after"), zip(*pairs, strict=True), strict=False):
        result[name] = {"mean": mean(scores), "seeds": list(scores)}
    if not pairs:
        return result | {"difference": None, "uncertainty": None}
    return result | {"difference": mean(differences), "uncertainty": _half_width(differences)}


def _half_width(values: list[float]) -> float | None:
    """Return half of the 95 % interval of a mean; None for one value."""
    if len(values) < 2:
        return None
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    return quantile * stdev(values) / math.sqrt(len(values))
