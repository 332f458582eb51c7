"""What a transformer sees of earlier batches: a memory of states, or a cache of keys and values.

Both are explicit states: `encode` takes one and returns the next. A batch's `continuation` says which sequence
continues which lane.

    memory    inputs of the layers at the last tokens of each lane (Transformer-XL). Keys and values are computed from
              them anew, so it is for training and for reading long texts segment by segment
    cache     keys and values of all tokens of each lane, written in place: for generating one token at a time

Shape letters: t tokens, s sequences, c lanes, m tokens in a memory or places in a cache, r rows of memory and batch
together, h width, n heads, d head width, q queries, k keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertree.batch import Batch, Continuation
from bertree.model.kernels.custom_ops import permute_rows
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.padded import scores_by_distance
from bertree.model.kernels.table import attend
from bertree.model.layers.attention import Attention
from bertree.model.layers.positions import Places
from bertree.model.masks import Mask
from bertree.model.state import State

MEMORY, KEYS, VALUES, LENGTHS = "memory", "keys", "values", "lengths"


class Spans(NamedTuple):
    """The sequences of a batch and how far back each reaches."""

    lane_s: Tensor
    past_s: Tensor  # tokens of its lane that are seen before it
    length_s: Tensor
    of_t: Tensor  # the sequence of each token
    place_t: Tensor  # of each token in its lane, from the first token that is seen

    @classmethod
    def of(cls, batch: Batch, continuation: Continuation, past_s: Tensor) -> "Spans":
        """Return the spans of a batch."""
        of_t = batch.sequence_ids
        inside_t = torch.arange(len(batch.ids), device=of_t.device) - batch.cu_seqlens.long()[of_t]
        return cls(continuation.lanes, past_s, batch.lengths.long(), of_t, past_s[of_t] + inside_t)


def lanes_of(batch: Batch) -> Continuation:
    """Return how a batch continues another; without a word of it, every sequence starts a lane."""
    if batch.continuation is not None:
        return batch.continuation
    count = len(batch.cu_seqlens) - 1
    lanes_s = torch.arange(count, device=batch.ids.device)
    return Continuation(lanes_s, torch.ones_like(lanes_s, dtype=torch.bool), count)


class MemoryPast:
    """The memory of a batch: which rows each sequence sees, and which are kept for the next batch.

    Shapes depend on the number of tokens and lanes alone, so that a compiled step is compiled once. Rows that nothing
    sees are at the end of the stream of keys.
    """

    def __init__(self, state: State, batch: Batch, mask: Mask | None, starts_with_zeros: bool) -> None:
        """`mask`: what queries see; None: what each attention says. `starts_with_zeros`: a fresh lane has a memory,
        of zeros."""
        memory_lcmh, lengths_c = state[MEMORY], state[LENGTHS]
        continuation = lanes_of(batch)
        count, size = memory_lcmh.shape[1:3]
        device = lengths_c.device
        lanes_c = torch.arange(count, device=device)
        first_c = torch.searchsorted(continuation.lanes, lanes_c)
        last_c = torch.searchsorted(continuation.lanes, lanes_c, right=True) - 1
        fresh_s, past_s = continuation.fresh, lengths_c[continuation.lanes]
        if starts_with_zeros:
            memory_lcmh = memory_lcmh * ~fresh_s[first_c][:, None, None]
            is_first_s = first_c[continuation.lanes] == torch.arange(len(fresh_s), device=device)
            past_s = torch.where(fresh_s, size * is_first_s, past_s)
        else:
            past_s = torch.where(fresh_s, 0, past_s)
        spans = Spans.of(batch, continuation, past_s)
        keys_s = past_s + spans.length_s
        cu_k = torch.nn.functional.pad(keys_s.cumsum(0), (1, 0))

        before_m = size - torch.arange(size, device=device)  # how far before the segment each row is
        seen_cm = before_m <= past_s[first_c][:, None]
        unseen_cm = cu_k[-1] + (~seen_cm).flatten().cumsum(0).view_as(seen_cm) - 1
        target_cm = torch.where(seen_cm, (cu_k[first_c] + past_s[first_c])[:, None] - before_m, unseen_cm)
        self.target_r = target_r = torch.cat([target_cm.flatten(), cu_k[spans.of_t] + spans.place_t])
        rows_r = torch.arange(len(target_r), device=device)
        self.order_r = torch.empty_like(target_r).scatter(0, target_r, rows_r)

        place_cm = keys_s[last_c][:, None] - before_m  # of the rows that are kept
        self.kept_cm = self.order_r[cu_k[last_c][:, None] + place_cm.clamp(min=0)]
        self.lengths_c = keys_s[last_c].clamp(max=size)
        self.memory_lcmh = memory_lcmh
        self.mask = mask
        self.bounds = (batch.cu_seqlens, cu_k.to(torch.int32), batch.max_seqlen, batch.max_seqlen + size)
        place_cm = (past_s[first_c][:, None] - before_m).clamp(min=0)
        key_places_r = torch.cat([place_cm.flatten(), spans.place_t])[self.order_r]
        segments_r = torch.cat([torch.zeros_like(target_cm).flatten(), batch.segments])[self.order_r]
        before = batch.max_seqlen + size - 1
        self.places = Places(spans.place_t, key_places_r, before, 0, batch.segments, segments_r)
        self.kept: list[Tensor] = []

    def layer(self, x_th: Tensor, read: Callable[[Tensor], Tensor]) -> "MemoryLayer":
        """Keep the inputs of the next layer, and return what its attention sees; `read` turns inputs of the layer into
        those of its attention."""
        memory_xh = self.memory_lcmh[len(self.kept)].flatten(0, 1).to(x_th.dtype)
        self.kept.append(torch.cat([memory_xh, x_th.detach()])[self.kept_cm])
        return MemoryLayer(self, read(memory_xh))

    def state(self) -> State:
        """Return the memory for the next batch."""
        return {MEMORY: torch.stack(self.kept), LENGTHS: self.lengths_c}


class MemoryLayer(NamedTuple):
    """The memory of one layer, as its attention reads it."""

    past: MemoryPast
    memory_xh: Tensor

    def attend(self, part: Attention, x_th: Tensor, prepared: Any) -> Tensor:
        """Attend from a batch's tokens to those of the memory and the batch."""
        source_rh = permute_rows(torch.cat([self.memory_xh, x_th]), self.past.order_r, self.past.target_r)
        return part.mix(
            *part.project(x_th, source_rh), Layout(*self.past.bounds, self.past.mask or part.mask), prepared
        )


