"""A vocabulary of which each rank has some entries: looking up tokens, logits, and their cross-entropy.

Shape letters: t tokens, m chosen tokens, h width, e embedding width, v entries of the vocabulary on this rank.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from bertree.batch import IGNORED
from bertree.model.embeddings import TokenEmbeddings
from bertree.model.heads import MaskHead
from bertree.model.kernels.pointwise.custom_ops import look_up
from bertree.scale.split import Split
from bertree.scale.wires import Wires


class SplitTokenEmbeddings(TokenEmbeddings):
    """Token embeddings of which each rank has some rows: the sum over the ranks is the row of the rank that has it."""

    wires: Wires
    first: int  # entry of the vocabulary that the first row is of

    def forward(self, ids_t: Tensor) -> Tensor:
        """Look up token ids (t x e)."""
        rows_t, here_t = local_entries(ids_t, self.first, len(self.weight))
        rows_te = self.wires.add(look_up(self.weight, rows_t) * here_t[:, None])
        return rows_te if self.scale == 1.0 else rows_te * self.scale


class SplitMaskHead(MaskHead):
    """A head for MLM or LM of which each rank computes the logits of its entries of the vocabulary.

    The loss needs two small sums over the ranks and no logits of other ranks. Whoever asks for logits gets all columns.
    """

    wires: Wires
    first: int  # entry of the vocabulary that the first logit is of
    entries: int  # of the whole vocabulary

    def transform(self, hidden_mh: Tensor) -> Tensor:
        """Return what is multiplied by the output matrix; its gradients are summed over the ranks."""
        return self.wires.share(super().transform(hidden_mh))

    def forward(self, hidden_mh: Tensor, tokens: nn.Embedding, pad_vocab: bool = False) -> Tensor:
        """Return the logits of all entries (m x vocabulary); none are padded."""
        return self.wires.all_columns(super().forward(hidden_mh, tokens), self.entries)

    def _loss(self, hidden_mh: Tensor, tokens: nn.Embedding, targets_m: Tensor) -> Tensor:
        logits_mv = super().forward(hidden_mh, tokens, pad_vocab=True)
        return split_cross_entropy(logits_mv, targets_m, self.wires, self.first, self.vocab_size)


def local_entries(ids_m: Tensor, first: int, entries: int) -> tuple[Tensor, Tensor]:
    """Return the places of ids among the entries of this rank, 0 where it does not have them, and whether it has."""
    places_m = ids_m - first
    here_m = (places_m >= 0) & (places_m < entries)
    return torch.where(here_m, places_m, 0), here_m


def split_cross_entropy(logits_mv: Tensor, targets_m: Tensor, wires: Wires, first: int, entries: int) -> Tensor:
    """Return the cross-entropy, summed over the targets that are not -100, of logits of which each rank has some.

    `first`, `entries`: of the vocabulary on this rank; logits beyond them have probability 0."""
    total: Tensor = _SplitCrossEntropy.apply(logits_mv, targets_m, wires, first, entries)
    return total


class _SplitCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits_mv: Tensor, targets_m: Tensor, wires: Wires, first: int, entries: int) -> Tensor:
        scores_mv = logits_mv.float()
        top_m = wires.sum(scores_mv.amax(-1), "max")
        places_m, here_m = local_entries(targets_m, first, entries)
        target_m = scores_mv.gather(1, places_m[:, None])[:, 0] - top_m
        shares_mv = (scores_mv - top_m[:, None]).exp_()
        sums_2m = torch.stack([shares_mv.sum(-1), torch.where(here_m, target_m, 0.0)])
        whole_m, target_m = wires.sum(sums_2m)
        asked_m = targets_m != IGNORED
        ctx.save_for_backward(shares_mv.div_(whole_m[:, None]), places_m, here_m, asked_m)
        ctx.dtype = logits_mv.dtype
        return torch.where(asked_m, whole_m.log() - target_m, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shares_mv, places_m, here_m, asked_m = ctx.saved_tensors
        hits_m = here_m.to(shares_mv.dtype)
        error_mv = shares_mv.scatter_add(1, places_m[:, None], -hits_m[:, None])
        return (error_mv * (gradient * asked_m)[:, None]).to(ctx.dtype), None, None, None, None


def entries_of(vocabulary: int, wires: Wires) -> range:
    """Return the entries of a vocabulary that this rank has."""
    return Split(0).spans(vocabulary, wires.rank, wires.ranks)[0]
