"""Attention over the chunks of a line, for Reformer: by a Triton kernel where it can, else in PyTorch.

A line holds the tokens in slots, sorted by bucket, once for each round of hashing (order.py). Each head has its own
line, or all heads share one. A chunk is a block of slots that attends to itself and its neighbors.

The PyTorch version computes a group of chunks at a time. Forward and backward are operators of their own, which a
compiler does not look into. The backward pass needs queries, keys, values, the result, the largest score of each query
over all rounds and the sum of its weights; scores are computed again. (Largest score and sum are kept apart: the score
of a query that sees itself alone is so low that their log-sum would be inexact.) No sum depends on the order in which
threads finish: a chunk adds to each of its neighbors in turn, and rounds are added last.

Shape letters: t tokens, n heads, m heads that share a line, d head width, a lines, r rounds, c chunks, l slots, w
chunks that a chunk sees, g chunks of a group, i slots of a chunk, k slots that a chunk sees.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, threshold_
from torch.library import register_autograd

from bertree.model.kernels.chunks import triton_attend
from bertree.model.kernels.chunks.order import EMPTY, ChunkOrder, ChunkSettings
from bertree.model.kernels.operators import fake_of, operator

__all__ = ["ChunkOrder", "ChunkSettings", "attend_chunks", "unit_length"]

GROUP = 2**18  # scores that are computed at a time
_HIDDEN, _ITSELF = -1e9, -1e5  # scores of keys that are not seen, and of the query's own key
_LOWEST, _SMALLEST = -87.0, 1e-37  # exponent and weight of about the smallest normal number in float32


def _attend_in_pytorch(
    q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, order: ChunkOrder, settings: ChunkSettings, dropout: float = 0.0
) -> Tensor:
    """Queries, keys and values in the order of the stream -> mixed values (t x n x d)."""
    seed = torch.randint(2**62, (), device=q_tnd.device) if dropout else None
    mixed_tnd: Tensor = _attend(q_tnd, k_tnd, v_tnd, *order, seed, *settings, dropout)[0]
    return mixed_tnd


class _Group(NamedTuple):
    """Consecutive chunks of a line, of one round."""

    chunks: slice
    tokens_gi: Tensor
    positions_gi: Tensor
    seen_gw: Tensor  # the chunks that they see
    tokens_gk: Tensor  # in the slots of those
    positions_gk: Tensor
    times_gik: Tensor | None  # how often a query meets a key in all rounds; None: once
    number: int

    @property
    def slots(self) -> slice:
        """The slots of the chunks."""
        length = self.tokens_gi.shape[1]
        return slice(self.chunks.start * length, self.chunks.stop * length)


class _Line:
    """The line of one head, or of all: its chunks, group by group."""

    def __init__(self, order: ChunkOrder, line: int, heads: int, settings: ChunkSettings) -> None:
        self.settings, length = settings, settings.length
        self.tokens_l, self.slots_rt = order.tokens_al[line], order.slots_art[line]
        self.neighbors_cw, self.rounds = order.neighbors_cw, len(self.slots_rt)
        self.count = len(order.neighbors_cw)
        # A chunk of empty slots at the end, which is what index -1 (no neighbor) reads.
        tokens_ci, positions_ci = self.tokens_l.view(-1, length), order.positions_al[line].view(-1, length)
        self.tokens_ci = torch.cat([tokens_ci, torch.zeros_like(tokens_ci[:1])])
        self.positions_ci = torch.cat([positions_ci, torch.full_like(positions_ci[:1], EMPTY)])
        per_chunk = heads * length * length * order.neighbors_cw.shape[1]
        self.step = max(1, GROUP // per_chunk)
        self.counts = settings.counts_once and self.rounds > 1
        if self.counts:
            dtype = torch.int16 if self.count < 2**15 else torch.int32
            # The chunk in which a slot's token lies in each round.
            self.chunks_rci = (self.slots_rt // length).to(dtype)[:, self.tokens_ci]
            self.seen_cw = order.neighbors_cw.to(dtype)

    def groups(self) -> Iterator[_Group]:
        """Yield the chunks that are not empty."""
        per_round = self.count // self.rounds
        # The chunks of each round that no sequence needs are at its end.
        used = int((self.positions_ci[:per_round, 0] != EMPTY).sum()) if per_round else 0
        number = 0
        for round_number in range(self.rounds):
            start = round_number * per_round
            for first in range(start, start + used, self.step):
                yield self._group(slice(first, min(first + self.step, start + used)), round_number, number)
                number += 1

    def _group(self, chunks: slice, round_number: int, number: int) -> _Group:
        seen_gw, tokens_gi = self.neighbors_cw[chunks], self.tokens_ci[chunks]
        tokens_gk, positions_gk = self.tokens_ci[seen_gw].flatten(1), self.positions_ci[seen_gw].flatten(1)
        times_gik = self._times(chunks, seen_gw, round_number) if self.counts else None
        return _Group(chunks, tokens_gi, self.positions_ci[chunks], seen_gw, tokens_gk, positions_gk, times_gik, number)

    def _times(self, chunks: slice, seen_gw: Tensor, round_number: int) -> Tensor:
        """Count the rounds in which a query meets a key that it meets in this one (g x i x k)."""
        length = self.settings.length
        shape = (len(seen_gw), length, seen_gw.shape[1] * length)
        times_gik = self.seen_cw.new_ones(shape)
        same_gik = torch.empty_like(times_gik)  # not bool: comparisons into the numbers' own type are much faster
        for other_round in range(self.rounds):
            if other_round == round_number:
                continue
            seen_giw = self.seen_cw[self.chunks_rci[other_round, chunks].long()]
            chunks_gk = self.chunks_rci[other_round][seen_gw].flatten(1)
            for seen_gi in seen_giw.unbind(-1):
                times_gik += torch.eq(seen_gi[:, :, None], chunks_gk[:, None], out=same_gik)
        return times_gik


class _Tile:
    """The queries of a group, the keys that they see, and their scores."""

    def __init__(self, group: _Group, line: _Line, q_tmd: Tensor, k_tmd: Tensor) -> None:
        self.group, self.settings = group, line.settings
        self.q_gmid, self.k_gmkd = gather(q_tmd, group.tokens_gi), gather(k_tmd, group.tokens_gk)
        self.joined = line.rounds > 1 and not line.settings.counts_once
        self.scale = q_tmd.shape[-1] ** -0.5

    def scores(self) -> Tensor:
        """Return the scores (g x m x i x k), hidden where a query does not see a key."""
        group, settings = self.group, self.settings
        dtype = torch.promote_types(self.q_gmid.dtype, torch.float32)
        scores_gmik = (self.q_gmid * self.scale @ self.k_gmkd.transpose(-1, -2)).to(dtype)
        positions_g1i1, positions_g11k = group.positions_gi[:, None, :, None], group.positions_gk[:, None, None]
        # Adding a large negative number is several times faster than filling where a condition holds.
        if settings.causal:
            scores_gmik += (positions_g1i1.to(dtype) - positions_g11k.to(dtype)).clamp_(max=0.0).mul_(-_HIDDEN)
        else:
            scores_gmik += (positions_g11k == EMPTY) * _HIDDEN
        if settings.hides_self and self.joined:  # a token may also be in a neighbor, which is of another round
            scores_gmik.masked_fill_(positions_g11k == positions_g1i1, _ITSELF)
        elif settings.hides_self:
            scores_gmik[..., : settings.length].diagonal(dim1=-2, dim2=-1).fill_(_ITSELF)
        return scores_gmik

    def weigh(self, shifted_gmik: Tensor) -> Tensor:
        """Turn scores, less the largest, into weights, in place."""
        # Exponentials of lower numbers, and products of smaller ones, are many times slower on a CPU.
        weights_gmik = threshold_(shifted_gmik.clamp_(min=_LOWEST).exp_(), _SMALLEST, 0.0)
        if self.group.times_gik is not None:
            weights_gmik.div_(self.group.times_gik[:, None])
        return weights_gmik

    def dropout_factors(self, dropout: float, seed: Tensor | None, line: int) -> Tensor | None:
        """Return what attention's dropout multiplies weights by (g x m x i x k); both passes draw the same."""
        if seed is None:
            return None
        device = self.q_gmid.device
        number = (int(seed) + line * 2**32 + self.group.number) % 2**63
        generator = torch.Generator(device).manual_seed(number)
        shape = (*self.q_gmid.shape[:3], self.k_gmkd.shape[2])
        random_gmik = torch.rand(shape, generator=generator, device=device)
        return (random_gmik >= dropout).to(self.q_gmid.dtype).div_(1.0 - dropout)


