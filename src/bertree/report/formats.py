"""Write metrics, numbers and names as text, the same on the terminal and in reports."""

import math
import re
from collections.abc import Mapping
from itertools import pairwise

from bertree.errors import UserError, counted
from bertree.files.formats import parse_toml
from bertree.model.architecture import Architecture
from bertree.model.cost import parameters
from bertree.objectives.pretraining import LABELS, UNMASKED_LABELS
from bertree.run_folder import RECIPE

SHARES = {"accuracy", "f1", "precision", "recall", "exact"}
SMALLER_IS_BETTER = ("loss", "perplexity", "error", "mse", "mae")
MINUTE, HOUR, DAY = 60, 3600, 86400


def label(field: str, labels: Mapping[str, str] = LABELS) -> str:
    """Return the readable name of a metric; `labels` are those of a run (`run_labels`)."""
    return labels.get(field, field.replace("_", " "))


def run_labels(recipe: str) -> dict[str, str]:
    """Return the readable names of metrics in a run: what its recipe (TOML) predicts names the loss."""
    try:
        data = parse_toml(recipe, RECIPE).get("data")
    except UserError:
        data = None
    masking = str(data.get("masking", "")) if isinstance(data, dict) else ""
    return LABELS | UNMASKED_LABELS.get(masking.partition("+")[0], {})


def smaller_is_better(field: str) -> bool:
    """Return whether lower values of a metric are better."""
    return label(field).split(" ")[-1] in SMALLER_IS_BETTER


def format_metric(field: str, value: float) -> str:
    """Write the value of a metric: shares in per cent, losses with three decimals, others with four digits."""
    if not math.isfinite(value):
        return "not finite"
    if SHARES & set(re.split(r"[_-]", field)) and not field.endswith("threshold"):
        return percent(value, 1)
    if label(field).endswith("loss") and 0.01 <= abs(value) < 1000:
        return f"{value:.3f}"
    return digits(value, 4)


def format_score(field: str, value: object) -> str:
    """Write a score times 100; thresholds, losses and values above 1 as they are; a dash where there is none."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return "–"
    if field.endswith("threshold"):
        return f"{value:.3f}"
    return format_metric(field, value) if smaller_is_better(field) or abs(value) > 1 else f"{100 * value:.2f}"


def format_interval(field: str, interval: object) -> str:
    """Write a confidence interval as its score is written: 88.1 to 93.4; nothing where there is none."""
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return ""
    low, high = (format_score(field, end) for end in interval)
    return f"{low} to {high}"


def percent(share: float, places: int = 0) -> str:
    """Write a share in per cent."""
    return f"{100 * share:.{places}f} %"


def digits(value: float, count: int = 3) -> str:
    """Write a number with `count` significant digits: 0.0123, 12.3, 1,230, 1.2e-5."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    value = float(f"{value:.{count - 1}e}")
    magnitude = math.floor(math.log10(abs(value)))
    if -4 < magnitude < 7:
        return _trimmed(f"{value:,.{max(0, count - 1 - magnitude)}f}")
    mantissa, exponent = f"{value:.{count - 1}e}".split("e")
    return f"{_trimmed(mantissa)}e{int(exponent)}"


def quantity(value: float, count: int = 3) -> str:
    """Write a large number in thousands (k), millions (M) or billions (B)."""
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if math.isfinite(value) and abs(value) >= size:
            return f"{digits(value / (1e3 if name == 'k' else size), count)}{name}"
    return digits(value, max(count, 4))


def byte_size(count: float) -> str:
    """Write a number of bytes in MB or GB."""
    return f"{digits(count / 1e6)} MB" if count < 1e9 else f"{digits(count / 1e9)} GB"


def describe_architecture(a: Architecture) -> str:
    """Describe the size of an architecture, for messages."""
    return f"{counted(a.layers, 'layer')}, width {a.width}, {quantity(parameters(a).total)} parameters"


def duration(seconds: float) -> str:
    """Write a time in its two largest units: 8.2 s, 3 min 20 s, 5 h 12 min, 2 d 4 h."""
    if not math.isfinite(seconds):
        return "not finite"
    if seconds < 10:
        return f"{_trimmed(f'{seconds:.1f}')} s"
    units = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"))
    for (size, name), (small, small_name) in pairwise(units):
        rounded = round(seconds / small) * small
        if rounded >= size:
            rest = rounded % size // small
            return f"{rounded // size} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{round(seconds)} s"


def end_of_path(text: str, room: int) -> str:
    """Return the last `room` characters of a path: they tell it from others."""
    return text if len(text) <= room else "…" + text[1 - room :]


def printable(text: str) -> str:
    """Replace everything that is not printable, line breaks included."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
