"""Discrete choices of a layer, which must be the same when a reversible layer is computed again.

The input that is computed back differs from the first in the last digits. That changes sums as little, but may put a
token that lies between two buckets into the other one, which moves all tokens after it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_now = threading.local()  # the backward pass has a thread of its own on a GPU


class Choices:
    """The choices of a block, in their order: kept when it is computed first, then used again."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._next: int | None = None  # of those to be used again; None: they are being made

    def take(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the next choice."""
        if self._next is None:
            self._kept.append(compute().to(torch.int32))
            return self._kept[-1].long()
        self._next += 1
        return self._kept[self._next - 1].long()

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make the choices of this thread, or after the first time use them again."""
        _now.choices = self
        try:
            yield
        finally:
            _now.choices, self._next = None, 0


def chosen(compute: Callable[[], Tensor]) -> Tensor:
    """Return a choice in whole numbers (int64): that of the first computation, if a reversible layer is computed again.

    Where layers are compiled it is computed each time.
    """
    if torch.compiler.is_compiling():
        return compute()
    choices: Choices | None = getattr(_now, "choices", None)
    return compute() if choices is None else choices.take(compute)
