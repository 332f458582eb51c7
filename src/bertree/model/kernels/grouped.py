"""Attention on the CPU: sequences of equal lengths share one call, without padding.

The lengths are read on the host, which a compiler cannot follow, so this is an operator of its own: the compiler sees
one opaque call, and new lengths cause no recompilation. Inside an operator there is no autograd, so forward and
backward call the CPU flash kernels that `scaled_dot_product_attention` would choose.

Shape letters: t tokens, n heads, d head width, q queries, k keys.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import register_autograd

from bertree.model.kernels.layout import Kernel, Layout, RelativeScores, Supports
from bertree.model.kernels.operators import fake_of, operator
from bertree.model.masks import Causal, CausalButSelf, Full, FullButSelf, SlidingWindow
from bertree.model.torch_internals import flash_attention_for_cpu, flash_attention_for_cpu_backward


class LengthGroups(NamedTuple):
    """How to cut a stream of tokens into blocks of sequences of equal length, one per group."""

    sizes: list[tuple[int, int]]  # length and count of each group's sequences
    order_t: Tensor | None  # the order of tokens that brings groups together; None: they are
    shared: list[int]  # the number that each group's sequences share

    def cut(self, x_tn: Tensor) -> list[Tensor]:
        """Return one block per group: count x heads x length (x head width)."""
        return self.split(x_tn if self.order_t is None else x_tn[self.order_t])

    def join(self, parts: Sequence[Tensor], like_tn: Tensor) -> Tensor:
        """Join blocks to a stream like another."""
        if not parts:
            return torch.zeros_like(like_tn, memory_format=torch.contiguous_format)
        return self.restore(torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts]), len(like_tn))

    def new(self, like_tn: Tensor, dtype: torch.dtype) -> Tensor:
        """Return an empty stream of the groups' tokens."""
        tokens = sum(length * count for length, count in self.sizes)
        return like_tn.new_empty(tokens, *like_tn.shape[1:], dtype=dtype)

    def split(self, x_tn: Tensor) -> list[Tensor]:
        """Return one view per group: count x heads x length (x head width); groups are together."""
        tokens = [length * count for length, count in self.sizes]
        shaped = zip(x_tn[: sum(tokens)].split(tokens), self.sizes, strict=True)
        return [x.view(count, length, *x.shape[1:]).transpose(1, 2) for x, (length, count) in shaped]

    def restore(self, x_tn: Tensor, rows: int) -> Tensor:
        """Return tokens, now group by group, in the order of the stream; zeros where it has no sequence."""
        if self.order_t is None and len(x_tn) == rows:
            return x_tn
        whole_tn = x_tn.new_zeros(rows, *x_tn.shape[1:])
        whole_tn[slice(len(x_tn)) if self.order_t is None else self.order_t] = x_tn
        return whole_tn


def cut_streams(
    cu_q: Tensor, cu_k: Tensor | None, numbers: list[int] | None = None
) -> tuple[LengthGroups, LengthGroups]:
    """Group the sequences by length, or by the lengths of queries and keys; return how to cut queries and keys.

    `numbers`: one for each sequence, the same for those of a group; None: all are 0."""
    lengths = cu_q.diff().tolist()
    if cu_k is None:
        order_t = _order(lengths, sorted(range(len(lengths)), key=lengths.__getitem__))
        lengths.sort()
        sizes = [(length, len(list(run))) for length, run in groupby(lengths) if length]
        stream = LengthGroups(sizes, order_t, [0] * len(sizes))
        return stream, stream
    kinds = list(zip(lengths, cu_k.diff().tolist(), numbers or [0] * len(lengths), strict=True))
    rows = sorted((row for row, kind in enumerate(kinds) if any(kind[:2])), key=kinds.__getitem__)
    groups = [(kind, len(list(run))) for kind, run in groupby(kinds[row] for row in rows)]
    queries, keys = (
        LengthGroups(
            [(kind[side], count) for kind, count in groups],
            _order([kind[side] for kind in kinds], rows),
            [kind[2] for kind, _ in groups],
        )
        for side in (0, 1)
    )
    return queries, keys


def _order(lengths: list[int], rows: list[int]) -> Tensor | None:
    """Return the tokens of sequences in another order of the sequences; None if it is the same."""
    if rows == sorted(rows):
        return None
    tokens = torch.arange(sum(lengths)).split(lengths)
    return torch.cat([tokens[row] for row in rows])


