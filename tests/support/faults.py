"""Faults for a process that runs a command: it dies at a chosen moment, gets a signal, or lacks something.

Moments are counted in the process itself, in steps or saves, so they do not depend on how busy the machine is.
"""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

# Moments in the saving of a checkpoint and of the model.
STAGES = ("half the tensors", "tensors written", "header written", "tidy", "best marked", "model")


def plant(faults: str) -> None:
    """Plant faults in this process: NAME:NUMBER..., several with commas between them.

    kill:STEPS:MS             SIGKILL, milliseconds after so many steps or windows of vectors (0: after its start)
    signal:NUMBER:STEPS:MS    the same with another signal, sent twice as terminals do
    STAGE:COUNT               exit with code 9 at the count-th time one of STAGES is reached
    measure:SECONDS:STEP      how long each phase of a run of so many minutes is measured, and what is found: seconds
    pause:SECONDS             at least so long between the checkpoints of fine-tuning
    window:TEXTS              embed so many texts at a time
    room:BYTES                no file may be larger
    no tensorboard:0          it is not installed
    """
    for fault in filter(None, faults.split(",")):
        name, *numbers = fault.split(":")
        if name in ("kill", "signal"):
            number = signal.SIGKILL if name == "kill" else int(numbers.pop(0))
            _send_signal(number, int(numbers[0]), float(numbers[1]) / 1000)
        elif name == "measure":
            from bertree.pretraining import time_budget as minutes

            minutes.SECONDS = float(numbers[0])
            minutes.measure = partial(_measure, minutes.measure, float(numbers[1]))
        elif name == "pause":
            from bertree.train import keep as best_weights

            best_weights.PAUSE = float(numbers[0])
        elif name == "window":
            from bertree.embeddings import embed
            from bertree.inference import embedding

            for module in (embed, embedding):
                vars(module).update(BLOCK=int(numbers[0]), FIRST_BLOCK=int(numbers[0]))
        elif name == "room":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(numbers[0]), int(numbers[0])))
        elif name == "no tensorboard":
            sys.modules["torch.utils.tensorboard"] = None
        else:
            _exit_in_save(name, int(numbers[0]))


def _measure(measure: Callable[..., list[float]], seconds: float, *arguments: Any) -> list[float]:
    """Measure, and find a speed that does not depend on how busy the machine is."""
    return [seconds for _ in measure(*arguments)]


def _send_signal(number: int, steps: int, seconds: float) -> None:
    """Send this process a signal after so many steps and seconds, and three steps later at the latest."""
    from bertree.embeddings.npy_file import VectorFile
    from bertree.train.loop import Loop

    taken, once = 0, threading.Lock()

    def send() -> None:
        if once.acquire(blocking=False):
            for _ in range(2):
                os.kill(os.getpid(), number)

    def wait() -> None:
        timer = threading.Timer(seconds, send)
        timer.daemon = True
        timer.start()

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal taken
            result = step(*arguments)
            taken += 1
            if taken == steps:
                wait()
            if steps and taken == steps + 3:
                send()
            return result

        return call

    Loop.step = counted(Loop.step)
    VectorFile.add = counted(VectorFile.add)
    if not steps:
        from bertree.cli import main

        app: Any = main.app
        main.app = lambda **arguments: (wait(), app(**arguments))[1]


def _exit_in_save(stage: str, count: int) -> None:
    """Exit at the count-th time that a stage of saving is reached."""
    from bertree.train import checkpoint as folder
    from bertree.train import checkpoint_files

    left = count

    def die(last_deed: Callable[[], None] = lambda: None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            last_deed()
            os._exit(9)

    def die_after(module: ModuleType, name: str) -> None:
        inner = getattr(module, name)

        def call(*arguments: object, **named: object) -> object:
            result = inner(*arguments, **named)
            die()
            return result

        setattr(module, name, call)

    modules: Any = checkpoint_files
    whole = modules.save_file

    def half(tensors: object, path: Path, metadata: object) -> None:
        whole(tensors, path, metadata)
        die(lambda: os.truncate(path, path.stat().st_size // 2))

    class Doomed(folder.CheckpointFolder):
        def _tidy(self) -> None:
            die()
            super()._tidy()

    if stage == "half the tensors":
        modules.save_file = half
    elif stage == "model":
        from bertree.interop import weights

        save = weights.save
        weights.save = lambda *arguments: (save(*arguments), die())
    elif stage == "tidy":
        from bertree.train import session

        vars(session).update(CheckpointFolder=Doomed)
    else:
        places = {
            "tensors written": (checkpoint_files, "save_file"),
            "header written": (checkpoint_files, "write_text"),
            "best marked": (folder, "write_atomically"),
        }
        die_after(*places[stage])
