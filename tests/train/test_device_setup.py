"""How a batch is split into micro-batches."""

import time
from dataclasses import replace

import pytest
import torch

from bertree.config.sections import LARGEST_BATCH, Phase, RunSettings
from bertree.errors import UserError
from bertree.model.architecture import Transformer
from bertree.train.device_setup import CPU_TOKENS, DeviceSetup, micro_batch_count

CPU = DeviceSetup(torch.device("cpu"), False, False)


def count(tokens: int, max_length: int, placement: DeviceSetup = CPU, micro_tokens: int = 0) -> int:
    phase, run = Phase(1, max_length, tokens), RunSettings(micro_tokens=micro_tokens)
    return micro_batch_count(phase, run, placement, Transformer(), rate=0.15)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("limit", [0, 100, 1000, 4096])
@pytest.mark.parametrize("tokens", [1, 64, 8192, 8193, 30_000, 131_072, 131_071])
def test_as_few_as_fit(tokens: int, limit: int, compiled: bool) -> None:
    """Against the plain search: the fewest pieces that are small enough, or else the smallest that hold a sequence."""
    smallest = 128 * (1 if compiled else 2)
    counts = [n for n in range(1, max(1, tokens // smallest) + 1) if tokens % n == 0 or not compiled]
    expected = next((n for n in counts if tokens / n <= (limit or CPU_TOKENS)), counts[-1])
    assert count(tokens, 128, replace(CPU, compiled=compiled), limit) == expected


@pytest.mark.parametrize("tokens", [LARGEST_BATCH, LARGEST_BATCH - 5])  # which is prime
def test_large_batches_take_no_time(tokens: int) -> None:
    began = time.process_time()
    for compiled in (False, True):
        count(tokens, 128, replace(CPU, compiled=compiled))
    assert time.process_time() - began < 2


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"run\.device 'tpu7': cannot be used here"):
        DeviceSetup.from_settings(RunSettings(device="tpu7"))
