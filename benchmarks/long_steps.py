"""Time of a training step against the length of sequences, at a constant number of tokens.

    python -m benchmarks.long_steps --device cuda --out long_steps.md
    python -m benchmarks.long_steps --layers 2 --width 64 --heads 2 --tokens 1024 --lengths 256 1024

The model is the same but for its attention: exact (flash attention on a GPU), or LSH with 1, 2 or 4 rounds, chunks of
64. `reversible` is LSH with 2 rounds and reversible layers, which compute every layer twice, as transformers' Reformer
does; `transformers` is that, with 2 rounds. Every side takes the same number of tokens in a step, forward, backward and
AdamW, on a GPU in bf16 autocast (transformers: bf16 weights, which is faster). A side whose step does not fit into
memory gets half of the tokens, and so on; its time is scaled to all of them. No side is compiled unless asked for;
transformers' never is.

It prints the length from which LSH is faster than exact attention, and how much faster it is at 16,384 tokens.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.common import environment, table
from benchmarks.long_models import Measured, Ours, Size, Theirs, architecture, measure

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
ASKED = 16384  # the length at which ratios are stated
LSH = {"attention": "lsh", "look_ahead": False}
SIDES = {
    "exact": {},
    "lsh-1": LSH | {"hashes": 1},
    "lsh-2": LSH | {"hashes": 2},
    "lsh-4": LSH | {"hashes": 4},
    "reversible": LSH | {"hashes": 2, "residual": "reversible"},
    "transformers": None,
}
Times = dict[tuple[str, int], float]


def maker(side: str, size: Size, length: int, sequences: int, given: argparse.Namespace) -> Callable[[], Ours | Theirs]:
    """Return what makes a side."""
    options = SIDES[side]
    if options is None:
        return lambda: Theirs(size, length, sequences, given.device, rounds=2)
    a = architecture(size, length, options)
    return lambda: Ours(a, length, sequences, given.device, given.compile)


def timed(side: str, size: Size, length: int, given: argparse.Namespace) -> tuple[Measured | None, int]:
    """Return the step of a side, with as many of the tokens as fit, and how many parts it would take."""
    sequences = max(1, given.tokens // length)
    parts = 1
    while True:
        found = measure(maker(side, size, length, sequences, given), given.steps, given.warm)
        if found is not None or sequences == 1:
            return found, parts
        sequences, parts = sequences // 2, parts * 2


def crossing(times: Times, side: str, lengths: list[int]) -> str:
    """Say from which length a side is faster than exact attention."""
    both = [n for n in lengths if ("exact", n) in times and (side, n) in times]
    faster = [n for n in both if times[side, n] < times["exact", n]]
    if not faster:
        return f"{side}: not faster than exact attention up to {max(both):,} tokens" if both else ""
    first = min(faster)
    before = [n for n in both if n < first]
    if not before:
        return f"{side}: faster than exact attention from {first:,} tokens or fewer"
    last = max(before)
    # Times between two lengths, as if they grew evenly with the logarithm of the length.
    gaps = [times[side, n] - times["exact", n] for n in (last, first)]
    between = last * (first / last) ** (gaps[0] / (gaps[0] - gaps[1]))
    return f"{side}: faster than exact attention from about {between:,.0f} tokens (measured: slower at {last:,})"


def ratios(times: Times, at: int) -> list[str]:
    """Say how the sides compare at a length."""
    lines = []
    for one, other in (("lsh-1", "exact"), ("lsh-2", "exact"), ("lsh-4", "exact"), ("reversible", "transformers")):
        if (one, at) in times and (other, at) in times:
            lines.append(f"at {at:,} tokens {one} is {times[other, at] / times[one, at]:.2f} times as fast as {other}")
    return lines


def report(times: Times, cells: dict[tuple[str, int], str], given: argparse.Namespace, note: str) -> str:
    """Return the tables and what follows from them."""
    rows = [[f"{length:,}", *(cells.get((side, length), "") for side in given.sides)] for length in given.lengths]
    head = f"{given.layers} layers of width {given.width}, {given.heads} heads, {given.tokens:,} tokens in a step"
    head += ", compiled" if given.compile else ""
    lines = [crossing(times, side, given.lengths) for side in ("lsh-1", "lsh-2", "lsh-4")]
    lines += ratios(times, ASKED if ASKED in given.lengths else max(given.lengths))
    listed = "\n".join(f"- {line}" for line in lines if line)
    title = "Milliseconds of a training step (GB of memory at its peak):"
    return "\n\n".join(
        [f"{environment('transformers')}; {head}", title, table(["length", *given.sides], rows), listed, note]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--tokens", type=int, default=65536, help="in a step")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--compile", action="store_true", help="compile our sides: a minute for each of them")
    parser.add_argument("--seconds", type=float, default=170, help="begin no measurement after so many")
    parser.add_argument("--out", type=Path, help="write the tables there too, after every cell")
    given = parser.parse_args()
    size, begin = Size(given.layers, given.width, given.heads), time.perf_counter()
    times: Times = {}
    cells: dict[tuple[str, int], str] = {}
    left = 0
    # The length at which ratios are stated first, so that it is there when time runs out.
    for length in sorted(given.lengths, key=lambda n: (n != ASKED, n)):
        for side in given.sides:
            if time.perf_counter() - begin > given.seconds:
                left += 1
                continue
            found, parts = timed(side, size, length, given)
            if found is None:
                cells[side, length] = "out of memory"
                continue
            times[side, length] = found.seconds * parts
            memory = f" ({found.peak / 1e9:.1f})" if torch.cuda.is_available() else ""
            scaled = f", {parts} parts" if parts > 1 else ""
            cells[side, length] = f"{1000 * found.seconds * parts:,.1f}{memory}{scaled}"
            print(f"{length:>6} {side:12} {cells[side, length]}", flush=True)
            note = f"{left} cells are empty: time ran out after {given.seconds:.0f} s." if left else ""
            if given.out:
                given.out.write_text(report(times, cells, given, note) + "\n", encoding="utf-8")
    note = f"{left} cells are empty: time ran out after {given.seconds:.0f} s." if left else ""
    text = report(times, cells, given, note)
    print(f"\n{text}")
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
