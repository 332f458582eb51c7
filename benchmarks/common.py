"""What every benchmark here shares: ragged real text, fair timing, and the environment beside the figures."""

import platform
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import torch

CORPUS = Path(__file__).parent.parent / "corpus" / "books.txt"


def sentences(path: Path, count: int, seed: int = 0) -> list[str]:
    """Texts of natural, very different lengths: one a line, or sentences and paragraphs of running text."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path == CORPUS:  # paragraphs: keep one in six whole, cut the others into sentences
        lines = [s for i, p in enumerate(lines) for s in ([p] if i % 6 == 0 else re.split(r"(?<=[.!?]) +", p))]
    random.Random(seed).shuffle(lines)
    return (lines * (count // len(lines) + 1))[:count]


def medians(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, run in turn so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            synchronise()
            start = time.perf_counter()
            run()
            synchronise()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def environment(*packages: str) -> str:
    """Hardware, versions and date in one line."""
    from importlib.metadata import version

    if torch.cuda.is_available():
        machine = torch.cuda.get_device_name()
    else:
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        machine = f"{model.group(1) if model else platform.processor()}, {torch.get_num_threads()} threads"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
    return f"{machine}; Python {platform.python_version()}; {versions}; {date.today()}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


class Clock:
    """Counts tokens from the end of the warm-up on; waits for the GPU at both ends and nowhere else."""

    def __init__(self, warm: int) -> None:
        self._warm, self._tokens, self._began = warm, 0, 0.0

    def count(self, step: int, tokens: int) -> None:
        """A step is done, or handed to the GPU."""
        if step > self._warm:
            self._tokens += tokens
        elif step == self._warm:
            synchronise()
            self._began = time.perf_counter()

    def speed(self) -> float:
        """Tokens a second."""
        synchronise()
        return self._tokens / (time.perf_counter() - self._began)


def spread(values: Sequence[float], form: str) -> str:
    """Return the mean, with the deviation if there are several."""
    if not values:
        return ""
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {format(statistics.stdev(values), form.lstrip('+'))}" if len(values) > 1 else mean
