"""The numbers behind a chart: axes with round ticks, long curves thinned, noisy ones smoothed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bertree.report.formats import DAY, HOUR, MINUTE, digits, quantity
from bertree.report.history import Floats

SPAN = 50.0  # values that differ by more than this factor are drawn on a logarithmic axis
POINTS = 1000  # of a curve: more than a screen can show
SMOOTHING = 0.04  # share of a curve that is the window of its mean
ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
TIMES = (
    *(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30),
    *(MINUTE * count for count in (1, 2, 5, 10, 15, 30)),
    *(HOUR * count for count in (1, 2, 3, 6, 12)),
    *(DAY * count for count in (1, 2, 5, 10, 20, 50, 100)),
)


@dataclass(frozen=True)
class Axis:
    """The settings of one axis: `log` None decides by the values, `zero` starts at 0, `text` writes the ticks."""

    log: bool | None = False
    zero: bool = False
    time: bool = False
    text: Callable[[float], str] | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis with its limits and ticks. Calling it maps values to the range from 0 to 1."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]
    labels: tuple[str, ...]

    def __call__(self, values: Floats) -> Floats:
        if self.log:
            return (np.log(np.where(values > 0, values, np.nan)) - math.log(self.low)) / math.log(self.high / self.low)
        return (values - self.low) / (self.high - self.low)


@dataclass(frozen=True, kw_only=True)
class ThinCurve:
    """A curve of few points: the mean of each stretch, and its smallest and largest value."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats
    complete: bool  # no point was left out


def thin(x: Floats, y: Floats, points: int = POINTS) -> ThinCurve:
    """Reduce a curve to `points` points: the first and the last, and between them the means of equal stretches."""
    if len(x) <= points:
        return ThinCurve(x=x, y=y, low=y, high=y, complete=True)
    inner = np.linspace(1, len(x) - 1, points - 1).astype(np.int64)
    starts = np.concatenate(([0], inner))
    finite = np.isfinite(y)
    count = np.add.reduceat(finite.astype(np.int64), starts)
    filled = count > 0
    mean = np.add.reduceat(np.where(finite, y, 0.0), starts) / np.maximum(count, 1)
    low = np.minimum.reduceat(np.where(finite, y, np.inf), starts)
    high = np.maximum.reduceat(np.where(finite, y, -np.inf), starts)
    centers = np.add.reduceat(x, starts) / np.diff(np.append(starts, len(x)))
    mean, low, high = (np.where(filled, values, np.nan) for values in (mean, low, high))
    return ThinCurve(x=centers, y=mean, low=low, high=high, complete=False)


def smooth(y: Floats) -> Floats:
    """Return the mean over a window around each point.

    The window narrows towards the start, where losses fall fast, and is cut off at the end, where they are noise.
    """
    if len(y) < 8:
        return y
    index = np.arange(len(y))
    half = np.minimum(max(1, round(len(y) * SMOOTHING / 2)), index)
    finite = np.isfinite(y)
    sums = np.concatenate(([0.0], np.cumsum(np.where(finite, y, 0.0))))
    counts = np.concatenate(([0], np.cumsum(finite)))
    first, end = index - half, np.minimum(index + half + 1, len(y))
    count = counts[end] - counts[first]
    return np.where(finite, (sums[end] - sums[first]) / np.maximum(count, 1), np.nan)


def scale(axis: Axis, values: Floats, room: int = 6) -> Scale:
    """Return a scale on which all values fit, with about `room` ticks."""
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    log = axis.log
    if log is None:
        log = len(values) > 1 and len(positive) == len(values) and values.max() / values.min() > SPAN
    if log and len(positive):
        return _logarithmic(axis, float(positive.min()), float(positive.max()), room)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value: a little room on both sides of it
        wide = abs(high) / 2 or 0.5
        low, high = (low if axis.zero and low == 0 else low - wide), high + wide
    step = _step(axis, (high - low) / room)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(number * step for number in range(first, last + 1))
    labels = tuple(_text(axis, tick, step, ticks[-1]) for tick in ticks)
    return Scale(low=ticks[0], high=ticks[-1], log=False, ticks=ticks, labels=labels)


def end_at(scale: Scale, low: float, high: float) -> Scale:
    """Return a scale with the same ticks that ends with its values, not with a round number."""
    kept = [pair for pair in zip(scale.ticks, scale.labels, strict=True) if low <= pair[0] <= high]
    ticks, labels = tuple(tick for tick, _ in kept), tuple(text for _, text in kept)
    return replace(scale, low=low, high=high, ticks=ticks, labels=labels)


def _step(axis: Axis, rough: float) -> float:
    if axis.time:
        return float(next((time for time in TIMES if time >= rough), math.ceil(rough / (100 * DAY)) * 100 * DAY))
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * part for part in ROUND if power * part >= rough * 0.999)


def _logarithmic(axis: Axis, low: float, high: float, room: int) -> Scale:
    if high / low < 4:
        low, high = low / 2, high * 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [part * 10.0**power for power in powers for part in (1, 2, 5)]
    low = max(tick for tick in ticks if tick <= low * 1.001)
    high = min(tick for tick in ticks if tick >= high * 0.999)
    kept = tuple(tick for tick in ticks if low <= tick <= high)
    if len(kept) > room + 2:
        decades = [10.0**power for power in powers if low <= 10.0**power <= high]
        kept = tuple(decades[:: max(1, math.ceil(len(decades) / room))])
    labels = tuple((axis.text or digits)(tick) for tick in kept)
    return Scale(low=low, high=high, log=True, ticks=kept, labels=labels)


def _text(axis: Axis, value: float, step: float, top: float) -> str:
    if axis.text is not None:
        return axis.text(value)
    if abs(value) < step / 1e6:
        return "0"
    if step >= 500 and 1e4 <= top < 1e6:
        return f"{value / 1000:g}k"
    if step >= 1000 or step < 0.0005:
        return quantity(value, 4)
    places = max(0, math.ceil(-math.log10(step) - 1e-9))
    places += abs(step * 10**places - round(step * 10**places)) > 1e-6
    return f"{value:,.{places}f}"
