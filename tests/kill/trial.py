"""One trial: run a command, kill it, look at what is there, run it again to its end, and compare.

All trials of a case run at the same path, since paths are written into results.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from tests.kill import operations, world
from tests.kill.cases import Case
from tests.kill.state import IndexState, State, differences, newest_steps, read_index, read_state
from tests.support import runs
from tests.support.processes import PATIENCE, PROCESSES

ERRORS = ("ENOSPC", "EROFS", "EACCES", "EIO")
LEAVES = 60.0  # seconds in which the processes of a killed one must end, on a busy machine too
REFUSED = ("exists already", "is already", "holds a model already", "no document to remove")
# What commands make that the cases read.
MADE = {
    "store": "prepare text.txt --tokenizer tokenizer --out store --workers 1",
    "task": "finetune start --task sst-2 --data glue --out task device=cpu lr=3e-3 max_length=32 batch=16 epochs=2",
    "index": "index build start old.jsonl --chunk 12 --overlap 3 --device cpu --out index",
}


class Fault(NamedTuple):
    """What happens to a process: it is killed at `operation` 17, gets a `kill` or a doubled signal (`INT`, `TERM`)
    after some seconds, or its operation 17 fails (`ENOSPC`, `EIO`, ...), or others work while it pauses there
    (`pause`)."""

    kind: str = ""
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.at:g}" if self.at_operation else f"{self.kind}:{self.at:.3f}"

    @property
    def at_operation(self) -> str:
        """What happens at a file operation, as `operations.watch` takes it."""
        names = {"operation": operations.KILL, "pause": operations.PAUSE}
        return names.get(self.kind, self.kind if self.kind in ERRORS else "")


class Undisturbed(NamedTuple):
    """What a command comes to when nothing happens to it."""

    before: State
    after: State
    index_before: IndexState
    index_after: IndexState
    operations: list[str]  # name and path of each
    seconds: float


@dataclass
class Verdict:
    """The promises that a trial found broken, and whether the command was hit at all."""

    hit: bool = False
    lost: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    refused: str = ""  # the line of a command that cannot use what is there

    @property
    def broken(self) -> list[str]:
        """Everything that went wrong, in lines."""
        named = (("lost", self.lost), ("different", self.different), ("left over", self.left))
        return [f"{name}: {line}" for name, lines in named for line in lines]


class TrialFolders:
    """The folders of all trials: inputs, the command's working folder, and its folder for temporary files."""

    def __init__(self, root: Path, cases: Sequence[Case]) -> None:
        self.root = root.resolve()
        self.world, self.work, self.temporary = (self.root / name for name in ("world", "work", "temporary"))
        self.output, self.log = self.root / "output", self.root / "operations"
        self.temporary.mkdir()
        world.build(self.work)
        read = {word.partition("/")[0] for case in cases for word in case.words[len(case.verb.split()) :]}
        for name, line in MADE.items():
            if name in read:
                self.finish(line.split())
        shutil.copytree(self.work, self.world)

    def reset(self, source: Path) -> None:
        """Begin anew from a copy of some inputs."""
        for folder in (self.work, self.temporary):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, self.work)
        self.temporary.mkdir()
        self.output.unlink(missing_ok=True)

    def start(
        self, words: Sequence[str], case: Case | None = None, fatal: int = -1, fault: str = operations.KILL
    ) -> BaseProcess:
        """Start a command; a fault happens at an operation (0: operations are counted, -1: not even that)."""
        process = PROCESSES.Process(target=_run, args=(self, tuple(words), case, fatal, fault))
        process.start()
        return process

    def finish(self, words: Sequence[str], case: Case | None = None, fatal: int = -1) -> None:
        """Run a command to its end; it must succeed."""
        process = self.start(words, case, fatal)
        process.join(PATIENCE)
        if not succeeded(process.exitcode, self.read_output()):
            raise RuntimeError(f"{' '.join(words)}: exit code {process.exitcode}: {self.read_output()[-500:]}")

    def read_output(self) -> str:
        """Return what the last commands have printed."""
        return self.output.read_text() if self.output.exists() else ""


