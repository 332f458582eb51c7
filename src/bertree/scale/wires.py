"""What the ranks of a tensor-parallel group tell each other inside a network, with gradients.

Two pairs, each the other's backward pass (Shoeybi et al. 2019; Korthikanti et al. 2022), where a part of a layer begins
and where it ends:

    all tokens on every rank     `share`: nothing forward, gradients are summed    `add`: sums forward, nothing backward
    a share of the tokens        `gather_rows`: gathered forward, gradients        `add_rows`: sums, of which each rank
                                 are summed and each rank keeps its share          keeps its share; gathered backward

Tokens need not divide evenly: all ranks have the same number of rows, the last ones with some beyond the last token,
which no token sees.

Shape letters: t tokens, m chosen tokens, h width, v entries of the vocabulary; r rows of this rank.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, ops
from torch.autograd.function import Function, FunctionCtx


class TensorRanks(Protocol):
    """What must be known of a world: the ranks that hold pieces of the same tensors."""

    @property
    def tensor(self) -> int: ...
    @property
    def tensor_rank(self) -> int: ...
    @property
    def tensor_group(self) -> Any: ...


@dataclass(frozen=True)
class Wires:
    """The connection of a rank to those that hold other pieces of the same tensors."""

    group: str  # its name: a compiler can trace it
    rank: int
    ranks: int
    sequence_parallel: bool = False  # between the parts of layers each rank has a share of the tokens

    @classmethod
    def of(cls, world: TensorRanks, sequence_parallel: bool) -> "Wires":
        """Return the wires of a world."""
        return cls(world.tensor_group.group_name, world.tensor_rank, world.tensor, sequence_parallel)

    def rows(self, tokens: int) -> int:
        """Return how many rows each rank has of so many tokens."""
        return ceil(tokens / self.ranks)

    def share(self, x: Tensor) -> Tensor:
        """Return a tensor that all ranks have, and each uses for its piece; its gradients are summed."""
        shared: Tensor = _Share.apply(x, self)
        return shared

    def add(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, which all use alike."""
        total: Tensor = _Add.apply(x, self)
        return total

    def gather_rows(self, x_rh: Tensor, tokens: int) -> Tensor:
        """Return all tokens of each rank's share, for a piece of each rank: gradients are summed (t x h)."""
        x_th: Tensor = _GatherRows.apply(x_rh, self, tokens)
        return x_th

    def add_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's share of the sum over the ranks (r x h)."""
        x_rh: Tensor = _AddRows.apply(x_th, self)
        return x_rh

    def own_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's share of tokens that all ranks have (r x h)."""
        x_rh: Tensor = _OwnRows.apply(x_th, self)
        return x_rh

    def all_rows(self, x_rh: Tensor, tokens: int) -> Tensor:
        """Return all tokens of each rank's share, which all use alike (t x h)."""
        x_th: Tensor = _AllRows.apply(x_rh, self, tokens)
        return x_th

    def all_columns(self, x_mv: Tensor, columns: int) -> Tensor:
        """Return the columns of all ranks, which all use alike (m x `columns`). Every rank has `ceil(columns / ranks)`,
        but the last ones, which may have fewer."""
        joined: Tensor = _AllColumns.apply(x_mv, self, columns)
        return joined

    # Without gradients:

    def sum(self, x: Tensor, operation: str = "sum") -> Tensor:
        """Return the sum, or another reduction, over the ranks."""
        return _wait(ops._c10d_functional.all_reduce(x.contiguous(), operation, self.group))

    def join_rows(self, x_rh: Tensor, tokens: int) -> Tensor:
        """Join the rows of all ranks, without those beyond the tokens."""
        joined = _wait(ops._c10d_functional.all_gather_into_tensor(x_rh.contiguous(), self.ranks, self.group))
        return joined if len(joined) == tokens else joined[:tokens]

    def sum_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's rows of the sum over the ranks."""
        padded = self._pad(x_th).contiguous()
        return _wait(ops._c10d_functional.reduce_scatter_tensor(padded, "sum", self.ranks, self.group))

    def take_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's rows."""
        rows = self.rows(len(x_th))
        return self._pad(x_th)[self.rank * rows : (self.rank + 1) * rows].clone()

    def join_columns(self, x_mv: Tensor, columns: int) -> Tensor:
        """Join the columns of all ranks."""
        most = ceil(columns / self.ranks)
        padded_mv = F.pad(x_mv, (0, most - x_mv.shape[1]))
        gathered = self.join_rows(padded_mv, self.ranks * len(x_mv)).unflatten(0, (self.ranks, -1))
        return gathered.transpose(0, 1).flatten(1)[:, :columns]

    def _pad(self, x_th: Tensor) -> Tensor:
        spare = self.rows(len(x_th)) * self.ranks - len(x_th)
        return F.pad(x_th, (0, 0, 0, spare)) if spare else x_th


def _wait(pending: Tensor) -> Tensor:
    done: Tensor = ops._c10d_functional.wait_tensor(pending)
    return done


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, wires: Wires) -> Tensor:
        ctx.wires = wires
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.wires.sum(gradient), None


class _Add(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, wires: Wires) -> Tensor:
        return wires.sum(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, x_rh: Tensor, wires: Wires, tokens: int) -> Tensor:
        ctx.wires = wires
        return wires.join_rows(x_rh, tokens)

    @staticmethod
    def backward(ctx: Any, gradient_th: Tensor) -> tuple[Tensor, None, None]:
        return ctx.wires.sum_rows(gradient_th), None, None


class _AddRows(Function):
    @staticmethod
    def forward(ctx: Any, x_th: Tensor, wires: Wires) -> Tensor:
        ctx.wires, ctx.tokens = wires, len(x_th)
        return wires.sum_rows(x_th)

    @staticmethod
    def backward(ctx: Any, gradient_rh: Tensor) -> tuple[Tensor, None]:
        return ctx.wires.join_rows(gradient_rh, ctx.tokens), None


class _OwnRows(Function):
    @staticmethod
    def forward(ctx: Any, x_th: Tensor, wires: Wires) -> Tensor:
        ctx.wires, ctx.tokens = wires, len(x_th)
        return wires.take_rows(x_th)

    @staticmethod
    def backward(ctx: Any, gradient_rh: Tensor) -> tuple[Tensor, None]:
        return ctx.wires.join_rows(gradient_rh, ctx.tokens), None


class _AllRows(Function):
    @staticmethod
    def forward(ctx: Any, x_rh: Tensor, wires: Wires, tokens: int) -> Tensor:
        ctx.wires = wires
        x_th = wires.join_rows(x_rh, tokens)
        return x_th.clone() if x_th._is_view() else x_th  # FSDP2 warns of a network that returns a view

    @staticmethod
    def backward(ctx: Any, gradient_th: Tensor) -> tuple[Tensor, None, None]:
        return ctx.wires.take_rows(gradient_th), None, None


class _AllColumns(Function):
    @staticmethod
    def forward(ctx: Any, x_mv: Tensor, wires: Wires, columns: int) -> Tensor:
        ctx.wires, ctx.own, ctx.most = wires, x_mv.shape[1], ceil(columns / wires.ranks)
        return wires.join_columns(x_mv, columns)

    @staticmethod
    def backward(ctx: Any, gradient_mv: Tensor) -> tuple[Tensor, None, None]:
        return gradient_mv.narrow(1, ctx.wires.rank * ctx.most, ctx.own).contiguous(), None, None
