"""How the figures of a run are named and written, the same on the terminal and in the report."""

import math
import re
from itertools import pairwise

from bertree.objectives.pretraining import LABELS

SHARES = {"accuracy", "f1", "precision", "recall", "exact"}
SMALLER_IS_BETTER = ("loss", "perplexity", "error", "mse", "mae")
MINUTE, HOUR, DAY = 60, 3600, 86400


def label(field: str) -> str:
    """What a person calls a field of the metrics."""
    return LABELS.get(field, field.replace("_", " "))


def smaller_is_better(field: str) -> bool:
    """Whether a fall of this figure is good news."""
    return label(field).split()[-1] in SMALLER_IS_BETTER


def figure(field: str, value: float) -> str:
    """The value of a field: shares in per cent, losses with three decimals, others with four digits."""
    if not math.isfinite(value):
        return "not finite"
    if SHARES & set(re.split(r"[_-]", field)) and not field.endswith("threshold"):
        return percent(value, 1)
    if label(field).endswith("loss") and 0.01 <= abs(value) < 1000:
        return f"{value:.3f}"
    return digits(value, 4)


def percent(share: float, places: int = 0) -> str:
    """A share in per cent."""
    return f"{100 * share:.{places}f} %"


def digits(value: float, count: int = 3) -> str:
    """A number with so many significant digits: 0.0123, 12.3, 1,230, 1.2e-5."""
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
    """A large number in thousands (k), millions (M) or billions (B)."""
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if math.isfinite(value) and abs(value) >= size:
            return f"{digits(value / (1e3 if name == 'k' else size), count)}{name}"
    return digits(value, max(count, 4))


def duration(seconds: float) -> str:
    """A time in its two largest units: 8.2 s, 3 min 20 s, 5 h 12 min, 2 d 4 h."""
    if not math.isfinite(seconds):
        return "not finite"
    if seconds < 10:
        return f"{_trimmed(f'{seconds:.1f}')} s"
    units = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s"))
    for (size, name), (small, beside) in pairwise(units):
        whole = round(seconds / small) * small
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {name}" + (f" {rest} {beside}" if rest else "")
    return f"{round(seconds)} s"


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
