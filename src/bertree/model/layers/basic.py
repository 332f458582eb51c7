"""The norms of an encoder, and linear layers whose bias is added by the operation that follows."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from bertree.model.architecture import Transformer
from bertree.model.torch_internals import has_forward_hooks


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
