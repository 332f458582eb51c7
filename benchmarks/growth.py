"""How time and memory grow with the work: each size of a curve is measured in a process of its own.

    python -m benchmarks.growth prepare 10 30 100 300 1000 --out benchmarks/results/growth.jsonl
    python -m benchmarks.growth step 1000 4000 16000 64000
    python -m benchmarks.growth embed 1000 10000 100000 1000000
    python -m benchmarks.growth index 10000 100000 1000000
    python -m benchmarks.growth serve 1 4 16 64 256

Sizes are megabytes of text that is repeated, tokens of a training step, texts of 12 words, passages of 12 words, and
clients of a server. `index` measures three curves: `build`, `query`, and `add` of 1,000 passages.

`embed` and `index` use a BERT of two layers of width 128 with random weights: the time of a model grows with the texts
alone, and a small one lets everything else be seen. The server computes with the bundled model.

Memory is the peak of the process tree, looked up every 0.1 s: `peak_mb` is what the processes hold themselves (shared
pages count once), `mapped_mb` pages of files, which the system takes back when it needs them. A process computes in one
thread, except for the server, so that its CPU seconds depend little on what else the machine does. A last row has the
slopes of each curve on logarithmic scales: between the two largest sizes, and over all sizes (least squares).
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import bertree
from benchmarks.common import CORPUS, Results, argument_parser, sentences
from benchmarks.data import write_corpus
from benchmarks.serve_client import start_bertree
from benchmarks.serve_load import loaded, single_requests
from bertree import Index
from bertree.inference.load import random_model
from bertree.model.presets import preset

BUNDLED = Path(bertree.__file__).parent / "default"
BERTREE = [sys.executable, "-m", "bertree"]
ADDED, QUERIES, SECONDS = 1000, 100, 10
FEWEST_STEPS, TIMED_TOKENS = 6, 100_000  # of a training step
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
Figures = dict[str, float]


def texts(count: int, seed: int = 0) -> Iterator[str]:
    """Yield different texts, each of two places of the corpus."""
    words, draw = CORPUS.read_text(encoding="utf-8").split(), Random(seed)
    for _ in range(count):
        first, second = (draw.randrange(len(words) - 6) for _ in range(2))
        yield " ".join(words[first : first + 6] + words[second : second + 6])


def write_texts(path: Path, count: int, seed: int = 0) -> Path:
    """Write texts with their ids as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts(count, seed=seed)):
            file.write(json.dumps({"id": f"{seed}-{number}", "text": text}) + "\n")
    return path


def save_small_model(folder: Path) -> Path:
    """Save a small BERT with random weights. Only the words count in its vectors, so that these differ."""
    bundled = bertree.load(BUNDLED)
    axes = {"vocab_size": bundled.architecture.vocab_size, "segments": 0, "positions": "rotary", "init_std": 0.1}
    model = random_model(preset("bert-tiny").architecture.with_values(axes), {})
    model.tokenizer = bundled.tokenizer
    model.save(folder)
    return folder


def tree_memory(root: int) -> dict[str, int]:
    """Return the bytes that a process and its descendants hold, and those of mapped files."""
    total, waiting = {"Anon": 0, "File": 0, "Shmem": 0}, [root]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            rollup = (process / "smaps_rollup").read_text()
            waiting += map(int, (process / f"task/{process.name}/children").read_text().split())
        except (OSError, ValueError):
            continue
        for kind, kilobytes in re.findall(r"^Pss_(Anon|File|Shmem): +(\d+) kB", rollup, re.MULTILINE):
            total[kind] += 1024 * int(kilobytes)
    return total


