"""Speed of evaluation: a memory against computing the whole window again for every token (Dai et al. 2019, table 9).

    python -m benchmarks.evaluation_speed                     # two CPU cores, a small model, short contexts
    python -m benchmarks.evaluation_speed --device cuda       # transformer-xl-enwik8-12 at the paper's lengths

For each attention length, the same network with random weights predicts tokens in two ways. Windows: every token from
the tokens before it, as many as the length, all computed for it alone; many windows share a packed batch. Memory:
segments of 128 tokens with a memory of that length, 32 texts at a time. Medians of several runs in turn.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.common import environment, synchronize, table
from bertree.inference.causal.scoring import score, score_segments
from bertree.inference.load import random_model
from bertree.inference.model import Model
from bertree.model.architecture import Architecture
from bertree.model.presets import preset

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SEGMENT, LANES = 128, 32


def architecture(name: str, small: bool) -> Architecture:
    """Return the architecture that is measured."""
    a = preset(name).architecture.with_values({"max_positions": 8192})
    return a.with_values({"layers": 4, "width": 128, "heads": 4}) if small else a


def windows(model: Model, ids: list[int], length: int, count: int) -> int:
    """Predict `count` tokens, each from a window of its own."""
    pieces = [ids[start : start + length + 1] for start in range(count)]
    score(model, pieces, [length] * count)
    return count


def memory(model: Model, ids: list[int], length: int) -> int:
    """Predict all tokens in segments with a memory; many lanes are read side by side, as windows share batches."""
    losses, _ = score_segments(model, [ids] * LANES, (), length, SEGMENT, lambda count: None)
    return losses.size


def tokens_per_second(work: Callable[[], int]) -> float:
    """Measure one call."""
    synchronize()
    began = time.perf_counter()
    tokens = work()
    synchronize()
    return tokens / (time.perf_counter() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--preset", default="transformer-xl-enwik8-12")
    parser.add_argument("--lengths", type=int, nargs="+", help="attention lengths")
    parser.add_argument("--windows", type=int, help="tokens that are predicted from windows of their own")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    a = architecture(options.preset, small=not on_gpu)
    model = random_model(a, {"mask": 0}, 0)
    model = model.to(options.device, "bfloat16") if on_gpu else model
    lengths = options.lengths or (list(PUBLISHED) if on_gpu else [100, 200, 400, 800])
    count = options.windows or (64 if on_gpu else 8)
    draw = np.random.default_rng(0)
    rows: list[list[object]] = []
    for length in lengths:
        ids = draw.integers(0, a.vocab_size, length + max(count, 16 * SEGMENT) + 1).tolist()
        ways = (lambda: windows(model, ids, length, count), lambda: memory(model, ids, length))  # noqa: B023
        for way in ways:
            way()
        rates = [[tokens_per_second(way) for way in ways] for _ in range(options.runs)]
        slow, fast = (median(one) for one in zip(*rates, strict=True))
        rows.append([length, f"{slow:,.1f}", f"{fast:,.0f}", f"{fast / slow:,.0f}", PUBLISHED.get(length, "")])
        print(rows[-1], flush=True)
    head = ["attention length", "windows, tokens/s", "memory, tokens/s", "ratio", "published"]
    lines = f"{environment()}; {a.describe()}; {model.precision}\n\n{table(head, rows)}\n"
    print(lines)
    if options.out:
        options.out.write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
