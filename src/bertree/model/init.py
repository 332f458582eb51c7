"""Initial weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

DRAWS = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.fill_, torch.Tensor.zero_}


@contextmanager
def without_weights() -> Iterator[None]:
    """Build networks on the meta device, and leave out their initial values.

    PyTorch draws random numbers for the meta device in Python: it imports its compiler first, which takes seconds.
    """
    with torch.device("meta"), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if func in DRAWS or getattr(func, "__module__", "") == nn.init.__name__:
            tensor = keywords["tensor"] if "tensor" in keywords else args[0]
            if tensor.is_meta:
                return tensor
        return func(*args, **keywords)


def initialize(module: nn.Module, std: float) -> None:
    """Draw initial weights as BERT does: normal matrices and embeddings, zero biases. Norms keep PyTorch's. Other
    parameters that a module names in `drawn` are normal too."""
    with torch.no_grad():
        for component in module.modules():
            if isinstance(component, nn.Linear | nn.Embedding):
                component.weight.normal_(0.0, std)
            if isinstance(component, nn.Linear) and component.bias is not None:
                component.bias.zero_()
            for name in getattr(component, "drawn", ()):
                getattr(component, name).normal_(0.0, std)


def scale_weights(layers: Sequence[nn.Linear], factor: float) -> None:
    """Multiply the weights of linear layers by a factor."""
    with torch.no_grad():
        for linear in layers:
            linear.weight.mul_(factor)
