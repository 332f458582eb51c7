"""Measure and compare the cost of models: parameters, bytes, latency, throughput, training speed, share of the score.

Models are run as everywhere else: `Model.hidden` for an encoder alone, `tasks.logits.logits` for a task, in float32 on
a CPU and in half precision on a GPU. Only the parameters that a prediction needs are counted: heads that are not run do
not change a model's size. A training step is forward pass, backward pass and AdamW of the encoder alone, on packed
sequences of random tokens: in float32 on a CPU, in mixed precision on a GPU, not compiled. Its weights are copies, so
that the models stay as they are.
"""

import copy
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from bertree.batch import Batch
from bertree.comparison.timing import SENTENCES, Clock, Runner, TimedModel, measure_speeds
from bertree.interop import weights
from bertree.model.heads import ClassHead
from bertree.model.network import Network
from bertree.report.comparison import Comparison, Intervals, ModelCosts, Speed
from bertree.tasks.batches import inference_autocast

TOKENS = {"cpu": 512, "cuda": 32768}  # of a training step
LENGTH = 128  # of a sequence at most
LEAST_STEPS, MOST_STEPS = 3, 50  # of each model, after one that is not counted


class TimedTraining:
    """A copy of a model on a device, and a batch to train it on."""

    def __init__(self, subject: TimedModel, device: torch.device, clock: Clock) -> None:
        self._device, self._clock = device, clock
        self._network = copy.deepcopy(subject.model.network).to(device=device, dtype=torch.float32).train()
        self._network.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-5, fused=True)
        a = subject.model.architecture
        length = min(LENGTH, a.longest_input)
        draw = np.random.default_rng(0)
        count = max(1, TOKENS[device.type] // length)
        self.tokens = count * length
        self._batch = Batch.pack(draw.integers(a.vocab_size, size=(count, length)).tolist()).to(device)

    def step(self) -> float:
        """Take a step; return its seconds."""
        began = self._clock()
        with inference_autocast(self._device):
            states_tw = self._network(self._batch)
        states_tw.float().square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock() - began


def training_rates(
    subjects: Sequence[TimedModel], device: torch.device, seconds: float, clock: Clock = time.perf_counter
) -> list[float]:
    """Return the tokens per second of each model's training steps: medians of steps that are taken in turns."""
    trainings = [TimedTraining(subject, device, clock) for subject in subjects]
    for training in trainings:
        training.step()  # allocates memory; not counted
    durations: list[list[float]] = [[] for _ in trainings]
    for number in range(1, MOST_STEPS + 1):
        for training, of_model in zip(trainings, durations, strict=True):
            of_model.append(training.step())
        if number >= LEAST_STEPS and sum(map(sum, durations)) * (number + 1) / number > seconds:
            break
    pairs = zip(trainings, durations, strict=True)
    return [training.tokens / float(np.median(of_model)) for training, of_model in pairs]


MOST_TEXTS = 1000  # that are drawn for timing
SHARE = {"cpu": 3, "cuda": 1}  # of the time; a GPU is quick to measure


def compare_all(
    subjects: Sequence[TimedModel],
    texts: Sequence[Any] = (),
    *,
    scores: Mapping[str, Sequence[float | None]] | None = None,
    intervals: Intervals | None = None,
    seconds: float = 20.0,
    devices: Sequence[str] | None = None,
    measured_on: str = "",
    training: bool = False,
    clock: Clock = time.perf_counter,
) -> Comparison:
    """Compare two models or more, each against the first. `training`: time training steps too, for the same time."""
    assert len(subjects) >= 2, "there is nothing to compare"
    assert texts or all(subject.task is None for subject in subjects), "a task reads its own examples"
    measured_on = measured_on or (f"{len(texts):,} texts" if texts else f"{len(SENTENCES)} built-in sentences")
    models = measure(subjects, texts or SENTENCES, seconds, devices or available_devices(), clock, training)
    finite = {
        name: tuple(None if value is None or not np.isfinite(value) else float(value) for value in values)
        for name, values in (scores or {}).items()
    }
    assert all(len(values) == len(subjects) for values in finite.values()), "a score for each model"
    return Comparison(tuple(models), finite, measured_on, intervals or {})


def available_devices() -> tuple[str, ...]:
    """Return the kinds of devices of this machine."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def measure(
    subjects: Sequence[TimedModel],
    texts: Sequence[Any],
    seconds: float,
    devices: Sequence[str],
    clock: Clock,
    training: bool = False,
) -> list[ModelCosts]:
    """Measure each model, all of them timed in turns on the same texts."""
    sample = random.Random(0).sample(list(texts), min(len(texts), MOST_TEXTS))
    kinds = [torch.device(device).type for device in devices]
    speeds: list[list[Speed]] = [[] for _ in subjects]
    tokens = [0.0 for _ in subjects]
    modes = [subject.model.network.training for subject in subjects]
    try:
        for device, kind in zip(devices, kinds, strict=True):
            runners = [Runner(subject, sample, torch.device(device), clock) for subject in subjects]
            budget = seconds * SHARE[kind] / sum(SHARE[kind] for kind in kinds)
            of_device = measure_speeds(runners, budget, clock)
            tokens = [float(np.mean(runner.lengths)) for runner in runners]
            del runners  # their copies on the device
            if training:
                rates = training_rates(subjects, torch.device(device), budget, clock)
                pairs = zip(of_device, rates, strict=True)
                of_device = [replace(speed, training_tokens_per_s=rate) for speed, rate in pairs]
            for index, speed in enumerate(of_device):
                speeds[index].append(speed)
    finally:
        for subject, before in zip(subjects, modes, strict=True):
            subject.model.network.train(before)
    costs = []
    for subject, measured, mean in zip(subjects, speeds, tokens, strict=True):
        sizes = counts(subject.model.network, subject.task.head if subject.task else None)
        size, on_disk = weight_bytes(subject)
        costs.append(
            ModelCosts(
                name=subject.name,
                **dict(zip(("parameters", "embeddings", "encoder", "head"), sizes, strict=True)),
                weight_bytes=size,
                on_disk=on_disk,
                tokens_a_text=mean,
                speeds=tuple(measured),
            )
        )
    return costs


# Size


def counts(network: Network, head: str | None = None) -> tuple[int, int, int, int]:
    """Count the parameters that a prediction of that head needs (None: the encoder with its pooler, as `info` counts),
    and how many of them are in the embeddings, in the layers, and above the layers."""
    encoder = network.encoder
    tables = _size(getattr(encoder, "embeddings", None))
    pooler = _size(getattr(encoder, "pooler", None))
    module = network.heads[head] if head is not None else None
    above = pooler
    if module is not None:
        reads = module.reads if isinstance(module, ClassHead) else ""
        pooling = {"pooled": pooler, "vector": _size(network.vector)}.get(reads, 0)
        above = sum(map(_size, (module, network.features, network.crf))) + pooling
    layers = _size(encoder) - tables - pooler
    return tables + layers + above, tables, layers, above


def _size(module: nn.Module | None) -> int:
    return sum(parameter.numel() for parameter in module.parameters()) if module is not None else 0


def weight_bytes(subject: TimedModel) -> tuple[int, bool]:
    """Return the bytes of a model's weight files, or of its tensors if there are no files."""
    if subject.folder is not None and subject.folder.is_dir():
        single = subject.folder / weights.SINGLE
        files = [single] if single.is_file() else sorted(subject.folder.glob("*.safetensors"))
        if size := sum(file.stat().st_size for file in files):
            return size, True
    tensors = {tensor.data_ptr(): tensor for tensor in subject.model.network.state_dict().values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()), False
