"""Measure the speed of training steps, for several models in turns (for measure.py).

A step is forward pass, backward pass and AdamW of the encoder alone, on packed sequences of random tokens: in float32
on a CPU, in mixed precision on a GPU, not compiled. The weights are copies, so that the models stay as they are.
"""

import copy
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from bertree.batch import Batch
from bertree.comparison.timing import TimedModel
from bertree.tasks.logits import inference_autocast

Clock = Callable[[], float]
TOKENS = {"cpu": 512, "cuda": 32768}  # of a step
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
