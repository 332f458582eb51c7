"""The components of a network as one rank of a tensor-parallel group computes them: attention and feed-forward, the
stack of layers, and a vocabulary of which each rank holds some entries.

Shape letters: t tokens, m chosen tokens, r rows of this rank, h width, e embedding width, v vocabulary entries of this
rank.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function

from bertree.batch import IGNORED, Batch
from bertree.model.heads import MaskHead
from bertree.model.kernels.operators import look_up
from bertree.model.layers.attention import Attention
from bertree.model.layers.embeddings import TokenEmbeddings
from bertree.model.layers.stack import Past, RandomState, Stack
from bertree.model.memory import MemoryLayer, MemoryPast, TwoStreamLayer, TwoStreams
from bertree.scale.tensor_group import TensorGroup


class RankRandom:
    """A random stream of this rank, next to the one that all ranks of a tensor-parallel group share.

    It is seeded by one number from the shared stream, which then continues as if nothing else had been drawn."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self._device = device
        seed = int(torch.randint(2**62, ()))
        self._common = RandomState.now(device)
        torch.manual_seed(seed ^ rank)  # neighbours of a seed are other streams
        self._own = RandomState.now(device)
        self._common.set(device)

    def begin(self) -> None:
        """Draw from this rank's own stream from now on."""
        self._common = RandomState.now(self._device)
        self._own.set(self._device)

    def end(self) -> None:
        """Draw from the shared stream again."""
        self._own = RandomState.now(self._device)
        self._common.set(self._device)

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw from this rank's own stream."""
        self.begin()
        try:
            yield
        finally:
            self.end()


class PartialLinear(nn.Linear):
    """The last product of a component: this rank's term of a sum. `ComponentHooks` adds the bias to the sum, once."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the product without the bias."""
        return F.linear(x, self.weight)


