"""Stateless random numbers: each is a hash of a key and a counter.

A generator with state makes a batch depend on what was read before it. Here number n of a key is the SplitMix64 output
for that counter, in whatever order the numbers are drawn. It is not cryptographic; it passes the usual statistical test
suites and costs about six nanoseconds a number.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bits = NDArray[np.uint64]

_STEP, _FIRST, _SECOND = (
    np.uint64(constant) for constant in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_ALL = 2**64 - 1


def key(*parts: int | str) -> np.uint64:
    """Derive a key from a seed and anything else that separates its numbers from others."""
    text = "\0".join(str(part) for part in parts)
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"))


def bits(key: np.uint64, counters: NDArray[Any]) -> Bits:
    """Return 64 random bits for each counter."""
    state = counters.astype(np.uint64)
    state *= _STEP
    state += key
    shifted = state >> np.uint64(30)
    state ^= shifted
    state *= _FIRST
    np.right_shift(state, np.uint64(27), out=shifted)
    state ^= shifted
    state *= _SECOND
    np.right_shift(state, np.uint64(31), out=shifted)
    state ^= shifted
    return state


def threshold(probability: float) -> np.uint64:
    """Return the value below which random bits fall with this probability."""
    return np.uint64(min(int(probability * 2**64), _ALL))


def uniform_below(random: Bits, limits: Ints | int) -> Ints:
    """Return a number from 0 up to its limit (at most 2**31) for each 64 random bits."""
    high = (random >> np.uint64(32)).astype(np.int64)
    return (high * limits) >> 32


def normal(key: np.uint64, counters: NDArray[Any]) -> NDArray[np.float32]:
    """Return a normal number for each counter (Box and Muller)."""
    first, second = (bits(key, 2 * counters + i) >> np.uint64(11) for i in range(2))
    radius = np.sqrt(-2.0 * np.log((first + 1.0) * 2.0**-53))
    return (radius * np.cos(second * (2.0**-52 * np.pi))).astype(np.float32)


def concatenate_ranges(starts: Ints, lengths: Ints) -> Ints:
    """Return start, start + 1, ... of each range, concatenated."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def cumulative_offsets(counts: Ints) -> Ints:
    """Return where ranges of these lengths start, and where the last ends."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
