"""The size, speed and scores of models as plain values (comparison.json), and their ratios in words.

`bertree.comparison` measures them; they are defined here so that every report can show them. The first model is the
one the others are compared with: in a distillation the teacher, with one student after it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated

from bertree.config.settings import Above, read
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json, read_json
from bertree.report.calibration import Calibration
from bertree.report.formats import digits, smaller_is_better
from bertree.result_table import ResultTable, ShownAsTable
from bertree.run_folder import COMPARISON

VERSION = 1
SAME_COST = 1.05  # ratio
KEPT = 0.99  # share of a score that counts as all of it, if its interval is not known
Count = Annotated[int, Above(0)]
Positive = Annotated[float, Above(0)]
Intervals = Mapping[str, tuple[tuple[float, float] | None, ...]]  # of each score, one for each model


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of a model on one device. Latencies: one text at a time; rates: many, packed, sorted by length."""

    device: str  # cpu or cuda
    processor: str  # its name
    threads: int  # 0: not a CPU
    precision: str
    latency_ms: Positive  # median, without tokenization
    latency_p90_ms: Positive
    text_latency_ms: Positive  # median, with tokenization
    text_latency_p90_ms: Positive
    timed_texts: int  # behind the latencies
    texts_per_s: Positive
    tokens_per_s: Positive
    passes: int  # behind the rates, which are medians
    training_tokens_per_s: Annotated[float | None, Above(0)] = None  # of training steps; None: not timed


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """The size and speed of a model. Only parameters that its predictions need are counted."""

    name: str
    parameters: Count
    embeddings: int  # tables, their norm, and the projection to the width of the layers
    encoder: int  # the layers
    head: int  # what is used above the layers
    weight_bytes: Count
    on_disk: bool  # the bytes are those of files, not of tensors in memory
    tokens_a_text: Positive  # mean of the timed texts
    speeds: tuple[Speed, ...]

    def speed(self, device: str) -> Speed:
        """Return the speed on a device."""
        return next(speed for speed in self.speeds if speed.device == device)


@dataclass(frozen=True)
class PublishedRow:
    """What a paper reports of a system: scores times 100, perplexities as they are."""

    system: str
    scores: dict[str, float]
    source: str  # paper and table
    benchmark: str = ""
    split: str = ""  # dev or test
    note: str = ""  # which metrics, and how they were averaged


@dataclass(frozen=True)
class ScoreDifference:
    """By how much a model's score is above the first one's (paired bootstrap over the examples)."""

    score: str
    value: float
    interval: tuple[float, float]  # 95 %
    p: float  # two-sided

    @property
    def verdict(self) -> str:
        """Return whether it is significant: higher, lower, or not."""
        return "higher" if self.interval[0] > 0 else "lower" if self.interval[1] < 0 else "not significant"


@dataclass(frozen=True)
class AnsweredExample:
    """An example with the answers of the first model and of another."""

    texts: tuple[str, ...]  # the beginning of each
    gold: str
    answers: tuple[str, str]
    confidence: tuple[float | None, float | None]
    better: int  # index of the model whose answer is nearer to the gold one


@dataclass(frozen=True)
class Disagreement:
    """Where the first model and another give answers that are not equally good."""

    counts: Mapping[str, int]  # examples: both right, only the first ...; of numbers: the first closer ...
    examples: tuple[AnsweredExample, ...] = ()  # the clearest


