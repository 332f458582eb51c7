"""A cache of keys and values, written in place: for generating one token at a time.

Shape letters: t tokens, s sequences, c lanes, m slots in a cache, n heads, d head width, q queries.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertree.batch import Batch
from bertree.model.encoder import State
from bertree.model.kernels.table import scores_by_distance
from bertree.model.layers.attention import Attention
from bertree.model.layers.positions import TokenPositions
from bertree.model.memory import KEYS, LENGTHS, VALUES, Spans, lanes_of


class CachePast:
    """The cache during one batch: where its keys and values are written, and what each query sees.

    A lane's slots are a ring: the oldest tokens are overwritten once there are more than it holds.
    """

    def __init__(self, state: State, batch: Batch) -> None:
        self.keys_lcnmd, self.values_lcnmd = state[KEYS], state[VALUES]
        self.batch, self.depth = batch, 0
        self.is_fresh = batch.continuation is None
        continuation, size = lanes_of(batch), self.keys_lcnmd.shape[3]
        past_s = torch.where(continuation.fresh, 0, state[LENGTHS][continuation.lanes])
        self.spans = spans = Spans.of(batch, continuation, past_s)
        self.lane_t, self.slot_t = spans.lane_s[spans.of_t], spans.position_t % size
        self.all_lanes = len(spans.lane_s) == self.keys_lcnmd.shape[1]
        end_s = past_s + spans.length_s
        newest_s1 = end_s[:, None] - 1
        slots_m = torch.arange(size, device=end_s.device)
        self.key_positions_sm = newest_s1 - (newest_s1 - slots_m) % size  # of the token in each slot; below 0: none
        self.token_positions = TokenPositions(
            spans.position_t, spans.position_t, size - 1, 0, batch.segments, batch.segments
        )
        self.lengths_c = state[LENGTHS].index_copy_(0, spans.lane_s, end_s)

    def layer(self, x_th: Tensor, read: Callable[[Tensor], Tensor]) -> "CachePast":
        """Go on to the next layer."""
        self.depth += 1
        return self

    def attend(self, attention: Attention, x_th: Tensor, prepared: Any) -> Tensor:
        """Write keys and values of a batch's tokens, and attend to all of their lanes."""
        keys_cnmd, values_cnmd = self.keys_lcnmd[self.depth - 1], self.values_lcnmd[self.depth - 1]
        q_tnd, k_tnd, v_tnd = attention.project(x_th)
        relative = None
        if attention.positions is not None:
            q_tnd, k_tnd, relative = attention.positions.change(q_tnd, k_tnd, prepared)
        keys_cnmd[self.lane_t, :, self.slot_t] = k_tnd.to(keys_cnmd.dtype)
        values_cnmd[self.lane_t, :, self.slot_t] = v_tnd.to(keys_cnmd.dtype)
        if self.is_fresh:
            return attention.attend_within(q_tnd, k_tnd, v_tnd, self.batch, relative)
        if not self.all_lanes:
            keys_cnmd, values_cnmd = keys_cnmd[self.spans.lane_s], values_cnmd[self.spans.lane_s]
        longest, spans = self.batch.max_seqlen, self.spans
        inside_t = spans.position_t - spans.past_s[spans.of_t]
        query_positions_sq = spans.past_s[:, None] + torch.arange(longest, device=x_th.device)
        mask_s1qm = (
            attention.mask.sees(query_positions_sq, self.key_positions_sm) & (self.key_positions_sm >= 0)[:, None]
        )[:, None]

        def by_sequence(x_tnd: Tensor) -> Tensor:
            if longest == 1:
                return x_tnd[:, :, None]
            x_sqnd = x_tnd.new_zeros(len(spans.past_s), longest, *x_tnd.shape[1:])
            x_sqnd[spans.of_t, inside_t] = x_tnd
            return x_sqnd.transpose(1, 2)

        if relative is not None:
            q_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
            rows_sqm = query_positions_sq[..., None] - self.key_positions_sm[:, None] - relative.lowest
            bias = scores_by_distance(by_sequence(qv_tnd).transpose(1, 2), r_xnd, rows_sqm)
            mask_s1qm = bias.masked_fill(~mask_s1qm, float("-inf"))
        mixed_snqd = scaled_dot_product_attention(by_sequence(q_tnd), keys_cnmd, values_cnmd, attn_mask=mask_s1qm)
        return mixed_snqd[:, :, 0] if longest == 1 else mixed_snqd.transpose(1, 2)[spans.of_t, inside_t]

    def state(self) -> State:
        """Return the cache for the next batch."""
        return {KEYS: self.keys_lcnmd, VALUES: self.values_lcnmd, LENGTHS: self.lengths_c}
