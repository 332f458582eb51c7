"""Attention by its definition, one query at a time, and random calls of it."""

from collections.abc import Callable

import torch
from torch import Tensor

from bertree.model.kernels.layout import Layout, RelativeScores
from bertree.model.masks import Causal, Full, Mask, Window

HEADS, WIDTH = 2, 8
MASKS: list[Mask] = [Full(), Causal(), Window(2, 1), Window(0, 0), Window(3, 0)]


def sees(mask: Mask, query: int, key: int) -> bool:
    """The masks, written out for one pair of places."""
    if isinstance(mask, Window):
        return query - mask.left <= key <= query + mask.right
    return key <= query or isinstance(mask, Full)


def definition(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, relative: RelativeScores | None = None
) -> Tensor:
    """Attention of each query alone, in float64."""
    q_tnd, k_tnd, v_tnd = q_tnd.double(), k_tnd.double(), v_tnd.double()
    rows = []
    for s in range(len(layout.cu_q) - 1):
        (q0, q1), (k0, k1) = layout.cu_q[s : s + 2].tolist(), layout.cu_k[s : s + 2].tolist()
        for i in range(q1 - q0):
            place = i + (k1 - k0) - (q1 - q0)
            seen = [j for j in range(k1 - k0) if sees(layout.mask, place, j)]
            q_nd, k_knd = q_tnd[q0 + i], k_tnd[[k0 + j for j in seen]]
            if relative is None:
                scores = torch.einsum("nd,knd->nk", q_nd, k_knd)
            else:
                r_knd = relative.r_xnd.double()[[place - j - relative.lowest for j in seen]]
                scores = torch.einsum("nd,knd->nk", q_nd + relative.u_nd, k_knd)
                scores = scores + torch.einsum("nd,knd->nk", q_nd + relative.v_nd, r_knd)
            scores = scores / q_tnd.shape[-1] ** 0.5
            rows.append(torch.einsum("nk,knd->nd", scores.softmax(-1), v_tnd[[k0 + j for j in seen]]))
    return torch.stack(rows) if rows else q_tnd


def layout_of(lengths: list[int], memory: list[int] | None, mask: Mask, device: str = "cpu") -> Layout:
    """Sequences of these lengths; `memory`: keys before the first query of each."""

    def bounds(sizes: list[int]) -> Tensor:
        return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32, device=device)

    cu_q = bounds(lengths)
    if memory is None:
        return Layout(cu_q, cu_q, max(lengths), max(lengths), mask)
    keys = [a + b for a, b in zip(lengths, memory, strict=True)]
    return Layout(cu_q, bounds(keys), max(lengths), max(keys), mask)


def random_qkv(layout: Layout, seed: int, width: int = WIDTH, spare: int = 0) -> list[Tensor]:
    """Queries, keys and values; `spare`: NaN rows of keys and values behind the last sequence."""
    draw = torch.Generator().manual_seed(seed)
    sizes = (int(layout.cu_q[-1]), int(layout.cu_k[-1]), int(layout.cu_k[-1]))
    q, *kv = (torch.randn(size, HEADS, width, generator=draw) for size in sizes)
    return [q, *(torch.cat([x, torch.full((spare, HEADS, width), torch.nan)]) for x in kv)]


def random_relative(layout: Layout, seed: int, width: int = WIDTH) -> tuple[list[Tensor], int]:
    """r, u and v for the distances that are seen, and the lowest of them."""
    draw = torch.Generator().manual_seed(seed)
    left, right = (layout.max_k if side < 0 else min(side, layout.max_k) for side in layout.mask.band)
    shapes = ((left + right + 1, HEADS, width), (HEADS, width), (HEADS, width))
    return [torch.randn(shape, generator=draw) for shape in shapes], -right


def with_gradients(work: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The result and the gradients of what is given, in float64."""
    leaves = [x.clone().requires_grad_() for x in given]
    out = work(*leaves)
    (out.double() * torch.linspace(1, 2, out.numel(), device=out.device).view(out.shape)).sum().backward()
    return [
        out.detach().double(),
        *(x.grad.double() if x.grad is not None else torch.zeros_like(x).double() for x in leaves),
    ]
