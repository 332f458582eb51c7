"""Random numbers of a rank's own, beside those that all ranks of a tensor-parallel group draw alike."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bertree.model.layers.reversible import RandomState


class RankRandom:
    """A stream of random numbers for each rank, seeded by a number from the common stream, which goes on afterwards as
    if nothing else had been drawn."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self._device = device
        seed = int(torch.randint(2**62, ()))
        self._common = RandomState.now(device)
        torch.manual_seed(seed ^ rank)  # neighbours of a seed are other streams
        self._own = RandomState.now(device)
        self._common.set(device)

    def begin(self) -> None:
        """Draw from this rank's own stream from now on."""
        self._common = RandomState.now(self._device)
        self._own.set(self._device)

    def end(self) -> None:
        """Draw from the common stream again."""
        self._own = RandomState.now(self._device)
        self._common.set(self._device)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from this rank's own stream."""
        self.begin()
        try:
            yield
        finally:
            self.end()
