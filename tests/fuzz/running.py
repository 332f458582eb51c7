"""Runs a command in a forked child of this process, which has imported everything, within limits.

This process must not compute with torch itself: its threads would not survive the fork.
"""

import contextlib
import gc
import importlib
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tests.fuzz.case import Case

MiB = 1 << 20
POLL = 0.004


@dataclass(frozen=True)
class Limits:
    """What one command may use."""

    cpu: float = 30  # seconds of the processor
    wall: float = 60  # seconds in which it has the processor or does not want it: a command may wait for ever
    space: int = 3000 * MiB  # address space beyond what the imports take
    memory: int = 2000 * MiB  # resident memory beyond it


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int  # negative: the signal
    out: str
    err: str
    seconds: float
    peak: int  # bytes of resident memory beyond that of this process
    hung: bool = False
    left: tuple[str, ...] = ()  # what it left in the temporary folder


def import_everything() -> None:
    """Import what any command needs, so that the children start with it; a second call does nothing."""
    import torch
    import typer.main

    import bertree.cli.main

    if hasattr(bertree.cli.main.app, "commands"):
        return
    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(bertree.__path__, "bertree."):
        if module.name != "bertree.__main__" and "triton" not in module.name:
            importlib.import_module(module.name)
    for name in ("faiss", "pyarrow.parquet", "zstandard", "torch._dynamo", "torch._inductor", "torch.distributed"):
        importlib.import_module(name)
    # The command is built once, with every verb, not in every child.
    command = typer.main.get_group(bertree.cli.main.app)
    dict(command.commands)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
        command(["info", "--json"], standalone_mode=False)
    bertree.cli.main.app = command
    gc.collect()
    gc.freeze()


class Runner:
    """Runs commands; `work` is a folder for their output, `samples` the folder of the samples.

    `plant` is called in every child first: a test breaks something there that the fuzzer must find.
    """

    def __init__(
        self, work: Path, samples: Path, limits: Limits | None = None, plant: Callable[[], None] | None = None
    ) -> None:
        self.work, self.samples, self.limits, self.plant = work, samples, limits or Limits(), plant
        self.temporary, self.case_folder = work / "tmp", work / "case"
        self._baselines: dict[str, Result] = {}
        self.temporary.mkdir(parents=True, exist_ok=True)

    def run(self, case: "Case", folder: Path) -> Result:
        """Run the command of a case."""
        return self.command(case.command, folder, case.stop_after)

    def baseline(self, case: "Case", command: Sequence[str]) -> Result:
        """Run a command on the samples of a case as they are; once for each command."""
        key = repr((sorted(case.samples.items()), command))
        if key not in self._baselines:
            folder = self.work / "baseline"
            replace(case, changes=[]).build(self.samples, folder)
            self._baselines[key] = self.command(command, folder)
            shutil.rmtree(folder)
        return self._baselines[key]

    def command(self, arguments: Sequence[str], folder: Path, stop_after: int | None = None) -> Result:
        """Run `bertree` in a folder; a training run is stopped after so many steps."""

        def target() -> None:
            from bertree.cli.main import main

            if stop_after:
                stop_training(stop_after)
            if self.plant:
                self.plant()
            sys.argv = ["bertree", *arguments]
            main()

        return self.call(target, folder)

    def call(self, target: Callable[[], None], folder: Path) -> Result:
        """Run a function in a child."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            self._run(target, folder)
        code, seconds, usage, hung = self._wait(child)
        left = tuple(sorted(os.listdir(self.temporary)))
        for name in left:
            _remove(self.temporary / name)
        out, err = ((self.work / name).read_bytes().decode(errors="replace") for name in ("stdout", "stderr"))
        return Result(code, out, err, seconds, max(0, usage.ru_maxrss * 1024 - before), hung, left)

    def _wait(self, child: int) -> tuple[int, float, resource.struct_rusage, bool]:
        started, hung = time.monotonic(), False
        while True:
            ended, status, usage = os.wait4(child, os.WNOHANG)
            seconds = time.monotonic() - started
            if ended:
                with contextlib.suppress(ProcessLookupError):  # grandchildren
                    os.killpg(child, signal.SIGKILL)
                code = os.waitstatus_to_exitcode(status)
                return code, seconds, usage, hung or code == -signal.SIGXCPU
            if seconds - _waited(child) > self.limits.wall:
                hung = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            time.sleep(POLL)

    def _run(self, target: Callable[[], None], folder: Path) -> NoReturn:
        """Be the child."""
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            os.environ |= {"TMPDIR": str(self.temporary), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
            os.environ |= {"HF_HOME": str(self.temporary / "no-such-cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
            tempfile.tempdir = None
            self._redirect()
            limits = self.limits
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (500 * MiB, 500 * MiB))
            resource.setrlimit(resource.RLIMIT_CPU, (int(limits.cpu), int(limits.cpu) + 5))
            room = _address_space() + limits.space
            resource.setrlimit(resource.RLIMIT_AS, (room, room))
            target()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 0 if stopped.code is None else 1
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code & 0xFF)

    def _redirect(self) -> None:
        """Give the child standard streams of its own."""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(self.work / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdin = os.fdopen(os.dup(0), "r", encoding="utf-8", errors="surrogateescape")
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
        sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1)


def stop_training(steps: int) -> None:
    """Let every training run of this process stop as after a SIGTERM at this step."""
    from bertree.train.loop import Loop

    step, left = Loop.step, steps

    def count(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(*arguments)

    Loop.step = count


def _waited(process: int) -> float:
    """Return the seconds in which a process was ready and others had the processor."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # a kernel without these counts
        return 0


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
