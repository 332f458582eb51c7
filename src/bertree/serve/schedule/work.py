"""Jobs, the lanes they wait in, and what can happen to them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol


class Job(NamedTuple):
    """A piece of work that can share a batch with others of its lane."""

    tokens: int
    payload: Any


class Lane:
    """One kind of work of one model. A batch never mixes lanes."""

    def __init__(
        self, name: str, compute: Callable[[Sequence[Any]], Sequence[Any]], budget: int, at_once: int = 0
    ) -> None:
        """`compute`: payloads -> as many results. `budget`: tokens of a batch; a longer job is a batch of its own.
        `at_once`: batches computed at the same time; 0: one for each thread."""
        self.name, self.compute, self.budget, self.at_once = name, compute, budget, at_once
        self.running = 0  # batches being computed; the scheduler counts them


class Overloaded(Exception):
    """Too much work is waiting; try again after so many seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("too many requests are waiting")
        self.retry_after = max(1, math.ceil(retry_after))


class DeadlineExceeded(Exception):
    """A request was not done in its time."""


class Watch(Protocol):
    """What hears of the work that is done, for metrics."""

    def batch(self, lane: str, jobs: int, tokens: int, seconds: float) -> None:
        """Note a batch that was computed."""

    def waited(self, lane: str, tokens: int, seconds: float) -> None:
        """Note how long a request waited for its first batch."""

    def failed(self, lane: str, error: Exception) -> None:
        """Note a job that could not be computed."""
