"""Operators of our own: calls that a compiler sees as one and does not look into.

`torch.library.custom_op` does the same, but imports PyTorch's compiler when an operator is first called, two seconds of
CPU time for each command that trains. Operators that run without a compiler are declared here instead, with the
functions beneath it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import library


class Operator:
    """An operator by its name; made by `operator`."""

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self.name = name
        schema = library.infer_schema(kernel, mutates_args=())
        library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, "CompositeExplicitAutograd", kernel)
        space, _, own = name.partition("::")
        self._overload = getattr(getattr(torch.ops, space), own).default

    def __call__(self, *given: Any) -> Any:
        """Compute."""
        return self._overload(*given)

    def register_fake(self, fake: Callable[..., Any]) -> None:
        """Say what a result looks like: its shape, type and device."""
        library.register_fake(self.name, fake)

    def register_autograd(self, backward: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
        """Say how gradients are computed, and what is kept for it."""
        library.register_autograd(self.name, backward, setup_context=setup_context)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Declare a function as an operator that changes none of its arguments. `name`: bertree::something."""
    return lambda kernel: Operator(name, kernel)
