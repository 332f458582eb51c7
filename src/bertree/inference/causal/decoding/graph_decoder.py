"""A decoder's step as a CUDA graph: launching its operations one by one takes longer than computing them.

Shape letters: s sequences, one in each lane; v vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

FIRST_PLACES = 256  # places of each lane that a step attends to; twice as many whenever they are full


class StepDecoder(Protocol):
    """A decoder whose steps can be recorded: they change nothing but tensors that stay where they are."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each lane."""

    @property
    def capacity(self) -> int:
        """Tokens that a lane can hold."""

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> Tensor:
        """Read prompts and return the logits of their next tokens (s x v)."""

    def compute(self, ids_s: Tensor, places: int, even: bool) -> Tensor:
        """Compute a step without counting its tokens on the host.

        It attends to the first `places` of each lane; `even`: all lanes have so many tokens, the new one included."""

    def count(self, tokens: int) -> None:
        """Count tokens of every lane, on the host."""

    def rewind(self) -> None:
        """Take back the count on the device of a step that was computed."""

    def keep(self, lanes: Sequence[int]) -> None:
        """Go on with these lanes."""


class GraphDecoder:
    """Records the operations of a decoder's step as a CUDA graph and replays them."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder = decoder
        self._places = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ids_s = self._logits_sv = torch.empty(0)

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> Tensor:
        """Read prompts and return the logits of their next tokens."""
        return self.decoder.start(prompts, capacity)

    def step(self, ids_s: Tensor) -> Tensor:
        """Read the next token of every lane and return the logits of the token after it."""
        longest = max(self.decoder.lengths)
        if self._graph is None or (longest >= self._places and self._places < self.decoder.capacity):
            self._record(ids_s, longest)
        assert self._graph is not None
        self._ids_s.copy_(ids_s)
        self._graph.replay()
        self.decoder.count(1)
        return self._logits_sv

    def keep(self, lanes: Sequence[int]) -> None:
        """Go on with these lanes, in this order."""
        self.decoder.keep(lanes)
        self._graph = None

    def _record(self, ids_s: Tensor, longest: int) -> None:
        """Record a step that attends to more places than the longest lane has tokens.

        Before that it is computed twice, since what libraries set up on their first call must not be recorded. Nothing
        remains of it: the lanes' keys and values are written at places that the next step writes again.
        """
        places = FIRST_PLACES
        while places <= longest:
            places *= 2
        self._places = min(places, self.decoder.capacity)
        self._ids_s = ids_s.clone()
        with torch.cuda.device(ids_s.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.decoder.compute(self._ids_s, self._places, False)
                    self.decoder.rewind()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._logits_sv = self.decoder.compute(self._ids_s, self._places, False)
