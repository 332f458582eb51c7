"""Calibration: whether of the answers with a confidence of 80 % four in five are right.

The confidence is the probability of the predicted class. Answers fall into 15 bins of equal width by it; a bin holds
its upper end. The expected calibration error is the distance between mean confidence and share of right answers in a
bin, averaged over the answers (Guo et al. 2017).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from bertree.report.curves import Series, curve_svg
from bertree.report.formats import percent
from bertree.report.history import Floats
from bertree.report.scales import Axis

BINS = 15


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """The answers whose confidence is above `low` and at most `high`."""

    low: float
    high: float
    answers: int
    confidence: float  # mean
    right: float  # share


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The expected calibration error of answers, and the bins that have some."""

    error: float
    bins: tuple[CalibrationBin, ...]

    @property
    def confidence(self) -> float:
        """Return the mean confidence."""
        return sum(group.answers * group.confidence for group in self.bins) / sum(group.answers for group in self.bins)

    @property
    def right(self) -> float:
        """Return the share of right answers."""
        return sum(group.answers * group.right for group in self.bins) / sum(group.answers for group in self.bins)


def calibrate(confidence: Floats, right: Floats) -> Calibration | None:
    """Return the calibration of answers; None if none has a confidence."""
    finite = np.isfinite(confidence)
    confidence, right = confidence[finite], right[finite]
    if not len(confidence):
        return None
    edges = np.linspace(0, 1, BINS + 1)
    bin_of = np.searchsorted(edges[1:-1], confidence)
    counts = np.bincount(bin_of, minlength=BINS)
    means = [np.bincount(bin_of, values, BINS) / np.maximum(counts, 1) for values in (confidence, right)]
    error = float((np.abs(means[0] - means[1]) * counts).sum() / counts.sum())
    rows = zip(edges, edges[1:], counts, *means, strict=False)
    bins = tuple(
        CalibrationBin(low=float(low), high=float(high), answers=int(count), confidence=float(mean), right=float(share))
        for low, high, count, mean, share in rows
        if count
    )
    return Calibration(error=error, bins=bins)


def reliability_svg(title: str, calibrations: Mapping[str, Calibration | None]) -> Markup:
    """Draw the share of right answers over their confidence, and the line on which both are equal."""
    axis, ends = Axis(text=percent, zero=True), np.array([0.0, 1.0])
    series = [Series(name="perfect calibration", x=ends, y=ends, colour=7)]
    for number, (name, calibration) in enumerate(calibrations.items()):
        if calibration is not None:
            points = [(group.confidence, group.right) for group in calibration.bins]
            x, y = (np.array(values) for values in zip(*points, strict=True))
            series.append(Series(name=name, x=x, y=y, style="dots", colour=number))
    return curve_svg(title, series, x=axis, y=axis, x_label="confidence")
