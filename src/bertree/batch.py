"""The packed batch, which data, model and inference share.

Sequences of any lengths lie end to end in one flat stream of tokens; `cu_seqlens` says where each starts. Nothing is
padded, so no layer computes on padding. The price is that whatever mixes tokens (attention) needs the boundaries.

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
    max_seqlen: int  # length of the longest sequence, on the host, so that kernels need not wait for it
    # s, int64: where in the stream each sequence's second text begins, or its end if it has none. None: it follows
    # from the segments, which some tokenizers (RoBERTa's) do not set.
    second: Tensor | None = None
    # Targets of pretraining:
    masked: Tensor | None = None  # m, int64: tokens of the stream that the MLM head reads
    targets: Tensor | None = None  # m, int64: the ids to predict: the masked ones, or the next ones
    # s, int64: NSP or SOP label: 0 in order, 1 random next or swapped, -100 (ignored) where there is no pair
    pairs: Tensor | None = None
    # Targets of a task:
    chosen: Tensor | None = None  # m, int64: tokens of the stream that a `token` or `span` head reads
    # Cell of each score in the grid of questions x `width` that a softmax or CRF needs, counted row by row.
    # Tokens of a `span` or CRF head (m): a row per sequence. Sequences of a `choice` head (s): a row per question.
    cells: Tensor | None = None
    width: int = 0
    # The labels: s for `sequence` (float: regression), m for `token`; for `span` questions x 2, the columns of start
    # and end; for `choice`, each question's column. -100: ignored.
    answers: Tensor | None = None
    # A teacher's predictions, if it was run beforehand. For a task: its logits, a row for each row of the student's. In
    # pretraining (m x k): log-probabilities of its k likeliest tokens, and their ids.
    soft: Tensor | None = None
    soft_ids: Tensor | None = None

    @classmethod
    def pack(
        cls,
        sequences: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int] | None] | None = None,
        second: Sequence[int] = (),
    ) -> "Batch":
        """Pack id sequences; without segments every token belongs to segment 0.

        `second` counts the tokens before each sequence's second text, if segments do not tell; 0: there is none."""
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
        """Move the batch to a device; to a GPU through pinned memory, so that the host does not wait."""
        to_gpu = torch.device(device).type == "cuda"
        moved: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            if isinstance(value := getattr(self, name), Tensor):
                pinned = value.pin_memory() if to_gpu and not value.is_cuda else value
                moved[name] = pinned.to(device, non_blocking=True)
        return replace(self, **moved)

    @property
    def first(self) -> Tensor:
        """Index of each sequence's first token, the [CLS] (s, int64). An empty sequence at the end of the stream gets
        the last token's."""
        return self.cu_seqlens[:-1].long().clamp(max=self.ids.numel() - 1)

    @property
    def last(self) -> Tensor:
        """Index of each sequence's last token, which sees all others if attention is causal (s, int64). An empty
        sequence gets the token before it, or the first."""
        return (self.cu_seqlens[1:].long() - 1).clamp(min=0)

    @property
    def lengths(self) -> Tensor:
        """Length of each sequence (s, int32)."""
        return self.cu_seqlens.diff()

    @property
    def sequence_ids(self) -> Tensor:
        """Number of the sequence that each token belongs to (t, int64)."""
        numbers = torch.arange(len(self.cu_seqlens) - 1, device=self.ids.device)
        return numbers.repeat_interleave(self.lengths, output_size=len(self.ids))

    def split_pairs(self) -> "Batch":
        """Split pairs into two sequences (the second is empty for single texts). Labels are dropped."""
        place_t = torch.arange(len(self.ids), device=self.ids.device)
        bounds = self.cu_seqlens.long()
        second_s = self.second
        if second_s is None:
            of_t = self.sequence_ids
            begins_t = torch.where(self.segments != 0, place_t, bounds[1:][of_t])
            second_s = bounds[1:].scatter_reduce(0, of_t, begins_t, "amin")
        text_bounds = torch.cat([torch.stack([bounds[:-1], second_s], 1).flatten(), bounds[-1:]])
        starts_t = text_bounds[:-1].repeat_interleave(text_bounds.diff(), output_size=len(self.ids))
        return Batch(self.ids, place_t - starts_t, self.segments, text_bounds.to(torch.int32), self.max_seqlen)

    def split(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Split a tensor with one row per token into one tensor per sequence."""
        return tokens.split(self.lengths.tolist())


def _places(second_s: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
    """Turn counts of tokens before the second texts into places in the stream."""
    return torch.from_numpy(np.where(second_s > 0, ends[:-1] + second_s, ends[1:]))
