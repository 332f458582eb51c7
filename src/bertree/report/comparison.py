"""What models cost and score beside one another, as plain values: comparison.json, and the words for its ratios.

Sits low so that every report can show it; `distil.compare` is what measures. The first model is the one the others
are measured against: in a distillation the teacher, with one student after it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bertree.config.settings import read as read_values
from bertree.errors import UserError
from bertree.files import Json, read_json, write_atomically
from bertree.report.formats import digits, smaller_is_better
from bertree.run_folder import COMPARISON

VERSION = 1


@dataclass(frozen=True)
class Speed:
    """How fast a model is on one device. Latencies: one text at a time; rates: many, packed, sorted by length."""

    device: str  # cpu or cuda
    processor: str  # its name
    threads: int  # 0: not a CPU
    precision: str
    latency_ms: float  # median, from ids that are there already
    latency_p90_ms: float
    text_latency_ms: float  # the same with the tokenising
    text_latency_p90_ms: float
    timed_texts: int  # how many answers the latencies are of
    texts_per_s: float
    tokens_per_s: float
    passes: int  # how many the rates are a median of


@dataclass(frozen=True)
class Figures:
    """What a model costs. Parameters are those that its answers are computed with: a head that is not asked is none."""

    name: str
    parameters: int
    embeddings: int  # tables, their norm, and the projection to the width of the layers
    encoder: int  # the layers
    head: int  # what stands above them and is asked
    weight_bytes: int
    on_disk: bool  # the bytes are those of files, not of the tensors in memory
    tokens_a_text: float  # mean of the texts that were timed
    speeds: tuple[Speed, ...]

    def speed(self, device: str) -> Speed:
        """On a device that was measured."""
        return next(speed for speed in self.speeds if speed.device == device)


@dataclass(frozen=True)
class Comparison:
    """Models beside the first of them. A score that a model does not have, or that is not finite, is None."""

    models: tuple[Figures, ...]
    scores: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    measured_on: str = ""  # which texts, in a few words

    @property
    def teacher(self) -> Figures:
        """The one the others are measured against."""
        return self.models[0]

    @property
    def student(self) -> Figures:
        """The first of the others."""
        return self.models[1]

    @property
    def devices(self) -> tuple[str, ...]:
        """Where they were timed."""
        return tuple(speed.device for speed in self.teacher.speeds)

    def times_smaller(self, place: int = 1) -> float:
        """By parameters."""
        return self.teacher.parameters / self.models[place].parameters

    def times_lighter(self, place: int = 1) -> float:
        """By bytes of the weights."""
        return self.teacher.weight_bytes / self.models[place].weight_bytes

    def times_faster(self, device: str = "cpu", place: int = 1) -> float:
        """By the median latency of one text."""
        return self.teacher.speed(device).latency_ms / self.models[place].speed(device).latency_ms

    def times_more_texts(self, device: str = "cpu", place: int = 1) -> float:
        """By texts a second, packed."""
        return self.models[place].speed(device).texts_per_s / self.teacher.speed(device).texts_per_s

    def share_kept(self, score: str, place: int = 1) -> float | None:
        """Of the first model's score; None where lower is better, or where a share says nothing."""
        whole, kept = self.scores[score][0], self.scores[score][place]
        if whole is None or kept is None or whole <= 0 or smaller_is_better(score):
            return None
        return kept / whole

    def as_json(self) -> Json:
        """Plain values; what follows from the others stands beside them, for machines."""
        against = []
        for place in range(1, len(self.models)):
            found: Json = {
                "name": self.models[place].name,
                "times_smaller": self.times_smaller(place),
                "times_lighter": self.times_lighter(place),
            }
            for device in self.devices:
                found[f"times_faster_{device}"] = self.times_faster(device, place)
                found[f"times_more_texts_{device}"] = self.times_more_texts(device, place)
            found["share_kept"] = {name: self.share_kept(name, place) for name in self.scores}
            against.append(found)
        return {
            "version": VERSION,
            "models": [asdict(model) | {"speeds": list(map(asdict, model.speeds))} for model in self.models],
            "scores": {name: list(values) for name, values in self.scores.items()},
            "measured_on": self.measured_on,
            "against_the_first": against,
        }

    @classmethod
    def from_json(cls, value: Json, where: str) -> "Comparison":
        """What `as_json` gave, checked; ratios are worked out anew, not believed."""
        if value.get("version") != VERSION:
            raise UserError(
                f"{where}: version: must be {VERSION}, not {value.get('version')!r}; compare the models again"
            )
        _complete(value, ("models", "scores", "measured_on"), where)
        if not isinstance(value["models"], list) or not isinstance(value["scores"], dict):
            raise UserError(f"{where}: models must be a list and scores a table")
        models = tuple(_model(model, f"{where}: models.{place}") for place, model in enumerate(value["models"]))
        if len(models) < 2:
            raise UserError(f"{where}: models: must be two or more, not {len(models)}")
        if any([s.device for s in model.speeds] != [s.device for s in models[0].speeds] for model in models):
            raise UserError(f"{where}: models: were not timed on the same devices")
        scores = {
            name: _scores(given, len(models), f"{where}: scores.{name}") for name, given in value["scores"].items()
        }
        return cls(models, scores, str(value["measured_on"]))

    def write(self, folder: Path) -> Path:
        """Into a folder, for its report."""
        text = json.dumps(self.as_json(), ensure_ascii=False, indent=2, allow_nan=False)
        write_atomically(folder / COMPARISON, text + "\n")
        return folder / COMPARISON


