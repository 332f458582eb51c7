"""Cut a packed stream into blocks of sequences of equal length, and join them again.

Shape letters: t tokens, n heads.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor


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
