"""Rotate queries and keys that lie with the values in one tensor, on a GPU.

layers/positions.py uses it for rotary positions. torch.compile would build a new tensor from the rotated queries and
keys and the unchanged values, at a third of the memory's bandwidth. This kernel reads and writes every number once,
with the arithmetic in float32. The backward pass is the rotation by the opposite angle.

Shape letters: t tokens, n heads, d head width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

try:
    import triton
    import triton.language as tl
except ImportError:  # comes with PyTorch's CUDA builds
    triton = None


def rotate(qkv_t3nd: Tensor, cos_t1d: Tensor, sin_t1d: Tensor) -> Tensor:
    """Rotate components i and i + d / 2 of queries and keys by the angles whose cosine and sine are given."""
    out: Tensor = _rotate(qkv_t3nd.contiguous(), cos_t1d, sin_t1d, False)
    return out


def usable(x: Tensor, head_width: int) -> bool:
    """Return whether the kernel computes this for a tensor's device and precision."""
    power_of_two = head_width >= 4 and head_width & (head_width - 1) == 0
    return triton is not None and x.is_cuda and x.dtype != torch.float64 and power_of_two


def rotate_plainly(x_tnd: Tensor, cos_t1d: Tensor, sin_t1d: Tensor) -> Tensor:
    """Rotate components i and i + d / 2, by PyTorch's operators: the definition, and the version for other devices."""
    first, second = x_tnd.to(torch.promote_types(x_tnd.dtype, torch.float32)).chunk(2, -1)
    return torch.cat([first * cos_t1d - second * sin_t1d, second * cos_t1d + first * sin_t1d], -1).to(x_tnd.dtype)


def _plain(qkv_t3nd: Tensor, cos_t1d: Tensor, sin_t1d: Tensor, back: bool) -> Tensor:
    sin_t1d = -sin_t1d if back else sin_t1d
    return torch.cat([rotate_plainly(qkv_t3nd[:, :2], cos_t1d[:, None], sin_t1d[:, None]), qkv_t3nd[:, 2:]], 1)


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _turn(  # type: ignore[no-untyped-def]
        qkv, cos, sin, out, sign, HEADS: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, COPIED: tl.constexpr
    ):
        """One token: its rows are the heads of queries, keys and values."""
        token = tl.program_id(0).to(tl.int64)
        half = tl.arange(0, WIDTH // 2)
        c = tl.load(cos + token * (WIDTH // 2) + half)[None, :]
        s = sign * tl.load(sin + token * (WIDTH // 2) + half)[None, :]
        rows = tl.arange(0, TURNED)[:, None]
        live = rows < 2 * HEADS
        offset = token * (3 * HEADS * WIDTH) + rows * WIDTH + half[None, :]
        left = tl.load(qkv + offset, mask=live, other=0.0).to(tl.float32)
        right = tl.load(qkv + offset + WIDTH // 2, mask=live, other=0.0).to(tl.float32)
        tl.store(out + offset, left * c - right * s, mask=live)
        tl.store(out + offset + WIDTH // 2, right * c + left * s, mask=live)
        rows = tl.arange(0, COPIED)[:, None]
        live = rows < HEADS
        offset = token * (3 * HEADS * WIDTH) + (2 * HEADS + rows) * WIDTH + tl.arange(0, WIDTH)[None, :]
        tl.store(out + offset, tl.load(qkv + offset, mask=live), mask=live)


@custom_op("bertree::rotate", mutates_args=())
def _rotate(qkv_t3nd: Tensor, cos_t1d: Tensor, sin_t1d: Tensor, back: bool) -> Tensor:
    tokens, _, heads, width = qkv_t3nd.shape
    if not usable(qkv_t3nd, width):
        return _plain(qkv_t3nd, cos_t1d, sin_t1d, back)
    out_t3nd = torch.empty_like(qkv_t3nd)
    blocks = triton.next_power_of_2(2 * heads), triton.next_power_of_2(heads)  # rows that are rotated, copied
    cos, sin = cos_t1d.contiguous(), sin_t1d.contiguous()
    _turn[(tokens,)](qkv_t3nd, cos, sin, out_t3nd, -1.0 if back else 1.0, heads, width, *blocks)
    return out_t3nd


@_rotate.register_fake
def _(qkv_t3nd: Tensor, cos_t1d: Tensor, sin_t1d: Tensor, back: bool) -> Tensor:
    return torch.empty_like(qkv_t3nd)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.back = inputs[3]


def _back(ctx: Any, grad_t3nd: Tensor) -> tuple[Tensor, None, None, None]:
    return _rotate(grad_t3nd.contiguous(), *ctx.saved_tensors, not ctx.back), None, None, None


_rotate.register_autograd(_back, setup_context=_keep)
