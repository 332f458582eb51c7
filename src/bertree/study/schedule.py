"""The order in which the steps of a study are computed: after those they need, several at a time, timed ones alone.

With several GPUs each process has one of them, so `jobs` steps are spread over all.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from bertree.console import bar, collect_notes, note, say
from bertree.study.definition import ALONE
from bertree.study.plan import StudyPlan
from bertree.study.planned import PlannedStep
from bertree.study.steps import Stopped
from bertree.train.signals import SIGNALS, catch_signals

POLL = 0.5  # seconds after which a signal is noticed
Compute = Callable[[PlannedStep, Path, bool], str]


class StudyProgress:
    """Counts the cells whose steps are all done."""

    def __init__(self, plan: StudyPlan, waiting: Sequence[PlannedStep]) -> None:
        left = {step.identity for step in waiting}
        self._left: dict[tuple[str, int], set[str]] = {}
        for step in plan.steps:
            self._left.setdefault((step.cell, step.seed), set()).update({step.identity} & left)
        self.runs = len(self._left)

    def finish(self, step: PlannedStep) -> str:
        """Count a step; return how many runs of cells are complete."""
        for left in self._left.values():
            left.discard(step.identity)
        done = sum(not left for left in self._left.values())
        return f"{done} of {self.runs} runs of cells"


def compute_all(
    waiting: Sequence[PlannedStep],
    folder: Path,
    jobs: int,
    compute: Compute,
    progress: StudyProgress,
    kept: Collection[str],
) -> None:
    """Compute the steps; the models of those in `kept` stay. A note that several steps have is shown once."""
    with bar("steps", len(waiting)) as shown:
        noted: set[str] = set()

        def show(step: PlannedStep, line: str, notes: Sequence[str]) -> None:
            for message in dict.fromkeys(notes):
                if message not in noted:
                    note(message)
            noted.update(notes)
            say(f"[{progress.finish(step)}] {line}")
            shown.advance(1)

        if jobs == 1:
            for step in waiting:
                show(step, *_compute(compute, step, folder, step.identity in kept))
            return
        context = multiprocessing.get_context("spawn")
        cards: multiprocessing.Queue[str] = context.Queue()
        for number in range(jobs):
            cards.put(str(number % torch.cuda.device_count()) if torch.cuda.device_count() > 1 else "")
        done: set[str] = set()
        names = {step.identity for step in waiting}
        left, running = list(waiting), dict[Future[tuple[str, list[str]]], PlannedStep]()
        others = set(multiprocessing.active_children())
        with (
            catch_signals() as signals,
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin_process, initargs=(cards,)) as pool,
        ):
            while left or running:
                if signals.caught is not None:
                    _stop(set(multiprocessing.active_children()) - others, running, signals.caught)
                free = 0 if any(step.step.do in ALONE for step in running.values()) else jobs - len(running)
                for step in startable(left, free, names - done, jobs) if free else ():
                    running[pool.submit(_compute_beside, compute, step, folder, step.identity in kept)] = step
                    left.remove(step)
                for finished in wait(running, timeout=POLL, return_when=FIRST_COMPLETED).done:
                    step = running.pop(finished)
                    done.add(step.identity)
                    show(step, *finished.result())


def _compute(compute: Compute, step: PlannedStep, folder: Path, keep: bool) -> tuple[str, list[str]]:
    """Compute a step; return its line and its notes, which the first process shows."""
    with collect_notes() as notes:
        line = compute(step, folder, keep)
    return line, notes


def _compute_beside(compute: Compute, step: PlannedStep, folder: Path, keep: bool) -> tuple[str, list[str]]:
    """Compute a step in a process of its own, where a signal ends the step and not the process."""
    before = {number: signal.signal(number, _end_step) for number in SIGNALS}
    try:
        return _compute(compute, step, folder, keep)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_step(number: int, frame: object) -> None:
    raise Stopped(number)


def _stop(workers: Collection[BaseProcess], running: Collection[Future[Any]], number: int) -> None:
    """Interrupt the steps, wait until they have saved what is needed to continue, and end the study."""
    for worker in workers:
        if worker.pid is not None and worker.is_alive():
            os.kill(worker.pid, signal.SIGINT)  # which processes without a step ignore
    wait(running)
    raise Stopped(number)


def startable(left: Sequence[PlannedStep], free: int, unfinished: Collection[str], jobs: int) -> list[PlannedStep]:
    """Return the steps that can begin now, at most as many as processes are free; a timed one if nothing else can."""
    ready = [step for step in left if not any(need.identity in unfinished for need in step.needs)]
    beside = [step for step in ready if step.step.do not in ALONE]
    if beside or free < jobs:
        return beside[:free]
    return ready[:1]


def _begin_process(cards: "multiprocessing.Queue[str]") -> None:
    """Give a new process one of the GPUs; it sees no other.

    Without a step it ignores the SIGINT of a terminal, and SIGTERM ends it by an exception: killed, it would keep the
    lock of the queue, and the others would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if card := cards.get():
        os.environ["CUDA_VISIBLE_DEVICES"] = card