def gather(x_tmd: Tensor, tokens_gi: Tensor) -> Tensor:
    """Return the rows of tokens by chunk and head (g x m x i x d)."""
    return x_tmd.index_select(0, tokens_gi.flatten()).unflatten(0, tokens_gi.shape).transpose(1, 2)


def _lines(order: ChunkOrder, heads: int, settings: ChunkSettings) -> Iterator[tuple[slice, _Line]]:
    """Yield the lines and the heads that each is for."""
    lines = len(order.tokens_al)
    per_line = heads // lines
    for line in range(lines):
        yield slice(line * per_line, (line + 1) * per_line), _Line(order, line, per_line, settings)


@operator("bertree::chunk_attention")
def _attend(
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    tokens_al: Tensor,
    positions_al: Tensor,
    slots_art: Tensor,
    neighbors_cw: Tensor,
    seed: Tensor | None,
    length: int,
    before: int,
    after: int,
    causal: bool,
    hides_self: bool,
    counts_once: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    order = ChunkOrder(tokens_al, positions_al, slots_art, neighbors_cw)
    settings = ChunkSettings(length, before, after, causal, hides_self, counts_once)
    dtype = torch.promote_types(q_tnd.dtype, torch.float32)
    mixed_tnd = torch.empty(q_tnd.shape, dtype=q_tnd.dtype, device=q_tnd.device)
    largest_tn, total_tn = (torch.empty(q_tnd.shape[:2], dtype=dtype, device=q_tnd.device) for _ in range(2))
    for number, (heads, line) in enumerate(_lines(order, q_tnd.shape[1], settings)):
        q_tmd, k_tmd, v_tmd = (x_tnd[:, heads].contiguous() for x_tnd in (q_tnd, k_tnd, v_tnd))
        mixed_lmd = q_tnd.new_empty(len(line.tokens_l), *q_tmd.shape[1:])
        largest_lm, total_lm = (mixed_lmd.new_empty(mixed_lmd.shape[:2], dtype=dtype) for _ in range(2))
        for group in line.groups():
            tile = _Tile(group, line, q_tmd, k_tmd)
            scores_gmik = tile.scores()
            largest_gmi1 = scores_gmik.amax(-1, keepdim=True)
            weights_gmik = tile.weigh(scores_gmik.sub_(largest_gmi1))
            total_gmi1 = weights_gmik.sum(-1, keepdim=True)
            factors_gmik = tile.dropout_factors(dropout, seed, number)
            weights_gmik = weights_gmik.to(q_tnd.dtype)
            weights_gmik = weights_gmik if factors_gmik is None else weights_gmik.mul_(factors_gmik)
            mixed_gmid = (weights_gmik @ gather(v_tmd, group.tokens_gk)).div_(total_gmi1)
            mixed_lmd[group.slots] = mixed_gmid.transpose(1, 2).flatten(0, 1)
            largest_lm[group.slots], total_lm[group.slots] = (
                x_gmi1[..., 0].transpose(1, 2).flatten(0, 1) for x_gmi1 in (largest_gmi1, total_gmi1)
            )
        largest_rtm, total_rtm = largest_lm[line.slots_rt], total_lm[line.slots_rt]
        largest_tm = largest_tn[:, heads] = largest_rtm.amax(0)
        total_rtm *= largest_rtm.sub_(largest_tm).exp_()
        total_tm = total_tn[:, heads] = total_rtm.sum(0)
        if line.rounds == 1:
            mixed_tnd[:, heads] = mixed_lmd[line.slots_rt[0]]
            continue
        mixed_tmd = torch.zeros_like(q_tmd, dtype=dtype)
        for slots_t, share_tm in zip(line.slots_rt, total_rtm.div_(total_tm), strict=True):
            mixed_tmd.addcmul_(mixed_lmd[slots_t].to(dtype), share_tm[..., None])
        mixed_tnd[:, heads] = mixed_tmd
    return mixed_tnd, largest_tn, total_tn


@operator("bertree::chunk_attention_backward", differentiable=False)
def _attend_backward(
    grad_tnd: Tensor,
    mixed_tnd: Tensor,
    largest_tn: Tensor,
    total_tn: Tensor,
    q_tnd: Tensor,
    k_tnd: Tensor,
    v_tnd: Tensor,
    tokens_al: Tensor,
    positions_al: Tensor,
    slots_art: Tensor,
    neighbors_cw: Tensor,
    seed: Tensor | None,
    length: int,
    before: int,
    after: int,
    causal: bool,
    hides_self: bool,
    counts_once: bool,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    order = ChunkOrder(tokens_al, positions_al, slots_art, neighbors_cw)
    settings = ChunkSettings(length, before, after, causal, hides_self, counts_once)
    dtype = total_tn.dtype
    grads = tuple(torch.empty(q_tnd.shape, dtype=q_tnd.dtype, device=q_tnd.device) for _ in range(3))
    for number, (heads, line) in enumerate(_lines(order, q_tnd.shape[1], settings)):
        q_tmd, k_tmd, v_tmd, g_tmd = (x_tnd[:, heads].contiguous() for x_tnd in (q_tnd, k_tnd, v_tnd, grad_tnd))
        g_tmd = (g_tmd / total_tn[:, heads, None]).to(q_tnd.dtype)  # instead of every weight
        inner_tm1 = (g_tmd.to(dtype) * mixed_tnd[:, heads]).sum(-1, keepdim=True)
        # The last chunk takes the gradients of neighbors that do not exist (-1).
        q_cimd, k_cimd, v_cimd = (q_tmd.new_zeros(line.count + 1, length, *q_tmd.shape[1:], dtype=dtype) for _ in grads)
        for group in line.groups():
            tile = _Tile(group, line, q_tmd, k_tmd)
            g_gmid, v_gmkd = gather(g_tmd, group.tokens_gi), gather(v_tmd, group.tokens_gk)
            largest_gmi1 = gather(largest_tn[:, heads, None], group.tokens_gi)
            largest_gmi1 = largest_gmi1.masked_fill((group.positions_gi == EMPTY)[:, None, :, None], float("inf"))
            weights_gmik = tile.weigh(tile.scores().sub_(largest_gmi1))
            grads_gmik = (g_gmid @ v_gmkd.transpose(-1, -2)).to(dtype)
            factors_gmik = tile.dropout_factors(dropout, seed, number)
            if factors_gmik is not None:
                grads_gmik.mul_(factors_gmik)
            grads_gmik.sub_(gather(inner_tm1, group.tokens_gi)).mul_(weights_gmik).mul_(tile.scale)
            grads_gmik, weights_gmik = grads_gmik.to(q_tnd.dtype), weights_gmik.to(q_tnd.dtype)
            weights_gmik = weights_gmik if factors_gmik is None else weights_gmik.mul_(factors_gmik)
            q_cimd[group.chunks] = (grads_gmik @ tile.k_gmkd).transpose(1, 2).to(dtype)
            for x_cimd, x_gmkd in (
                (k_cimd, grads_gmik.transpose(-1, -2) @ tile.q_gmid),
                (v_cimd, weights_gmik.transpose(-1, -2) @ g_gmid),
            ):
                x_gwimd = x_gmkd.transpose(1, 2).unflatten(1, (-1, length))
                for column in range(x_gwimd.shape[1]):
                    x_cimd.index_add_(0, group.seen_gw[:, column] % (line.count + 1), x_gwimd[:, column].to(dtype))
        for out_tnd, x_cimd in zip(grads, (q_cimd, k_cimd, v_cimd), strict=True):
            x_lmd, sum_tmd = x_cimd.flatten(0, 1), torch.zeros_like(q_tmd, dtype=dtype)
            for slots_t in line.slots_rt:
                sum_tmd += x_lmd[slots_t]
            out_tnd[:, heads] = sum_tmd
    return grads[0], grads[1], grads[2]


@fake_of("bertree::chunk_attention")
def _(q_tnd: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(q_tnd.dtype, torch.float32)
    largest_tn = q_tnd.new_empty(q_tnd.shape[:2], dtype=dtype)
    return q_tnd.new_empty(q_tnd.shape), largest_tn, torch.empty_like(largest_tn)


@fake_of("bertree::chunk_attention_backward")
def _(
    grad_tnd: Tensor, mixed_tnd: Tensor, largest_tn: Tensor, total_tn: Tensor, q_tnd: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q_tnd.new_empty(q_tnd.shape), q_tnd.new_empty(q_tnd.shape), q_tnd.new_empty(q_tnd.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output, *inputs[:8])
    ctx.settings = inputs[8:]


def _back(ctx: Any, grad_tnd: Tensor, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    grads = _attend_backward(grad_tnd, *ctx.saved_tensors, *ctx.settings)
    return (*grads, *(None,) * (5 + len(ctx.settings)))


register_autograd("bertree::chunk_attention", _back, setup_context=_keep)


def attend_chunks(
    q_tnd: Tensor, k_tnd: Tensor | None, v_tnd: Tensor, order: ChunkOrder, settings: ChunkSettings, dropout: float = 0.0
) -> Tensor:
    """Queries, keys and values in the order of the stream -> mixed values (t x n x d). Scores are divided by sqrt(d).

    `k_tnd`: None: the queries at unit length. Scores are not kept, but computed again in the backward pass.
    """
    if not triton_attend.refusal(q_tnd, dropout):
        return triton_attend.attend(q_tnd, k_tnd, v_tnd, order, settings)
    return _attend_in_pytorch(q_tnd, unit_length(q_tnd) if k_tnd is None else k_tnd, v_tnd, order, settings, dropout)


def unit_length(q_tnd: Tensor) -> Tensor:
    """Return queries as keys: of unit length, once scores are divided by sqrt(d)."""
    dtype = torch.promote_types(q_tnd.dtype, torch.float32)
    return q_tnd * (q_tnd.to(dtype).square().mean(-1, keepdim=True) + 1e-6).rsqrt().to(q_tnd.dtype)
