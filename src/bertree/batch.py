"""The packed batch, which data, model and inference share.

Sequences of any lengths follow each other in one flat stream of tokens; `cu_seqlens` says where each starts. Nothing
is padded, so no layer computes on padding. The price is that whatever mixes tokens (attention) needs the boundaries.

Shape letters: t tokens in the batch, s sequences in the batch, m tokens to predict, k tokens of a teacher, n words that
are not in the vocabulary, d distinct ones, c characters of a word.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IGNORED = -100  # a label that no loss reads


@dataclass(frozen=True)
class TensorTree:
    """A value of tensors, numbers and other such values."""

    def leaves(self) -> Iterator[Any]:
        """Yield every field, and those of the values within."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, TensorTree):
                yield from value.leaves()
            else:
                yield value

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with every tensor changed."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = change(value)
            elif isinstance(value, TensorTree):
                changes[field.name] = value.map(change)
        return replace(self, **changes)


@dataclass(frozen=True)
class Labels(TensorTree):
    """What an objective compares its predictions with."""

    @classmethod
    def of(cls, batch: "Batch") -> Self:
        """Return the labels of a batch, which must be of this kind."""
        assert isinstance(batch.labels, cls), f"the batch must have {cls.__name__}"
        return batch.labels

    def pad(self, tokens: int, sequences: int, room: Callable[[int], int]) -> Self:
        """Fill up the labels of a batch of `tokens` tokens with ignored ones: those of sequences up to `sequences`,
        those of n tokens up to `room(n)`."""
        raise NotImplementedError(f"{type(self).__name__} are not padded")


@dataclass(frozen=True)
class TeacherTokens(TensorTree):
    """A teacher's likeliest tokens at the tokens to predict, where it was run beforehand."""

    scores: Tensor  # m x k, float16: their log-probabilities
    ids: Tensor  # m x k


@dataclass(frozen=True)
class PretrainingLabels(Labels):
    """The tokens to predict, and whether two segments belong together."""

    masked: Tensor | None = None  # m, int64: tokens of the stream that the MLM head reads
    targets: Tensor | None = None  # m, int64: the ids to predict: the masked ones, or the next ones
    # s, int64: NSP or SOP label: 0 in order, 1 random next or swapped, -100 (ignored) where there is no pair
    pairs: Tensor | None = None
    teacher: TeacherTokens | None = None

    @property
    def predicted(self) -> tuple[Tensor, Tensor]:
        """Tokens of the stream that the MLM head reads, and the ids to predict."""
        assert self.masked is not None, "the stream must mask"
        assert self.targets is not None, "the stream must mask"
        return self.masked, self.targets

    def pad(self, tokens: int, sequences: int, room: Callable[[int], int]) -> Self:
        """Fill up with ignored labels; the tokens they are of are read once only."""
        assert self.teacher is None, "the teacher reads padded batches"
        changes: dict[str, Tensor] = {}
        if self.pairs is not None:
            changes["pairs"] = _extend(self.pairs, sequences - len(self.pairs))
        if self.masked is not None and self.targets is not None:
            spare = min(room(self.masked.numel()), tokens) - self.masked.numel()
            free = torch.ones(tokens, dtype=torch.bool)
            free[self.masked] = False
            # Tokens that are read once only: their gradients are not added to others, which would be slower.
            changes["masked"] = torch.cat([self.masked, free.nonzero()[:spare, 0]])
            changes["targets"] = _extend(self.targets, spare)
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Continuation(TensorTree):
    """How the sequences of a batch continue those of the batch before it: lane by lane.

    A lane's sequences follow each other. Its first one continues the state of that lane unless it is fresh; the others
    are fresh. The state after the batch is that after each lane's last sequence.
    """

    lanes: Tensor  # s, int64: the lane of each sequence, rising from 0
    fresh: Tensor  # s, bool: the sequence starts without a state
    count: int  # of lanes, on the host
    # s, bool: the lane runs backwards through the text, segment by segment: its memory stands after the segment. The
    # tokens of a segment are in the order of the text all the same. None: no lane does.
    backward: Tensor | None = None
    # s, int64: how many tokens of the sequence are remembered: its first ones, or its last ones if it runs backwards.
    # None: all.
    kept: Tensor | None = None


@dataclass(frozen=True)
class Permutation(TensorTree):
    """The order in which tokens are predicted, and the tokens that are.

    A token sees those of its own or a lower rank; it is predicted from those of a lower rank.
    """

    ranks: Tensor  # t, int32
    queries: Tensor  # m, int64: tokens of the stream to predict, rising
    cu_queries: Tensor  # s + 1, int32: those of sequence i are cu_queries[i] : cu_queries[i + 1]
    max_queries: int  # most of one sequence, on the host


@dataclass(frozen=True)
class SpelledWords(TensorTree):
    """Words that are not in the vocabulary, for models that read characters."""

    tokens: Tensor  # n, int64: tokens of the stream
    words: Tensor  # n, int64: which of the distinct words each is
    characters: Tensor  # d x c, int16


