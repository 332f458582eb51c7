"""The packed batch: the one thing that data, model and serving all speak.

Sequences of any lengths lie end to end in one flat stream of tokens; `cu_seqlens` says where each
starts. Nothing is padded, so no layer ever computes on a token that is not there. The price is that
whatever mixes tokens (attention) must be told the boundaries.

Shape letters: t tokens in the batch, s sequences in the batch, m masked tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A flat stream of tokens and the boundaries of the sequences in it."""

    ids: Tensor  # t, int64
    positions: Tensor  # t, int64: position of each token in its own sequence, from 0
    segments: Tensor  # t, int64: 0 for the first text, 1 for the second
    cu_seqlens: Tensor  # s + 1, int32: sequence i is tokens cu_seqlens[i] : cu_seqlens[i + 1]
    max_seqlen: int  # length of the longest sequence, kept on the host so that kernels need not ask
    # What pretraining asks about the batch, where it asks:
    masked: Tensor | None = None  # m, int64: tokens of the stream the MLM head predicts
    targets: Tensor | None = None  # m, int64: the ids that stood there
    pairs: Tensor | None = None  # s, int64: NSP or SOP label: 0 in order, 1 random next or swapped

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> "Batch":
        """Lay id sequences end to end; without `segments` every token belongs to segment 0."""
        lengths = [len(sequence) for sequence in sequences]
        flat = [token for sequence in sequences for token in sequence]
        kinds = [kind for sequence in segments for kind in sequence] if segments is not None else [0] * len(flat)
        assert len(kinds) == len(flat), "segments must mirror the sequences"
        return cls(
            ids=torch.tensor(flat, dtype=torch.int64),
            positions=torch.tensor([p for n in lengths for p in range(n)], dtype=torch.int64),
            segments=torch.tensor(kinds, dtype=torch.int64),
            cu_seqlens=torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32),
            max_seqlen=max(lengths, default=0),
        )

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        moved = {
            f.name: v.to(device, non_blocking=True) if isinstance(v := getattr(self, f.name), Tensor) else v
            for f in fields(self)
        }
        return Batch(**moved)

    @property
    def first(self) -> Tensor:
        """Index of each sequence's first token, where [CLS] stands (s, int64)."""
        return self.cu_seqlens[:-1].long()

    @property
    def lengths(self) -> Tensor:
        """Length of each sequence (s, int32)."""
        return self.cu_seqlens.diff()

    def split(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Cut something that has one row a token into one tensor per sequence."""
        return tokens.split(self.lengths.tolist())
