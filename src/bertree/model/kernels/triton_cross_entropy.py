"""The cross-entropy of a linear layer's logits, summed, with its gradients, without keeping the logits.

PyTorch keeps the logits, their float32 copy and the log-probabilities until the backward pass: for a large vocabulary
most of the memory and half of the time of a head. Here the gradient of the logits takes their place in the forward
pass, a chunk of rows at a time, and is multiplied out at once, so that only the gradients of the layer's inputs remain.
Sums are in float32, always in the same order.

Shape letters: m rows, h width, v vocabulary, n vocabulary padded to a multiple of `ROUND`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import register_autograd

from bertree.batch import IGNORED
from bertree.model.kernels.operators import fake_of, operator

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds
    triton = None

ROUND = 64  # matrices of an odd size are multiplied several times slower
CHUNK = 1 << 29  # logits that exist at the same time
BLOCK = 4096


def linear_cross_entropy(x_mh: Tensor, weight_vh: Tensor, bias_v: Tensor, targets_m: Tensor) -> Tensor:
    """Return the cross-entropy of x W^T + b, summed over the targets that are not -100, in float32."""
    kind = x_mh.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_mh.dtype
    if not (usable(x_mh) and torch.is_grad_enabled() and dtype != torch.float16):  # which has no small gradients
        logits_mv = F.linear(x_mh, weight_vh, bias_v)
        return F.cross_entropy(logits_mv.float(), targets_m, ignore_index=IGNORED, reduction="sum")
    tensors = [tensor.to(dtype) for tensor in (x_mh, weight_vh, bias_v)]
    with torch.autocast(kind, enabled=False):
        loss: Tensor = _linear_cross_entropy(*tensors, targets_m)[0]
    return loss


def usable(x: Tensor) -> bool:
    """Return whether the kernel computes this."""
    return triton is not None and x.is_cuda and x.dtype != torch.float64


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _rows(  # type: ignore[no-untyped-def]
        logits, targets, losses, SIZE: tl.constexpr, STRIDE: tl.constexpr, IGNORED: tl.constexpr, BLOCK: tl.constexpr
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        target = tl.load(targets + row)
        at = logits + row * STRIDE
        if target == IGNORED:
            for first in range(0, STRIDE, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                tl.store(at + columns, tl.zeros((BLOCK,), tl.float32), mask=columns < STRIDE)
            tl.store(losses + row, 0.0)
        else:
            top = tl.full((BLOCK,), -float("inf"), tl.float32)
            total = tl.zeros((BLOCK,), tl.float32)
            for first in range(0, SIZE, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                x = tl.load(at + columns, mask=columns < SIZE, other=-float("inf")).to(tl.float32)
                higher = tl.maximum(top, x)
                # Lanes beyond a short row have no finite value at all; they add nothing.
                base = tl.where(higher == -float("inf"), 0.0, higher)
                total = total * tl.exp(top - base) + tl.exp(x - base)
                top = higher
            largest = tl.max(top, 0)
            normalizer = largest + tl.log(tl.sum(total * tl.exp(top - largest), 0))
            tl.store(losses + row, normalizer - tl.load(at + target).to(tl.float32))
            for first in range(0, STRIDE, BLOCK):
                columns = first + tl.arange(0, BLOCK)
                x = tl.load(at + columns, mask=columns < SIZE, other=-float("inf")).to(tl.float32)
                gradient = tl.exp(x - normalizer) - tl.where(columns == target, 1.0, 0.0)
                tl.store(at + columns, gradient, mask=columns < STRIDE)


def _turn_into_gradients(logits_mn: Tensor, targets_m: Tensor, size: int) -> Tensor:
    """Replace logits by their gradients, and return the cross-entropy of each row; columns from `size` on are none."""
    if usable(logits_mn):
        losses_m = logits_mn.new_empty(len(logits_mn), dtype=torch.float32)
        _rows[(len(logits_mn),)](logits_mn, targets_m, losses_m, size, logits_mn.shape[1], IGNORED, BLOCK, num_warps=8)
        return losses_m
    log_mv = logits_mn[:, :size].float().log_softmax(-1)
    ignored_m = targets_m == IGNORED
    chosen_m1 = targets_m.masked_fill(ignored_m, 0)[:, None]
    losses_m = -log_mv.gather(1, chosen_m1)[:, 0].masked_fill(ignored_m, 0.0)
    gradient_mv = log_mv.exp().scatter_add_(1, chosen_m1, -torch.ones_like(log_mv[:, :1]))
    logits_mn[:, :size] = gradient_mv.masked_fill_(ignored_m[:, None], 0.0)
    logits_mn[:, size:] = 0.0
    return losses_m


@operator("bertree::linear_cross_entropy")
def _linear_cross_entropy(
    x_mh: Tensor, weight_vh: Tensor, bias_v: Tensor, targets_m: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss, and the gradients of the first three."""
    size, spare = len(weight_vh), -len(weight_vh) % ROUND
    weight_nh, bias_n = F.pad(weight_vh, (0, 0, 0, spare)), F.pad(bias_v, (0, spare))
    losses_m = x_mh.new_empty(len(x_mh), dtype=torch.float32)
    grad_mh = torch.empty_like(x_mh, memory_format=torch.contiguous_format)
    grad_nh = torch.zeros_like(weight_nh, dtype=torch.float32)
    grad_n = torch.zeros_like(bias_n, dtype=torch.float32)
    rows = max(1, CHUNK // len(weight_nh))
    for start in range(0, len(x_mh), rows):
        part = slice(start, start + rows)
        logits_mn = torch.addmm(bias_n, x_mh[part], weight_nh.T)
        losses_m[part] = _turn_into_gradients(logits_mn, targets_m[part], size)
        torch.mm(logits_mn, weight_nh, out=grad_mh[part])
        grad_nh += logits_mn.T @ x_mh[part]
        grad_n += logits_mn.sum(0, dtype=torch.float32)
    return losses_m.sum(), grad_mh, grad_nh[:size].to(weight_vh.dtype), grad_n[:size].to(bias_v.dtype)


@fake_of("bertree::linear_cross_entropy")
def _(x_mh: Tensor, weight_vh: Tensor, bias_v: Tensor, targets_m: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (x_mh, weight_vh, bias_v)]
    return x_mh.new_empty((), dtype=torch.float32), gradients[0], gradients[1], gradients[2]


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])


def _back(ctx: Any, grad: Tensor, *_unused: Tensor) -> tuple[Tensor | None, ...]:
    return *((grad * saved).to(saved.dtype) for saved in ctx.saved_tensors), None


register_autograd("bertree::linear_cross_entropy", _back, setup_context=_keep)
