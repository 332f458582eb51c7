"""Linear layers whose bias is added by what follows them."""

import torch.nn.functional as F
from torch import Tensor, nn


def product_and_bias(linear: nn.Module, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a linear layer's product, and its bias. Where it is more than a product and a sum (a subclass, hooks), the
    result is the layer's and there is no bias."""
    hooks = linear._forward_hooks or linear._forward_pre_hooks
    if type(linear) is not nn.Linear or hooks or "forward" in vars(linear):
        return linear(x), None
    return F.linear(x, linear.weight), linear.bias
