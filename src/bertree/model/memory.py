"""What attention sees besides the tokens of a batch: the memory of Transformer-XL, the streams of XLNet, and a cache.

A memory holds the inputs of the layers at the tokens next to each lane's segment. Keys and values are computed from
them again, so it is for training and for reading long texts segment by segment. It is an explicit state: `encode` takes
one and returns the next, and a batch's `continuation` says which sequence continues which lane. A lane reads its text
segment by segment, and its memory precedes the segment; or backwards, and its memory follows the segment. Rows of a
memory are ordered by their distance from the segment, the nearest last.

Two streams: the first t rows are the content stream, the other m rows the query stream, which predicts tokens of a
permutation from their positions. Keys and values come from memory and content stream alone. A content row sees the
tokens of its own rank or a lower one, a query row those of a lower rank; a memory is seen by all. Everything but
attention treats the rows alike.

A cache holds keys and values, and is written in place: for generating one token at a time.

Shape letters: t tokens, s sequences, c lanes, m tokens in a memory or to predict or slots in a cache, r rows of memory
and batch or of both streams, n heads, d head width, q queries, k keys, h width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertree.batch import Batch, Continuation
from bertree.model.encoder import State
from bertree.model.kernels.layout import Layout, Ranks
from bertree.model.kernels.operators import permute_rows
from bertree.model.kernels.table import attend, scores_by_distance
from bertree.model.layers.attention import Attention
from bertree.model.layers.positions import TokenPositions
from bertree.model.masks import Full, Mask

MEMORY, KEYS, VALUES, LENGTHS = "memory", "keys", "values", "lengths"


class Spans(NamedTuple):
    """The sequences of a batch and how far back each reaches."""

    lane_s: Tensor
    past_s: Tensor  # tokens of its lane that are seen before it
    length_s: Tensor
    of_t: Tensor  # the sequence of each token
    position_t: Tensor  # of each token in its lane, from the first token that is seen

    @classmethod
    def of(cls, batch: Batch, continuation: Continuation, past_s: Tensor) -> "Spans":
        """Return the spans of a batch."""
        of_t = batch.sequence_ids
        inside_t = torch.arange(len(batch.ids), device=of_t.device) - batch.cu_seqlens.long()[of_t]
        return cls(continuation.lanes, past_s, batch.lengths.long(), of_t, past_s[of_t] + inside_t)


def lanes_of(batch: Batch) -> Continuation:
    """Return how a batch continues another; if it does not say, every sequence starts a lane."""
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

    def __init__(
        self, state: State, batch: Batch, mask: Mask | None, starts_with_zeros: bool, looks_ahead: bool
    ) -> None:
        """`mask`: what queries see; None: what each attention says. `starts_with_zeros`: a fresh lane has a memory,
        of zeros. `looks_ahead`: queries see keys after them."""
        memory_lcmh, lengths_c = state[MEMORY], state[LENGTHS]
        continuation = lanes_of(batch)
        assert looks_ahead or continuation.backward is None, "the memory of a backward lane is ahead of its tokens"
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
        backward_s = torch.zeros_like(fresh_s) if continuation.backward is None else continuation.backward
        spans = Spans.of(batch, continuation, torch.where(backward_s, 0, past_s))
        keys_s = past_s + spans.length_s
        cu_k = torch.nn.functional.pad(keys_s.cumsum(0), (1, 0))

        away_m = size - torch.arange(size, device=device)  # how far from the segment each row is
        edge_s = torch.where(backward_s, spans.length_s, past_s)
        position_cm = _beside(edge_s[first_c], backward_s[first_c], away_m)
        seen_cm = away_m <= past_s[first_c][:, None]
        unseen_cm = cu_k[-1] + (~seen_cm).flatten().cumsum(0).view_as(seen_cm) - 1
        target_cm = torch.where(seen_cm, cu_k[first_c][:, None] + position_cm, unseen_cm)
        self.target_r = target_r = torch.cat([target_cm.flatten(), cu_k[spans.of_t] + spans.position_t])
        rows_r = torch.arange(len(target_r), device=device)
        self.order_r = torch.empty_like(target_r).scatter(0, target_r, rows_r)

        kept_s = spans.length_s if continuation.kept is None else continuation.kept
        edge_s = torch.where(backward_s, spans.length_s - kept_s, past_s + kept_s)
        self.lengths_c = (past_s + kept_s)[last_c].clamp(max=size)
        there_cm = away_m <= self.lengths_c[:, None]
        kept_position_cm = torch.where(there_cm, _beside(edge_s[last_c], backward_s[last_c], away_m), 0)
        self.kept_cm = self.order_r[cu_k[last_c][:, None] + kept_position_cm]
        self.memory_lcmh = memory_lcmh
        self.mask = mask
        self.bounds = (batch.cu_seqlens, cu_k.to(torch.int32), batch.max_seqlen, batch.max_seqlen + size)
        self.query_positions: tuple[Tensor, Tensor] | None = None
        if continuation.backward is not None:
            self.query_positions = spans.position_t.to(torch.int32), spans.past_s.to(torch.int32)
        near = batch.max_seqlen - 1
        self.token_positions = TokenPositions(
            queries_t=spans.position_t,
            keys_t=self.with_memory(spans.position_t, position_cm.clamp(min=0)),
            before=near + size,
            ahead=0 if not looks_ahead else near if continuation.backward is None else near + size,
            query_segments_t=batch.segments,
            key_segments_t=self.with_memory(batch.segments, 0),
            one_segment=batch.one_segment,
        )
        self.kept: list[Tensor] = []

    def layout(self, mask: Mask) -> Layout:
        """Return what the queries of a batch's tokens see, by the mask of an attention."""
        return Layout(*self.bounds, self.mask or mask, None, *(self.query_positions or ()))

    def with_memory(self, of_t: Tensor, of_cm: Tensor | int) -> Tensor:
        """Put numbers of a batch's tokens and of the memory's rows, or one for all of those, in the order of keys."""
        rows = self.memory_lcmh.shape[1] * self.memory_lcmh.shape[2]
        memory_x = of_cm.flatten() if isinstance(of_cm, Tensor) else of_t.new_full((rows,), of_cm)
        return torch.cat([memory_x, of_t])[self.order_r]

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

    def source(self, x_th: Tensor) -> Tensor:
        """Return the tokens that keys and values come from: those of the memory and the batch."""
        return permute_rows(torch.cat([self.memory_xh, x_th]), self.past.order_r, self.past.target_r)

    def attend(self, attention: Attention, x_th: Tensor, prepared: Any) -> Tensor:
        """Attend from a batch's tokens to those of the memory and the batch."""
        return attention.mix(*attention.project(x_th, self.source(x_th)), self.past.layout(attention.mask), prepared)


