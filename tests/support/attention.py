"""Attention by its definition, one sequence at a time, and random calls of it."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from bertree.model.kernels.layout import Layout, Ranks, RelativeScores
from bertree.model.masks import Causal, Full, Mask, SlidingWindow

HEADS, WIDTH = 2, 8
MASKS: list[Mask] = [Full(), Causal(), SlidingWindow(2, 1), SlidingWindow(0, 0), SlidingWindow(3, 0)]


def sees(mask: Mask, query: int, key: int) -> bool:
    """The masks, written out for one pair of places."""
    if isinstance(mask, SlidingWindow):
        return query - mask.left <= key <= query + mask.right
    return key <= query or isinstance(mask, Full)


def is_ranked(layout: Layout, query: int, key: int) -> bool:
    """The order, written out for one pair of rows."""
    return layout.ranks is None or int(layout.ranks.ranks_k[key]) < int(layout.ranks.bounds_t[query])


def definition(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, relative: RelativeScores | None = None
) -> Tensor:
    """Attention of each sequence alone, all scores at once, in float64."""
    parts = []
    for s in range(len(layout.cu_q) - 1):
        (q0, q1), (k0, k1) = layout.cu_q[s : s + 2].tolist(), layout.cu_k[s : s + 2].tolist()
        queries, keys = range(q0, q1), range(k0, k1)
        q_qnd, k_knd, v_knd = q_tnd[q0:q1].double(), k_tnd[k0:k1].double(), v_tnd[k0:k1].double()
        positions = [q - q0 + len(keys) - len(queries) for q in queries]
        if layout.positions is not None:
            positions = layout.positions[q0:q1].tolist()
        seen = [
            [sees(layout.mask, place, k - k0) and is_ranked(layout, q, k) for k in keys]
            for q, place in zip(queries, positions, strict=True)
        ]
        seen_qk = torch.tensor(seen, dtype=torch.bool).view(len(queries), len(keys))
        if relative is None:
            scores_nqk = torch.einsum("qnd,knd->nqk", q_qnd, k_knd)
        else:
            apart_qk = torch.tensor(positions, dtype=torch.int64)[:, None] - torch.arange(len(keys)) - relative.lowest
            r_qknd = relative.r_xnd.double()[apart_qk * seen_qk]
            scores_nqk = torch.einsum("qnd,knd->nqk", q_qnd + relative.u_nd, k_knd)
            scores_nqk = scores_nqk + torch.einsum("qnd,qknd->nqk", q_qnd + relative.v_nd, r_qknd)
            if relative.segments is not None:
                apart_tn, of_t, of_k = relative.segments
                scores_nqk = scores_nqk + apart_tn[q0:q1].T[..., None] * (of_k[k0:k1] != of_t[q0:q1, None])
        scores_nqk = (scores_nqk / q_tnd.shape[-1] ** 0.5).where(seen_qk, -torch.inf)
        some_q1 = seen_qk.any(-1, keepdim=True)
        weights_nqk = scores_nqk.where(some_q1, 0.0).softmax(-1) * seen_qk  # none where no key is seen
        parts.append(torch.einsum("nqk,knd->qnd", weights_nqk, v_knd))
    return torch.cat(parts)


def layout_of(lengths: list[int], memory: list[int] | None, mask: Mask, device: str = "cpu") -> Layout:
    """Sequences of these lengths; `memory`: keys before the first query of each."""

    def bounds(sizes: list[int]) -> Tensor:
        return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32, device=device)

    cu_q = bounds(lengths)
    if memory is None:
        return Layout(cu_q, cu_q, max(lengths), max(lengths), mask)
    keys = [a + b for a, b in zip(lengths, memory, strict=True)]
    return Layout(cu_q, bounds(keys), max(lengths), max(keys), mask)


def order(layout: Layout, seed: int, scattered: bool, ranked: bool = True) -> Layout:
    """Some queries of a layout's sequences at random places of their keys, in random order, and a random order of the
    keys; a few queries see no key. `scattered`: not at consecutive places."""
    draw = random.Random(seed)
    keys, queries, positions = layout.cu_k.diff().tolist(), [], []
    for wanted, keys_of in zip(layout.cu_q.diff().tolist(), keys, strict=True):
        first = draw.randint(0, max(0, keys_of - wanted))
        chosen = (
            sorted(draw.sample(range(keys_of), min(wanted, keys_of)))
            if scattered
            else range(first, min(keys_of, first + wanted))
        )
        queries.append(len(chosen))
        positions += chosen
    cu_q = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    ranks = [draw.randint(-1, 6) for _ in range(sum(keys) + 3)]
    bounds = [draw.randint(-1, 6) for _ in positions]
    ranks_ = Ranks(*(torch.tensor(x, dtype=torch.int32) for x in (bounds, ranks))) if ranked else None
    return layout._replace(
        cu_q=cu_q, max_q=max(queries), ranks=ranks_, positions=torch.tensor(positions, dtype=torch.int32)
    )


def random_segments(layout: Layout, seed: int) -> list[Tensor]:
    """Scores of queries by segment, and the segments of queries and keys."""
    draw = torch.Generator().manual_seed(seed)
    queries, keys = int(layout.cu_q[-1]), int(layout.cu_k[-1]) + 3
    of = [torch.randint(0, 3, (size,), generator=draw).to(torch.int32) for size in (queries, keys)]
    return [torch.randn(queries, HEADS, generator=draw), *of]


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


def with_gradients(work: Callable[..., Tensor], arguments: list[Tensor]) -> list[Tensor]:
    """The result and the gradients of what is given, in float64."""
    leaves = [x.clone().requires_grad_() for x in arguments]
    out = work(*leaves)
    (out.double() * torch.linspace(1, 2, out.numel(), device=out.device).view(out.shape)).sum().backward()
    return [
        out.detach().double(),
        *(x.grad.double() if x.grad is not None else torch.zeros_like(x).double() for x in leaves),
    ]
