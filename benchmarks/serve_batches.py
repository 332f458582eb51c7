"""CPU time of a text by the size of its batch: what the server's token budgets on a CPU are chosen from.

    OMP_NUM_THREADS=1 python -m benchmarks.serve_batches --out benchmarks/serve_batches_cpu_DATE.md

all-MiniLM-L6-v2 in float32, real ragged sentences in one thread: in random order, as requests come, and sorted by
length, as `model.embed` computes them. All sizes take turns; CPU time, so that another load changes it less.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import bertree
from benchmarks.common import CORPUS, environment, sentences, table
from benchmarks.encode import real_weights
from bertree.text.tokenizer import Encoded

BUDGETS = (1, 64, 128, 256, 384, 512, 768, 1024, 2048)
TEXTS = 512


def split(texts: Sequence[Encoded], budget: int) -> list[list[Encoded]]:
    """Divide texts into batches of at most so many tokens."""
    batches: list[list[Encoded]] = [[]]
    for text in texts:
        if batches[-1] and sum(len(other.ids) for other in batches[-1]) + len(text.ids) > budget:
            batches.append([])
        batches[-1].append(text)
    return batches


def main() -> None:
    """Measure all sizes in turns and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = bertree.load(real_weights())
    encoded = model.required_tokenizer.encode(sentences(CORPUS, TEXTS), model.max_length)
    shuffled = random.Random(0).sample(encoded, len(encoded))
    by_length = sorted(encoded, key=lambda text: len(text.ids))
    kinds = {
        (budget, order): split(texts, budget)
        for budget in BUDGETS
        for order, texts in (("random", shuffled), ("sorted", by_length))
    }
    embed, found = model.batch_embedder(), dict[tuple[int, str], list[float]]()
    for _ in range(given.rounds):
        for kind, batches in kinds.items():
            started = time.thread_time()
            for batch in batches:
                embed(batch)
            found.setdefault(kind, []).append(1000 * (time.thread_time() - started) / TEXTS)
    rows = []
    for budget in BUDGETS:
        count = len(kinds[budget, "random"])
        best = {order: min(found[budget, order]) for order in ("random", "sorted")}
        median = statistics.median(found[budget, "random"])
        rows.append(
            [
                budget,
                f"{TEXTS / count:.1f}",
                *(f"{best[o]:.2f}" for o in best),
                f"{median:.2f}",
                f"{best['random'] * TEXTS / count:.0f}",
            ]
        )
    mean = sum(len(text.ids) for text in encoded) / TEXTS
    head = ("tokens of a batch", "texts", "ms a text, random", "sorted", "random, median", "ms a batch")
    report = "\n\n".join(
        [
            "# CPU time of a text by the size of its batch",
            f"    OMP_NUM_THREADS=1 python -m benchmarks.serve_batches {' '.join(sys.argv[1:])}",
            environment(),
            f"{TEXTS} texts of {mean:.1f} tokens on average, one thread: the best of "
            f"{given.rounds} rounds, and the median. Load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
            table(head, rows),
        ]
    )
    print(report)
    if given.out:
        given.out.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
