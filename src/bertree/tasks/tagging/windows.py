"""Overlapping windows over a sentence that is longer than the model's positions.

Each word is tagged once, in the window in which it is farthest from the nearer edge. Consecutive windows share half of
their words, so that a word has about a quarter of a window on either side. A long text is read about twice. The
beginning and the end of the sentence do not count as edges, since nothing is missing there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class WordWindow(NamedTuple):
    """The words from `start` to `end` are read, those from `first` to `last` are tagged."""

    start: int
    end: int
    first: int
    last: int


def windows(lengths: NDArray[np.int64], room: int) -> list[WordWindow]:
    """Return windows over words of these lengths in tokens, none longer than `room`."""
    count = len(lengths)
    if not count:
        return []
    ends = np.concatenate([[0], lengths.cumsum()])
    if ends[-1] <= room:
        return [WordWindow(0, count, 0, count)]
    return _assign_words(ends, _window_bounds(ends, room))


def _window_bounds(ends: NDArray[np.int64], room: int) -> list[tuple[int, int]]:
    count = len(ends) - 1
    placed = []
    start = 0
    while True:
        end = int(ends.searchsorted(ends[start] + room, "right")) - 1
        if end >= count:
            # The last window reaches as far back as it can: its place is there in any case.
            placed.append((int(ends.searchsorted(ends[count] - room)), count))
            return placed
        assert end > start, "a word is longer than the room"
        placed.append((start, end))
        shared = int(ends.searchsorted(ends[end] - room // 2))
        fits_next = int(ends.searchsorted(ends[end + 1] - room))
        start = min(end, max(shared, fits_next, start + 1))


def _assign_words(ends: NDArray[np.int64], placed: list[tuple[int, int]]) -> list[WordWindow]:
    count = len(ends) - 1
    far = int(ends[-1]) + 1
    best = np.full(count, -1)
    owner = np.zeros(count, np.int64)
    for number, (start, end) in enumerate(placed):
        left = ends[start:end] - ends[start] + (far if start == 0 else 0)
        right = ends[end] - ends[start + 1 : end + 1] + (far if end == count else 0)
        context = np.minimum(left, right)
        better = context > best[start:end]
        best[start:end][better] = context[better]
        owner[start:end][better] = number
    # Windows are in order, so the owners are too: where the later of two is the better one, it stays so.
    firsts = owner.searchsorted(np.arange(len(placed) + 1)).tolist()
    edges = zip(placed, firsts[:-1], firsts[1:], strict=True)
    return [WordWindow(start, end, first, last) for (start, end), first, last in edges if first < last]