class CachePast:
    """The cache during one batch: where its keys and values are written, and what each query sees.

    A lane's places are a ring: the oldest tokens are overwritten once there are more than it holds.
    """

    def __init__(self, state: State, batch: Batch) -> None:
        self.keys_lcnmd, self.values_lcnmd = state[KEYS], state[VALUES]
        self.batch, self.depth = batch, 0
        self.is_fresh = batch.continuation is None
        continuation, size = lanes_of(batch), self.keys_lcnmd.shape[3]
        past_s = torch.where(continuation.fresh, 0, state[LENGTHS][continuation.lanes])
        self.spans = spans = Spans.of(batch, continuation, past_s)
        self.lane_t, self.slot_t = spans.lane_s[spans.of_t], spans.place_t % size
        self.all_lanes = len(spans.lane_s) == self.keys_lcnmd.shape[1]
        end_s = past_s + spans.length_s
        newest_s1 = end_s[:, None] - 1
        slots_m = torch.arange(size, device=end_s.device)
        self.key_places_sm = newest_s1 - (newest_s1 - slots_m) % size  # of the token in each place; below 0: none
        self.places = Places(spans.place_t, spans.place_t, size - 1, 0, batch.segments, batch.segments)
        self.lengths_c = state[LENGTHS].index_copy_(0, spans.lane_s, end_s)

    def layer(self, x_th: Tensor, read: Callable[[Tensor], Tensor]) -> "CachePast":
        """Go on to the next layer."""
        self.depth += 1
        return self

    def attend(self, part: Attention, x_th: Tensor, prepared: Any) -> Tensor:
        """Write keys and values of a batch's tokens, and attend to all of their lanes."""
        keys_cnmd, values_cnmd = self.keys_lcnmd[self.depth - 1], self.values_lcnmd[self.depth - 1]
        q_tnd, k_tnd, v_tnd = part.project(x_th)
        relative = None
        if part.positions is not None:
            q_tnd, k_tnd, relative = part.positions.change(q_tnd, k_tnd, prepared)
        keys_cnmd[self.lane_t, :, self.slot_t] = k_tnd.to(keys_cnmd.dtype)
        values_cnmd[self.lane_t, :, self.slot_t] = v_tnd.to(keys_cnmd.dtype)
        if self.is_fresh:
            return attend(q_tnd, k_tnd, v_tnd, Layout.of(self.batch, part.mask), 0.0, relative)
        if not self.all_lanes:
            keys_cnmd, values_cnmd = keys_cnmd[self.spans.lane_s], values_cnmd[self.spans.lane_s]
        longest, spans = self.batch.max_seqlen, self.spans
        inside_t = spans.place_t - spans.past_s[spans.of_t]
        query_places_sq = spans.past_s[:, None] + torch.arange(longest, device=x_th.device)
        mask_s1qm = (part.mask.sees(query_places_sq, self.key_places_sm) & (self.key_places_sm >= 0)[:, None])[:, None]

        def by_sequence(x_tnd: Tensor) -> Tensor:
            if longest == 1:
                return x_tnd[:, :, None]
            x_sqnd = x_tnd.new_zeros(len(spans.past_s), longest, *x_tnd.shape[1:])
            x_sqnd[spans.of_t, inside_t] = x_tnd
            return x_sqnd.transpose(1, 2)

        if relative is not None:
            q_tnd, qv_tnd, r_xnd = relative.add_to(q_tnd)
            rows_sqm = query_places_sq[..., None] - self.key_places_sm[:, None] - relative.lowest
            bias = scores_by_distance(by_sequence(qv_tnd).transpose(1, 2), r_xnd, rows_sqm)
            mask_s1qm = bias.masked_fill(~mask_s1qm, float("-inf"))
        mixed_snqd = scaled_dot_product_attention(by_sequence(q_tnd), keys_cnmd, values_cnmd, attn_mask=mask_s1qm)
        return mixed_snqd[:, :, 0] if longest == 1 else mixed_snqd.transpose(1, 2)[spans.of_t, inside_t]

    def state(self) -> State:
        """Return the cache for the next batch."""
        return {KEYS: self.keys_lcnmd, VALUES: self.values_lcnmd, LENGTHS: self.lengths_c}


Past = MemoryPast | CachePast
