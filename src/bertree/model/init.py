"""TODO."""

from collections.abc import Sequence

import torch
from torch import nn


def _scale(writers: Sequence[nn.Linear], factor: float) -> None:
    """Smaller matrices where the residual is written, so that a sum over all depths starts as large as one term."""
    with torch.no_grad():
        for linear in writers:
            linear.weight.mul_(factor)


def initialise(module: nn.Module, std: float) -> None:
    """BERT's initial weights: normal matrices, zero biases, norms that do nothing."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(0.0, std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.zero_()
