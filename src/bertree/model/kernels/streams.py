"""Cut a packed stream into blocks of sequences of equal length, and join them again.

Shape letters: t tokens, n heads.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Stream(NamedTuple):
    """How to cut a stream of tokens into blocks of sequences of equal length, one per group."""

    sizes: list[tuple[int, int]]  # length and count of each group's sequences
    order_t: Tensor | None  # the order of tokens that brings groups together; None: they are

    def cut(self, x_tn: Tensor) -> list[Tensor]:
        """Return one block per group: count x heads x length (x head width)."""
        if self.order_t is not None:
            x_tn = x_tn[self.order_t]
        parts = x_tn.split([length * count for length, count in self.sizes])
        shaped = zip(parts, self.sizes, strict=True)
        return [x.unflatten(0, (count, length)).transpose(1, 2) for x, (length, count) in shaped]

    def join(self, parts: Sequence[Tensor], like_tn: Tensor) -> Tensor:
        """Join blocks to the stream."""
        if not parts:
            return torch.zeros_like(like_tn, memory_format=torch.contiguous_format)
        x_tn = torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])
        return x_tn if self.order_t is None else torch.zeros_like(like_tn).index_copy_(0, self.order_t, x_tn)


def cut_streams(cu_q: Tensor, cu_k: Tensor | None) -> tuple[Stream, Stream]:
    """Group the sequences by length, or by the lengths of queries and keys; return how to cut queries and keys."""
    lengths = cu_q.diff().tolist()
    if cu_k is None:
        order_t = None
        if any(a > b for a, b in pairwise(lengths)):
            order_t = _order(lengths, sorted(range(len(lengths)), key=lengths.__getitem__))
            lengths.sort()
        stream = Stream([(length, len(list(run))) for length, run in groupby(lengths) if length], order_t)
        return stream, stream
    pairs = list(zip(lengths, cu_k.diff().tolist(), strict=True))
    rows = sorted((row for row, pair in enumerate(pairs) if any(pair)), key=pairs.__getitem__)
    groups = [(pair, len(list(run))) for pair, run in groupby(pairs[row] for row in rows)]
    queries, keys = (
        Stream([(pair[side], count) for pair, count in groups], _order([pair[side] for pair in pairs], rows))
        for side in (0, 1)
    )
    return queries, keys


def _order(lengths: list[int], rows: list[int]) -> Tensor:
    """Return the tokens of sequences in another order of the sequences."""
    tokens = torch.arange(sum(lengths)).split(lengths)
    return torch.cat([tokens[row] for row in rows]) if rows else torch.arange(0)