def _run(folders: TrialFolders, words: tuple[str, ...], case: Case | None, fatal: int, fault: str) -> None:
    """Be the command, in this process."""
    os.setsid()
    os.chdir(folders.work)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folders.temporary)
    small_pieces()
    if case is not None and case.stdin:
        sys.stdin = open(case.stdin)  # noqa: SIM115  # that of a child process is closed
    if case is not None and case.plant is not None:
        case.plant()
    if fatal >= 0:
        operations.watch((folders.work, folders.temporary), fatal, folders.log if fatal == 0 else None, fault)
    runs.run_command(words, folders.output)


def small_pieces() -> None:
    """Let small inputs make many shards, commits and checkpoints."""
    from bertree.data import store_builder
    from bertree.distillation import teacher_cache
    from bertree.inference import embedding
    from bertree.search import writer
    from bertree.train import keep

    store_builder.CHUNK_CHARACTERS = 2000
    store_builder.build_store.__kwdefaults__["shard_tokens"] = 3000
    teacher_cache.CHUNK = 2
    embedding.FIRST_BLOCK = 32
    writer.COMMIT_ROWS, writer.EMBED_BATCH, writer.MERGE = 12, 6, 3
    keep.PAUSE = keep.REPORT_PAUSE = 0.0


class Trials:
    """The trials of one case."""

    def __init__(self, folders: TrialFolders, case: Case) -> None:
        self.folders, self.case = folders, case
        self.source = folders.world
        if case.first:
            folders.reset(folders.world)
            folders.finish(case.first.split())
            self.source = folders.root / "before"
            shutil.rmtree(self.source, ignore_errors=True)
            shutil.copytree(folders.work, self.source)
        self.expected = self._undisturbed()

    def _undisturbed(self) -> Undisturbed:
        folders, case = self.folders, self.case
        folders.reset(self.source)
        before, index_before = read_state(folders.work, case), self._index()
        folders.log.unlink(missing_ok=True)
        folders.finish(case.words, case, 0)
        state = read_state(folders.work, case)
        counted = folders.log.read_text().splitlines() if folders.log.exists() else []
        folders.reset(self.source)
        began = time.monotonic()
        folders.finish(case.words, case)
        seconds = time.monotonic() - began
        again = read_state(folders.work, case)
        if unequal := differences(state, again):
            raise RuntimeError(f"{case.name}: two undisturbed runs differ: {unequal[:3]}")
        if rest := sorted(folders.temporary.iterdir()):
            raise RuntimeError(f"{case.name}: an undisturbed run leaves {rest[0]}")
        return Undisturbed(before, state, index_before, self._index(), counted, seconds)

    def _index(self) -> IndexState:
        if not self.case.index:
            return IndexState({}, ())
        return read_index(self.folders.work / self.case.index, self.folders.world / "start")

    def trial(self, faults: Sequence[Fault]) -> Verdict:
        """Disturb the command in these ways, one run after another; then let it come to its end."""
        folders, case, verdict = self.folders, self.case, Verdict()
        folders.reset(self.source)
        words = case.words
        for fault in faults:
            at = fault.at_operation
            process = folders.start(words, case, *((int(fault.at), at) if at else ()))
            verdict.hit |= self.disturb(process, fault, verdict)
            self._check_now(process, fault, verdict)
            words = [*case.words, *case.resumed.split()]
        self.run_again(words, verdict)
        return verdict

    def run_again(self, words: Sequence[str], verdict: Verdict, may_refuse: bool = False) -> None:
        """Run the command to its end and compare what it comes to. `may_refuse`: it may name a file it cannot use."""
        folders, case = self.folders, self.case
        if case.once and read_state(folders.work, case) == self.expected.after:
            return
        folders.output.unlink(missing_ok=True)
        process = folders.start(words, case)
        process.join(PATIENCE)
        output = self.folders.read_output()
        if process.exitcode is None:
            process.kill()
            verdict.lost.append("run again, it hangs")
        elif process.exitcode == 2 and may_refuse and not _is_finished(process.exitcode, output):
            verdict.refused = output.strip().splitlines()[-1]
            return
        elif not succeeded(process.exitcode, output) and not _is_finished(process.exitcode, output):
            verdict.lost.append(f"run again, its exit code is {process.exitcode}: {output.strip()[-300:]}")
        self._check_end(verdict)

    def disturb(self, process: BaseProcess, fault: Fault, verdict: Verdict) -> bool:
        """Let it happen; return whether the process was still running."""
        assert process.pid is not None
        if fault.kind == "operation":
            process.join(PATIENCE)
            return process.exitcode == -signal.SIGKILL
        process.join(fault.at)
        if process.exitcode is not None:
            return False
        if fault.kind == "kill":
            process.kill()
            process.join()
            return process.exitcode == -signal.SIGKILL
        number = signal.Signals[f"SIG{fault.kind}"]
        _signal_twice(process.pid, number)
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        return not succeeded(process.exitcode, self.folders.read_output())

    def _check_now(self, process: BaseProcess, fault: Fault, verdict: Verdict) -> None:
        """Check what is there after it was stopped."""
        assert process.pid is not None
        if not _group_ends(process.pid):
            verdict.left.append("processes of the killed command")
        self.check_files(verdict, str(fault))
        if fault.kind in ("INT", "TERM"):
            self._check_saved(process, fault, verdict)

    def check_files(self, verdict: Verdict, when: str) -> None:
        """What is replaced at once must be the old or the new; an index has a state between two documents."""
        now, case, expected = read_state(self.folders.work, self.case), self.case, self.expected
        for name in case.atomic:
            if _below(now, name) not in (_below(expected.before, name), _below(expected.after, name)):
                verdict.lost.append(f"{name}: is neither the old nor the new one after {when}")
        if case.index:
            try:
                self._check_index(verdict)
            except Exception as error:
                verdict.lost.append(f"{case.index}: cannot be read after {when} ({error})")

    def _check_index(self, verdict: Verdict) -> None:
        before, after = self.expected.index_before.documents, self.expected.index_after.documents
        documents = self._index().documents
        for id, entry in documents.items():
            if entry not in (before.get(id), after.get(id)):
                verdict.lost.append(f"{self.case.index}: document {id} is neither the old nor the new one")
        verdict.lost += [
            f"{self.case.index}: document {id} is gone" for id in before if id in after and id not in documents
        ]

    def _check_saved(self, process: BaseProcess, fault: Fault, verdict: Verdict) -> None:
        """A signal ends in a saved state: the newest checkpoint is that of the last step."""
        number, output = signal.Signals[f"SIG{fault.kind}"], self.folders.read_output()
        if process.exitcode not in (0, 128 + number, -number) and not succeeded(process.exitcode, output):
            verdict.lost.append(f"after {fault}, its exit code is {process.exitcode}: {output.strip()[-300:]}")
        for folder, logged, saved in newest_steps(self.folders.work / "out"):
            if saved < logged:
                verdict.lost.append(f"{folder}: after {fault}, step {logged} is logged and step {saved} saved")

    def _check_end(self, verdict: Verdict) -> None:
        folders, case, expected = self.folders, self.case, self.expected
        state = read_state(folders.work, case)
        verdict.left += [f"{name}" for name in sorted(state.keys() - expected.after.keys())]
        verdict.left += [str(path.relative_to(folders.root)) for path in sorted(folders.temporary.iterdir())]
        verdict.lost += [f"{name}: is missing" for name in sorted(expected.after.keys() - state.keys())]
        both = {name: state[name] for name in state.keys() & expected.after.keys()}
        verdict.different += differences({name: expected.after[name] for name in both}, both)
        if case.index:
            index = self._index()
            verdict.left += [f"{case.index}/{name}" for name in index.unused]
            if index.documents != expected.index_after.documents:
                verdict.different.append(f"{case.index}: other documents or passages")


def succeeded(code: int | None, output: str) -> bool:
    """Return whether a command has done its work. Runs as short as these may learn nothing, and say so."""
    return code == 0 or (code == 1 and "has learned nothing" in output)


def _is_finished(code: int | None, output: str) -> bool:
    """Return whether a command refuses because its work was done before."""
    return code == 2 and any(word in output for word in REFUSED)


def _below(state: State, name: str) -> State:
    return {path: value for path, value in state.items() if path == name or path.startswith(f"{name}/")}


def _signal_twice(process: int, number: int) -> None:
    """Send a signal to a process and to its group, as `timeout` does."""
    try:
        os.kill(process, number)
        os.killpg(process, number)
    except ProcessLookupError:  # it ended meanwhile, or has no group yet
        return


def _group_ends(group: int) -> bool:
    """Wait until no process of the group is left."""
    until = time.monotonic() + LEAVES
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    os.killpg(group, signal.SIGKILL)
    return False
