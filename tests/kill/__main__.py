"""Kill every verb that writes, at its file operations and at random moments, and run it again.

    python -m tests.kill [--count 20] [--seed 0] [--only NAME ...] [--signals]

Each command runs undisturbed first. Then it is killed: at up to twice COUNT of its file operations (one of every kind
on every kind of file first), and COUNT times at random moments, up to three times in a row. After each kill, files
that are replaced must be the old or the new ones. Then it runs again, with --resume where it has that, and must end in
the same bytes (times and dates apart) and leave nothing behind: no file, no process, nothing in the folder for
temporary files.

With --signals the verbs that train get SIGINT or SIGTERM twice within a millisecond instead, as `timeout` sends them,
and must save what they have done. Commands that take long are tried less often. The exit code is 1 if a promise is
broken; a line says how to see it again.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.kill.campaign import Count, run_case
from tests.kill.cases import CASES
from tests.kill.trial import Fault, TrialFolders


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20, help="kills at random moments of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES])
    parser.add_argument("--signals", action="store_true", help="doubled signals instead, for the verbs that train")
    parser.add_argument("--fault", help="only this trial, as a line about a failure gives it")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.only or case.name in arguments.only]
    if arguments.signals:
        cases = [case for case in cases if case.trains]
    faults = [
        Fault(kind, float(at)) for kind, at in (text.split(":") for text in (arguments.fault or "").split(",") if text)
    ]
    counts = []
    with tempfile.TemporaryDirectory() as name:
        folders = TrialFolders(Path(name), cases)
        for case in cases:
            counts.append(
                run_case(
                    folders, case, arguments.count, arguments.seed, arguments.signals, faults,
                    lambda what, name=case.name: print(f"\r{name}: {what:40}", end="", file=sys.stderr, flush=True),
                )
            )  # fmt: skip
            print("", counts[-1].line, *counts[-1].lines, sep="\n")
    print_summary(counts)
    sys.exit(1 if any(count.lines for count in counts) else 0)


def print_summary(counts: list[Count]) -> None:
    """Print a line for each command, and one for all of them."""
    rows = [(count.name, *count.kinds.values(), *count.broken.values()) for count in counts]
    totals = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    head = ("command", "at operations", "at random moments", "signals", "lost", "different", "left over")
    for first, *numbers in (head, *rows, totals):
        print(
            f"{first:34}", *(f"{number:>{len(name)}}" for number, name in zip(numbers, head[1:], strict=True)), sep="  "
        )


if __name__ == "__main__":
    main()
