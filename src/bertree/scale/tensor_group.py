"""Collective operations of a tensor-parallel group inside a network, with gradients.

A component of a layer (attention, feed-forward) begins with one of a pair and ends with the other; each is the backward
pass of its partner (Shoeybi et al. 2019; Korthikanti et al. 2022):

    tokens on each rank      begins                                 ends
    all of them              `share`: copy; gradients are summed    `add`: sum; gradients are copied
    a share of them          `gather_rows`: gather; gradients       `add_rows`: sum and scatter; gradients are gathered
                             are summed and scattered

The tokens need not divide evenly: every rank has the same number of rows; those beyond the last token are padding
that no token sees.

Shape letters: t tokens, m chosen tokens, h width, v entries of the vocabulary; r rows of this rank.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx

from bertree.model.torch_internals import all_gather_rows, all_reduce, is_view, reduce_scatter_rows


class TensorRanks(Protocol):
    """The properties of a `World` that are needed here: the ranks that hold shards of the same tensors."""

    @property
    def tensor(self) -> int: ...
    @property
    def tensor_rank(self) -> int: ...
    @property
    def tensor_group(self) -> Any: ...


@dataclass(frozen=True)
class TensorGroup:
    """One rank's view of the ranks that hold shards of the same tensors."""

    name: str  # of the process group; unlike the group itself it can be traced by the compiler
    rank: int
    ranks: int
    sequence_parallel: bool = False  # between the components of layers each rank has a share of the tokens

    @classmethod
    def of(cls, world: TensorRanks, sequence_parallel: bool) -> "TensorGroup":
        """Return the group of a world."""
        return cls(world.tensor_group.group_name, world.tensor_rank, world.tensor, sequence_parallel)

    def rows(self, tokens: int) -> int:
        """Return the number of rows on each rank."""
        return ceil(tokens / self.ranks)

    def share(self, x: Tensor) -> Tensor:
        """Return a tensor that all ranks hold and each uses for its own shard: gradients are summed."""
        shared: Tensor = _Share.apply(x, self)
        return shared

    def add(self, x: Tensor) -> Tensor:
        """Return the sum over the ranks, which all ranks use in the same way."""
        total: Tensor = _Add.apply(x, self)
        return total

    def gather_rows(self, x_rh: Tensor, tokens: int) -> Tensor:
        """Return the tokens of all ranks, which each uses for its own shard: gradients are summed (t x h)."""
        x_th: Tensor = _GatherRows.apply(x_rh, self, tokens)
        return x_th

    def add_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's share of the sum over the ranks (r x h)."""
        x_rh: Tensor = _AddRows.apply(x_th, self)
        return x_rh

    def own_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's share of the tokens that all ranks hold (r x h)."""
        x_rh: Tensor = _OwnRows.apply(x_th, self)
        return x_rh

    def all_rows(self, x_rh: Tensor, tokens: int) -> Tensor:
        """Return the tokens of all ranks, which all ranks use in the same way (t x h)."""
        x_th: Tensor = _AllRows.apply(x_rh, self, tokens)
        return x_th

    def all_columns(self, x_mv: Tensor, columns: int) -> Tensor:
        """Return the columns of all ranks, which all ranks use in the same way (m x `columns`). Every rank has
        `ceil(columns / ranks)` of them, except that the last ranks may have fewer."""
        joined: Tensor = _AllColumns.apply(x_mv, self, columns)
        return joined

    # Without gradients:

    def sum(self, x: Tensor, operation: str = "sum") -> Tensor:
        """Return the sum, or another reduction, over the ranks."""
        return all_reduce(x.contiguous(), operation, self.name)

    def join_rows(self, x_rh: Tensor, tokens: int) -> Tensor:
        """Join the rows of all ranks, without the padding."""
        joined = all_gather_rows(x_rh.contiguous(), self.ranks, self.name)
        return joined if len(joined) == tokens else joined[:tokens]

    def sum_rows(self, x_th: Tensor) -> Tensor:
        """Return this rank's rows of the sum over the ranks."""
        padded = self._pad(x_th).contiguous()
        return reduce_scatter_rows(padded, self.ranks, self.name)

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


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(gradient), None


class _Add(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, group: TensorGroup) -> Tensor:
        return group.sum(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, x_rh: Tensor, group: TensorGroup, tokens: int) -> Tensor:
        ctx.group = group
        return group.join_rows(x_rh, tokens)

    @staticmethod
    def backward(ctx: Any, gradient_th: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.sum_rows(gradient_th), None, None


class _AddRows(Function):
    @staticmethod
    def forward(ctx: Any, x_th: Tensor, group: TensorGroup) -> Tensor:
        ctx.group, ctx.tokens = group, len(x_th)
        return group.sum_rows(x_th)

    @staticmethod
    def backward(ctx: Any, gradient_rh: Tensor) -> tuple[Tensor, None]:
        return ctx.group.join_rows(gradient_rh, ctx.tokens), None


class _OwnRows(Function):
    @staticmethod
    def forward(ctx: Any, x_th: Tensor, group: TensorGroup) -> Tensor:
        ctx.group, ctx.tokens = group, len(x_th)
        return group.take_rows(x_th)

    @staticmethod
    def backward(ctx: Any, gradient_rh: Tensor) -> tuple[Tensor, None]:
        return ctx.group.join_rows(gradient_rh, ctx.tokens), None


class _AllRows(Function):
    @staticmethod
    def forward(ctx: Any, x_rh: Tensor, group: TensorGroup, tokens: int) -> Tensor:
        ctx.group = group
        x_th = group.join_rows(x_rh, tokens)
        return x_th.clone() if is_view(x_th) else x_th  # FSDP2 warns of a network that returns a view

    @staticmethod
    def backward(ctx: Any, gradient_th: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.take_rows(gradient_th), None, None


class _AllColumns(Function):
    @staticmethod
    def forward(ctx: Any, x_mv: Tensor, group: TensorGroup, columns: int) -> Tensor:
        ctx.group, ctx.own, ctx.most = group, x_mv.shape[1], ceil(columns / group.ranks)
        return group.join_columns(x_mv, columns)

    @staticmethod
    def backward(ctx: Any, gradient_mv: Tensor) -> tuple[Tensor, None, None]:
        return gradient_mv.narrow(1, ctx.group.rank * ctx.most, ctx.own).contiguous(), None, None
