"""Variable-length integers: seven bits per byte, the high bit says that more follow.

Nearly every sentence has fewer than 128 tokens and nearly every document fewer than 128 sentences, so a length costs
one byte where a fixed width would cost four. In return lengths must be decoded before use; numpy does that at some
hundred million a second.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.int64]
GROUPS = 9  # 63 bits


def encode(lengths: NDArray[Any]) -> bytes:
    """Encode non-negative integers as variable-length bytes, least significant group first."""
    values = np.asarray(lengths, dtype=np.int64)
    assert values.size == 0 or values.min() >= 0, "a length is never negative"
    sizes = np.ones(values.size, dtype=np.int64)
    for group in range(1, GROUPS):
        sizes += values >= (1 << (7 * group))
    ends = np.cumsum(sizes)
    data = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    starts = ends - sizes
    for group in range(int(sizes.max()) if sizes.size else 0):
        there = sizes > group
        more = (sizes[there] > group + 1).astype(np.uint8) << 7
        data[starts[there] + group] = ((values[there] >> (7 * group)) & 0x7F).astype(np.uint8) | more
    return data.tobytes()


def decode(data: bytes) -> Lengths:
    """Decode the integers; raise ValueError if the bytes are not valid."""
    raw = np.frombuffer(data, dtype=np.uint8)
    last = raw < 0x80
    if last.all():
        return raw.astype(np.int64)
    if not last[-1]:
        raise ValueError("the last length is cut off")
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if int(sizes.max()) > GROUPS:
        raise ValueError("a length is too long")
    place = np.arange(raw.size) - np.repeat(starts, sizes)
    groups = (raw & 0x7F).astype(np.int64) << (7 * place)
    return np.add.reduceat(groups, starts)
