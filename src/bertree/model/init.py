"""Initial weights."""

from collections.abc import Sequence

import torch
from torch import nn


def initialize(module: nn.Module, std: float) -> None:
    """Draw initial weights as BERT does: normal matrices and embeddings, zero biases. Norms keep PyTorch's. Other
    parameters that a module names in `drawn` are normal too."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(0.0, std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.zero_()
            for name in getattr(part, "drawn", ()):
                getattr(part, name).normal_(0.0, std)


def scale_weights(layers: Sequence[nn.Linear], factor: float) -> None:
    """Multiply the weights of linear layers by a factor."""
    with torch.no_grad():
        for linear in layers:
            linear.weight.mul_(factor)