def _beside(edge_c: Tensor, backward_c: Tensor, away_m: Tensor) -> Tensor:
    """Return the positions of rows so far before an edge, or after it if the lane runs backwards (c x m)."""
    edge_c1 = edge_c[:, None]
    return torch.where(backward_c[:, None], edge_c1 - 1 + away_m, edge_c1 - away_m)


class TwoStreams:
    """What content and query rows of a batch see."""

    def __init__(self, batch: Batch, memory: MemoryPast | None) -> None:
        order = batch.permutation
        assert order is not None
        self.memory, self.tokens = memory, len(batch.ids)
        if memory is None:
            near = batch.max_seqlen - 1
            token_positions = TokenPositions(
                batch.positions, batch.positions, near, near, batch.segments, batch.segments, batch.one_segment
            )
            content, ranks_k = Layout.of(batch, Full()), order.ranks
        else:
            token_positions, content = memory.token_positions, memory.layout(Full())
            ranks_k = memory.with_memory(order.ranks, -1)
        query_positions_m = token_positions.queries_t[order.queries]
        self.content = content._replace(ranks=Ranks(order.ranks + 1, ranks_k))
        self.queries = Layout(
            order.cu_queries,
            content.cu_k,
            order.max_queries,
            content.max_k,
            Full(),
            Ranks(order.ranks[order.queries], ranks_k),
            query_positions_m.to(torch.int32),
        )
        self.token_positions = token_positions._replace(
            queries_t=torch.cat([token_positions.queries_t, query_positions_m]),
            query_segments_t=torch.cat(
                [token_positions.query_segments_t, token_positions.query_segments_t[order.queries]]
            ),
        )

    def layer(self, x_rh: Tensor, read: Callable[[Tensor], Tensor]) -> "TwoStreamLayer":
        """Go on to the next layer; the memory keeps content rows alone."""
        return TwoStreamLayer(self, None if self.memory is None else self.memory.layer(x_rh[: self.tokens], read))

    def state(self) -> State:
        """Return the memory for the next batch."""
        return {} if self.memory is None else self.memory.state()


class TwoStreamLayer(NamedTuple):
    """Both streams of one layer, as its attention reads them."""

    past: TwoStreams
    memory: MemoryLayer | None

    def attend(self, attention: Attention, x_rh: Tensor, prepared: Any) -> Tensor:
        """Attend from the rows of both streams to memory and content."""
        content_th = x_rh[: self.past.tokens]
        source_kh = content_th if self.memory is None else self.memory.source(content_th)
        q_rnd, k_knd, v_knd = attention.project(x_rh, source_kh)
        assert attention.positions is not None, "a query row knows nothing but its place"
        q_rnd, k_knd, relative = attention.positions.change(q_rnd, k_knd, prepared)
        assert relative is not None, "places of queries need scores by distance"
        dropout = attention.dropout if attention.training else 0.0
        streams = ((slice(self.past.tokens), self.past.content), (slice(self.past.tokens, None), self.past.queries))
        return torch.cat(
            [attend(q_rnd[rows], k_knd, v_knd, layout, dropout, relative.of_queries(rows)) for rows, layout in streams]
        )


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
