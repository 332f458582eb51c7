"""Does preparing a store keep up with the bare tokenizer, in how many bytes and in how much memory?

    python benchmarks/data_prepare.py [--text FILE ...] [--tokenizer DIR] [--megabytes 10 500]

Rates are measured in turns in one run, so that other work on the machine hits both alike: bare
`tokenizers.encode_batch` over the same documents' lines with its own threads, against `prepare` with as many
worker processes as there are cores, from file to finished store. Memory is the peak of the whole process
tree (proportional set size, so shared pages count once), sampled while a corpus of each size is prepared.
"""

import argparse
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

from tokenizers import __version__ as tokenizers_version

from bertree.data.store_builder import build_store
from bertree.engines.local import choose_engine
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus
from bertree.text.tokenizer import Tokenizer

BOOKS = Path(__file__).parent.parent / "corpus" / "books.txt"


def make_corpus(texts: list[Path], path: Path, megabytes: int) -> None:
    """Text of a given size by repeating the files; a number in each copy keeps documents apart."""
    parts = [text.read_bytes() for text in texts]
    size = copy = 0
    with path.open("wb") as file:
        while size < megabytes * 1_000_000:
            for part in parts:
                size += file.write(f"Copy {copy}.\n\n".encode())
                size += file.write(part[: max(0, megabytes * 1_000_000 - size)])
                size += file.write(b"\n\n")
            copy += 1


def bare(tokenizer: Tokenizer, corpus: Path) -> float:
    """Tokens per second of encode_batch alone, text already in memory."""
    documents = list(Corpus([str(corpus)]).documents())
    lines = [line for document in documents for line in document.split("\n")]
    started = time.perf_counter()
    tokens = 0
    for start in range(0, len(lines), 10_000):
        batch = tokenizer.backend.encode_batch(lines[start : start + 10_000], add_special_tokens=False)
        tokens += sum(len(encoding) for encoding in batch)
    return tokens / (time.perf_counter() - started)


def whole(tokenizer: Tokenizer, corpus: Path, out: Path, workers: int) -> tuple[float, float]:
    """Tokens per second of `prepare`, from the file to the finished store, and bytes per token."""
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    store = build_store(Corpus([str(corpus)]), tokenizer, out, choose_engine("local", workers=workers))
    rate = store.tokens / (time.perf_counter() - started)
    return rate, sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / store.tokens


def tree_memory(root: int) -> int:
    """Bytes a process and everything below it hold, shared pages counted once."""
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            waiting += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        except (OSError, ValueError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def _job(folder: str, corpus: str, out: str, workers: int) -> None:
    tokenizer = Tokenizer.load(Path(folder))
    assert tokenizer is not None
    build_store(Corpus([corpus]), tokenizer, Path(out), choose_engine("local", workers=workers))


def peak(folder: Path, corpus: Path, out: Path, workers: int) -> tuple[int, float]:
    """Peak memory of a preparation in a process of its own, and its seconds."""
    process = multiprocessing.get_context("spawn").Process(
        target=_job, args=(str(folder), str(corpus), str(out), workers)
    )
    started = time.perf_counter()
    process.start()
    highest = 0

    def watch() -> None:
        nonlocal highest
        while process.is_alive():
            highest = max(highest, tree_memory(process.pid or 0))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.join()
    watcher.join()
    assert process.exitcode == 0, "the preparation failed"
    return highest, time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="+", type=Path, default=[BOOKS])
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer folder; else WordPiece of 30,000 is trained")
    parser.add_argument("--megabytes", nargs="*", type=int, default=[10, 500])
    parser.add_argument("--rate-megabytes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        folder = options.tokenizer
        if folder is None:
            folder = work / "tokenizer"
            names = [str(text) for text in options.text]
            trained = tokenizer_training.train(lambda: Corpus(names).documents(), "wordpiece", 30_000)
            tokenizer_training.save(trained, folder)
        tokenizer = Tokenizer.load(folder)
        assert tokenizer is not None, f"{folder}: no tokenizer"
        corpus, out = work / "corpus.txt", work / "store"
        make_corpus(options.text, corpus, options.rate_megabytes)
        machine = f"{len(os.sched_getaffinity(0))} cores, {platform.processor() or platform.machine()}"
        versions = f"Python {platform.python_version()}, tokenizers {tokenizers_version}"
        print(f"{options.workers} workers, {machine}, {versions}, vocabulary {tokenizer.size:,}\n")
        pairs = []
        for _ in range(options.rounds):
            alone = bare(tokenizer, corpus)
            pairs.append((alone, *whole(tokenizer, corpus, out, options.workers)))
        ratio = statistics.median(b / a for a, b, _ in pairs)
        print("| measure | value | bar |\n|---|---|---|")
        print(f"| bare encode_batch, tokens/s | {statistics.median(a for a, _, _ in pairs):,.0f} | |")
        print(f"| prepare, text to store, tokens/s | {statistics.median(b for _, b, _ in pairs):,.0f} | |")
        print(f"| ratio (median of {options.rounds} turns) | {ratio:.2f} | >= 0.8 |")
        what = f"bytes per token, all files ({options.rate_megabytes} MB of text)"
        print(f"| {what} | {pairs[0][2]:.3f} | <= 2.2 |", flush=True)
        for megabytes in options.megabytes:
            make_corpus(options.text, corpus, megabytes)
            shutil.rmtree(out, ignore_errors=True)
            memory, seconds = peak(folder, corpus, out, options.workers)
            print(
                f"| peak memory, {megabytes} MB of text ({seconds:.0f} s) | {memory / 1e6:,.0f} MB | flat |",
                flush=True,
            )


if __name__ == "__main__":
    main()