def attend(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, layout: Layout, dropout: float, relative: RelativeScores | None = None
) -> Tensor:
    """Queries, keys and values of packed sequences -> mixed values (t x n x d)."""
    cu_k = layout.cu_k if layout.separate_keys else None
    hides_self = isinstance(layout.mask, FullButSelf | CausalButSelf)
    mixed_tnd: Tensor = _attend(q_tnd, k_tnd, v_tnd, layout.cu_q, cu_k, *layout.mask.band, hides_self)[0]
    return mixed_tnd


def _mask(queries: int, keys: int, left: int, right: int, hides_self: bool, like: Tensor) -> tuple[bool, Tensor | None]:
    """Return what a query sees, as the CPU kernel takes it: a flag for causal, or a mask (q x k)."""
    if left < 0 and right < 0 and not hides_self:
        return False, None
    if left < 0 and right == 0 and queries == keys and not hides_self:
        return True, None
    window = SlidingWindow(*(keys + queries if side < 0 else side for side in (left, right)))
    seen = window.sees(torch.arange(keys - queries, keys), torch.arange(keys))
    mask = like.new_zeros(queries, keys).masked_fill_(~seen, float("-inf"))
    if hides_self:  # a score so low that it counts only where there is no other
        mask[:, keys - queries :].fill_diagonal_(-1e4)
    return False, mask


@operator("bertree::grouped_attention")
def _attend(
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    left: int,
    right: int,
    hides_self: bool,
) -> tuple[Tensor, Tensor]:
    queries, keys = cut_streams(cu_q, cu_k)
    scale_type, mixed = torch.promote_types(q_tnd.dtype, torch.float32), []
    for q, k, v in zip(queries.cut(q_tnd), keys.cut(k_tnd), keys.cut(v_tnd), strict=True):
        if not (q.shape[2] and k.shape[2]):  # the kernel would divide by zero
            mixed.append((torch.zeros_like(q), torch.zeros_like(q[..., 0], dtype=scale_type)))
            continue
        causal, mask = _mask(q.shape[2], k.shape[2], left, right, hides_self, q)
        mixed.append(flash_attention_for_cpu(q, k, v, is_causal=causal, attn_mask=mask))
    out_tnd = queries.join([out for out, _ in mixed], q_tnd)
    # The second output, log-sum-exp of the scores, is what the backward pass needs instead of them.
    return out_tnd, queries.join([scale for _, scale in mixed], q_tnd[..., 0].to(scale_type))


@operator("bertree::grouped_attention_backward", differentiable=False)
def _attend_backward(
    grad_tnd: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    out_tnd: Tensor,
    scale_tn: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    left: int,
    right: int,
    hides_self: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    queries, keys = cut_streams(cu_q, cu_k)
    grads: list[Sequence[Tensor]] = []
    cuts = (queries.cut(grad_tnd), queries.cut(q_tnd), keys.cut(k_tnd), keys.cut(v_tnd))
    for grad, q, k, v, *results in zip(*cuts, queries.cut(out_tnd), queries.cut(scale_tn), strict=True):
        if not (q.shape[2] and k.shape[2]):
            grads.append([torch.zeros_like(x) for x in (q, k, v)])
            continue
        causal, mask = _mask(q.shape[2], k.shape[2], left, right, hides_self, q)
        grads.append(flash_attention_for_cpu_backward(grad, q, k, v, *results, is_causal=causal, attn_mask=mask))
    q_grad = queries.join([grad[0] for grad in grads], q_tnd)
    return q_grad, keys.join([grad[1] for grad in grads], k_tnd), keys.join([grad[2] for grad in grads], v_tnd)


@fake_of("bertree::grouped_attention")
def _(q_tnd: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _like(q_tnd), _like(q_tnd[..., 0].to(torch.promote_types(q_tnd.dtype, torch.float32)))


@fake_of("bertree::grouped_attention_backward")
def _(grad_tnd: Tensor, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q_tnd), _like(k_tnd), _like(v_tnd)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_q, cu_k, *ctx.band = inputs
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k)


def _back(ctx: Any, grad_out: Tensor, grad_scale: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_attend_backward(grad_out, *ctx.saved_tensors, *ctx.band), None, None, None, None, None)


register_autograd("bertree::grouped_attention", _back, setup_context=_keep)

KERNEL = Kernel(
    "grouped",
    "sequences of equal lengths in one call each",
    Supports("cpu", (Full, Causal, SlidingWindow, FullButSelf, CausalButSelf), separate_keys=True),
    attend,
)
