"""The longest sequence that trains on one card, with each of Reformer's options alone and with all of them.

    python -m benchmarks.longest --device cuda --out longest.md
    python -m benchmarks.longest --layers 2 --width 32 --heads 2 --first 128 --limit 512 --depths 1 2

One sequence in a step: next tokens, forward, backward and AdamW, on a GPU in bf16 autocast. The length doubles until
memory runs out, then the search closes in on the longest that fits, led by the memory that shorter ones took. It ends
early where a step would take longer than `--step-seconds`: exact attention takes a time that grows with the square of
the length. The last column says what memory would allow: a straight line through the two longest that were trained.

The second table is the peak of a step against the number of layers, at one length, with and without reversible layers.
On a CPU nothing is measured but that it runs: there is no memory to run out of up to `--limit`.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.common import environment, table
from benchmarks.long_models import Measured, Ours, Size, architecture, axial, measure

CASES = ("none", "lsh", "reversible", "ffn_chunk", "axial", "all")
LSH = {"attention": "lsh", "look_ahead": False, "hashes": 2}
EXACT = ("none", "reversible", "ffn_chunk", "axial")  # cases with exact attention
UNIT = 1024  # lengths are multiples of it, or of the first one
CLOSE = 1.04  # the search ends where the shortest that failed is so close to the longest that did not


def options(case: str, length: int, ffn_chunk: int) -> dict[str, Any]:
    """Return the axes of a case."""
    parts: dict[str, dict[str, Any]] = {
        "lsh": LSH,
        "reversible": {"residual": "reversible"},
        "ffn_chunk": {"ffn_chunk": ffn_chunk},
        "axial": axial(length),
    }
    wanted = parts if case == "all" else {case: parts[case]} if case in parts else {}
    return {name: value for part in wanted.values() for name, value in part.items()}


def train(case: str, size: Size, length: int, warm: int, given: argparse.Namespace) -> Measured | None:
    """Return a step of one sequence, after so many others, or None if memory runs out."""
    a = architecture(size, length, options(case, length, given.ffn_chunk))
    return measure(partial(Ours, a, length, 1, given.device), steps=1, warm=warm)


class Search:
    """The longest sequence of a case: what was trained and what failed."""

    def __init__(self, case: str, unit: int, limit: int, memory: int, step_seconds: float) -> None:
        self.case, self.unit, self.limit = case, unit, limit
        self.memory, self.step_seconds = memory, step_seconds
        self.trained: dict[int, Measured] = {}
        self.failed = limit + 1  # the shortest that does not fit, or is not tried
        self.reason = f"not tried beyond {limit:,}"

    @property
    def longest(self) -> int:
        """The longest that was trained."""
        return max(self.trained, default=0)

    def allowed(self) -> int | None:
        """Return the length that memory allows, by a line through the two longest."""
        if len(self.trained) < 2 or not self.memory:
            return None
        one, two = sorted(self.trained)[-2:]
        slope = (self.trained[two].peak - self.trained[one].peak) / (two - one)
        return int(two + (self.memory - self.trained[two].peak) / slope) if slope > 0 else None

    def next(self, first: int) -> int | None:
        """Return the length to try next; None: the search is over."""
        if not self.trained:
            return first if first < self.failed else None
        if self.failed <= max(CLOSE * self.longest, self.longest + self.unit):
            return None
        allowed = self.allowed()
        wanted = 2 * self.longest if allowed is None else min(4 * self.longest, round(0.98 * allowed))
        wanted = max(wanted, round((CLOSE - 0.01) * self.longest))  # memory allowed more than the line says
        if wanted >= self.failed:
            wanted = (self.longest + self.failed) // 2
        is_slow = self.is_too_slow(wanted)
        while self.is_too_slow(wanted):
            wanted //= 2
        wanted = wanted // self.unit * self.unit
        if is_slow and wanted <= self.longest:
            self.reason = f"a longer step would take more than {self.step_seconds:.0f} s"
        return wanted if self.longest < wanted < self.failed else None

    def is_too_slow(self, length: int) -> bool:
        """Return whether a step would take too long."""
        growth = (length / self.longest) ** (2 if self.case in EXACT else 1)
        return length > self.longest and growth * self.trained[self.longest].seconds > self.step_seconds

    def take(self, length: int, found: Measured | None) -> None:
        """Take a result."""
        if found is None:
            self.failed, self.reason = length, f"out of memory at {length:,}"
        else:
            self.trained[length] = found

    def row(self) -> list[object]:
        """Return what was found."""
        allowed, last = self.allowed(), self.trained.get(self.longest)
        peak = f"{last.peak / 2**30:.1f}" if last and last.peak else ""
        seconds = f"{last.seconds:.2f}" if last else ""
        return [self.case, f"{self.longest:,}", seconds, peak, self.reason, f"{allowed:,}" if allowed else ""]


def search(case: str, size: Size, given: argparse.Namespace, until: float) -> Search:
    """Find the longest sequence that trains."""
    memory = torch.cuda.mem_get_info()[1] if given.device == "cuda" else 0
    found = Search(case, min(UNIT, given.first), given.limit, memory, given.step_seconds)
    while (length := found.next(given.first)) is not None:
        if time.perf_counter() > until:
            found.failed, found.reason = length, "time ran out"
            break
        result = train(case, size, length, 0 if found.trained else 1, given)  # kernels are compiled in the first
        print(f"{case:10} {length:>9,} {result or 'out of memory'}", flush=True)
        found.take(length, result)
    return found


class Depth(NamedTuple):
    """A row of the second table."""

    layers: int
    plain: Measured | None
    reversible: Measured | None

    def row(self) -> list[str]:
        """Return it in text."""
        cells = (
            f"{one.peak / 2**30:.2f} ({1000 * one.seconds:,.0f} ms)" if one else "out of memory"
            for one in (self.plain, self.reversible)
        )
        return [str(self.layers), *cells]


def by_depth(size: Size, given: argparse.Namespace) -> list[Depth]:
    """Return the peaks of steps by the number of layers, with lsh and chunked feed-forward parts."""
    rows = []
    for layers in given.depths:
        sides = []
        for residual in ("pre-norm", "reversible"):
            a = architecture(
                size._replace(layers=layers),
                given.depth_length,
                LSH | {"ffn_chunk": given.ffn_chunk, "residual": residual},
            )
            sides.append(measure(partial(Ours, a, given.depth_length, 1, given.device), steps=1, warm=1))
        rows.append(Depth(layers, *sides))
        print(*rows[-1].row(), flush=True)
    return rows


def report(found: list[Search], depths: list[Depth], given: argparse.Namespace) -> str:
    """Return the tables."""
    head = f"{environment()}; {given.layers} layers of width {given.width}, {given.heads} heads"
    columns = ["options", "longest trained", "its step, s", "GiB", "why not longer", "memory would allow"]
    lines = [head, table(columns, [one.row() for one in found])]
    if depths:
        lines.append(f"Peak GiB of a step of {given.depth_length:,} tokens, lsh, feed-forward in chunks:")
        lines.append(table(["layers", "pre-norm", "reversible"], [depth.row() for depth in depths]))
    return "\n\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--first", type=int, default=16384, help="the first length that is tried")
    parser.add_argument("--limit", type=int, default=2**23, help="the longest that is tried")
    parser.add_argument("--ffn-chunk", type=int, default=8192)
    parser.add_argument("--step-seconds", type=float, default=8, help="try no length whose step would take longer")
    parser.add_argument("--seconds", type=float, default=20, help="begin no step of a case after so many")
    parser.add_argument("--depths", type=int, nargs="*", default=[3, 6, 12, 24], help="layers in the second table")
    parser.add_argument("--depth-length", type=int, help="tokens in the second table (default: the first length)")
    parser.add_argument("--out", type=Path, help="write the tables there too, after every row")
    given = parser.parse_args()
    given.depth_length = given.depth_length or given.first
    size = Size(given.layers, given.width, given.heads)
    found: list[Search] = []

    def write(depths: list[Depth]) -> str:
        text = report(found, depths, given)
        if given.out:
            given.out.write_text(text + "\n", encoding="utf-8")
        return text

    for case in given.cases:
        found.append(search(case, size, given, time.perf_counter() + given.seconds))
        write([])
    print(f"\n{write(by_depth(size, given))}")


if __name__ == "__main__":
    main()
