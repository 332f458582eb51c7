"""The layers of an encoder, applied in order; reversible layers keep no input.

Attention and feed-forward blocks are stored in two lists, and `sharing` says which of them each layer uses. A block
that several layers share is stored once, and sharing needs no code of its own.

A reversible block adds to one stream what it computes from the other, so its input is its output less what it added
(Gomez et al. 2017; Kitaev et al. 2020), and no layer's input is kept. The backward pass goes from the last block to the
first: it computes what the block added once more, with the same random numbers and choices, subtracts it, and computes
the block's gradients. Memory holds the last states and the activations of one block, whatever the depth, and the
buckets of hashed attention; the price is one more forward pass.

Discrete choices of a layer must be the same both times. The input that is computed back differs from the first in the
last digits. That changes sums as little, but may put a token that is between two buckets into the other one, which
moves all tokens after it.

Shape letters: t tokens, h width.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint

from bertree.batch import Batch
from bertree.model.layers.attention import LayerPast
from bertree.model.layers.residual import Block, Residual, Reversible, Stream, states_of
from bertree.model.memory import CachePast, MemoryPast, TwoStreams

Past = MemoryPast | CachePast | TwoStreams
_now = threading.local()  # the backward pass has a thread of its own on a GPU


class Stack(nn.Module):
    """Layers of attention and feed-forward. `sharing`: for each layer, the indices of the two blocks it uses."""

    def __init__(
        self,
        attention: Sequence[Block],
        ffn: Sequence[Block],
        sharing: Sequence[tuple[int, int]],
        residual: Residual,
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention)
        self.ffn = nn.ModuleList(ffn)
        self.sharing = tuple(sharing)
        self.residual = residual
        self.recompute = False  # activation checkpointing: recompute each layer in the backward pass

    def forward(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Iterator[Tensor]:
        """Yield the hidden states after each layer; `past`: what is seen besides the batch."""
        for stream in self._streams(x_th, batch, past):
            yield self.residual.close(stream)

    def _streams(self, x_th: Tensor, batch: Batch, past: Past | None) -> Iterator[Stream]:
        """Yield the residual stream after each layer."""
        stream, by_kind = self.residual.open(x_th), self._prepare(batch, past)
        for a, f in self.sharing:
            block = cast(Block, self.attention[a])
            seen = None if past is None else past.layer(states_of(stream), partial(self.residual.read, block=block))
            positions = getattr(block.part, "positions", None)
            prepared = None if positions is None else by_kind[positions.same]
            if self.recompute and self.training and torch.is_grad_enabled():
                stream = checkpoint(self._layer, a, f, stream, batch, prepared, seen, use_reentrant=False)
            else:
                stream = self._layer(a, f, stream, batch, prepared, seen)
            yield stream

    def last(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Tensor:
        """Return the hidden states after the last layer. Reversible layers keep no activations for the backward pass,
        unless there is a past."""
        if isinstance(self.residual, Reversible) and past is None and torch.is_grad_enabled():
            by_kind, blocks = self._prepare(batch, None), []
            for a, f in self.sharing:
                attention, ffn = cast(Block, self.attention[a]), cast(Block, self.ffn[f])
                positions = getattr(attention.part, "positions", None)
                inputs = (batch,) if positions is None else (batch, by_kind[positions.same])
                blocks += [(attention, inputs), (ffn, (batch,))]
            return reversible_states(self.residual.open(x_th)[0], blocks, list(self.parameters()))
        for stream in self._streams(x_th, batch, past):
            last = stream
        return self.residual.close(last)

    def _prepare(self, batch: Batch, past: Past | None) -> dict[Hashable, Any]:
        """Return what the attention blocks' positions need for a batch, computed once for all that are the same."""
        by_kind: dict[Hashable, Any] = {}
        for block in self.attention:
            positions = getattr(block.part, "positions", None)
            if positions is not None and positions.same not in by_kind:
                token_positions = block.part.token_positions(batch) if past is None else past.token_positions  # type: ignore[union-attr,operator]
                by_kind[positions.same] = positions.prepare(token_positions)
        return by_kind

    def _layer(self, a: int, f: int, stream: Stream, batch: Batch, prepared: Any, past: LayerPast | None) -> Stream:
        # A component from outside may take the batch alone.
        inputs = (batch,) if prepared is None and past is None else (batch, prepared, past)
        stream = self.attention[a](self.residual, stream, *inputs)
        return self.ffn[f](self.residual, stream, batch)


