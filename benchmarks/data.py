"""The data path: text to token store, and token store to batches.

    python -m benchmarks.data                                 # some minutes
    python -m benchmarks.data prepare --rounds 1
    taskset -c 1 python -m benchmarks.data stream --only word # one core, the cases with whole-word masks

prepare: bare `tokenizers.encode_batch` over the documents' lines against `prepare` with one process per core, from file
to finished store, in turn. Its memory: `python -m benchmarks.growth`.

stream: tokens per second of `stream[k]` in one thread. Without --store documents are made up: sentences of log-normal
lengths, ids by Zipf's law. Batches are read in order, so that making their index is part of the time.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import CORPUS, Results, argument_parser
from bertree.data.lane_stream import LaneStream
from bertree.data.store import DecodedShard, Store
from bertree.data.store_builder import build_store
from bertree.data.stream import Stream
from bertree.engines.local import choose_engine
from bertree.keyed_random import cumulative_offsets
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus
from bertree.text.tokenizer import Tokenizer

STREAMS = [  # format, masking, fixed shapes
    ("full-sentences", "token", False),
    ("full-sentences", "token", True),
    ("full-sentences", "token+static", False),
    ("doc-sentences", "token", False),
    ("stream", "token", True),
    ("full-sentences", "word", False),
    ("full-sentences", "ngram", False),
    ("segment-pair+sop", "token", False),
    ("segment-pair+sop", "ngram", False),
    ("segment-pair+nsp", "word", False),
    ("sentence-pair+nsp", "token", False),
    ("full-sentences", "permutation", True),
    ("segment-pair+nsp", "permutation", False),
    ("lanes", "next", True),
    ("lanes", "permutation", True),
    ("lanes+pairs", "permutation", True),
]


def write_corpus(texts: list[Path], path: Path, megabytes: int) -> None:
    """Write text of a given size by repeating the files; a number in each copy keeps documents apart."""
    contents = [text.read_bytes() for text in texts]
    size = copy = 0
    with path.open("wb") as file:
        while size < megabytes * 1_000_000:
            for content in contents:
                size += file.write(f"Copy {copy}.\n\n".encode())
                size += file.write(content[: max(0, megabytes * 1_000_000 - size)])
                size += file.write(b"\n\n")
            copy += 1


def tokenizer_rate(tokenizer: Tokenizer, corpus: Path) -> float:
    """Return the tokens per second of encode_batch alone, text already in memory."""
    lines = [line for document in Corpus([str(corpus)]).documents() for line in document.split("\n")]
    started, tokens = time.perf_counter(), 0
    for start in range(0, len(lines), 10_000):
        batch = tokenizer.backend.encode_batch(lines[start : start + 10_000], add_special_tokens=False)
        tokens += sum(len(encoding) for encoding in batch)
    return tokens / (time.perf_counter() - started)


def prepare_rate(tokenizer: Tokenizer, corpus: Path, out: Path, workers: int) -> tuple[float, float]:
    """Return the tokens per second of `prepare`, and the bytes of all files per token."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    store = build_store(Corpus([str(corpus)]), tokenizer, out, choose_engine("local", workers=workers))
    rate = store.tokens / (time.perf_counter() - started)
    return rate, sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / store.tokens


def measure_prepare(options: argparse.Namespace) -> None:
    """Measure rates of text to store."""
    results = Results("prepare", options.out, ["tokenizers"])
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder, names = options.tokenizer or work / "tokenizer", [str(text) for text in options.text]
        if options.tokenizer is None:
            trained = tokenizer_training.train(lambda: Corpus(names).documents(), "wordpiece", 30_000)
            tokenizer_training.save(trained, folder)
        tokenizer = Tokenizer.load(folder)
        assert tokenizer is not None, f"{folder}: no tokenizer"
        corpus, out = work / "corpus.txt", work / "store"
        write_corpus(options.text, corpus, options.rate_megabytes)
        rounds = [
            (tokenizer_rate(tokenizer, corpus), *prepare_rate(tokenizer, corpus, out, options.workers))
            for _ in range(options.rounds)
        ]
        results.add(
            f"{options.rate_megabytes} MB",
            tokenizer_tokens_per_second=round(statistics.median(bare for bare, _, _ in rounds)),
            tokens_per_second=round(statistics.median(rate for _, rate, _ in rounds)),
            of_tokenizer=round(statistics.median(rate / bare for bare, rate, _ in rounds), 2),
            bytes_per_token=round(rounds[0][2], 3),
        )
    results.print_table()


