"""Blocks of queries and keys for relative attention on the CPU, and their scores by distance.

A block's scores by distance are one product of queries and distances. Row i of it belongs to a query one position
further than row i - 1, so it is read as a product with keys through strides: each row begins one cell earlier. Nothing
is gathered or copied, and gradients go the other way through the same strides. Only where queries are not at
consecutive positions, scores are gathered.

Shape letters: n heads, c sequences of a group, d head width, x distances, q queries of a sequence, r those of a block,
k keys.
"""

from collections.abc import Iterator, Sequence
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

    def by_key(self, cells: Tensor, some: slice) -> Tensor:
        """View a product with distances (n x c rows x pitch) as one with keys (n c x rows x columns)."""
        count = cells.shape[0] * cells.shape[1] // self.rows
        strides = (self.rows * self.pitch, self.pitch - 1, 1)
        return cells.as_strided((count, self.rows, self.columns), strides, self.rows - 1)

    def empty(self, cells: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        """Return room for changes of a product with distances, 0 where they are of no key, and its view by keys."""
        changes = torch.empty_like(cells)
        changes[..., : self.rows - 1] = 0
        changes[..., self.columns :] = 0
        return changes, self.by_key(changes, some)

    def fill(self, changes: Tensor, by_key: Tensor, some: slice) -> None:
        """Complete the changes of a product with distances: those by keys are in them already."""

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


class ScatteredBlock(NamedTuple):
    """Some queries of each sequence of a group, at any positions, and all keys."""

    queries: slice
    keys: slice
    rows: int
    columns: int
    farthest: int  # the largest distance of a query and a key
    pitch: int  # distances
    cells_crk: Tensor  # the column of each key in each row of distances

    def by_key(self, cells: Tensor, some: slice) -> Tensor:
        """Read the scores of keys from a product with distances."""
        index, cells = self._index(cells, some)
        return cells.gather(-1, index).flatten(0, 1)

    def empty(self, cells: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        """Return zeros for changes of a product with distances, and room for changes by keys."""
        count = cells.shape[0] * cells.shape[1] // self.rows
        return torch.zeros_like(cells), cells.new_empty(count, self.rows, self.columns)

    def fill(self, changes: Tensor, by_key: Tensor, some: slice) -> None:
        """Write changes by keys to those of a product with distances."""
        index, changes = self._index(changes, some)
        changes.scatter_(-1, index, by_key.view(index.shape))

    def hide(self, scores: Tensor) -> None:
        """Leave the scores as they are: every key is seen."""

    def clear(self, weights: Tensor) -> None:
        """Leave the weights as they are."""

    def _index(self, cells: Tensor, some: slice) -> tuple[Tensor, Tensor]:
        index_crk = self.cells_crk[some]
        return index_crk.expand(len(cells), *index_crk.shape), cells.unflatten(1, index_crk.shape[:2])


Block = QueryBlock | ScatteredBlock


def cut_scattered(positions_cq: Tensor, keys: int) -> list[ScatteredBlock]:
    """Cut sequences whose queries are at any positions into blocks."""
    blocks, key_positions = [], torch.arange(keys)
    for first in range(0, positions_cq.shape[1] if keys else 0, ROWS):
        positions_cr = positions_cq[:, first : first + ROWS].long()
        farthest, nearest = int(positions_cr.max()), int(positions_cr.min()) + 1 - keys
        pitch = -(-(farthest - nearest + 1) // ALIGNED) * ALIGNED
        rows = positions_cr.shape[1]
        cells_crk = farthest - positions_cr[..., None] + key_positions
        blocks.append(
            ScatteredBlock(slice(first, first + rows), slice(0, keys), rows, keys, farthest, pitch, cells_crk)
        )
    return blocks


def cut_blocks(queries: int, keys: int, shift: int, left: int, right: int) -> list[QueryBlock]:
    """Cut a sequence whose queries start at position `shift` into blocks, without queries that see no key."""
    blocks = []
    blind = max(0, -shift - right) if right >= 0 else 0
    for first in range(blind, queries if keys else 0, ROWS):
        last = min(first + ROWS, queries)
        position = first + shift
        low = max(0, position - left) if left >= 0 else 0
        high = min(keys, last + shift + right) if right >= 0 else keys
        reach = position + right - low if right >= 0 else high
        hidden = position - left - low if left >= 0 else first - last
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
    source: slice  # of r, in its own order
    own: slice  # the same distances here

    @classmethod
    def of(cls, r_xnd: Tensor, lowest: int, blocks: Sequence[Block]) -> "DistanceRows":
        """Lay out r for these blocks."""
        top = max(block.farthest for block in blocks)
        bottom = min(block.farthest - block.pitch + 1 for block in blocks)
        low, high = max(bottom, lowest), min(top, lowest + len(r_xnd) - 1)
        source, own = slice(low - lowest, high - lowest + 1), slice(top - high, top - low + 1)
        rows_nxd = r_xnd.new_zeros(r_xnd.shape[1], top - bottom + 1, r_xnd.shape[2])
        rows_nxd[:, own] = r_xnd[source].flip(0).transpose(0, 1)
        return cls(rows_nxd, top, source, own)

    def rows_of(self, block: Block) -> slice:
        """Return the rows for the distances of a block."""
        first = self.farthest - block.farthest
        return slice(first, first + block.pitch)
