"""Blocks of queries and keys for relative attention on the CPU, and their scores by distance.

A block's scores by distance are one product of queries and distances. Row i of it belongs to a query one place further
than row i - 1, so it is read as a product with keys through strides: each row begins one cell earlier. Nothing is
gathered or copied, and gradients go the other way through the same strides.

Shape letters: n heads, c sequences of a group, d head width, x distances.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 64  # queries of a block
CELLS = 2**20  # scores in memory at a time, unless one block of one head has more
ALIGNED = 16  # rows of scores are a multiple of it


class QueryBlock(NamedTuple):
    """Some queries of a sequence and the keys that one of them sees."""

    queries: slice
    keys: slice
    rows: int
    columns: int
    farthest: int  # distance of the last query and the first key
    reach: int  # the last column that row 0 sees; row i sees i more
    hidden: int  # columns before the first that row 0 sees, at most 0; row i does not see i more

    @property
    def pitch(self) -> int:
        """Cells of a row of distances."""
        return -(-(self.rows + self.columns - 1) // ALIGNED) * ALIGNED

    def shifted(self, cells: Tensor) -> Tensor:
        """View a product with distances (n x c rows x pitch) as one with keys (n c x rows x columns)."""
        count = cells.shape[0] * cells.shape[1] // self.rows
        strides = (self.rows * self.pitch, self.pitch - 1, 1)
        return cells.as_strided((count, self.rows, self.columns), strides, self.rows - 1)

    def hide(self, scores: Tensor) -> None:
        """Set the scores of keys that are not seen to -inf (... x rows x columns)."""
        after = scores[..., self.reach + 1 :]
        after.add_(after.new_full(after.shape[-2:], -torch.inf).triu_())
        before = scores[..., : max(0, self.rows - 1 + self.hidden)]
        before.add_(before.new_full(before.shape[-2:], -torch.inf).tril_(self.hidden - 1))

    def clear(self, weights: Tensor) -> None:
        """Set the weights of keys that are not seen to 0 (... x rows x columns)."""
        weights[..., self.reach + 1 :].tril_(-1)
        weights[..., : max(0, self.rows - 1 + self.hidden)].triu_(self.hidden)


def cut_blocks(queries: int, keys: int, left: int, right: int) -> list[QueryBlock]:
    """Cut a sequence into blocks, without queries that see no key."""
    shift, blocks = keys - queries, []
    blind = max(0, -shift - right) if right >= 0 else 0
    for first in range(blind, queries if keys else 0, ROWS):
        last = min(first + ROWS, queries)
        place = first + shift
        low = max(0, place - left) if left >= 0 else 0
        high = min(keys, last + shift + right) if right >= 0 else keys
        reach = place + right - low if right >= 0 else high
        hidden = place - left - low if left >= 0 else first - last
        cut = (slice(first, last), slice(low, high), last - first, high - low)
        blocks.append(QueryBlock(*cut, last - 1 + shift - low, reach, hidden))
    return blocks


def share_out(heads: int, count: int, cells: int) -> Iterator[tuple[slice, slice]]:
    """Share out heads and sequences so that a chunk has at most CELLS cells: whole heads, or a part of one."""
    fit = max(1, CELLS // cells)
    some_heads, some = (fit // count, count) if fit >= count else (1, fit)
    for head in range(0, heads, some_heads):
        for first in range(0, count, some):
            yield slice(head, min(head + some_heads, heads)), slice(first, min(first + some, count))


class DistanceRows(NamedTuple):
    """Rows of r from the farthest distance to the lowest, with zeros where r has none, for the blocks of a group."""

    rows_nxd: Tensor
    farthest: int
    given: slice  # of r, in its own order
    own: slice  # the same distances here

    @classmethod
    def of(cls, r_xnd: Tensor, lowest: int, blocks: list[QueryBlock]) -> "DistanceRows":
        """Lay out r for these blocks."""
        top = max(block.farthest for block in blocks)
        bottom = min(block.farthest - block.pitch + 1 for block in blocks)
        low, high = max(bottom, lowest), min(top, lowest + len(r_xnd) - 1)
        given, own = slice(low - lowest, high - lowest + 1), slice(top - high, top - low + 1)
        rows_nxd = r_xnd.new_zeros(r_xnd.shape[1], top - bottom + 1, r_xnd.shape[2])
        rows_nxd[:, own] = r_xnd[given].flip(0).transpose(0, 1)
        return cls(rows_nxd, top, given, own)

    def rows_of(self, block: QueryBlock) -> slice:
        """Return the rows for the distances of a block."""
        first = self.farthest - block.farthest
        return slice(first, first + block.pitch)
