"""Matrices as int8: one scale per row, a quarter of float32's bytes. For storage only: computation is in floats.

The range of a row ends at its largest magnitude. A smaller range, by a search for the least squared error, was tried on
trained weights and gained nothing: in most matrices no row had one, in the others the error fell by less than 0.1 %.

A scale keeps 16 significant bits, so that 127 times a scale is exact in float32. Then a matrix that was quantized once
is quantized to the same bytes again, and saving what was loaded changes nothing.
"""

import torch
from torch import Tensor

LARGEST = 127
TINY = torch.finfo(torch.float32).tiny  # the scale of a row of zeros


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers from -127 to 127, and the scale of each row."""
    assert matrix.ndim == 2, "only matrices have rows"
    matrix = matrix.float()
    steps = matrix.abs().amax(1) / LARGEST
    bits = steps.clamp(min=TINY).view(torch.int32)
    scale = (bits + 0x80).bitwise_and(~0xFF).view(torch.float32)  # to the nearest with its last eight bits 0
    return (matrix / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def dequantize(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return the matrix in float32."""
    return matrix.float() * scale.float()[:, None]
