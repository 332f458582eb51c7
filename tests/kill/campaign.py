"""All trials of some cases, counted."""

import random
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.kill.cases import Case
from tests.kill.trial import Fault, TrialFolders, Trials

FIRST = ("fsync", "replace", "rename", "commit", "committed", "unlink")


@dataclass
class Count:
    """What the trials of one case found."""

    name: str
    kinds: dict[str, int] = field(default_factory=lambda: {"operation": 0, "kill": 0, "signal": 0})
    broken: dict[str, int] = field(default_factory=lambda: {"lost": 0, "different": 0, "left": 0})
    late: int = 0  # the command had ended before
    lines: list[str] = field(default_factory=list)  # what was broken, and how to see it again

    @property
    def line(self) -> str:
        """Say it in one line."""
        numbers = [f"{number} {name}" for name, number in (*self.kinds.items(), *self.broken.items()) if number]
        return f"{self.name}: {', '.join([*numbers, f'{self.late} too late'] if self.late else numbers)}"


def run_case(
    folders: TrialFolders,
    case: Case,
    count: int,
    seed: int,
    signals: bool,
    arguments: Sequence[Fault] = (),
    advance: Callable[[str], None] = lambda what: None,
) -> Count:
    """Run the trials of one case. `given`: only this one."""
    counts, moments = Count(case.name), random.Random(f"{seed} {case.name}")
    advance("undisturbed")
    trials = Trials(folders, case)
    seconds = trials.expected.seconds
    few = max(2, count // 5) if case.slow else count
    plan: list[list[Fault]] = [list(arguments)] if arguments else []
    if not plan and not signals and not case.slow:
        plan += [[Fault("operation", number)] for number in choose(trials.expected.operations, 2 * few, moments)]
    for _ in range(0 if arguments else few):
        kinds = ("INT", "TERM") if signals else ("kill",)
        times = 1 if signals else moments.randint(1, 3)
        plan.append([Fault(moments.choice(kinds), moments.uniform(0.01, 1.0) * seconds) for _ in range(times)])
    for faults in plan:
        advance(", ".join(map(str, faults)))
        verdict = trials.trial(faults)
        kind = faults[0].kind if faults[0].kind in counts.kinds else "signal"
        counts.kinds[kind] += verdict.hit
        counts.late += not verdict.hit
        for name in counts.broken:
            counts.broken[name] += bool(getattr(verdict, name))
        if verdict.broken:
            again = f"python -m tests.kill --only {shlex.quote(case.name)} --fault {','.join(map(str, faults))}"
            counts.lines += [again, *(f"    {line}" for line in verdict.broken[:6])]
    return counts


def choose(operations: Sequence[str], most: int, moments: random.Random) -> list[int]:
    """Choose operations to die at: one of every kind on every kind of file first, then others at random."""
    groups: dict[str, list[int]] = {}
    for number, line in enumerate(operations, 1):
        groups.setdefault(_kind(line), []).append(number)
    ranked = sorted(groups.values(), key=lambda group: operations[group[0] - 1].split("\t")[0] not in FIRST)
    chosen = [moments.choice(group) for group in ranked]
    rest = [number for group in groups.values() for number in group if number not in chosen]
    chosen += moments.sample(rest, min(len(rest), max(0, most - len(chosen))))
    return sorted(chosen[:most])


def _kind(line: str) -> str:
    """Return an operation without what tells apart files of one kind: numbers and random names."""
    name, path = line.split("\t")
    path = re.sub(r"\.[a-z0-9_]{8}(?=/|$|\.old)", ".*", path)
    return f"{name} {re.sub('[0-9]+', '*', path)}"
