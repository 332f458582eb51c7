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

from bertree.data.draws import Ints

ROUNDS = 8  # of exchanges; two or three are usual


def dealt(lengths: Ints, start: int, stride: int, slack: int) -> Ints:
    """An order of examples that lie from `start` on, for borders at the multiples of `stride`.

    A border counts as met if an example ends at it or up to `slack` tokens behind it. Examples are given
    in random order, which breaks ties and stays within each piece."""
    total = int(lengths.sum())
    before = start % stride  # of the first piece, in whatever lies before these examples
    pieces = -(-(before + total) // stride)
    if pieces < 2 or slack == 0:
        return np.arange(lengths.size)
    room = stride - before
    if room < lengths.max():  # too little to be dealt: one example that fits, or one that is torn
        return _after(int(np.argmax((lengths >= room) & (lengths <= room + slack))), lengths, start, stride, slack)
    # Aiming half the slack behind each border leaves as much on either side.
    loads = [0] * pieces
    loads[0] = before - slack // 2
    loads[-1] += pieces * stride - before - total + slack // 2
    hands = _to_the_emptiest(lengths, loads)
    _exchange(hands, loads, stride, slack // 8)
    if abs(loads[0] - stride) > slack // 2 and room < 4 * lengths.max():
        return _after(0, lengths, start, stride, slack)  # the first piece is short: another example may help
    turn = np.empty(lengths.size, np.int64)
    for place, piece in enumerate(_balanced([load - stride for load in loads])):
        turn[[number for _, number in hands[piece]]] = place
    return np.argsort(turn, kind="stable")


def _after(first: int, lengths: Ints, start: int, stride: int, slack: int) -> Ints:
    """One example, and then the others dealt."""
    rest = np.delete(np.arange(lengths.size), first)
    return np.append(first, rest[dealt(lengths[rest], start + int(lengths[first]), stride, slack)])


def _to_the_emptiest(lengths: Ints, loads: list[int]) -> list[list[tuple[int, int]]]:
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
            best = min((_fitting(hands[low], length, gap), at) for at, (length, _) in enumerate(hands[high]))
            (missed, mine), yours = best
            if missed < gap:  # it brings them nearer
                given, taken = hands[high].pop(yours), hands[low].pop(mine)
                hands[low].insert(bisect_left(hands[low], given), given)
                hands[high].insert(bisect_left(hands[high], taken), taken)
                loads[high] += taken[0] - given[0]
                loads[low] += given[0] - taken[0]


def _fitting(hand: list[tuple[int, int]], length: int, gap: int) -> tuple[int, int]:
    """How far from `length` - `gap` the nearest example of a hand is, and where it stands."""
    at = bisect_left(hand, (length - gap, -1))
    return min((abs(length - gap - hand[i][0]), i) for i in (at - 1, at) if 0 <= i < len(hand))


def _balanced(differences: list[int]) -> list[int]:
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
