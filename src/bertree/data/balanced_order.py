"""An order of examples in which the borders of batches fall on the ends of examples.

Batches are even pieces of one long line of examples. In a random order a border mostly falls inside an
example, and where batches hold few of them, moving it to the example's end would waste much of a batch.
So the examples are dealt: longest first, each to the piece with the most room left; then the fullest and
the emptiest pieces exchange examples until they differ by a few tokens; and pieces are laid in an order that
keeps the sum of the differences small. Which examples meet in a batch is still random, up to their lengths.
"""

import heapq
from bisect import bisect_left

import numpy as np

from bertree.data.counter_random import Ints

ROUNDS = 8  # of exchanges; two or three are usual
ATTEMPTS = 6  # at meeting the first border


def balanced_order(lengths: Ints, start: int, stride: int, slack: int) -> Ints:
    """An order of examples that lie from `start` on, for borders at the multiples of `stride`.

    A border counts as met if an example ends at it or up to `slack` tokens behind it. Examples are given
    in random order, which breaks ties and stays within each piece."""
    longest = int(lengths.max(initial=0))
    rest = np.arange(lengths.size)
    if slack == 0 or slack >= longest or stride < 2 * longest:  # nothing can be done, or nothing need be
        return rest
    front: list[int] = []
    for attempt in range(ATTEMPTS):
        remaining = lengths[rest]
        room = stride - start % stride  # of the first piece
        fitting = np.flatnonzero((remaining >= room) & (remaining <= room + slack))
        if room < longest and fitting.size:  # too little to be dealt, but one example fills it
            lead = int(fitting[0])
        else:
            order, met = _fill_pieces(remaining, start, stride, slack)
            if met or attempt == ATTEMPTS - 1:
                return np.append(front, rest[order]).astype(np.int64)
            lead = 0  # the first border is missed: with another example before it, it may be met
        front.append(int(rest[lead]))
        start += int(remaining[lead])
        rest = np.delete(rest, lead)
    return np.append(front, rest).astype(np.int64)


def _fill_pieces(lengths: Ints, start: int, stride: int, slack: int) -> tuple[Ints, bool]:
    """An order in which each piece has its share, and whether the first border is met."""
    total = int(lengths.sum())
    before = start % stride  # of the first piece, in whatever lies before these examples
    pieces = -(-(before + total) // stride)
    if pieces < 2:
        return np.arange(lengths.size), True
    # Aiming half the slack behind each border leaves as much on either side.
    loads = [0] * pieces
    loads[0] = before - slack // 2
    loads[-1] += pieces * stride - before - total + slack // 2
    hands = _assign_to_emptiest(lengths, loads)
    _exchange(hands, loads, stride, slack // 8)
    turn = np.empty(lengths.size, np.int64)
    for place, piece in enumerate(_order_pieces([load - stride for load in loads])):
        turn[[number for _, number in hands[piece]]] = place
    return np.argsort(turn, kind="stable"), abs(loads[0] - stride) <= slack // 2


def _assign_to_emptiest(lengths: Ints, loads: list[int]) -> list[list[tuple[int, int]]]:
    """The (length, number) of the examples in each piece, shortest first; `loads` is brought up to date."""
    hands: list[list[tuple[int, int]]] = [[] for _ in loads]
    heap = [(load, piece) for piece, load in enumerate(loads)]
    heapq.heapify(heap)
    order = np.argsort(-lengths, kind="stable")
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        load, piece = heap[0]
        heapq.heapreplace(heap, (load + length, piece))
        hands[piece].append((length, number))
    for load, piece in heap:
        loads[piece] = load
    for hand in hands:
        hand.sort()
    return hands


def _exchange(hands: list[list[tuple[int, int]]], loads: list[int], wanted: int, near: int) -> None:
    """The fullest piece and the emptiest exchange two examples, the next two likewise, and again."""
    for _ in range(ROUNDS):
        order = sorted(range(len(loads)), key=loads.__getitem__)
        if max(loads[order[-1]] - wanted, wanted - loads[order[0]]) <= near:
            return
        for low, high in zip(order[: len(order) // 2], reversed(order), strict=False):
            gap = (loads[high] - loads[low]) // 2
            if gap <= near or not hands[low] or not hands[high]:
                continue
            best = min((_nearest_length(hands[low], length, gap), at) for at, (length, _) in enumerate(hands[high]))
            (missed, mine), yours = best
            if missed < gap:  # it brings them nearer
                given, taken = hands[high].pop(yours), hands[low].pop(mine)
                hands[low].insert(bisect_left(hands[low], given), given)
                hands[high].insert(bisect_left(hands[high], taken), taken)
                loads[high] += taken[0] - given[0]
                loads[low] += given[0] - taken[0]


def _nearest_length(hand: list[tuple[int, int]], length: int, gap: int) -> tuple[int, int]:
    """How far from `length` - `gap` the nearest example of a hand is, and where it stands."""
    at = bisect_left(hand, (length - gap, -1))
    return min((abs(length - gap - hand[i][0]), i) for i in (at - 1, at) if 0 <= i < len(hand))


def _order_pieces(differences: list[int]) -> list[int]:
    """An order of the pieces, first and last in place, that keeps the running sum of differences near 0.

    A piece that differs much comes late, so that it shifts few borders."""
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