def read(path: Path) -> Comparison:
    """A comparison.json, checked."""
    return Comparison.from_json(read_json(path), str(path))


def _complete(value: Any, names: tuple[str, ...], where: str) -> None:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be a table")
    if missing := [name for name in names if name not in value]:
        raise UserError(f"{where}: {missing[0]}: is missing")


def _model(value: Any, where: str) -> Figures:
    _complete(value, tuple(part.name for part in fields(Figures)), where)
    if not isinstance(value["speeds"], list):
        raise UserError(f"{where}: speeds: must be a list")
    for place, speed in enumerate(value["speeds"]):
        _complete(speed, tuple(part.name for part in fields(Speed)), f"{where}.speeds.{place}")
    model: Figures = read_values(Figures, value, where)
    _positive(model, ("parameters", "weight_bytes", "tokens_a_text"), where)
    for speed in model.speeds:
        times = ("latency_ms", "latency_p90_ms", "text_latency_ms", "text_latency_p90_ms")
        _positive(speed, (*times, "texts_per_s", "tokens_per_s"), where)
    if len({speed.device for speed in model.speeds}) < len(model.speeds):
        raise UserError(f"{where}: speeds: has a device twice")
    return model


def _positive(values: Any, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if not 0 < getattr(values, name) < math.inf:
            raise UserError(f"{where}: {name}: must be above 0 and finite, not {getattr(values, name)}")


def _scores(values: Any, count: int, where: str) -> tuple[float | None, ...]:
    if not isinstance(values, list) or len(values) != count:
        raise UserError(f"{where}: must be a list of {count} numbers, one for each model")
    for value in values:
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise UserError(f"{where}: must hold numbers or null, not {value!r}")
    return tuple(None if value is None else float(value) for value in values)


# In words


def times(ratio: float, more: str, less: str, count: int = 3) -> str:
    """A ratio to the first model: 6.6x smaller, or 1.2x larger."""
    size = digits(max(ratio, 1 / ratio), count)
    return "the same" if size == "1" else f"{size}x {more if ratio > 1 else less}"


def where_timed(speed: Speed) -> str:
    """A device as people say it."""
    return {"cpu": "CPU", "cuda": "GPU"}.get(speed.device, speed.device)


def verdict(comparison: Comparison, place: int = 1) -> str:
    """What a person wants to know first: 6.6x smaller, 9x faster, keeps 96.8 %."""
    parts = [times(comparison.times_smaller(place), "smaller", "larger", 2).replace("the same", "as large")]
    for device in comparison.devices:
        faster = times(comparison.times_faster(device, place), "faster", "slower", 2).replace("the same", "as fast")
        on = f" on the {where_timed(comparison.teacher.speed(device))}" if len(comparison.devices) > 1 else ""
        parts.append(faster + on)
    shares = {name: comparison.share_kept(name, place) for name in comparison.scores}
    known = next(((name, share) for name, share in shares.items() if share is not None), None)
    if known is not None:
        parts.append(f"keeps {100 * known[1]:.1f} % of the {known[0].replace('_', ' ')}")
    return ", ".join(parts)