@dataclass(frozen=True, repr=False)
class Comparison(ShownAsTable):
    """Models compared with the first of them. A score that is missing or not finite is None."""

    models: tuple[ModelCosts, ...]  # parameters, bytes and speeds of each
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)  # by metric, one for each model
    measured_on: str = ""  # which texts, in a few words
    intervals: Intervals = field(default_factory=dict)  # 95 % confidence, of the scores
    published: tuple[PublishedRow, ...] = ()  # scores of others on the task, if they were asked for
    # Of the scored examples, where there are some:
    calibration: tuple[Calibration | None, ...] = ()  # of each model; None: its answers have no confidence
    differences: tuple[ScoreDifference, ...] = ()  # of each model but the first
    disagreements: tuple[Disagreement, ...] = ()  # of each model but the first

    def __post_init__(self) -> None:
        devices = [[speed.device for speed in model.speeds] for model in self.models]
        if len(devices) < 2:
            raise UserError(f"models: must be two or more, not {len(devices)}")
        if any(row != devices[0] for row in devices) or len(set(devices[0])) < len(devices[0]):
            raise UserError("models: must be timed on the same devices, once on each")
        for name, values in (*self.scores.items(), *self.intervals.items()):
            if len(values) != len(devices):
                raise UserError(f"scores.{name}: must be a list of {len(devices)} numbers, one for each model")
        for name, count in (("calibration", 0), ("differences", 1), ("disagreements", 1)):
            if len(getattr(self, name)) not in (0, len(devices) - count):
                raise UserError(
                    f"{name}: must be a list of {len(devices) - count} values, not {len(getattr(self, name))}"
                )

    def _result_table(self) -> ResultTable:
        heads = ["model", "parameters", "MB", *(f"ms a text, {device}" for device in self.devices)]
        heads += [f"texts/s, {device}" for device in self.devices]
        rows = []
        for number, model in enumerate(self.models):
            row = [model.name, f"{model.parameters:,}", f"{model.weight_bytes / 1e6:,.1f}"]
            row += [f"{speed.latency_ms:.3g}" for speed in model.speeds]
            row += [digits(speed.texts_per_s) for speed in model.speeds]
            scores = (values[number] for values in self.scores.values())
            rows.append(row + ["" if score is None else f"{score:.4g}" for score in scores])
        measured = f": {self.measured_on}" if self.measured_on else ""
        return ResultTable(f"comparison{measured}", rows, [*heads, *self.scores])

    @property
    def teacher(self) -> ModelCosts:
        """Return the first model, with which the others are compared."""
        return self.models[0]

    @property
    def student(self) -> ModelCosts:
        """Return the first of the other models."""
        return self.models[1]

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices the models were timed on."""
        return tuple(speed.device for speed in self.teacher.speeds)

    def times_smaller(self, number: int = 1) -> float:
        """Return the ratio of the parameters."""
        return self.teacher.parameters / self.models[number].parameters

    def times_lighter(self, number: int = 1) -> float:
        """Return the ratio of the bytes of the weights."""
        return self.teacher.weight_bytes / self.models[number].weight_bytes

    def times_faster(self, device: str = "cpu", number: int = 1) -> float:
        """Return the ratio of the median latencies of one text."""
        return self.teacher.speed(device).latency_ms / self.models[number].speed(device).latency_ms

    def times_more_texts(self, device: str = "cpu", number: int = 1) -> float:
        """Return the ratio of the packed texts per second."""
        return self.models[number].speed(device).texts_per_s / self.teacher.speed(device).texts_per_s

    def times_faster_training(self, device: str = "cpu", number: int = 1) -> float | None:
        """Return the ratio of the tokens per second in training; None: it was not timed."""
        first, other = (model.speed(device).training_tokens_per_s for model in (self.teacher, self.models[number]))
        return other / first if first and other else None

    def share_kept(self, score: str, number: int = 1) -> float | None:
        """Return a score as a share of the first model's; None where lower is better or a share means nothing."""
        first, value = self.scores[score][0], self.scores[score][number]
        if first is None or value is None or first <= 0 or smaller_is_better(score):
            return None
        return value / first

    def is_kept(self, score: str, number: int = 1) -> bool:
        """Return whether a score is as good as the first model's: not significantly lower; if that is unknown, within
        its interval; if that is unknown too, 99 % of it."""
        if self.differences and self.differences[number - 1].score == score:
            return self.differences[number - 1].verdict != "lower"
        value, spans = self.scores[score][number], self.intervals.get(score)
        if value is not None and spans and spans[0] is not None:
            return value >= spans[0][0]
        return (self.share_kept(score, number) or 0.0) >= KEPT

    def frontier(self, cost: Callable[[ModelCosts], float]) -> list[bool]:
        """Return for each model whether it is on the frontier of cost and first score: no other model scores as high
        for no more, and better or for less. Costs within 5 % are equal: times are not measured more precisely."""
        name, values = next(iter(self.scores.items()))
        sign = -1 if smaller_is_better(name) else 1
        points = [None if v is None else (sign * v, cost(model)) for model, v in zip(self.models, values, strict=True)]

        def beats(point: tuple[float, float], rival: tuple[float, float]) -> bool:
            near = max(point[1], rival[1]) <= SAME_COST * min(point[1], rival[1])
            cheaper = point[1] < rival[1] and not near
            return (point[0] > rival[0] and (cheaper or near)) or (point[0] == rival[0] and cheaper)

        return [point is not None and not any(other and beats(other, point) for other in points) for point in points]

    def costs(self) -> dict[str, Callable[[ModelCosts], float]]:
        """Return what a score is weighed against, by name: bytes, and milliseconds for a text on each device."""
        latencies: dict[str, Callable[[ModelCosts], float]] = {
            f"latency_ms_{device}": lambda model, device=device: model.speed(device).latency_ms  # type: ignore[misc]
            for device in self.devices
        }
        return latencies | {"weight_bytes": lambda model: model.weight_bytes}

    def as_json(self) -> Json:
        """Return plain values, with lists in place of tuples, and the ratios that follow from them."""
        plain, against = json.loads(json.dumps(asdict(self))), []
        for number in range(1, len(self.models)):
            ratios: Json = {
                "name": self.models[number].name,
                "times_smaller": self.times_smaller(number),
                "times_lighter": self.times_lighter(number),
            }
            for device in self.devices:
                ratios[f"times_faster_{device}"] = self.times_faster(device, number)
                ratios[f"times_more_texts_{device}"] = self.times_more_texts(device, number)
                if (ratio := self.times_faster_training(device, number)) is not None:
                    ratios[f"times_faster_training_{device}"] = ratio
            ratios["share_kept"] = {name: self.share_kept(name, number) for name in self.scores}
            against.append(ratios)
        return {
            "version": VERSION,
            **{name: plain[name] for name in ("models", "scores", "intervals", "measured_on")},
            "against_the_first": against,
            "frontier": {
                name: [model.name for model, on in zip(self.models, self.frontier(cost), strict=True) if on]
                for name, cost in (self.costs().items() if self.scores else ())
            },
            **{name: plain[name] for name in ("calibration", "differences", "disagreements")},
        } | ({"published": plain["published"]} if self.published else {})

    @classmethod
    def from_json(cls, value: Json, where: str) -> "Comparison":
        """Read what `as_json` returned, checked; ratios are computed again."""
        if value.get("version") != VERSION:
            raise UserError(
                f"{where}: version: must be {VERSION}, not {value.get('version')!r}; compare the models again"
            )
        names = {each.name for each in fields(cls)}  # without the ratios
        comparison: Comparison = read(cls, {key: inner for key, inner in value.items() if key in names}, where)
        return comparison

    def write(self, folder: Path) -> Path:
        """Write comparison.json into a folder, for its report."""
        text = json.dumps(self.as_json(), ensure_ascii=False, indent=2, allow_nan=False)
        write_atomically(folder / COMPARISON, text + "\n")
        return folder / COMPARISON


