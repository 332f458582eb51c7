"""Operators of our own: calls that a compiler sees as one and does not look into.

`torch.library.custom_op` does the same, but imports PyTorch's compiler when an operator is first called, two seconds of
CPU time for each command that trains. Operators that run without a compiler are declared here instead, with the
functions beneath it. What `custom_op` checks is not checked here: a result must not share memory with an argument, and
a name can be declared once.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import library

Fake = TypeVar("Fake", bound=Callable[..., Any])


def operator(name: str, differentiable: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Declare a function as an operator that changes none of its arguments.

    `name`: bertree::something; `fake_of` and `torch.library.register_autograd` take it too. `differentiable`: False for
    one whose gradient is refused."""

    def declare(kernel: Callable[..., Any]) -> Any:
        schema = library.infer_schema(kernel, mutates_args=())
        library.define(name, schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, "CompositeExplicitAutograd", kernel)
        if not differentiable:
            library.register_autograd(name, _refuse)
        space, _, own = name.partition("::")
        return getattr(getattr(torch.ops, space), own).default

    return declare


def fake_of(name: str) -> Callable[[Fake], Fake]:
    """Declare a function that says what an operator returns, for compilers: its shape, type and device."""

    def declare(fake: Fake) -> Fake:
        library.register_fake(name, fake)
        return fake

    return declare


def _refuse(ctx: Any, *grads: Any) -> Any:
    raise RuntimeError("a gradient of a gradient is not available here")
