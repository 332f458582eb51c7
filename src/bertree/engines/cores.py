"""The cores that this process may use, and how many of them are busy."""

import os
import time
from pathlib import Path


def available_cores() -> int:
    """Return how many cores this process may use, also where a container is limited to some of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        return cores


def busy_cores(seconds: float = 0.25) -> float:
    """Return how many of the cores this process may use are busy now, measured for some seconds; the load average
    if the system does not report it."""
    before = _core_times()
    if before is None:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    time.sleep(seconds)
    after = _core_times() or before
    total, idle = (sum(later) - sum(earlier) for later, earlier in zip(after, before, strict=True))
    return len(before[0]) * (1 - idle / total) if total > 0 else 0.0


def _core_times() -> tuple[list[int], list[int]] | None:
    """Return total and idle time of each core since the system started; None if the system does not report them."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
        usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        times = [[int(value) for value in values] for name, *values in lines if name in usable]
        return [sum(row) for row in times], [row[3] + row[4] for row in times]
    except (OSError, ValueError, IndexError, AttributeError):
        return None
