"""`python -m tests.fuzz`: the command line of the fuzzer."""

import argparse
import sys
import tempfile
from pathlib import Path

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
    options = _arguments()
    kinds = options.only or list(KINDS)
    with tempfile.TemporaryDirectory(prefix="bertree-fuzz-", dir=options.work) as work:
        runner = Runner(Path(work, "run"), Path(work, "samples"), Limits(wall=options.limit, cpu=options.limit / 2))
        print("importing, making the samples", file=sys.stderr)
        import_everything()
        make(runner)
        session = Session(runner, options.failures.resolve(), options.seed, not options.no_shrink)
        if options.case is not None:
            return _again(session, draw(kinds[0], options.seed, options.case))
        seconds = options.seconds if options.cases is None else None
        session.run(kinds, seconds, options.cases, _show)
    _print_table(session)
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
    arguments = parser.parse_args()
    if arguments.case is not None and len(arguments.only or []) != 1:
        parser.error("--case: say of which kind, with --only KIND")
    return arguments


def _show(case: Case, failures: int) -> None:
    print(f"\r{case.kind:20} case {case.number}, {failures} failures", end="", file=sys.stderr, flush=True)


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


def _print_table(session: Session) -> None:
    row = "{:20} {:>6}  {:24} {:>8}  {}".format
    print(row("kind", "cases", "exit codes", "s a case", "violations"))
    for name, tally in session.tallies.items():
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(tally.codes.items()))
        broken = ", ".join(f"{count} {promise}" for promise, count in tally.broken.items()) or "-"
        print(row(name, tally.cases, codes, f"{tally.seconds / tally.cases:.2f}", broken))
    for failure in session.found:
        print(f"{failure.violation.promise}: {failure.violation.detail[:160]}\n  {failure.folder}")
    total = sum(tally.cases for tally in session.tallies.values())
    print(f"{total:,} cases with seed {session.seed}, {len(session.found)} different failures")


if __name__ == "__main__":
    sys.exit(main())