def read_comparison(path: Path) -> Comparison:
    """Read a comparison.json."""
    return Comparison.from_json(read_json(path), str(path))


# In words


def times(ratio: float, more: str, less: str, count: int = 3) -> str:
    """Write a ratio to the first model: 6.6x smaller, or 1.2x larger."""
    size = digits(max(ratio, 1 / ratio), count)
    return "the same" if size == "1" else f"{size}x {more if ratio > 1 else less}"


def device_name(speed: Speed) -> str:
    """Return the readable name of a device."""
    return {"cpu": "CPU", "cuda": "GPU"}.get(speed.device, speed.device)


def verdict(comparison: Comparison, number: int = 1) -> str:
    """Sum a comparison up in a line: 6.6x smaller, 9x faster, keeps 96.8 % of the accuracy."""
    parts = [times(comparison.times_smaller(number), "smaller", "larger", 2).replace("the same", "as large")]
    for device in comparison.devices:
        faster = times(comparison.times_faster(device, number), "faster", "slower", 2).replace("the same", "as fast")
        on = f" on the {device_name(comparison.teacher.speed(device))}" if len(comparison.devices) > 1 else ""
        parts.append(faster + on)
    shares = {name: comparison.share_kept(name, number) for name in comparison.scores}
    kept = next(((name, share) for name, share in shares.items() if share is not None), None)
    if kept is not None:
        parts.append(f"keeps {100 * kept[1]:.1f} % of the {kept[0].replace('_', ' ')}")
    return ", ".join(parts)