@contextmanager
def watch_memory(process: int) -> Iterator[Figures]:
    """Fill in the peak memory of a process and its descendants."""
    peaks, done = {"peak_mb": 0.0, "mapped_mb": 0.0}, threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            held = tree_memory(process)
            for key, value in (("peak_mb", held["Anon"] + held["Shmem"]), ("mapped_mb", held["File"])):
                peaks[key] = max(peaks[key], round(value / 1e6))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def run_command(command: list[str]) -> tuple[Figures, str]:
    """Run a command; return its time and memory, and what it printed."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD) as process:
        with watch_memory(process.pid) as memory:
            assert process.stdout is not None
            printed = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": usage.ru_utime + usage.ru_stime}
    return {key: round(value, 2) for key, value in seconds.items()} | memory, printed


def run_here(*words: object) -> Figures:
    """Measure a part of this script in a process of its own, with the times that it reports."""
    figures, printed = run_command([sys.executable, "-m", "benchmarks.growth", "--inside", *map(str, words)])
    return figures | json.loads(printed.splitlines()[-1])


def measure_prepare(size: int, work: Path) -> dict[str, Figures]:
    """Measure `prepare` of so many megabytes."""
    write_corpus([CORPUS], work / "corpus.txt", size)
    command = ["prepare", str(work / "corpus.txt"), "--tokenizer", str(BUNDLED), "--out", str(work / "store"), "-q"]
    return {"prepare": run_command([*BERTREE, *command])[0]}


def measure_step(size: int, work: Path) -> dict[str, Figures]:
    """Measure steps of so many tokens: the CPU time of further steps of a run."""
    bertree.prepare(CORPUS, BUNDLED, work / "store", workers=1)
    runs, timed = [], max(FEWEST_STEPS, TIMED_TOKENS // size)
    for steps in (2, 2 + timed):
        phases = f"phases=[{{steps={steps}, max_length=128, batch_tokens={size}}}]"
        command = ["pretrain", "bert-base-tiny", "--store", str(work / "store"), "--out", str(work / f"run-{steps}")]
        command += [phases, "schedule.warmup=1", f"run.eval_every={steps}", f"run.save_every={steps}", "-q"]
        runs.append(run_command([*BERTREE, *command])[0])
    seconds = (runs[1]["cpu_seconds"] - runs[0]["cpu_seconds"]) / timed
    memory = {key: runs[1][key] for key in ("peak_mb", "mapped_mb")}
    return {"step": {"step_cpu_ms": round(1000 * seconds), **memory}}


def measure_embed(size: int, work: Path) -> dict[str, Figures]:
    """Measure `embed` of so many texts."""
    model, file = save_small_model(work / "model"), write_texts(work / "texts.jsonl", size)
    command = ["embed", str(model), str(file), "--out", str(work / "vectors.npy"), "-q"]
    return {"embed": run_command([*BERTREE, *command])[0]}


def measure_index(size: int, work: Path) -> dict[str, Figures]:
    """Measure `index build` of so many passages, then queries, then `add`."""
    model, file = save_small_model(work / "model"), write_texts(work / "texts.jsonl", size)
    more, folder = write_texts(work / "more.jsonl", ADDED, seed=1), work / "index"
    build, _ = run_command([*BERTREE, "index", "build", str(model), str(file), "--out", str(folder), "-q"])
    return {"build": build, "query": run_here("query", folder, model), "add": run_here("add", folder, model, more)}


def measure_serve(size: int, work: Path) -> dict[str, Figures]:
    """Measure the server with so many clients that ask without pause."""
    server = start_bertree(BUNDLED)
    try:
        requests = single_requests(server, sentences(CORPUS, 512))
        with watch_memory(server.process.pid) as memory:
            load = loaded(server, requests, size, SECONDS, 1)
    finally:
        server.stop()
    times = {"p50_ms": load["p50"], "p99_ms": load["p99"], "request_cpu_ms": 1000 * load["request_cpu"]}
    rates = {"requests_per_second": load["rate"]} | times
    return {"serve": {key: round(value, 2) for key, value in rates.items()} | memory}


def query_times(folder: str, model: str) -> Figures:
    """Return the time of the first query of a process, and the median CPU time of later ones without embedding."""
    index, figures = Index.open(folder, model), dict[str, float]()
    began = time.perf_counter()
    index.search("who is the captain?")
    figures["first_ms"] = round(1000 * (time.perf_counter() - began), 1)
    questions = list(texts(QUERIES, seed=2))
    vectors = bertree.load(model).embed(questions)
    for mode in ("vectors", "words", "hybrid"):
        times = []
        for number, question in enumerate(questions):
            began = time.process_time()
            index.find([question], vectors[number : number + 1], 10, mode=mode)
            times.append(time.process_time() - began)
        figures[f"{mode}_ms"] = round(1000 * statistics.median(times), 2)
    return figures


def add_times(folder: str, model: str, file: str) -> Figures:
    """Return how long it takes to open an index and add the texts of a file."""
    began, used = time.perf_counter(), time.process_time()
    Index.open(folder, model).add(file)
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - used, 2),
    }


CURVES: dict[str, Callable[[int, Path], dict[str, Figures]]] = {
    "prepare": measure_prepare,
    "step": measure_step,
    "embed": measure_embed,
    "index": measure_index,
    "serve": measure_serve,
}
INSIDE: dict[str, Callable[..., Figures]] = {"query": query_times, "add": add_times}


def slopes(curve: list[tuple[int, Figures]]) -> Figures:
    """Return the slopes of every figure: between the two largest sizes, and over all."""
    curve, figures = sorted(curve), {}
    for key in curve[0][1].keys() - {"load_average"}:
        points = [(math.log(size), math.log(max(row[key], 1e-3))) for size, row in curve]
        (x0, y0), (x1, y1) = points[-2:]
        figures[f"{key}_last_slope"] = round((y1 - y0) / (x1 - x0), 2)
        figures[f"{key}_slope"] = round(statistics.linear_regression(*zip(*points, strict=True)).slope, 2)
    return figures


def record_slopes(options: argparse.Namespace, rows: list[dict[str, Any]], curves: set[str]) -> None:
    """Record the slopes of these curves, with the sizes of earlier runs that the file has."""
    if options.out is not None:
        rows = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    results = Results("growth-slope", options.out)
    measured = {row["name"]: row["figures"] for row in rows if row["name"].startswith("growth/")}
    for curve in sorted(curves):
        named = [(name.split("/"), figures) for name, figures in measured.items()]
        points = [(int(size.replace(",", "")), figures) for (_, of, size), figures in named if of == curve]
        if len(points) > 1:
            results.add(curve, **slopes(points))


def main() -> None:
    """Measure a curve, or a part of one for the process that watches this one."""
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(INSIDE[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argument_parser(__doc__)
    parser.add_argument("curve", choices=CURVES)
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--work", type=Path, help="where the files of each size are, until it is measured")
    options = parser.parse_args()
    results = Results("growth", options.out, ["numpy", "tokenizers", "faiss-cpu"])
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.work) as work:
            for curve, figures in CURVES[options.curve](size, Path(work)).items():
                results.add(f"{curve}/{size:,}", **figures, load_average=round(os.getloadavg()[0], 1))
    record_slopes(options, results.rows, {row["name"].split("/")[1] for row in results.rows})
    results.print_table()


if __name__ == "__main__":
    main()
