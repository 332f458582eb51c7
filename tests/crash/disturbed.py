"""File operations that fail, and other processes that read or write in the middle of one.

A full disk, a read-only one, no permission, an input/output error: the command ends with one line, nothing is lost, and
it runs again to the same end. While a command pauses at an operation, readers see the old or the new, and a second
writer is refused, waits, or comes to the same result.
"""

import os
import random
import shlex
import signal
from collections.abc import Callable, Sequence
from copy import copy
from multiprocessing.process import BaseProcess
from pathlib import Path

from bertree.run_folder import REPORT
from tests.kill.campaign import Count, choose
from tests.kill.cases import Case
from tests.kill.operations import FREE
from tests.kill.trial import ERRORS, Fault, TrialFolders, Trials, Verdict, succeeded
from tests.support.processes import PATIENCE

BESIDE = 10.0  # seconds in which a second writer is done or waits
KINDS = {"errors": ERRORS, "beside": ("pause",)}


class DisturbedTrials(Trials):
    """The trials of one case with other faults than kills."""

    def __init__(self, folders: TrialFolders, case: Case) -> None:
        super().__init__(folders, case)
        self.noted = False
        self.after = {reader: self._read(reader) for reader in case.readers}
        folders.reset(self.source)
        self.before = {reader: self._read(reader) for reader in case.readers}

    def trial(self, faults: Sequence[Fault]) -> Verdict:
        """Disturb the command. A page that could not be written is not tried again: a note says so."""
        verdict = super().trial(faults)
        if self.noted:
            verdict.lost = [line for line in verdict.lost if not line.endswith(f"{REPORT}: is missing")]
            verdict.different = [] if self.case.once else verdict.different
        return verdict

    def disturb(self, process: BaseProcess, fault: Fault, verdict: Verdict) -> bool:
        """Let it happen; return whether the command met it."""
        if fault.kind == "pause":
            return self._work_beside(process, verdict)
        process.join(PATIENCE)
        output = self.folders.read_output()
        self.noted = f"{REPORT}: cannot be written" in output
        if not succeeded(process.exitcode, output) and not is_refusal(process.exitcode, output):
            verdict.lost.append(f"after {fault}, its exit code is {process.exitcode}: {output.strip()[-600:]}")
        return True

    def _work_beside(self, process: BaseProcess, verdict: Verdict) -> bool:
        assert process.pid is not None
        while process.exitcode is None and _process_state(process.pid) != "T":
            process.join(0.005)
        if process.exitcode is not None:
            return False
        try:
            for reader in self.case.readers:
                self._check_reader(reader, verdict)
            second = self.folders.start([*self.case.words, *self.case.resumed.split()], self.case)
            second.join(BESIDE)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        for program in (process, second):
            program.join(PATIENCE)
            if program.exitcode is None:
                program.kill()
        output = self.folders.read_output()
        good = [succeeded(program.exitcode, output) for program in (process, second)]
        codes = {program.exitcode for program in (process, second)}
        if not any(good) or not codes <= {0, 1, 2} or "Traceback" in output:
            codes = f"{process.exitcode} and {second.exitcode}"
            verdict.lost.append(f"two writers: exit codes {codes}: {output.strip()[-600:]}")
        return True

    def _check_reader(self, reader: str, verdict: Verdict) -> None:
        code, output = self._read(reader)
        if (code, output) in (self.before[reader], self.after[reader]):
            return
        # Documents are added in several steps, and a run or a store is unfinished for a while: a reader says so.
        between = (code == 0 and (bool(self.case.index) or self.case.unfinished)) or (
            self.case.unfinished and is_refusal(code, output)
        )
        if not between:
            verdict.lost.append(f"`{reader}` beside it: exit code {code}: {output[-300:]}")

    def _read(self, reader: str) -> tuple[int | None, str]:
        """Return exit code and output of a command that reads."""
        folders = copy(self.folders)
        folders.output = folders.root / "read"  # the writer's own output goes on
        folders.output.unlink(missing_ok=True)
        process = folders.start(reader.split())
        process.join(PATIENCE)
        return process.exitcode, folders.read_output()


def is_refusal(code: int | None, output: str) -> bool:
    """Return whether a command has ended with one line that says why."""
    lines = [line for line in output.splitlines() if line.startswith("bertree: ") and "bertree: note:" not in line]
    return code == 2 and len(lines) == 1 and "Traceback" not in output


def _process_state(process: int) -> str:
    """Return the letter of the process's state; "": there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def run_disturbed(
    trials: DisturbedTrials,
    what: str,
    count: int,
    seed: int,
    only: Fault | None = None,
    running: Callable[[], bool] = lambda: True,
) -> Count:
    """Run `count` trials of one case with a kind of faults; `only`: this one. `running`: whether there is time left."""
    case = trials.case
    result, chance = Count(case.name), random.Random(f"{seed} {case.name} {what}")
    lines = trials.expected.operations
    numbers = [n for n in choose(lines, 2 * count, chance) if lines[n - 1].split("\t")[0] not in FREE]
    plan = [
        Fault(KINDS[what][turn % len(KINDS[what])], at) for turn, at in enumerate(chance.sample(numbers, len(numbers)))
    ]
    for fault in [only] if only else plan[:count]:
        if not running():
            break
        verdict = trials.trial([fault])
        result.kinds["operation"] += verdict.hit
        for name in result.broken:
            result.broken[name] += bool(getattr(verdict, name))
        if verdict.broken:
            line = lines[int(fault.at) - 1].replace("\t", " ")
            again = f"python -m tests.crash {what} --only {shlex.quote(case.name)} --fault {fault}  # {line}"
            result.lines += [again, *(f"    {line}" for line in verdict.broken[:6])]
    return result
