"""The norms of an encoder, linear layers whose bias is added by the operation that follows, and initial weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bertree.model.architecture import Transformer
from bertree.model.torch_internals import has_forward_hooks

DRAWS = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.fill_, torch.Tensor.zero_}


def product_and_bias(linear: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's product, and its bias. Where it is more than a product and a sum (a subclass, hooks), the
    result is the layer's and there is no bias."""
    if type(linear) is not nn.Linear or has_forward_hooks(linear) or "forward" in vars(linear):
        return linear(x), None
    return F.linear(x, linear.weight), linear.bias


class RmsNorm(nn.RMSNorm):
    """x / root mean square of x, in the precision of the weights: under autocast in float32, as a layer norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Norm each token's state."""
        return F.rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)


# Width, epsilon and whether there is a bias -> the norm, for each value of the axis `norm`.
NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda width, eps, bias: nn.LayerNorm(width, eps=eps, bias=bias),
    "rms": lambda width, eps, bias: RmsNorm(width, eps=eps),  # has no bias
}


def build_norm(a: Transformer, width: int) -> nn.Module:
    """Build a norm of an encoder."""
    return NORMS[a.norm](width, a.norm_eps, a.norm_bias)


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
