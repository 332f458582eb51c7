"""Two streams (XLNet): the tokens of a batch, and rows that predict some of them from their places.

The first t rows are the content stream, the other m rows the query stream. Keys and values come from memory and content
stream alone. A content row sees the tokens of its own rank or a lower one, a query row those of a lower rank; a memory
is seen by all. Everything but attention treats the rows alike.

Shape letters: t tokens, m tokens to predict, r rows of both streams, k keys, h width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.kernels.layout import Layout, Ranks
from bertree.model.kernels.table import attend
from bertree.model.layers.attention import Attention
from bertree.model.layers.positions import Places
from bertree.model.masks import Full
from bertree.model.past.memory import MemoryLayer, MemoryPast
from bertree.model.state import State


class TwoStreams:
    """What content and query rows of a batch see."""

    def __init__(self, batch: Batch, memory: MemoryPast | None) -> None:
        order = batch.permutation
        assert order is not None
        self.memory, self.tokens = memory, len(batch.ids)
        if memory is None:
            near = batch.max_seqlen - 1
            places = Places(
                batch.positions, batch.positions, near, near, batch.segments, batch.segments, batch.one_segment
            )
            content, ranks_k = Layout.of(batch, Full()), order.ranks
        else:
            places, content = memory.places, memory.layout(Full())
            ranks_k = memory.with_memory(order.ranks, -1)
        query_places_m = places.queries_t[order.queries]
        self.content = content._replace(ranks=Ranks(order.ranks + 1, ranks_k))
        self.queries = Layout(
            order.cu_queries,
            content.cu_k,
            order.max_queries,
            content.max_k,
            Full(),
            Ranks(order.ranks[order.queries], ranks_k),
            query_places_m.to(torch.int32),
        )
        self.places = places._replace(
            queries_t=torch.cat([places.queries_t, query_places_m]),
            query_segments_t=torch.cat([places.query_segments_t, places.query_segments_t[order.queries]]),
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

    def attend(self, part: Attention, x_rh: Tensor, prepared: Any) -> Tensor:
        """Attend from the rows of both streams to memory and content."""
        content_th = x_rh[: self.past.tokens]
        source_kh = content_th if self.memory is None else self.memory.source(content_th)
        q_rnd, k_knd, v_knd = part.project(x_rh, source_kh)
        assert part.positions is not None, "a query row knows nothing but its place"
        q_rnd, k_knd, relative = part.positions.change(q_rnd, k_knd, prepared)
        assert relative is not None, "places of queries need scores by distance"
        dropout = part.dropout if part.training else 0.0
        streams = ((slice(self.past.tokens), self.past.content), (slice(self.past.tokens, None), self.past.queries))
        return torch.cat(
            [attend(q_rnd[rows], k_knd, v_knd, layout, dropout, relative.of_queries(rows)) for rows, layout in streams]
        )
