"""Bulk work in blocks: an engine starts workers, which compute blocks in any order; results are yielded in order.

Preparing a store and embedding many texts use it. Engines are `Here` (this process), worker processes (local.py) and a
Ray cluster (ray_cluster.py). The function that a worker calls is made in the worker itself, by `make(setup)`: a
tokenizer, a loaded model. Blocks do not depend on the engine or on the number of workers, so neither does any result.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeVar

from bertree.errors import UserError

Task = TypeVar("Task")
Setup = TypeVar("Setup")
Block = TypeVar("Block")
Result = TypeVar("Result")
BlockIn = TypeVar("BlockIn", contravariant=True)
ResultOut = TypeVar("ResultOut", covariant=True)


class Workers(Protocol[BlockIn, ResultOut]):
    """Workers that an engine has started."""

    @property
    def ahead(self) -> int:
        """Number of blocks to submit before waiting for the result of the oldest."""

    def submit(self, block: BlockIn) -> Callable[[], ResultOut]:
        """Take a block; return the function that waits for its result."""


class Engine(Protocol):
    """Where blocks are computed."""

    def start(
        self, make: Callable[[Setup], Callable[[Block], Result]], setup: Setup, device: str = "cpu"
    ) -> AbstractContextManager[Workers[Block, Result]]:
        """Start workers on a kind of device; they end with the context. `make`: a module-level function."""


class Caller(Generic[Block, Result]):
    """The only worker of `Here`: computes each block when it is submitted."""

    def __init__(self, function: Callable[[Block], Result]) -> None:
        self.function, self.ahead = function, 0

    def submit(self, block: Block) -> Callable[[], Result]:
        """Compute the block."""
        result = self.function(block)
        return lambda: result


class Here:
    """Computes blocks in this process."""

    @contextmanager
    def start(
        self, make: Callable[[Setup], Callable[[Block], Result]], setup: Setup, device: str = "cpu"
    ) -> Iterator[Workers[Block, Result]]:
        """Make the function, which this process calls."""
        yield Caller(make(setup))


HERE = Here()


def map_in_order(
    workers: Workers[Block, Result], tasks: Iterable[Task], block_of: Callable[[Task], Block]
) -> Generator[tuple[Task, Result], None, None]:
    """Yield each task with the result of its block, in order; only a few are in memory at once.

    If reading the tasks ends in a `UserError`, the results of the tasks before it are yielded first.
    """
    waiting: deque[tuple[Task, Callable[[], Result]]] = deque()

    def take() -> tuple[Task, Result]:
        task, result = waiting.popleft()
        return task, result()

    source, failure = iter(tasks), None
    while failure is None:
        try:
            task = next(source)
        except StopIteration:
            break
        except UserError as error:
            failure = error
            continue
        waiting.append((task, workers.submit(block_of(task))))
        while len(waiting) > workers.ahead:
            yield take()
    while waiting:
        yield take()
    if failure is not None:
        raise failure
