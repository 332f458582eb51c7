"""`python -m tests.fuzz`: the command line of the fuzzer."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.fuzz.case import Case
from tests.fuzz.kinds import KINDS
from tests.fuzz.running import Limits, Runner, import_everything
from tests.fuzz.samples import make
from tests.fuzz.session import Session, draw

ABOUT = """Change the files that bertree reads, run it on them, and check its promises:

  exit code 0 with a right result, or exit code 2 with one line that names the file or the option
  no traceback, no signal, no hang, bounded memory
  nothing half-written in the output folder, nothing left in the temporary folder
  no silent difference: a damaged run that is resumed ends in the same model, or is refused

The same seed draws the same cases. A case that breaks a promise is shrunk and written to a folder of its own:
case/ (its files), output.txt (what was changed, what bertree said), again.sh (the command). Exit code 1 then.
"""
EXAMPLES = """examples:
  make fuzz                                            a minute of cases of every kind
  make fuzz SECONDS=600 ARGS="--seed 7"                ten minutes of other cases
  python -m tests.fuzz --only checkpoint --cases 200   cases of one kind
  python -m tests.fuzz --only index --seed 3 --case 14 one case again, with what it prints

kinds:
"""


def main() -> int:
    """Run a session and print its table."""
    given = _arguments()
    kinds = given.only or list(KINDS)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bertree-fuzz-", dir=given.work) as work:
        runner = Runner(Path(work, "run"), Path(work, "samples"), Limits(wall=given.limit, cpu=given.limit / 2))
        with console.status("importing, making the samples"):
            import_everything()
            make(runner)
        session = Session(runner, given.failures.resolve(), given.seed, not given.no_shrink)
        if given.case is not None:
            return _again(session, draw(kinds[0], given.seed, given.case))
        seconds = given.seconds if given.cases is None else None
        _run(session, kinds, seconds, given.cases, console)
    _print_table(session, console)
    return 1 if session.found else 0


def _arguments() -> argparse.Namespace:
    kinds = "\n".join(f"  {kind.name:20} {kind.about}" for kind in KINDS.values())
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz",
        description=ABOUT,
        epilog=EXAMPLES + kinds,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to draw cases (default: 60)")
    parser.add_argument("--cases", type=int, help="how many cases in all, instead of a time")
    parser.add_argument("--only", action="append", choices=list(KINDS), metavar="KIND", help="a kind; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other cases (default: 0)")
    parser.add_argument("--case", type=int, help="run this case of the kind again and print what it says")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a case hangs (default: 60)")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="folder for reproducers")
    parser.add_argument("--no-shrink", action="store_true", help="write failing cases as they were drawn")
    parser.add_argument("--work", type=Path, help="folder for the samples and cases (default: the temporary folder)")
    given = parser.parse_args()
    if given.case is not None and len(given.only or []) != 1:
        parser.error("--case: say of which kind, with --only KIND")
    return given


def _run(session: Session, kinds: list[str], seconds: float | None, cases: int | None, console: Console) -> None:
    columns = (TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=cases or seconds, said="")
        started, count = time.monotonic(), 0

        def seen(case: Case, failures: int) -> None:
            nonlocal count
            count += 1
            done = count if cases else time.monotonic() - started
            progress.update(task, completed=done, description=case.kind, said=f"{count} cases, {failures} failures")

        session.run(kinds, seconds, cases, seen)


def _again(session: Session, case: Case) -> int:
    """Run one case and print everything about it."""
    result, broken = session.attempt(case)
    for change in case.changes:
        print(f"{change.file!r}: {change.what}")
    print(f"bertree {' '.join(case.command)[:2000]}")
    print(f"exit code {result.code} after {result.seconds:.1f} s, {result.peak >> 20} MiB")
    print(result.err[-5000:], result.out[-5000:], sep="\n", end="")
    for violation in broken:
        print(f"{violation.promise}: {violation.detail}")
    return 1 if broken else 0


def _print_table(session: Session, console: Console) -> None:
    table = Table("kind", "cases", "exit codes", "violations", "s a case", box=None, pad_edge=False)
    for column in (1, 4):
        table.columns[column].justify = "right"
    for name, tally in session.tallies.items():
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(tally.codes.items()))
        broken = ", ".join(f"{count} {promise}" for promise, count in tally.broken.items()) or "-"
        table.add_row(name, str(tally.cases), codes, broken, f"{tally.seconds / tally.cases:.2f}")
    console.print(table)
    for failure in session.found:
        console.print(f"{failure.violation.promise}: {failure.violation.detail[:160]}", markup=False, soft_wrap=True)
        console.print(f"  {failure.folder}", markup=False, soft_wrap=True)
    total = sum(tally.cases for tally in session.tallies.values())
    console.print(f"{total:,} cases with seed {session.seed}, {len(session.found)} different failures")


if __name__ == "__main__":
    sys.exit(main())
