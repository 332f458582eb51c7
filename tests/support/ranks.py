"""Gloo processes that run the same function, each as one rank."""

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertree.scale.launch import Launch
from tests.support.processes import PATIENCE, PROCESSES

Work = Callable[..., Any]  # of a Launch and what else is given; returns something that JSON holds


def run_ranks(count: int, folder: Path, work: Work, *arguments: Any) -> list[Any]:
    """Run a function in so many processes; return what each found."""
    codes = start_ranks(count, folder, work, *arguments)
    failed = [path.read_text() for path in sorted(folder.glob("failed-*"))]
    failed.sort(key=lambda text: "Connection closed by peer" in text)  # which is why the others failed
    assert not failed, failed[0]
    assert codes == [0] * count, codes
    return read_results(count, folder)


def read_results(count: int, folder: Path) -> list[Any]:
    """What the ranks have found that ran in a folder."""
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(count)]


def start_ranks(count: int, folder: Path, work: Work, *arguments: Any) -> list[int | None]:
    """The same of processes that may die; return their exit codes."""
    folder.mkdir(exist_ok=True)
    started = [PROCESSES.Process(target=_rank, args=(rank, count, folder, work, arguments)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE)
    return [process.exitcode for process in started]


def _rank(rank: int, count: int, folder: Path, work: Work, arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        result = work(Launch(rank, count, rank, host=f"file://{folder}/meet"), *arguments)
    except BaseException:
        (folder / f"failed-{rank}").write_text(traceback.format_exc())
        os._exit(1)  # no waiting for the others
    (folder / f"result-{rank}.json").write_text(json.dumps(result))
