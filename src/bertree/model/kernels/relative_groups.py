"""Relative attention of a group on the CPU: sequences of equal lengths, forward and backward, block by block.

Shape letters: n heads, c sequences of a group, d head width, x distances, q queries of a sequence, r those of a block,
k keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bertree.model.kernels.relative_blocks import Block, DistanceRows, cut_blocks, cut_scattered, share_out
from bertree.model.masks import SlidingWindow
from bertree.model.torch_internals import flash_attention_for_cpu


class GroupRanks(NamedTuple):
    """An order: queries see the keys whose rank is below their bound."""

    bounds_cq: Tensor
    ranks_ck: Tensor


class GroupSegments(NamedTuple):
    """Scores by segment."""

    apart_ncq: Tensor
    of_cq: Tensor
    of_ck: Tensor


class Group(NamedTuple):
    """Where the queries of a group are, what they see, and their scores by segment."""

    shift: int  # position of the first query, if they are at consecutive positions
    positions_cq: Tensor | None  # of scattered queries
    ranks: GroupRanks | None
    segments: GroupSegments | None
    lowest: int
    band: tuple[int, int]

    def cut(self, queries: int, keys: int) -> list[Block]:
        """Cut the group into blocks."""
        if self.positions_cq is not None:
            return [*cut_scattered(self.positions_cq, keys)]
        return [*cut_blocks(queries, keys, self.shift, *((-1, -1) if self.ranks else self.band))]

    def rules(self, block: Block) -> "BlockRules":
        """Return what changes the scores of a block."""
        differ_crk = None
        if self.segments is not None:
            apart_ncq, of_cq, of_ck = self.segments
            differ_crk = (of_cq[:, block.queries, None] != of_ck[:, None, block.keys]).to(apart_ncq.dtype)
        return BlockRules(block, self._hidden(block), differ_crk)

    def _hidden(self, block: Block) -> Tensor | None:
        """Return where queries of a block do not see a key (c x r x k); None: the block knows it."""
        if self.ranks is None and self.positions_cq is None:
            return None
        hidden = None
        if self.ranks is not None:
            hidden = self.ranks.ranks_ck[:, None, block.keys] >= self.ranks.bounds_cq[:, block.queries, None]
        if self.band == (-1, -1):
            return hidden
        keys = torch.arange(block.keys.start, block.keys.stop)
        positions = torch.arange(block.queries.start, block.queries.stop)[None] + self.shift
        if self.positions_cq is not None:
            positions = self.positions_cq[:, block.queries].long()
        everything = len(keys) + int(positions.max()) + 1
        window = SlidingWindow(*(everything if side < 0 else side for side in self.band))
        beyond = ~window.sees(positions, keys)
        return beyond if hidden is None else hidden | beyond


class BlockRules(NamedTuple):
    """What changes the scores of one block (n c x r x k); `some` are sequences of the group."""

    block: Block
    hidden_crk: Tensor | None
    differ_crk: Tensor | None

    def blind(self) -> Tensor | None:
        """Return the queries that see no key (c x r); None: there are none."""
        if self.hidden_crk is None:
            return None
        blind_cr = self.hidden_crk.all(-1)
        return blind_cr if blind_cr.any() else None

    def add_segments(
        self, scores: Tensor, segments: GroupSegments | None, own: tuple[slice, ...], scale: float
    ) -> None:
        """Add scores by segment."""
        if segments is not None and self.differ_crk is not None:
            apart_ncr = segments.apart_ncq[own]
            scores.unflatten(0, apart_ncr.shape[:2]).addcmul_(
                apart_ncr[..., None], self.differ_crk[own[1]], value=scale
            )

    def hide(self, scores: Tensor, some: slice, blind_cr: Tensor | None) -> None:
        """Set the scores of keys that are not seen to -inf; those of a query that sees none stay."""
        if self.hidden_crk is None:
            self.block.hide(scores)
            return
        hidden_crk = self.hidden_crk[some]
        if blind_cr is not None:
            hidden_crk = hidden_crk & ~blind_cr[some][..., None]
        scores.unflatten(0, (-1, len(hidden_crk))).masked_fill_(hidden_crk, -torch.inf)

    def clear(self, weights: Tensor, some: slice) -> None:
        """Set the weights of keys that are not seen to 0."""
        if self.hidden_crk is None:
            self.block.clear(weights)
            return
        hidden_crk = self.hidden_crk[some]
        weights.unflatten(0, (-1, len(hidden_crk))).masked_fill_(hidden_crk, 0.0)


def forward(
    out: Tensor, sums: Tensor, qu: Tensor, qv: Tensor, k: Tensor, v: Tensor, r_xnd: Tensor, group: Group
) -> None:
    """Mix the values of a group into `out` (all n x c x q x d), log-sum-exp of the scores into `sums` (n x c x q). That
    of a query that sees no key is infinite, so that all its weights are 0."""
    heads, count, queries, width = qu.shape
    blocks = group.cut(queries, k.shape[2])
    unseeing = blocks[0].queries.start if blocks else queries
    out[:, :, :unseeing], sums[:, :, :unseeing] = 0, torch.inf
    if not blocks:
        return
    distances, scale = DistanceRows.of(r_xnd, group.lowest, blocks), width**-0.5
    for block in blocks:
        rules, r_nxd = group.rules(block), distances.rows_nxd[:, distances.rows_of(block)]
        blind_cr = rules.blind()
        for chunk in share_out(heads, count, block.rows * block.pitch):
            own, seen = (*chunk, block.queries), (*chunk, block.keys)
            cells = torch.bmm((qv[own] * scale).flatten(1, 2), r_nxd[chunk[0]].mT)
            bias = block.by_key(cells, chunk[1])
            rules.add_segments(bias, group.segments, own, scale)
            rules.hide(bias, chunk[1], blind_cr)
            out[own], sums[own] = flash_attention_for_cpu(
                qu[own], k[seen], v[seen], attn_mask=bias.unflatten(0, qu[own].shape[:2])
            )
        if blind_cr is not None:
            out[:, :, block.queries].masked_fill_(blind_cr[..., None], 0.0)
            sums[:, :, block.queries].masked_fill_(blind_cr, torch.inf)


class GroupGradients(NamedTuple):
    """Where the gradients of a group are written; those of keys, values and r are added."""

    qu: Tensor
    qv: Tensor
    k: Tensor
    v: Tensor
    apart: Tensor | None
    r_xnd: Tensor


def backward(
    to: GroupGradients,
    grad: Tensor,
    qu: Tensor,
    qv: Tensor,
    out: Tensor,
    sums: Tensor,
    k: Tensor,
    v: Tensor,
    r_xnd: Tensor,
    group: Group,
) -> None:
    """Write the gradients of queries plus u and plus v, keys and values of a group (n x c x q or k x d); add that of
    r."""
    heads, count, queries, width = qu.shape
    blocks = group.cut(queries, k.shape[2])
    unseeing = blocks[0].queries.start if blocks else queries
    to.qu[:, :, :unseeing], to.qv[:, :, :unseeing] = 0, 0
    if to.apart is not None:
        to.apart[:, :, :unseeing] = 0
    dk, dv = (x.new_zeros(x.shape) for x in (k, v))
    if blocks:
        distances, scale = DistanceRows.of(r_xnd, group.lowest, blocks), width**-0.5
        dr_nxd = torch.zeros_like(distances.rows_nxd)
        # One more component: products with keys and values then subtract what a row has in common.
        qu, k = _wider(qu, sums / -scale), _wider(k, 1.0)
        grad, v = _wider(grad, -(grad * out).sum(-1)), _wider(v, 1.0)
    for block in blocks:
        rules, near = group.rules(block), distances.rows_of(block)
        for chunk in share_out(heads, count, block.rows * block.pitch):
            own, seen = (*chunk, block.queries), (*chunk, block.keys)
            q_block, k_block, grad_block, v_block = (
                _together(x[at]) for x, at in ((qu, own), (k, seen), (grad, own), (v, seen))
            )
            qv_block, r_nxd = qv[own].flatten(1, 2), distances.rows_nxd[chunk[0], near]
            cells = torch.bmm(qv_block, r_nxd.mT)
            scores = block.by_key(cells, chunk[1]).baddbmm_(q_block, k_block.mT, beta=scale, alpha=scale)
            rules.add_segments(scores, group.segments, own, scale)
            weights = scores.exp_()
            rules.clear(weights, chunk[1])
            _together(dv[seen]).baddbmm_(weights.mT, grad_block[..., :width])
            changes, by_key = block.empty(cells, chunk[1])
            by_key.baddbmm_(grad_block, v_block.mT, beta=0, alpha=scale).mul_(weights)
            block.fill(changes, by_key, chunk[1])
            if to.apart is not None and rules.differ_crk is not None:
                shaped = by_key.unflatten(0, to.apart[own].shape[:2])
                to.apart[own] = (shaped * rules.differ_crk[chunk[1]]).sum(-1)
            to.qu[own] = torch.bmm(by_key, k_block[..., :width]).view(to.qu[own].shape)
            to.qv[own] = torch.bmm(changes, r_nxd).view(to.qv[own].shape)
            _together(dk[seen]).baddbmm_(by_key.mT, q_block[..., :width])
            dr_nxd[chunk[0], near].baddbmm_(changes.mT, qv_block)
    to.k.copy_(dk)
    to.v.copy_(dv)
    if blocks:
        to.r_xnd[distances.source] += dr_nxd[:, distances.own].transpose(0, 1).flip(0)


def _wider(x: Tensor, last: Tensor | float) -> Tensor:
    """Append one component to each vector."""
    wider = x.new_empty(*x.shape[:-1], x.shape[-1] + 1)
    wider[..., :-1] = x
    wider[..., -1] = last
    return wider


def _together(x: Tensor) -> Tensor:
    """View heads and sequences as one dimension."""
    return x.view(-1, *x.shape[2:])
