"""Relative attention (Transformer-XL, XLNet) on the CPU: sequences of equal lengths share a call, without padding.

Work goes in blocks of a few queries of each sequence and the keys that they see (`relative_blocks`), so memory does
not grow with the square of the length; the backward pass computes the scores again. Queries at consecutive positions
are cheapest; the scores of others are gathered and scattered.

Shape letters: t tokens, n heads, c sequences of a group, d head width, x distances, q queries of a sequence, k keys.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import register_autograd

from bertree.model.kernels.grouped import LengthGroups, cut_streams
from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.kernels.operators import fake_of, operator
from bertree.model.kernels.relative_groups import (
    Group,
    GroupGradients,
    GroupRanks,
    GroupSegments,
    backward,
    forward,
)
from bertree.model.masks import Causal, Full, SlidingWindow


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""
    assert relative is not None, "only for scores by distance"
    cu_k = layout.cu_k if layout.separate_keys else None
    qu_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
    numbers = (*(relative.segments or (None, None, None)), *(layout.ranks or (None, None)), layout.positions)
    tensors = (qu_tnd, qv_tnd, k_tnd, v_tnd, r_xnd, *numbers, layout.cu_q, cu_k)
    mixed_tnd: Tensor = _attend(*tensors, relative.lowest, *layout.mask.band)[0]
    return mixed_tnd


class Streams(NamedTuple):
    """The numbers of queries and keys in a call, and how to cut them into groups."""

    apart_tn: Tensor | None
    of_t: Tensor | None
    of_k: Tensor | None
    bounds_t: Tensor | None
    ranks_k: Tensor | None
    positions_t: Tensor | None
    queries: LengthGroups
    keys: LengthGroups
    is_scattered: bool

    @classmethod
    def cut(
        cls,
        apart_tn: Tensor | None,
        of_t: Tensor | None,
        of_k: Tensor | None,
        bounds_t: Tensor | None,
        ranks_k: Tensor | None,
        positions_t: Tensor | None,
        cu_q: Tensor,
        cu_k: Tensor | None,
    ) -> "Streams":
        """Group the sequences of a call."""
        first, is_scattered = None, False
        if positions_t is not None and len(positions_t):
            cu_k = cu_q if cu_k is None else cu_k
            first, is_scattered = _first_positions(positions_t, cu_q)
        elif cu_k is not None:
            first = (cu_k.diff() - cu_q.diff()).tolist()
        groups = cut_streams(cu_q, cu_k, first)
        return cls(apart_tn, of_t, of_k, bounds_t, ranks_k, positions_t, *groups, is_scattered)

    def groups(self, lowest: int, left: int, right: int) -> Iterator[Group]:
        """Yield what the queries of each group see, and their scores by segment."""
        exact = None if self.apart_tn is None else _precision(self.apart_tn)
        positions, bounds, of_q = (self._cut(self.queries, x) for x in (self.positions_t, self.bounds_t, self.of_t))
        ranks, of_k = (self._cut(self.keys, x) for x in (self.ranks_k, self.of_k))
        apart = [] if self.apart_tn is None else self.queries.cut(self.apart_tn.to(exact))
        for i, shift in enumerate(self.queries.shared):
            yield Group(
                shift,
                positions[i] if self.is_scattered else None,
                GroupRanks(bounds[i], ranks[i]) if bounds else None,
                GroupSegments(apart[i].transpose(0, 1), of_q[i], of_k[i]) if apart else None,
                lowest,
                (left, right),
            )

    @staticmethod
    def _cut(stream: LengthGroups, numbers_t: Tensor | None) -> list[Tensor]:
        """Return one number per token of each group (c x q or c x k)."""
        return [] if numbers_t is None else [x[:, 0] for x in stream.cut(numbers_t[:, None])]


def _first_positions(positions_t: Tensor, cu_q: Tensor) -> tuple[list[int], bool]:
    """Return the position of each sequence's first query, and whether some queries are not at consecutive positions; in
    that case the first positions are all 0."""
    inside_t = torch.arange(len(positions_t)) - cu_q[:-1].long().repeat_interleave(cu_q.diff())
    starts_t = positions_t.long() - inside_t
    firsts_s = starts_t[cu_q[:-1].long().clamp(max=len(positions_t) - 1)]
    if not torch.equal(starts_t, firsts_s.repeat_interleave(cu_q.diff())):
        return [0] * len(firsts_s), True
    return torch.where(cu_q.diff() > 0, firsts_s, 0).tolist(), False


@operator("bertree::grouped_relative_attention")
@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _attend(
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    r_xnd: Tensor,
    apart_tn: Tensor | None,
    of_t: Tensor | None,
    of_k: Tensor | None,
    bounds_t: Tensor | None,
    ranks_k: Tensor | None,
    positions_t: Tensor | None,
    cu_q: Tensor,
    cu_k: Tensor | None,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor]:
    streams = Streams.cut(apart_tn, of_t, of_k, bounds_t, ranks_k, positions_t, cu_q, cu_k)
    queries, keys = streams.queries, streams.keys
    exact = _precision(qu_tnd)
    outputs = [queries.new(x, exact) for x in (qu_tnd, qu_tnd[..., 0])]
    parts = [queries.split(x) for x in outputs]
    parts += [stream.cut(x) for stream, x in ((queries, qu_tnd), (queries, qv_tnd), (keys, k_tnd), (keys, v_tnd))]
    for group, vectors in zip(streams.groups(lowest, left, right), zip(*parts, strict=True), strict=True):
        out, sums, qu, qv, k, v = (x.transpose(0, 1).to(exact) for x in vectors)
        forward(out, sums, qu, qv, k, v, r_xnd.to(exact), group)
    # The second output, log-sum-exp of the scores, is what the backward pass needs instead of them.
    out_tnd, sums_tn = (queries.restore(x, len(qu_tnd)) for x in outputs)
    return out_tnd.to(qu_tnd.dtype), sums_tn


@operator("bertree::grouped_relative_attention_backward", differentiable=False)
@torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
def _attend_backward(
    grad_tnd: Tensor,
    qu_tnd: Tensor,
    qv_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    r_xnd: Tensor,
    apart_tn: Tensor | None,
    out_tnd: Tensor,
    sums_tn: Tensor,
    of_t: Tensor | None,
    of_k: Tensor | None,
    bounds_t: Tensor | None,
    ranks_k: Tensor | None,
    positions_t: Tensor | None,
    cu_q: Tensor,
    cu_k: Tensor | None,
    lowest: int,
    left: int,
    right: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    streams = Streams.cut(apart_tn, of_t, of_k, bounds_t, ranks_k, positions_t, cu_q, cu_k)
    queries, keys = streams.queries, streams.keys
    exact = _precision(qu_tnd)
    inputs = [(queries, qu_tnd), (queries, qv_tnd), (keys, k_tnd), (keys, v_tnd)]
    inputs += [] if apart_tn is None else [(queries, apart_tn)]
    gradients = [stream.new(x, exact) for stream, x in inputs]
    dr_xnd = torch.zeros_like(r_xnd, dtype=exact)
    grads = zip(*(stream.split(x) for (stream, _), x in zip(inputs, gradients, strict=True)), strict=True)
    by_query = (queries.cut(x) for x in (grad_tnd, qu_tnd, qv_tnd, out_tnd, sums_tn))
    parts = zip(*by_query, *(keys.cut(x) for x in (k_tnd, v_tnd)), strict=True)
    for group, to, vectors in zip(streams.groups(lowest, left, right), grads, parts, strict=True):
        to_qu, to_qv, to_k, to_v, *to_apart = (x.transpose(0, 1) for x in to)
        grad, qu, qv, out, sums, k, v = (x.transpose(0, 1).to(exact) for x in vectors)
        towards = GroupGradients(to_qu, to_qv, to_k, to_v, to_apart[0] if to_apart else None, dr_xnd)
        backward(towards, grad, qu, qv, out, sums, k, v, r_xnd.to(exact), group)
    dqu, dqv, dk, dv, *dapart = (
        stream.restore(x, len(like)).to(like.dtype) for x, (stream, like) in zip(gradients, inputs, strict=True)
    )
    return dqu, dqv, dk, dv, dr_xnd.to(r_xnd.dtype), dapart[0] if dapart else qu_tnd.new_empty(0)


def _precision(x: Tensor) -> torch.dtype:
    """Half precision is computed in float32."""
    return torch.promote_types(x.dtype, torch.float32)


@fake_of("bertree::grouped_relative_attention")
def _(qu_tnd: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    out_tnd = torch.empty_like(qu_tnd, memory_format=torch.contiguous_format)
    return out_tnd, qu_tnd.new_empty(qu_tnd.shape[:-1], dtype=_precision(qu_tnd))


@fake_of("bertree::grouped_relative_attention_backward")
def _(grad_tnd: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    apart_tn = grad_tnd.new_empty(0) if rest[5] is None else rest[5]
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (*rest[:5], apart_tn))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.settings = inputs[-3:]
    ctx.save_for_backward(*inputs[:6], *output, *inputs[6:-3])


def _back(ctx: Any, grad_tnd: Tensor, grad_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    *grads, apart_tn = _attend_backward(grad_tnd, *saved, *ctx.settings)
    return (*grads, None if saved[5] is None else apart_tn, *[None] * 10)


register_autograd("bertree::grouped_relative_attention", _back, setup_context=_keep)

KERNEL = Kernel(
    "grouped_relative",
    "sequences of equal lengths together, a few queries at a time",
    Supports(
        "cpu", (Full, Causal, SlidingWindow), separate_keys=True, relative=True, ranked=True, segments=True, plain=False
    ),
    attend,
)