class ComponentHooks:
    """Hooks of a component (attention or feed-forward): before it all ranks get the same tokens, after it their terms
    are summed. `last` is the component's last product."""

    def __init__(self, group: TensorGroup, last: PartialLinear) -> None:
        self.group, self.last = group, last
        self._random: RankRandom | None = None

    def register(self, component: nn.Module) -> None:
        """Register the hooks."""
        component.register_forward_pre_hook(self.enter)
        component.register_forward_hook(self.leave)

    def enter(self, component: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Give the component all tokens; attention with dropout draws this rank's random numbers from here on."""
        x, batch, *rest = inputs
        if self.group.sequence_parallel:
            x_th = self.group.gather_rows(x, rows_of(batch))
        else:
            x_th = self.group.share(x)
            rest = [shared_memory(value, self.group) for value in rest]
            drops = isinstance(component, Attention) and component.training and bool(component.dropout)
            if drops and not torch.compiler.is_compiling():
                self._random = RankRandom(self.group.rank, x_th.device)
                self._random.begin()
        return x_th, batch, *rest

    def leave(self, component: nn.Module, inputs: tuple[Any, ...], out_th: Tensor) -> Tensor:
        """Sum the terms of all ranks and add the bias."""
        if self._random is not None:
            self._random.end()
            self._random = None
        summed = self.group.add_rows(out_th) if self.group.sequence_parallel else self.group.add(out_th)
        return summed if self.last.bias is None else summed + self.last.bias.to(summed.dtype)


def rows_of(batch: Batch) -> int:
    """Return how many rows a layer computes for a batch: its tokens and the query stream of a permutation."""
    return len(batch.ids) + (0 if batch.permutation is None else len(batch.permutation.queries))


def shared_memory(past: Any, group: TensorGroup) -> Any:
    """Return what attention sees in addition to the batch; gradients of a normed memory are summed over the ranks."""
    if isinstance(past, TwoStreamLayer):
        return past._replace(memory=shared_memory(past.memory, group))
    if isinstance(past, MemoryLayer) and past.memory_xh.requires_grad:
        return past._replace(memory_xh=group.share(past.memory_xh))
    return past


class SequenceParallelStack(Stack):
    """Layers with sequence parallelism: norms, dropout and residual sums are computed on this rank's tokens only."""

    group: TensorGroup

    def forward(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Iterator[Tensor]:
        """Yield the hidden states of all tokens after each layer."""
        drawn, tokens = self._random(x_th.device), len(x_th)
        states = super().forward(self.group.own_rows(x_th), batch, self._whole(past, tokens))
        for _ in self.sharing:
            with drawn():
                state_rh = next(states)
            yield self.group.all_rows(state_rh, tokens)

    def last(self, x_th: Tensor, batch: Batch, past: Past | None = None) -> Tensor:
        """Return the hidden states of all tokens after the last layer."""
        with self._random(x_th.device)():
            state_rh = super().last(self.group.own_rows(x_th), batch, self._whole(past, len(x_th)))
        return self.group.all_rows(state_rh, len(x_th))

    def _random(self, device: torch.device) -> Callable[[], AbstractContextManager[None]]:
        """Return a context in which this rank draws its own random numbers, if the layers have dropout."""
        rates = [m.p for m in self.modules() if isinstance(m, nn.Dropout)]
        rates += [m.dropout for m in self.modules() if isinstance(m, Attention)]
        if not self.training or not any(rates):
            return nullcontext
        return RankRandom(self.group.rank, device).drawn

    def _whole(self, past: Past | None, tokens: int) -> Past | None:
        remembers = past.memory is not None if isinstance(past, TwoStreams) else isinstance(past, MemoryPast)
        return cast(Past, GatheredMemory(past, self.group, tokens)) if remembers else past  # type: ignore[arg-type]


class GatheredMemory:
    """A memory of all tokens that is updated from each rank's share of them."""

    def __init__(self, past: MemoryPast | TwoStreams, group: TensorGroup, tokens: int) -> None:
        self.past, self.group, self.tokens = past, group, tokens
        self.token_positions = past.token_positions

    def layer(self, x_rh: Tensor, read: Callable[[Tensor], Tensor]) -> MemoryLayer | TwoStreamLayer:
        """Return the memory for the next layer, updated with the inputs of all ranks."""
        return self.past.layer(self.group.join_rows(x_rh.detach(), self.tokens), read)


class SplitTokenEmbeddings(TokenEmbeddings):
    """Token embeddings with some rows on each rank. A rank returns zeros for rows it does not have, so the sum over the
    ranks is the embedding."""

    group: TensorGroup
    first: int  # vocabulary entry of the first row

    def forward(self, ids_t: Tensor) -> Tensor:
        """Look up token ids (t x e)."""
        rows_t, here_t = local_entries(ids_t, self.first, len(self.weight))
        rows_te = self.group.add(look_up(self.weight, rows_t) * here_t[:, None])
        return rows_te if self.scale == 1.0 else rows_te * self.scale


class SplitMaskHead(MaskHead):
    """An MLM or LM head in which each rank computes the logits of its vocabulary entries.

    The loss needs two small sums over the ranks and no logits of other ranks; `forward` returns all columns.
    """

    group: TensorGroup
    first: int  # vocabulary entry of the first logit
    entries: int  # of the whole vocabulary

    def transform(self, hidden_mh: Tensor) -> Tensor:
        """Return what is multiplied by the output matrix; its gradients are summed over the ranks."""
        return self.group.share(super().transform(hidden_mh))

    def forward(self, hidden_mh: Tensor, tokens: nn.Embedding, pad_vocab: bool = False) -> Tensor:
        """Return the logits of all entries (m x vocabulary); none are padded."""
        return self.group.all_columns(super().forward(hidden_mh, tokens), self.entries)

    def _loss(self, hidden_mh: Tensor, tokens: nn.Embedding, targets_m: Tensor) -> Tensor:
        logits_mv = super().forward(hidden_mh, tokens, pad_vocab=True)
        return split_cross_entropy(logits_mv, targets_m, self.group, self.first, self.vocab_size)


def local_entries(ids_m: Tensor, first: int, entries: int) -> tuple[Tensor, Tensor]:
    """Return the indices of ids among this rank's entries (0 for those of other ranks), and whether it has them."""
    indices_m = ids_m - first
    present_m = (indices_m >= 0) & (indices_m < entries)
    return torch.where(present_m, indices_m, 0), present_m


def split_cross_entropy(logits_mv: Tensor, targets_m: Tensor, group: TensorGroup, first: int, entries: int) -> Tensor:
    """Return the cross-entropy of logits that are split by the vocabulary, summed over the targets that are not -100.

    `first`, `entries`: this rank's vocabulary entries; logits beyond them are padding with probability 0."""
    total: Tensor = _SplitCrossEntropy.apply(logits_mv, targets_m, group, first, entries)
    return total


class _SplitCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits_mv: Tensor, targets_m: Tensor, group: TensorGroup, first: int, entries: int) -> Tensor:
        scores_mv = logits_mv.float()
        top_m = group.sum(scores_mv.amax(-1), "max")
        indices_m, present_m = local_entries(targets_m, first, entries)
        target_m = scores_mv.gather(1, indices_m[:, None])[:, 0] - top_m
        exponents_mv = (scores_mv - top_m[:, None]).exp_()
        sums_2m = torch.stack([exponents_mv.sum(-1), torch.where(present_m, target_m, 0.0)])
        normalizer_m, target_m = group.sum(sums_2m)
        counted_m = targets_m != IGNORED
        ctx.save_for_backward(exponents_mv.div_(normalizer_m[:, None]), indices_m, present_m, counted_m)
        ctx.dtype = logits_mv.dtype
        return torch.where(counted_m, normalizer_m.log() - target_m, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        probabilities_mv, indices_m, present_m, counted_m = ctx.saved_tensors
        hits_m = present_m.to(probabilities_mv.dtype)
        error_mv = probabilities_mv.scatter_add(1, indices_m[:, None], -hits_m[:, None])
        return (error_mv * (gradient * counted_m)[:, None]).to(ctx.dtype), None, None, None, None