@dataclass(frozen=True)
class Batch(TensorTree):
    """A flat stream of tokens and the boundaries of the sequences in it."""

    ids: Tensor  # t, int64
    positions: Tensor  # t, int64: position of each token in its own sequence, from 0
    segments: Tensor  # t, int64: 0 for the first text, 1 for the second; XLNet's [CLS] is in 2
    cu_seqlens: Tensor  # s + 1, int32: sequence i is tokens cu_seqlens[i] : cu_seqlens[i + 1]
    max_seqlen: int  # length of the longest sequence, on the host, so that kernels need not wait for it
    # s, int64: where in the stream each sequence's second text begins, or its end if it has none. None: it follows
    # from the segments, which some tokenizers (RoBERTa's) do not set.
    second: Tensor | None = None
    one_segment: bool = False  # every token is of segment 0, as known on the host
    orders: int = 1  # consecutive sequences that are one input in several orders: their summary states are added
    continuation: Continuation | None = None  # None: no sequence continues another
    permutation: Permutation | None = None  # None: every token sees what the architecture's mask says
    # s, int64: the token that represents each sequence, where the data knows it. None: the architecture's choice.
    summary: Tensor | None = None
    spelled: SpelledWords | None = None  # words outside the vocabulary; their ids are that of the unknown token
    labels: Labels | None = None

    @classmethod
    def pack(
        cls,
        sequences: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int] | None] | None = None,
        second: Sequence[int] = (),
    ) -> "Batch":
        """Pack id sequences; without segments every token belongs to segment 0. Ids below 0 may be words outside the
        vocabulary (`text/cleaning.py`).

        `second` counts the tokens before each sequence's second text, if segments do not tell; 0: there is none."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        ends = np.concatenate([[0], lengths.cumsum()])
        total = int(ends[-1])
        kinds = np.zeros(total, np.int64)
        for start, kinds_of_text in zip(ends.tolist(), segments or (), strict=False):
            if kinds_of_text is not None:
                kinds[start : start + len(kinds_of_text)] = kinds_of_text
        ids, spelled = np.fromiter(chain(*sequences), np.int64, total), None
        if total and ids.min() < 0:
            spelled = _spelled_words(ids, sequences)
        return cls(
            ids=torch.from_numpy(ids),
            positions=torch.from_numpy(np.arange(total) - ends[:-1].repeat(lengths)),
            segments=torch.from_numpy(kinds),
            cu_seqlens=torch.from_numpy(ends.astype(np.int32)),
            max_seqlen=int(lengths.max(initial=0)),
            second=_second_starts(np.asarray(second, np.int64), ends) if any(second) else None,
            one_segment=all(kinds_of_text is None for kinds_of_text in segments or ()),
            spelled=spelled,
        )

    def to(self, device: torch.device | str) -> "Batch":
        """Move the batch to a device; to a GPU through pinned memory, so that the host does not wait."""
        to_gpu = torch.device(device).type == "cuda"

        def move(tensor: Tensor) -> Tensor:
            pinned = tensor.pin_memory() if to_gpu and not tensor.is_cuda else tensor
            return pinned.to(device, non_blocking=True)

        return self.map(move)

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
            begins_t = torch.where(self.segments == 1, place_t, bounds[1:][of_t])
            second_s = bounds[1:].scatter_reduce(0, of_t, begins_t, "amin")
        text_bounds = torch.cat([torch.stack([bounds[:-1], second_s], 1).flatten(), bounds[-1:]])
        starts_t = text_bounds[:-1].repeat_interleave(text_bounds.diff(), output_size=len(self.ids))
        return Batch(self.ids, place_t - starts_t, self.segments, text_bounds.to(torch.int32), self.max_seqlen)

    def split(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Split a tensor with one row per token into one tensor per sequence."""
        return tokens.split(self.lengths.tolist())


def _second_starts(second_s: NDArray[np.int64], ends: NDArray[np.int64]) -> Tensor:
    """Turn counts of tokens before the second texts into indices of the stream."""
    return torch.from_numpy(np.where(second_s > 0, ends[:-1] + second_s, ends[1:]))


def _spelled_words(ids: NDArray[np.int64], sequences: Sequence[Sequence[int]]) -> SpelledWords | None:
    """Return the words that carry their characters, and set their ids to that of the unknown token; ids below 0 that
    carry none are left as they are."""
    tokens = [at for at, token in enumerate(chain(*sequences)) if hasattr(token, "characters")]
    if not tokens:
        return None
    words: list[Any] = [token for token in chain(*sequences) if hasattr(token, "characters")]
    ids[tokens] = -1 - ids[tokens]
    distinct = {word.characters: None for word in words}
    number = {characters: row for row, characters in enumerate(distinct)}
    return SpelledWords(
        tokens=torch.tensor(tokens),
        words=torch.tensor([number[word.characters] for word in words]),
        characters=torch.tensor(list(distinct), dtype=torch.int16),
    )


def _extend(labels: Tensor, spare: int) -> Tensor:
    return torch.cat([labels, labels.new_full((spare,), IGNORED)])
