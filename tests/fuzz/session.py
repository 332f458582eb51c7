"""A session: draws cases in turn from all kinds, runs them, shrinks those that fail, and counts."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.case import Case
from tests.fuzz.checks import Snapshot, Violation, violations
from tests.fuzz.kinds import KINDS
from tests.fuzz.running import Result, Runner
from tests.fuzz.shrinking import shrink, write_reproducer


@dataclass
class Tally:
    """What was seen of one kind."""

    cases: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)  # promise -> cases
    seconds: float = 0


@dataclass(frozen=True)
class Failure:
    """A case that broke a promise, and where its reproducer is."""

    case: Case
    violation: Violation
    folder: Path | None = None


def draw(kind: str, seed: int, number: int) -> Case:
    """Draw a case: the same for the same seed and number."""
    case = KINDS[kind].draw(Random(f"{seed} {kind} {number}"))
    case.kind, case.number = kind, number
    return case


class Session:
    """Runs cases and keeps count."""

    def __init__(self, runner: Runner, failures: Path, seed: int = 0, shrinking: bool = True) -> None:
        self.runner, self.failures, self.seed, self._shrinking = runner, failures, seed, shrinking
        self.tallies: dict[str, Tally] = {}
        self.found: list[Failure] = []
        self._known: set[tuple[str, ...]] = set()

    def run(
        self,
        kinds: Sequence[str],
        seconds: float | None = None,
        cases: int | None = None,
        seen: Callable[[Case, int], None] = lambda case, failures: None,
    ) -> None:
        """Run cases in turn from every kind, until the time is up or so many cases were run."""
        end = time.monotonic() + seconds if seconds is not None else None
        for number, (kind, of_kind) in enumerate(_turns(kinds)):
            if (cases is not None and number >= cases) or (end is not None and time.monotonic() > end):
                return
            case = draw(kind, self.seed, of_kind)
            self.run_case(case)
            seen(case, len(self.found))

    def run_case(self, case: Case) -> list[Violation]:
        """Run one case and record how it ended."""
        result, broken = self.attempt(case)
        tally = self.tallies.setdefault(case.kind, Tally())
        tally.cases += 1
        tally.codes[str(result.code)] += 1
        tally.seconds += result.seconds
        for violation in broken[:1]:
            tally.broken[violation.promise] += 1
            self._record(case, violation, result)
        return broken

    def attempt(self, case: Case) -> tuple[Result, list[Violation]]:
        """Run a case in a new folder, which is left as it was before the command."""
        folder = self.runner.case_folder
        shutil.rmtree(folder, ignore_errors=True)
        case.build(self.runner.samples, folder)
        before = Snapshot(folder)
        result = self.runner.run(case, folder)
        return result, violations(case, folder, result, before, self.runner)

    def _record(self, case: Case, violation: Violation, result: Result) -> None:
        signature = (case.kind, *violation.signature)
        if signature in self._known:
            return  # the first of them has a reproducer
        self._known.add(signature)
        if self._shrinking and (smaller := shrink(case, violation, self.attempt)) is not case:
            case, (result, _) = smaller, self.attempt(smaller)
        target = self.failures / f"{case.kind}-{self.seed}-{case.number}"
        write_reproducer(case, violation, result, target, self.seed, self.runner)
        self.found.append(Failure(case, violation, target))


def _turns(kinds: Sequence[str]) -> Iterator[tuple[str, int]]:
    number = 0
    while True:
        for kind in kinds:
            yield kind, number
        number += 1
