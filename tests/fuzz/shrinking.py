"""Makes a failing case small: the fewest changes, then the smallest files; and writes it as a reproducer."""

import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.fuzz.case import Case, Change, copy
from tests.fuzz.checks import Violation
from tests.fuzz.running import Result, Runner

Attempt = Callable[[Case], tuple[Result, list[Violation]]]
MOST_TRIES = 40  # runs that shrinking one case may take
BINARY = (".safetensors", ".parquet", ".sqlite", ".faiss", ".npy", ".bin", ".gz", ".xz", ".zst")


class _Budget:
    """Tries changes of a case as long as there are runs left."""

    def __init__(self, violation: Violation, attempt: Attempt) -> None:
        self._wanted, self._attempt, self.left = violation.signature, attempt, MOST_TRIES

    def fails(self, case: Case) -> bool:
        """Whether the case still fails in the same way."""
        if self.left == 0:
            return False
        self.left -= 1
        return any(broken.signature == self._wanted for broken in self._attempt(case)[1])


def shrink(case: Case, violation: Violation, attempt: Attempt) -> Case:
    """Return a case with fewer changes and smaller files that fails in the same way."""
    if violation.promise == "hang":
        return case  # every run takes as long as the limit
    budget = _Budget(violation, attempt)
    for change in list(case.changes):
        fewer = replace(case, changes=[other for other in case.changes if other is not change])
        if budget.fails(fewer):
            case = fewer
    for file in dict.fromkeys(change.file for change in case.changes):
        case = _smaller_file(case, file, budget)
    return case


def _smaller_file(case: Case, file: str, budget: _Budget) -> Case:
    """Cut pieces out of a file, large ones first: of text whole lines, if there are many."""
    if file.endswith(BINARY):
        return case
    read: list[bytes] = []

    def remember(path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            read.append(path.read_bytes())

    looked = replace(case, changes=[*case.changes, Change(file, "read", remember)])
    if not budget.fails(looked) or not read:
        return case
    data = read[0]
    pieces = data.splitlines(keepends=True) if data.count(b"\n") > 8 else [data[at : at + 1] for at in range(len(data))]
    size = len(pieces) // 2
    while size and budget.left:
        at = 0
        while at < len(pieces) and budget.left:
            fewer = pieces[:at] + pieces[at + size :]
            smaller = _with_content(case, file, b"".join(fewer))
            if budget.fails(smaller):
                pieces, case = fewer, smaller
            else:
                at += size
        size //= 2
    return case


def _with_content(case: Case, file: str, content: bytes) -> Case:
    others = [change for change in case.changes if change.file != file]
    what = "; ".join(
        change.what for change in case.changes if change.file == file and not change.what.startswith("cut")
    )
    simpler = Change(file, what, lambda path: _write(path, content))
    return replace(case, changes=[*others, simpler])


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_reproducer(case: Case, violation: Violation, result: Result, target: Path, seed: int, runner: Runner) -> None:
    """Write the folder of a case, its command, what it said, and how to run it again."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.rmtree(runner.case_folder)
    case.build(runner.samples, runner.case_folder)
    copy(runner.case_folder, target / "case")
    command = f"bertree {shlex.join(case.command)}"
    changes = "\n".join(f"  {change.file!r}: {change.what}" for change in case.changes) or "  none"
    again = f"python -m tests.fuzz --seed {seed} --only {case.kind} --case {case.number}"
    printed = (
        f"exit code {result.code} after {result.seconds:.1f} s\n\nstandard error:\n{result.err}\nstandard output:\n"
    )
    about = (
        f"{violation.promise}: {violation.detail}\n\nchanges:\n{changes}\n\nthe drawn case again: {again}\n\n{printed}"
    )
    (target / "output.txt").write_text(about + result.out[:20_000], errors="backslashreplace")
    script = f'#!/bin/sh\n# {violation.promise}\ncd "$(dirname "$0")/case" && exec {command}\n'
    (target / "again.sh").write_text(script, errors="surrogateescape")
