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


class _Measure(NamedTuple):
    """A number of a model, how it is written, and the words for less and more of it."""

    name: str
    value: Callable[[ModelCosts], float]
    text: Callable[[float], str]
    less: str
    more: str


def comparison_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return scores, size, then speed on each device."""
    rows = [_score(comparison, name) for name in comparison.scores]
    on_disk = all(model.on_disk for model in comparison.models)
    measures = _sizes("weights on disk" if on_disk else "weights")
    for device in comparison.devices:
        measures += _speeds(device, device_name(comparison.teacher.speed(device)))
    return rows + [_row(measure, comparison.models) for measure in measures]


def _score(comparison: Comparison, name: str) -> ComparisonRow:
    values = comparison.scores[name]
    shares = [comparison.share_kept(name, place) for place in range(1, len(values))]
    against = [f"keeps {100 * share:.1f} %" if share is not None else "" for share in shares]
    return ComparisonRow(label(name), [format_score(name, value) for value in values], against)


def _sizes(weights: str) -> list[_Measure]:
    return [
        _Measure("parameters", lambda model: model.parameters, quantity, "smaller", "larger"),
        _Measure("  in the layers", lambda model: model.encoder, quantity, "smaller", "larger"),
        _Measure("  in the embeddings", lambda model: model.embeddings, quantity, "smaller", "larger"),
        _Measure(weights, lambda model: model.weight_bytes, byte_size, "smaller", "larger"),
    ]


def _speeds(device: str, name: str) -> list[_Measure]:
    def latency(name: str, value: Callable[[Speed], float]) -> _Measure:
        return _Measure(name, lambda model: value(model.speed(device)), digits, "faster", "slower")

    def throughput(name: str, value: Callable[[Speed], float]) -> _Measure:
        return _Measure(name, lambda model: value(model.speed(device)), rate, "fewer", "more")

    return [
        latency(f"{name}, one text, ms", lambda speed: speed.latency_ms),
        latency("  90th percentile", lambda speed: speed.latency_p90_ms),
        latency("  with tokenising", lambda speed: speed.text_latency_ms),
        latency("  with tokenising, 90th percentile", lambda speed: speed.text_latency_p90_ms),
        throughput(f"{name}, packed, texts/s", lambda speed: speed.texts_per_s),
        throughput("  tokens/s", lambda speed: speed.tokens_per_s),
    ]


def _row(measure: _Measure, models: tuple[ModelCosts, ...]) -> ComparisonRow:
    first, *others = values = [measure.value(model) for model in models]
    against = [times(first / other, measure.less, measure.more) if first and other else "" for other in others]
    return ComparisonRow(measure.name, [measure.text(value) for value in values], against)


def byte_size(count: float) -> str:
    """Write a number of bytes in MB or GB."""
    return f"{digits(count / 1e6)} MB" if count < 1e9 else f"{digits(count / 1e9)} GB"


def rate(value: float) -> str:
    """Write a rate per second."""
    return quantity(value) if value >= 1e4 else digits(value)


def method(comparison: Comparison) -> str:
    """Describe how the models were timed: texts, devices, precision."""
    parts = [f"Timed on {comparison.measured_on}"] if comparison.measured_on else []
    tokens = dict.fromkeys(digits(model.tokens_a_text) for model in comparison.models)
    parts.append(f"{' and '.join(tokens)} tokens a text on average")
    for speed in comparison.teacher.speeds:
        threads = f", {speed.threads} thread{'s' if speed.threads != 1 else ''}" if speed.threads else ""
        parts.append(f"{device_name(speed)}: {speed.processor}{threads}, {speed.precision}")
    timed = [min(model.speed(device).timed_texts for model in comparison.models) for device in comparison.devices]
    parts.append(f"the models in turn, medians of {' and '.join(map(str, timed))} answers each")
    return "; ".join(parts) + "."
