"""Measure the latency of single texts and the throughput of many, for several models in turns (for measure.py).

Timings are noisy, and the noise changes slowly: another process, a warmer chip. So the models take turns (A, B, A, B
...) on the same texts, all of them see the same noise, and medians are reported. A turn holds several texts and begins
with a short one that is not counted, so that the model's weights are in the caches as if it ran alone. The cost: few
texts are timed if the models are slow, because the time is shared.
"""

import copy
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertree.inference.load import Model, make_model
from bertree.interop.contents import Contents
from bertree.model.network import Network
from bertree.report.comparison import Speed
from bertree.tasks.batches import logits
from bertree.tasks.task import Task

Clock = Callable[[], float]
WARM_UP = 3  # texts before the first that counts
TURN, TURN_SECONDS = 8, 0.1  # texts and seconds of a turn at most: short, so that the next model sees the same noise
MOST_TEXTS, LEAST_TURNS = 320, 4  # of each model, for latencies
MOST_PASSES, LEAST_PASSES = 15, 5  # over many texts, for throughput
PROBE = {"cpu": 512, "cuda": 16384}  # tokens timed first, to find how many fit into the time
MOST_TOKENS = {"cpu": 16384, "cuda": 524288}  # of a pass

# Timed where no texts are given; of ragged lengths, as real texts are.
SENTENCES = (
    "Not again.",
    "The ferry leaves at nine.",
    "She wrote the last chapter on a train between two cities and never read it again.",
    "Rain.",
    "A bakery on our street sells rye bread that keeps for a week, if nobody finds it first.",
    "When the river rose above the second mark on the bridge, the council asked everyone who lived below the mill "
    "to carry what they could to the school, and to leave the rest; by midnight the lower road was gone, the "
    "telephone was silent, and the only light in the valley came from a lantern that someone had hung in the bell "
    "tower.",
    "Who left the gate open?",
    "Turn the valve a quarter to the left, wait until the needle has settled, and write the pressure into the table.",
    "Our quarterly revenue grew by four per cent, chiefly because the new warehouse shortened deliveries in the "
    "north; costs grew by six, which the board puts down to fuel and to a settlement with a former supplier.",
    "It is a small film with a large heart and, regrettably, no ending at all.",
    "Clocks disagree.",
    "The committee met, as it had met every Thursday for eleven years, in a room without windows, and decided nothing.",
    "In this note we show that the estimate holds for every bounded domain with a smooth boundary. The proof goes "
    "by induction on the dimension. For the line there is nothing to prove; for the plane it is a theorem that has "
    "been known for a century, and we only have to follow the constants. The step upwards takes a slice of the "
    "domain, applies the estimate to it, and integrates over all slices, where the one difficulty is that a slice "
    "need not be connected; we get around it by counting its parts, of which there are finitely many for almost "
    "every slice.",
    "Two eggs, a cup of flour, a pinch of salt, and patience.",
    "He had been told that the mountain could be crossed in a day by anyone who started early and did not stop to "
    "look.",
    "No refunds after thirty days.",
    "The patient reports a dull pain below the left shoulder that grows worse in the cold and has not answered to "
    "rest.",
    "Please find attached the minutes of our last meeting; if I have forgotten anything, tell me before Friday.",
    "My grandmother kept bees behind the chapel, and on summer evenings she would sit among the hives with a book "
    "in her lap, turning the pages so slowly that the bees walked over them as though they were petals, and when I "
    "asked her whether she was afraid of being stung she said that she had been stung by everything else already.",
    "Good value, bad sound.",
    "The satellite lost contact over the southern ocean and found it again eleven minutes later, with a fresher clock.",
    "Why does bread taste better when somebody else has cut it?",
    "Goods are checked on arrival, sorted by weight, and sent on within the hour.",
    "After the second goal the visitors stopped running, and the rest of the match was a long walk in the rain.",
)


@dataclass(frozen=True)
class TimedModel:
    """A model to be measured, its folder if it has one, and the task whose head is run, if any."""

    name: str
    model: Model
    folder: Path | None = None
    task: Task[Any] | None = None


class Runner:
    """A model on a device with the texts to run; copies the weights only if device or precision differ."""

    def __init__(
        self, subject: TimedModel, texts: Sequence[Any], device: torch.device, clock: Clock = time.perf_counter
    ) -> None:
        model, task = subject.model, subject.task
        self.name, self._task, self._texts, self._clock = subject.name, task, texts, clock
        self.device, self.precision = device, _precision(device)
        network = _on_device(model.network, device, self.precision)
        self._model = make_model(Contents(model.architecture, network, model.tokenizer, max_length=model.limit))
        self._tokenizer = model.required_tokenizer
        self._longest = model.sequence_length(usual=(model.task_length or task.max_length) if task else 0)
        self._units = self._group_by_text(self._encode(texts), len(texts))
        self.lengths = [sum(map(_tokens, units)) for units in self._units]

    def _encode(self, texts: Sequence[Any]) -> list[Any]:
        """Encode texts as units of a task, or as ids."""
        if self._task is not None:
            return list(self._task.units(texts, self._tokenizer, self._longest)[0])
        return list(self._tokenizer.encode_batch(texts, self._longest))

    def _group_by_text(self, units: Sequence[Any], count: int) -> list[list[Any]]:
        """Group units by text: a task may split one text into several units."""
        if self._task is None:
            return [[unit] for unit in units]
        by_text: list[list[Any]] = [[] for _ in range(count)]
        for unit in units:
            by_text[unit.example].append(unit)
        return by_text

    def _run(self, units: Sequence[Any]) -> None:
        if self._task is not None:
            logits(self._model.network, self._task.head, units)
        else:
            self._model.hidden([unit.ids for unit in units])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run_one(self, row: int) -> tuple[float, float]:
        """Run one text; return the seconds from its ids, and from the text."""
        began = self._clock()
        units = self._encode([self._texts[row]])
        ready = self._clock()
        self._run(units)
        done = self._clock()
        return done - ready, done - began

    def run_many(self, rows: Sequence[int]) -> float:
        """Run many texts at once, packed and sorted by length; return the seconds."""
        units = [unit for row in rows for unit in self._units[row]]
        began = self._clock()
        self._run(units)
        return self._clock() - began