def made_up_store(tokens: int, vocab_size: int = 30_000) -> Store:
    """Return a store in memory with the statistics of plain English text; three tokens in four start a word."""
    random = np.random.default_rng(0)
    lengths = np.maximum(1, random.lognormal(3.0, 0.6, tokens // 20)).astype(np.int64)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    documents = np.maximum(1, random.lognormal(2.5, 1.0, lengths.size)).astype(np.int64)
    documents = documents[: int(np.searchsorted(np.cumsum(documents), lengths.size))]
    lengths = lengths[: int(documents.sum())]
    chances = 1 / np.arange(10, vocab_size + 5)
    ids = 5 + random.choice(vocab_size - 5, int(lengths.sum()), p=chances / chances.sum())
    offsets = (cumulative_offsets(lengths), cumulative_offsets(documents))
    return Store(
        vocab_size=vocab_size,
        special={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        word_start=random.random(vocab_size) < 0.75,
        tokens=ids.size,
        sentences=lengths.size,
        documents=documents.size,
        fingerprint="made up",
        shards=[DecodedShard(ids.astype(np.uint16), "store", *offsets, codes=None)],
    )


def open_stream(
    store: Store, format: str, masking: str, fixed: bool, options: argparse.Namespace
) -> Stream | LaneStream:
    """Return the stream of a case; lanes of a permutation run in both directions."""
    if not format.startswith("lanes"):
        budget = {"batch_tokens": options.batch_tokens, "max_length": options.max_length}
        return Stream(store, format=format, masking=masking, fixed=fixed, **budget)
    return LaneStream(
        store,
        lanes=options.batch_tokens // options.max_length,
        length=options.max_length,
        masking=masking,
        backward=masking == "permutation",
        reuse=0.5 if format == "lanes+pairs" else 0.0,
        fixed=fixed,
    )


def measure_stream(options: argparse.Namespace) -> None:
    """Measure every format and masking: three rounds of some seconds over consecutive steps."""
    torch.set_num_threads(1)
    results = Results("stream", options.out, ["numpy"])
    store = Store.open(options.store) if options.store else made_up_store(options.tokens)
    for format, masking, fixed in STREAMS:
        if options.only and options.only not in (format, masking):
            continue
        began = time.perf_counter()
        stream = open_stream(store, format, masking, fixed, options)
        indexed = time.perf_counter()
        _ = stream[1_000_000]
        sought = time.perf_counter()
        rates, sizes, step = [], [], 0
        for _ in range(3):
            start, read = time.perf_counter(), 0
            while (passed := time.perf_counter() - start) < options.seconds:
                sizes.append(stream[step].ids.numel())
                read, step = read + sizes[-1], step + 1
            rates.append(read / passed)
        results.add(
            f"{format}, {masking}{', fixed shapes' if fixed else ''}",
            index_seconds=round(indexed - began, 2),
            million_tokens_per_second=round(statistics.median(rates) / 1e6, 1),
            worst_waste_percent=round(100 * (1 - min(sizes) / stream.batch_tokens), 2),
            seek_seconds=round(sought - indexed, 3),
        )
    results.print_table()


def main() -> None:
    """Measure one half of the data path, or both."""
    parser = argument_parser(__doc__)
    parser.add_argument("half", nargs="?", choices=("prepare", "stream"), help="default: both")
    parser.add_argument("--text", nargs="+", type=Path, default=[CORPUS])
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer folder; default: WordPiece of 30,000 is trained")
    parser.add_argument("--rate-megabytes", type=int, default=20, help="of text, for rates")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--store", type=Path, help="a token store of real text")
    parser.add_argument("--tokens", type=int, default=20_000_000, help="of the made-up store")
    parser.add_argument("--batch-tokens", type=int, default=65_536)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of three rounds of a case")
    parser.add_argument("--only", default="", help="masking or format of the cases to measure")
    options = parser.parse_args()
    if options.half != "stream":
        measure_prepare(options)
    if options.half != "prepare":
        measure_stream(options)


if __name__ == "__main__":
    main()