class Choices:
    """The choices of a block, in their order: kept when it is computed first, then used again."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._next: int | None = None  # of those to be used again; None: they are being made

    def take(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the next choice."""
        if self._next is None:
            self._kept.append(compute().to(torch.int32))
            return self._kept[-1].long()
        self._next += 1
        return self._kept[self._next - 1].long()

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Make the choices of this thread, or after the first time use them again."""
        _now.choices = self
        try:
            yield
        finally:
            _now.choices, self._next = None, 0


def chosen(compute: Callable[[], Tensor]) -> Tensor:
    """Return a choice in whole numbers (int64): that of the first computation, if a reversible layer is computed again.

    Where layers are compiled it is computed each time.
    """
    if torch.compiler.is_compiling():
        return compute()
    choices: Choices | None = getattr(_now, "choices", None)
    return compute() if choices is None else choices.take(compute)


Arguments = tuple[Any, ...]
COMPILATION: dict[str, Any] = {"dynamic": False}  # of the blocks, where the step is compiled


def reversible_states(
    x_th: Tensor, blocks: Sequence[tuple[Block, Arguments]], parameters: Sequence[nn.Parameter]
) -> Tensor:
    """Return both streams side by side (t x 2 h) after blocks, each with its other arguments.

    `x_th`: both streams before the first block. `parameters`: all that the blocks may use. Gradients reach these and
    `x_th`, nothing else.
    """
    compiling = torch.compiler.is_compiling()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    # The compiler sees the forward pass alone; blocks that it changed would draw other random numbers than those of the
    # backward pass. So it compiles the blocks, for both. (The function is not decorated: that imports the compiler.)
    run = torch.compiler.disable(_run) if compiling else _run
    states: Tensor = run(x_th, blocks, trained, compiling)
    return states


def added(block: Block, x_th: Tensor, *inputs: Any) -> Tensor:
    """Return what a block adds to the other stream."""
    out_th: Tensor = block.branch(block.norm(x_th), *inputs)
    return out_th


def _run(
    x_th: Tensor, blocks: Sequence[tuple[Block, Arguments]], trained: Sequence[nn.Parameter], compiled: bool
) -> Tensor:
    compute = torch.compile(added, **COMPILATION) if compiled else added
    states: Tensor = _ReversibleBlocks.apply(x_th, compute, blocks, *trained)
    return states


class _ReversibleBlocks(torch.autograd.Function):
    """Blocks from first to last: (a, b) -> (b, a + added(b)). After an even number each is in its place again."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x_th: Tensor,
        compute: Callable[..., Tensor],
        blocks: Sequence[tuple[Block, Arguments]],
        *trained: Tensor,
    ) -> Tensor:
        first_th = second_th = x_th
        autocast, before = Autocast.now(x_th.device.type), []
        for block, inputs in blocks:
            choices = Choices()
            before.append((RandomState.now(x_th.device), choices))
            # With gradients, which are dropped: parts may compute, and draw random numbers, in another way without.
            with torch.enable_grad(), autocast.again(), choices.repeated():
                added_th = compute(block, second_th.detach().requires_grad_(), *inputs).detach()
            first_th, second_th = second_th, first_th + added_th
        states_th = torch.cat([first_th, second_th], -1)
        ctx.compute, ctx.blocks, ctx.before, ctx.autocast = compute, blocks, before, autocast  # type: ignore[attr-defined]
        ctx.save_for_backward(states_th, *trained)
        return states_th

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_th: Tensor) -> tuple[Any, ...]:
        states_th, *trained = ctx.saved_tensors
        first_th, second_th = (x_th.contiguous() for x_th in states_th.chunk(2, -1))
        d_first_th, d_second_th = gradient_th.chunk(2, -1)
        sums: list[Tensor | None] = [None] * len(trained)
        device = states_th.device
        now = RandomState.now(device)
        for (block, inputs), (random, choices) in zip(reversed(ctx.blocks), reversed(ctx.before), strict=True):
            random.set(device)
            x_th = first_th.detach().requires_grad_()
            with torch.enable_grad(), ctx.autocast.again(), choices.repeated():
                added_th = ctx.compute(block, x_th, *inputs)
            d_x_th, *gradients = torch.autograd.grad(
                added_th, [x_th, *trained], d_second_th.to(added_th.dtype), allow_unused=True
            )
            sums = [a if b is None else b if a is None else a + b for a, b in zip(sums, gradients, strict=True)]
            first_th, second_th = second_th - added_th.detach(), first_th
            d_first_th, d_second_th = d_second_th, d_first_th + d_x_th
        now.set(device)
        return d_first_th + d_second_th, None, None, *sums


class RandomState(NamedTuple):
    """The states of the random numbers of the CPU and of a device."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> "RandomState":
        """Return the present states."""
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def set(self, device: torch.device) -> None:
        """Go on from these states."""
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            torch.cuda.set_rng_state(self.device, device)


class Autocast(NamedTuple):
    """The precision of products on a kind of device."""

    kind: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def now(cls, kind: str) -> "Autocast":
        """Return the present precision."""
        return cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    def again(self) -> AbstractContextManager[object]:
        """Return a context with this precision. It keeps no weights in it, which would grow with depth."""
        return torch.autocast(self.kind, self.dtype, self.enabled, cache_enabled=False)
