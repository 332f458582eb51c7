"""An order of examples in which batch borders fall on the ends of examples (for the batch stream, data/stream.py).

Batches are equal pieces of one long stream of examples. In a random order most borders fall inside an example, and with
few examples per batch, moving the border to the end of the example would waste much of a batch. So the examples are
distributed: longest first, each to the piece with the most room left; then the fullest and the emptiest pieces exchange
examples until they differ by a few tokens; and the pieces are ordered so that the sum of the differences stays small.
Which examples share a batch is still random, up to their lengths.
"""

import heapq
from bisect import bisect_left

import numpy as np

from bertree.keyed_random import Ints

ROUNDS = 8  # of exchanges at most; two or three are usual
ATTEMPTS = 6  # at most, to meet the first border


def balanced_order(lengths: Ints, start: int, stride: int, slack: int) -> Ints:
    """Return an order of examples that begin at `start`, for borders at the multiples of `stride`.

    A border is met if an example ends at it or up to `slack` tokens after it. The examples come in random order, which
    breaks ties and is kept within each piece.
    """
    longest = int(lengths.max(initial=0))
    rest = np.arange(lengths.size)
    if slack == 0 or slack >= longest or stride < 2 * longest:  # impossible, or not needed
        return rest
    front: list[int] = []
    for attempt in range(ATTEMPTS):
        remaining = lengths[rest]
        room = stride - start % stride  # in the first piece
        fitting = np.flatnonzero((remaining >= room) & (remaining <= room + slack))
        if room < longest and fitting.size:  # too little to distribute, but one example fills it
            leading = int(fitting[0])
        else:
            order, met = _fill_pieces(remaining, start, stride, slack)
            if met or attempt == ATTEMPTS - 1:
                return np.append(front, rest[order]).astype(np.int64)
            leading = 0  # the first border is missed: another example before it may help
        front.append(int(rest[leading]))
        start += int(remaining[leading])
        rest = np.delete(rest, leading)
    return np.append(front, rest).astype(np.int64)


def _fill_pieces(lengths: Ints, start: int, stride: int, slack: int) -> tuple[Ints, bool]:
    """Return an order in which each piece gets its share, and whether the first border is met."""
    total = int(lengths.sum())
    before = start % stride  # tokens of the first piece before these examples
    pieces = -(-(before + total) // stride)
    if pieces < 2:
        return np.arange(lengths.size), True
    # Aim half the slack after each border, to leave as much on either side.
    sizes = [0] * pieces
    sizes[0] = before - slack // 2
    sizes[-1] += pieces * stride - before - total + slack // 2
    members = _assign_to_emptiest(lengths, sizes)
    _exchange(members, sizes, stride, slack // 8)
    turn = np.empty(lengths.size, np.int64)
    for index, piece in enumerate(_order_pieces([size - stride for size in sizes])):
        turn[[number for _, number in members[piece]]] = index
    return np.argsort(turn, kind="stable"), abs(sizes[0] - stride) <= slack // 2


def _assign_to_emptiest(lengths: Ints, sizes: list[int]) -> list[list[tuple[int, int]]]:
    """Return the (length, number) of the examples in each piece, shortest first; update `sizes`."""
    members: list[list[tuple[int, int]]] = [[] for _ in sizes]
    heap = [(size, piece) for piece, size in enumerate(sizes)]
    heapq.heapify(heap)
    order = np.argsort(-lengths, kind="stable")
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        size, piece = heap[0]
        heapq.heapreplace(heap, (size + length, piece))
        members[piece].append((length, number))
    for size, piece in heap:
        sizes[piece] = size
    for examples in members:
        examples.sort()
    return members


def _exchange(members: list[list[tuple[int, int]]], sizes: list[int], target: int, tolerance: int) -> None:
    """Exchange examples between the fullest and emptiest pieces, in rounds, until sizes are near `target`."""
    for _ in range(ROUNDS):
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        if max(sizes[order[-1]] - target, target - sizes[order[0]]) <= tolerance:
            return
        for low, high in zip(order[: len(order) // 2], reversed(order), strict=False):
            gap = (sizes[high] - sizes[low]) // 2
            if gap <= tolerance or not members[low] or not members[high]:
                continue
            best = min((_nearest_length(members[low], length, gap), i) for i, (length, _) in enumerate(members[high]))
            (difference, low_index), high_index = best
            if difference < gap:  # the exchange brings them closer
                longer, shorter = members[high].pop(high_index), members[low].pop(low_index)
                members[low].insert(bisect_left(members[low], longer), longer)
                members[high].insert(bisect_left(members[high], shorter), shorter)
                sizes[high] += shorter[0] - longer[0]
                sizes[low] += longer[0] - shorter[0]


def _nearest_length(examples: list[tuple[int, int]], length: int, gap: int) -> tuple[int, int]:
    """Return how far the nearest example of a piece is from `length` - `gap`, and its index."""
    at = bisect_left(examples, (length - gap, -1))
    return min((abs(length - gap - examples[i][0]), i) for i in (at - 1, at) if 0 <= i < len(examples))


def _order_pieces(differences: list[int]) -> list[int]:
    """Return an order of the pieces, first and last fixed, that keeps the running sum of differences near 0.

    A piece that differs much comes late, so that it shifts few borders.
    """
    middle = sorted(range(1, len(differences) - 1), key=lambda piece: -abs(differences[piece]))
    above = [piece for piece in middle if differences[piece] >= 0]
    below = [piece for piece in middle if differences[piece] < 0]
    order, drift = [0], differences[0]
    while above or below:
        side = above if above and (drift <= 0 or not below) else below
        piece = side.pop()
        drift += differences[piece]
        order.append(piece)
    return [*order, len(differences) - 1]