def _tokens(unit: Any) -> int:
    return sum(len(sequence.ids) for sequence in unit.sequences) if hasattr(unit, "sequences") else len(unit.ids)


def _precision(device: torch.device) -> torch.dtype:
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def _on_device(network: Network, device: torch.device, dtype: torch.dtype) -> Network:
    """Return the network itself if device and precision are right, else a copy."""
    first = next(network.parameters())
    right = first.device.type == device.type and first.dtype == dtype and device.index in (None, first.device.index)
    return network if right else copy.deepcopy(network).to(device=device, dtype=dtype)


def measure_speeds(runners: Sequence[Runner], seconds: float, clock: Clock = time.perf_counter) -> list[Speed]:
    """Measure the speed of each model: half of the time goes to single texts, half to many."""
    latencies, rates = _latencies(runners, seconds / 2, clock), _rates(runners, seconds / 2)
    device = runners[0].device
    speeds = []
    for runner, latency, (texts, tokens, passes) in zip(runners, latencies, rates, strict=True):
        milliseconds = 1000 * np.array(latency)  # texts x (from ids, from the text)
        median, p90 = np.median(milliseconds, 0).tolist(), np.percentile(milliseconds, 90, 0).tolist()
        speeds.append(
            Speed(
                device=device.type,
                processor=processor(device),
                threads=torch.get_num_threads() if device.type == "cpu" else 0,
                precision=str(runner.precision).removeprefix("torch."),
                latency_ms=median[0],
                latency_p90_ms=p90[0],
                text_latency_ms=median[1],
                text_latency_p90_ms=p90[1],
                timed_texts=len(latency),
                texts_per_s=texts,
                tokens_per_s=tokens,
                passes=passes,
            )
        )
    return speeds


def _latencies(runners: Sequence[Runner], seconds: float, clock: Clock) -> list[list[tuple[float, float]]]:
    """Return the seconds of each model for each single text: (from ids, from the text)."""
    count = len(runners[0].lengths)
    began = clock()
    expected = [max([runner.run_one(row % count)[1] for row in range(WARM_UP)][-1], 1e-9) for runner in runners]
    fits = min(TURN_SECONDS / min(expected), seconds / (LEAST_TURNS * sum(expected)) - 1)
    turn = max(1, min(TURN, int(fits)))
    shortest = int(np.argmin(runners[0].lengths))
    latencies: list[list[tuple[float, float]]] = [[] for _ in runners]
    for number in range(1, MOST_TEXTS // turn + 1):
        start = (number - 1) * turn
        for runner, latency in zip(runners, latencies, strict=True):
            runner.run_one(shortest)  # brings its weights back into the caches; not counted
            latency += [runner.run_one(row % count) for row in range(start, start + turn)]
        if number >= LEAST_TURNS and (clock() - began) * (number + 1) / number > seconds:
            break
    return latencies


def _rates(runners: Sequence[Runner], seconds: float) -> list[tuple[float, float, int]]:
    """Return texts and tokens per second of each model, and the number of passes of the median."""
    kind = runners[0].device.type
    probe = _rows(runners[0].lengths, PROBE[kind])
    spent = sum(runner.run_many(probe) for runner in runners)
    size = sum(runners[0].lengths[row] for row in probe)
    fitting = int(seconds * size / max(LEAST_PASSES * spent, 1e-9)) - size  # tokens, less those of the probe
    rows = _rows(runners[0].lengths, max(PROBE[kind] // 4, min(MOST_TOKENS[kind], fitting)))
    if kind == "cuda":
        for runner in runners:
            runner.run_many(rows)  # allocates its memory once
    durations: list[list[float]] = [[] for _ in runners]
    for _ in range(MOST_PASSES):
        for runner, runner_durations in zip(runners, durations, strict=True):
            runner_durations.append(runner.run_many(rows))
        passes = len(durations[0])
        if passes >= LEAST_PASSES and sum(map(sum, durations)) * (passes + 1) / passes > seconds:
            break
    rates = []
    for runner, runner_durations in zip(runners, durations, strict=True):
        median = float(np.median(runner_durations))
        rates.append((len(rows) / median, sum(runner.lengths[row] for row in rows) / median, len(runner_durations)))
    return rates


def _rows(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return rows of texts, repeated from the first, with at least that many tokens."""
    rows: list[int] = []
    while tokens > 0 or not rows:
        rows.append(len(rows) % len(lengths))
        tokens -= max(1, lengths[rows[-1]])
    return rows


def processor(device: torch.device) -> str:
    """Return the name of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
