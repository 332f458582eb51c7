"""The parts of a network as one rank of a tensor-parallel group computes them: layers and the stack of them.

Shape letters: t tokens, h width; r rows of this rank.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.layers.attention import Attention
from bertree.model.past import Past, TwoStreams
from bertree.model.past.memory import MemoryLayer, MemoryPast
from bertree.model.past.two_streams import TwoStreamLayer
from bertree.model.stack import Stack
from bertree.scale.rank_random import RankRandom
from bertree.scale.wires import Wires


class PartialLinear(nn.Linear):
    """The last product of a part: this rank's term of a sum. The bias is added to the sum, once (`PartEnds`)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the product without the bias."""
        return F.linear(x, self.weight)


class PartEnds:
    """Hooks of a part: where all ranks begin with the same tokens, and where their terms are summed.

    `last` is the part's last product."""

    def __init__(self, wires: Wires, last: PartialLinear) -> None:
        self.wires, self.last = wires, last
        self._random: RankRandom | None = None

    def put_on(self, part: nn.Module) -> None:
        """Register the hooks."""
        part.register_forward_pre_hook(self.enter)
        part.register_forward_hook(self.leave)

    def enter(self, part: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give the part all tokens, and attention random numbers of this rank's own."""
        x, batch, *rest = given
        if self.wires.sequence_parallel:
            x_th = self.wires.gather_rows(x, rows_of(batch))
        else:
            x_th = self.wires.share(x)
            rest = [shared_memory(value, self.wires) for value in rest]
            if isinstance(part, Attention) and part.training and part.dropout and not torch.compiler.is_compiling():
                self._random = RankRandom(self.wires.rank, x_th.device)
                self._random.begin()
        return x_th, batch, *rest

    def leave(self, part: nn.Module, given: tuple[Any, ...], out_th: Tensor) -> Tensor:
        """Sum the terms of all ranks and add the bias."""
        if self._random is not None:
            self._random.end()
            self._random = None
        summed = self.wires.add_rows(out_th) if self.wires.sequence_parallel else self.wires.add(out_th)
        return summed if self.last.bias is None else summed + self.last.bias.to(summed.dtype)


def rows_of(batch: Batch) -> int:
    """Return how many rows a layer computes for a batch: its tokens, and those that predict a permutation's."""
    return len(batch.ids) + (0 if batch.permutation is None else len(batch.permutation.queries))


def shared_memory(past: Any, wires: Wires) -> Any:
    """Return what attention sees beside the batch, with gradients of a normed memory summed over the ranks."""
    if isinstance(past, TwoStreamLayer):
        return past._replace(memory=shared_memory(past.memory, wires))
    if isinstance(past, MemoryLayer) and past.memory_xh.requires_grad:
        return past._replace(memory_xh=wires.share(past.memory_xh))
    return past


class SequenceParallelStack(Stack):
    """Layers between whose parts each rank has a share of the tokens: norms, dropout and sums are of those alone."""

    wires: Wires

    def forward(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Iterator[Tensor]:
        """Yield the hidden states of all tokens after each layer."""
        drawn, tokens = self._random(x_th.device), len(x_th)
        states = super().forward(self.wires.own_rows(x_th), batch, self._whole(past, tokens))
        for _ in self.plan:
            with drawn():
                state_rh = next(states)
            yield self.wires.all_rows(state_rh, tokens)

    def last(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Tensor:
        """Return the hidden states of all tokens after the last layer."""
        with self._random(x_th.device)():
            state_rh = super().last(self.wires.own_rows(x_th), batch, self._whole(past, len(x_th)))
        return self.wires.all_rows(state_rh, len(x_th))

    def _random(self, device: torch.device) -> Callable[[], AbstractContextManager[None]]:
        """Return a context in which this rank draws random numbers of its own, if layers drop anything."""
        rates = [m.p for m in self.modules() if isinstance(m, nn.Dropout)]
        rates += [m.dropout for m in self.modules() if isinstance(m, Attention)]
        if not self.training or not any(rates):
            return nullcontext
        return RankRandom(self.wires.rank, device).drawn

    def _whole(self, past: Past | None, tokens: int) -> Past | None:
        remembers = past.memory is not None if isinstance(past, TwoStreams) else isinstance(past, MemoryPast)
        return cast(Past, WholeRows(past, self.wires, tokens)) if remembers else past  # type: ignore[arg-type]


class WholeRows:
    """A memory of all tokens, which is given a share of them."""

    def __init__(self, past: MemoryPast | TwoStreams, wires: Wires, tokens: int) -> None:
        self.past, self.wires, self.tokens = past, wires, tokens
        self.places = past.places

    def layer(self, x_rh: Tensor, read: Callable[[Tensor], Tensor]) -> MemoryLayer | TwoStreamLayer:
        """Go on to the next layer with the inputs of all ranks."""
        return self.past.layer(self.wires.join_rows(x_rh.detach(), self.tokens), read)
