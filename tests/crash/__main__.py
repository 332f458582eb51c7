"""Disturb every verb that writes at its file operations, and run it again.

    python -m tests.crash [cuts|errors|beside] [--seconds 900] [--count 20] [--seed 0] [--only NAME ...]

cuts: a command runs once, and its file operations are recorded. After every operation the power is cut in thought: of
what was not synced, any part may be lost (tests/crash/disk.py). In every such state, what is replaced at once must be
the old or the new, byte by byte; when the command has ended, it must be the new. In as many states as time allows the
command is run again, with --resume where it has that, and must end in the same bytes or refuse in one line.

errors: an operation fails (a full or read-only disk, no permission, an input/output error), at COUNT of them. The
command must end with one line or do its work, and run again to the same end.

beside: while a command pauses at an operation, others read what it writes, and the same command is run a second time.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.crash.cuts import Cut, PowerCuts
from tests.crash.disturbed import KINDS, DisturbedTrials, run_disturbed
from tests.kill.cases import CASES, Case
from tests.kill.trial import Fault, TrialFolders, Trials


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="cuts", choices=("cuts", *KINDS))
    parser.add_argument("--seconds", type=float, default=900, help="time for all commands")
    parser.add_argument("--count", type=int, default=20, help="errors or pauses of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES])
    parser.add_argument("--fault", help="only this cut, error or pause, as a line about a failure gives it")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.only or case.name in arguments.only]
    until, failed, totals = time.monotonic() + arguments.seconds, False, [0, 0]
    with tempfile.TemporaryDirectory() as name:
        folders = TrialFolders(Path(name), cases)
        for left, case in zip(range(len(cases), 0, -1), cases, strict=True):
            end = time.monotonic() + (until - time.monotonic()) / left
            try:
                lines, tried = (cut_power if arguments.what == "cuts" else disturb)(folders, case, arguments, end)
            except RuntimeError as error:
                lines, tried = [f"{case.name}: {error}"], (0, 0)
            totals = [total + number for total, number in zip(totals, tried, strict=True)]
            failed |= any(line.startswith("    python") for line in lines)
            print(*lines, sep="\n", flush=True)
    print(f"all: {totals[0]:,} states, {totals[1]:,} commands run again")
    sys.exit(1 if failed else 0)


def cut_power(
    folders: TrialFolders, case: Case, arguments: argparse.Namespace, end: float
) -> tuple[list[str], tuple[int, int]]:
    """Cut the power in one command until the end of its time."""
    cuts = PowerCuts(Trials(folders, case), arguments.seed)
    if arguments.fault:
        operations, number = map(int, arguments.fault.split(":"))
        return cuts.try_cut(Cut(operations, number)).broken, (1, 1)
    count = cuts.resume(end)
    lines = [count.line]
    lines += [f"    refused {times} times: {line}" for line, times in count.refusals.items()]
    for line, cut in count.faults.items():
        lines += [f'    python -m tests.crash --only "{case.name}" --fault {cut}', f"        {line}"]
    return lines, (count.checked, count.resumed)


def disturb(
    folders: TrialFolders, case: Case, arguments: argparse.Namespace, end: float
) -> tuple[list[str], tuple[int, int]]:
    """Let operations of one command fail or pause until the end of its time."""
    only = None
    if arguments.fault:
        kind, _, at = arguments.fault.partition(":")
        only = Fault(kind, float(at))
    running: Callable[[], bool] = lambda: time.monotonic() < end  # noqa: E731
    count = run_disturbed(
        DisturbedTrials(folders, case), arguments.what, arguments.count, arguments.seed, only, running
    )
    tried = count.kinds["operation"]
    return [count.line, *(f"    {line}" for line in count.lines)], (tried, tried)


if __name__ == "__main__":
    main()
