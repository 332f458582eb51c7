"""The rows of a comparison of models, the same on the terminal and in a page."""

from collections.abc import Callable
from typing import NamedTuple

from bertree.report.comparison import Comparison, ModelCosts, Speed, device_name, times
from bertree.report.formats import digits, format_score, label, quantity


class ComparisonRow(NamedTuple):
    """One value of every model; `against` compares all but the first with it. Inner rows start with a space."""

    name: str
    values: list[str]
    against: list[str]


def comparison_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return scores, size, then speed on each device."""
    return [*_scores(comparison), *_sizes(comparison), *_speeds(comparison)]


def byte_size(count: float) -> str:
    """Write a number of bytes in MB or GB."""
    return f"{digits(count / 1e6)} MB" if count < 1e9 else f"{digits(count / 1e9)} GB"


def rate(value: float) -> str:
    """Write a rate per second."""
    return quantity(value) if value >= 1e4 else digits(value)


def _scores(comparison: Comparison) -> list[ComparisonRow]:
    found = []
    for name, values in comparison.scores.items():
        against = []
        for place in range(1, len(values)):
            share = comparison.share_kept(name, place)
            against.append(f"keeps {100 * share:.1f} %" if share is not None else "")
        found.append(ComparisonRow(label(name), [format_score(name, value) for value in values], against))
    return found


def _sizes(comparison: Comparison) -> list[ComparisonRow]:
    models, smaller = comparison.models, ("smaller", "larger")
    disk = "weights on disk" if all(model.on_disk for model in models) else "weights"
    return [
        _row("parameters", models, lambda m: m.parameters, quantity, *smaller),
        _row("  in the layers", models, lambda m: m.encoder, quantity, *smaller),
        _row("  in the embeddings", models, lambda m: m.embeddings, quantity, *smaller),
        _row(disk, models, lambda m: m.weight_bytes, byte_size, *smaller),
    ]


def _speeds(comparison: Comparison) -> list[ComparisonRow]:
    found = []
    faster, more = ("faster", "slower"), ("more", "fewer")
    for device in comparison.devices:
        on, models = device_name(comparison.teacher.speed(device)), comparison.models

        def of(read: Callable[[Speed], float], device: str = device) -> Callable[[ModelCosts], float]:
            return lambda model: read(model.speed(device))

        found += [
            _row(f"{on}, one text, ms", models, of(lambda s: s.latency_ms), digits, *faster),
            _row("  90th percentile", models, of(lambda s: s.latency_p90_ms), digits, *faster),
            _row("  with tokenising", models, of(lambda s: s.text_latency_ms), digits, *faster),
            _row("  with tokenising, 90th percentile", models, of(lambda s: s.text_latency_p90_ms), digits, *faster),
            _row(f"{on}, packed, texts/s", models, of(lambda s: s.texts_per_s), rate, *more, inverse=True),
            _row("  tokens/s", models, of(lambda s: s.tokens_per_s), rate, *more, inverse=True),
        ]
    return found


def _row(
    name: str,
    models: tuple[ModelCosts, ...],
    read: Callable[[ModelCosts], float],
    write: Callable[[float], str],
    better: str,
    worse: str,
    inverse: bool = False,
) -> ComparisonRow:
    values = [read(model) for model in models]
    against = []
    for value in values[1:]:
        over, under = (value, values[0]) if inverse else (values[0], value)
        against.append(times(over / under, better, worse) if over and under else "")
    return ComparisonRow(name, [write(value) for value in values], against)


def method(comparison: Comparison) -> str:
    """Describe how the models were timed: texts, devices, precision."""
    parts = [f"Timed on {comparison.measured_on}"] if comparison.measured_on else []
    tokens = [digits(model.tokens_a_text) for model in comparison.models]
    alike = f"{tokens[0]} tokens a text on average"
    parts.append(alike if len(set(tokens)) == 1 else f"{' and '.join(tokens)} tokens a text on average")
    for speed in comparison.teacher.speeds:
        threads = f", {speed.threads} thread{'s' if speed.threads != 1 else ''}" if speed.threads else ""
        parts.append(f"{device_name(speed)}: {speed.processor}{threads}, {speed.precision}")
    timed = [min(model.speed(device).timed_texts for model in comparison.models) for device in comparison.devices]
    parts.append(f"the models in turn, medians of {' and '.join(map(str, timed))} answers each")
    return "; ".join(parts) + "."
