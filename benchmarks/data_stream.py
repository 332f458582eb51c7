"""How fast the batch stream is, on one core: tokens per second of `stream[k]` for formats and masks.

    python benchmarks/data_stream.py [--store STORE] [--tokens 20000000] [--out FILE]

Without a store, documents are made up: sentences of log-normal lengths, ids by Zipf's law, three tokens in
four starting a word. Batches are read in order over whole windows, so that making the windows is paid for.
"""

import argparse
import os
import platform
import statistics
import time
from datetime import date
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402

from bertree.data.lane_stream import LaneStream  # noqa: E402
from bertree.data.store import DecodedShard, Store  # noqa: E402
from bertree.data.stream import Stream  # noqa: E402
from bertree.keyed_random import cumulative_offsets  # noqa: E402

CASES = [  # format, masking, fixed, million tokens per second it must reach
    ("full-sentences", "token", False, 5.0),
    ("full-sentences", "token", True, 5.0),
    ("full-sentences", "token+static", False, 5.0),
    ("doc-sentences", "token", False, 5.0),
    ("stream", "token", True, 5.0),
    ("full-sentences", "word", False, 2.0),
    ("full-sentences", "ngram", False, 2.0),
    ("segment-pair+sop", "token", False, 2.0),
    ("segment-pair+sop", "ngram", False, 2.0),
    ("segment-pair+nsp", "word", False, 2.0),
    ("sentence-pair+nsp", "token", False, 2.0),
    ("full-sentences", "permutation", True, 0.7),
    ("segment-pair+nsp", "permutation", False, 0.7),
    ("lanes", "next", True, 0.7),
    ("lanes", "permutation", True, 0.7),
    ("lanes+pairs", "permutation", True, 0.7),
]


def made_up(tokens: int, vocab_size: int = 30_000) -> Store:
    """A store in memory with the statistics of plain English text."""
    random = np.random.default_rng(0)
    lengths = np.maximum(1, random.lognormal(3.0, 0.6, tokens // 20)).astype(np.int64)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    documents = np.maximum(1, random.lognormal(2.5, 1.0, lengths.size)).astype(np.int64)
    documents = documents[: int(np.searchsorted(np.cumsum(documents), lengths.size))]
    lengths = lengths[: int(documents.sum())]
    chances = 1 / np.arange(10, vocab_size + 5)
    ids = 5 + random.choice(vocab_size - 5, int(lengths.sum()), p=chances / chances.sum())
    return Store(
        vocab_size=vocab_size,
        special={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        word_start=random.random(vocab_size) < 0.75,
        tokens=ids.size,
        sentences=lengths.size,
        documents=documents.size,
        fingerprint="made up",
        shards=[
            DecodedShard(
                ids.astype(np.uint16), "store", cumulative_offsets(lengths), cumulative_offsets(documents), codes=None
            )
        ],
    )


def build(
    store: Store, format: str, masking: str, fixed: bool, batch_tokens: int, max_length: int
) -> Stream | LaneStream:
    """A stream of one of the cases; lanes of a permutation run both ways."""
    if not format.startswith("lanes"):
        return Stream(
            store, format=format, masking=masking, batch_tokens=batch_tokens, max_length=max_length, fixed=fixed
        )
    return LaneStream(
        store,
        lanes=batch_tokens // max_length,
        length=max_length,
        masking=masking,
        backward=masking == "permutation",
        reuse=0.5 if format == "lanes+pairs" else 0.0,
        fixed=fixed,
    )


def measure(stream: Stream | LaneStream, seconds: float) -> tuple[float, float, float]:
    """Tokens per second over consecutive steps, waste of the worst batch, seconds to reach step 1,000,000."""
    began = time.perf_counter()
    _ = stream[1_000_000]
    seek = time.perf_counter() - began
    rates, fills, step = [], [], 0
    for _ in range(3):
        began, read = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            count = stream[step].ids.numel()
            fills.append(count)
            read, step = read + count, step + 1
        rates.append(read / passed)
    return statistics.median(rates), 1 - min(fills) / stream.batch_tokens, seek


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="a token store of real text")
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--batch-tokens", type=int, default=65_536)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of three runs of a case")
    parser.add_argument("--only", default="", help="masking or format of the cases to measure")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = Store.open(arguments.store) if arguments.store else made_up(arguments.tokens)
    name = f"store of {store.tokens:,} tokens" + ("" if arguments.store else ", made up")
    lines = [
        f"{name}; batches of {arguments.batch_tokens:,} tokens, max_length {arguments.max_length}; "
        f"{platform.processor() or platform.machine()}, one core, {date.today()}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}",
        "",
        "| format | masking | fixed | index in s | M tokens/s | bar | worst waste | step 1,000,000 in s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for format, masking, fixed, bar in CASES:
        if arguments.only and arguments.only not in (format, masking):
            continue
        began = time.perf_counter()
        stream = build(store, format, masking, fixed, arguments.batch_tokens, arguments.max_length)
        indexed = time.perf_counter() - began
        rate, waste, seek = measure(stream, arguments.seconds)
        lines.append(
            f"| {format} | {masking} | {'yes' if fixed else 'no'} | {indexed:.2f} | {rate / 1e6:.1f} "
            f"| {bar:g} | {waste:.2%} | {seek:.3f} |"
        )
        print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
