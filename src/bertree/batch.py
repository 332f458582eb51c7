"""The packed batch: the one thing that data, model and serving all speak.

Sequences of any lengths lie end to end in one flat stream of tokens; `cu_seqlens` says where each
starts. Nothing is padded, so no layer ever computes on a token that is not there. The price is that
whatever mixes tokens (attention) must be told the boundaries.

Shape letters: t tokens in the batch, s sequences in the batch, m masked or chosen tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A flat stream of tokens and the boundaries of the sequences in it."""

    ids: Tensor  # t, int64
    positions: Tensor  # t, int64: position of each token in its own sequence, from 0
    segments: Tensor  # t, int64: 0 for the first text, 1 for the second
    cu_seqlens: Tensor  # s + 1, int32: sequence i is tokens cu_seqlens[i] : cu_seqlens[i + 1]
    max_seqlen: int  # length of the longest sequence, kept on the host so that kernels need not ask
    # s, int64: where in the stream each sequence's second text begins, its end where it has none; None: as the
    # segments say, which some tokenizers (RoBERTa's) do not give.
    second: Tensor | None = None
    # What pretraining asks about the batch, where it asks:
    masked: Tensor | None = None  # m, int64: tokens of the stream the MLM head reads
    targets: Tensor | None = None  # m, int64: what it must say: the ids that stood there, or come next
    # s, int64: NSP or SOP label: 0 in order, 1 random next or swapped, -100 (ignored) where there is no pair
    pairs: Tensor | None = None
    # What a task asks about the batch, where it asks:
    chosen: Tensor | None = None  # m, int64: tokens of the stream a `token` or `span` head reads
    # Where each score goes that competes with others: a cell of the grid questions x `width`, counted row by row.
    # Tokens of a `span` or CRF head (m): one row a sequence. Sequences of a `choice` head (s): one row a question.
    cells: Tensor | None = None
    width: int = 0
    # The true classes or scores: s for `sequence` (float: regression), m for `token`; for `span` questions x 2, the
    # columns of start and end; for `choice`, each question's column. -100: ignored.
    answers: Tensor | None = None
    # What a teacher says about the batch, where it was asked beforehand. For a task: its scores, a row for each row of
    # the student's. In pretraining (m x k): log-probabilities of its k likeliest tokens, and which tokens they are.
    soft: Tensor | None = None
    soft_ids: Tensor | None = None

    @classmethod
    def pack(
        cls,
        sequences: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int] | None] | None = None,
        second: Sequence[int] = (),
    ) -> "Batch":
        """Lay id sequences end to end; where no segments are given every token belongs to segment 0. `second` counts
        the tokens before each sequence's second text, where segments do not tell; 0: there is none."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        ends = np.concatenate([[0], lengths.cumsum()])
        total = int(ends[-1])
        kinds = np.zeros(total, np.int64)
        for start, given in zip(ends.tolist(), segments or (), strict=False):
            if given is not None:
                kinds[start : start + len(given)] = given
        return cls(
            ids=torch.from_numpy(np.fromiter(chain(*sequences), np.int64, total)),
            positions=torch.from_numpy(np.arange(total) - ends[:-1].repeat(lengths)),
            segments=torch.from_numpy(kinds),
            cu_seqlens=torch.from_numpy(ends.astype(np.int32)),
            max_seqlen=int(lengths.max(initial=0)),
            second=_places(np.asarray(second, np.int64), ends) if any(second) else None,
        )

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device; to a GPU through pinned memory, so that the host does not wait."""
        to_gpu = torch.device(device).type == "cuda"
        moved: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            if isinstance(value := getattr(self, name), Tensor):
                pinned = value.pin_memory() if to_gpu and not value.is_cuda else value
                moved[name] = pinned.to(device, non_blocking=True)
        return replace(self, **moved)

    @property
    def first(self) -> Tensor:
        """Index of each sequence's first token, where [CLS] stands (s, int64). One without tokens at the end of
        the stream has none; it gets the last token's."""
        return self.cu_seqlens[:-1].long().clamp(max=self.ids.numel() - 1)

    @property
    def last(self) -> Tensor:
        """Index of each sequence's last token, the one that has seen all others where attention is causal (s, int64).
        A sequence without tokens has none; it gets the token before it, or the first."""
        return (self.cu_seqlens[1:].long() - 1).clamp(min=0)

    @property
    def lengths(self) -> Tensor:
        """Length of each sequence (s, int32)."""
        return self.cu_seqlens.diff()

    @property
    def sequence_ids(self) -> Tensor:
        """The sequence each token is of (t, int64)."""
        numbers = torch.arange(len(self.cu_seqlens) - 1, device=self.ids.device)
        return numbers.repeat_interleave(self.lengths, output_size=len(self.ids))

    def split_pairs(self) -> "Batch":
        """Each text as a sequence of its own: two for each sequence here, the second empty where it has none.

        Only what an encoder reads; nothing is asked about it.
        """
        place_t = torch.arange(len(self.ids), device=self.ids.device)
        bounds = self.cu_seqlens.long()
        second_s = self.second
        if second_s is None:
            of_t = self.sequence_ids
            begins_t = torch.where(self.segments != 0, place_t, bounds[1:][of_t])
            second_s = bounds[1:].scatter_reduce(0, of_t, begins_t, "amin")
        finer = torch.cat([torch.stack([bounds[:-1], second_s], 1).flatten(), bounds[-1:]])
        starts_t = finer[:-1].repeat_interleave(finer.diff(), output_size=len(self.ids))
        return Batch(self.ids, place_t - starts_t, self.segments, finer.to(torch.int32), self.max_seqlen)

    def split(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Cut something that has one row a token into one tensor per sequence."""
        return tokens.split(self.lengths.tolist())


def _places(second_s: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
    """Counts of tokens before the second texts as places in the stream."""
    return torch.from_numpy(np.where(second_s > 0, ends[:-1] + second_s, ends[1:]))
