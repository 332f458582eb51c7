"""All power cuts of one case: each is checked as bytes, and some are written to the disk and the command runs again."""

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

from tests.crash.disk import Disk, State, below, difference, digest
from tests.crash.recording import Operation, contents_folder, read_recording, record
from tests.kill.trial import Trials, Verdict

RANDOM = 3  # states at random after each operation
MOST = 4000  # operations of a case after which the power is cut


class Cut(NamedTuple):
    """A power cut: after so many operations, and which of the states that it may leave."""

    operations: int
    number: int

    def __str__(self) -> str:
        return f"{self.operations}:{self.number}"


@dataclass
class CutCount:
    """What the power cuts of one case found."""

    name: str
    operations: int = 0
    checked: int = 0  # states whose bytes were checked; all differ
    resumed: int = 0  # of these, states in which the command was run again
    refusals: dict[str, int] = field(default_factory=dict)  # lines that name what cannot be used
    faults: dict[str, str] = field(default_factory=dict)  # what is wrong -> the first cut that shows it

    @property
    def line(self) -> str:
        """Say it in one line."""
        return (
            f"{self.name}: {self.operations} operations, {self.checked} states, {self.resumed} resumed, "
            f"{sum(self.refusals.values())} refused, {len(self.faults)} faults"
        )


def start_recording(root: Path, log: Path) -> None:
    """Record this process to its end."""
    recorder = record(root, log)
    Finalize(None, recorder.scan, exitpriority=1)


class PowerCuts:
    """The power cuts of one case."""

    def __init__(self, trials: Trials, seed: int = 0) -> None:
        self.trials, self.folders, self.case, self.seed = trials, trials.folders, trials.case, seed
        folders, case = self.folders, self.case
        self.log = folders.root / "recording"
        self.log.unlink(missing_ok=True)
        shutil.rmtree(contents_folder(self.log), ignore_errors=True)
        folders.reset(self.trials.source)
        folders.finish(case.words, replace(case, plant=partial(_plant, case.plant, folders.work, self.log)))
        self.recording = read_recording(self.log)
        self.count = CutCount(case.name, len(self.recording))
        self.distinct: dict[str, list[Cut]] = {}  # states by the operation before the cut
        self._check_all()

    def _states(self, wanted: Callable[[int], bool]) -> Iterator[tuple[Cut, State, Disk]]:
        """Yield the states after every operation that is wanted, the same ones every time."""
        disk = Disk(self.trials.source, contents_folder(self.log))
        for number in range(len(self.recording) + 1):
            if number:
                disk.apply(self.recording[number - 1])
            if wanted(number):
                chance = random.Random(f"{self.seed} {self.case.name} {number}")
                for variant, state in enumerate(disk.cuts(chance, RANDOM)):
                    yield Cut(number, variant), state, disk

    def _check_all(self) -> None:
        """Check every state as bytes: what is replaced at once is the old or the new; at the end it is the new."""
        count, last = self.count, len(self.recording)
        chosen = set(random.Random(self.seed).sample(range(last), min(last, MOST))) | {last}
        whole = Disk(self.trials.source, contents_folder(self.log))
        for operation in self.recording:
            whole.apply(operation)
        after = whole.state([True] * len(whole.changes), "new", random.Random())
        seen: set[bytes] = set()
        for cut, state, disk in self._states(chosen.__contains__):
            if (key := digest(state, disk.source)) in seen and cut.operations < last:
                continue
            seen.add(key)
            count.checked += 1
            before = kind(self.recording[cut.operations - 1]) if cut.operations else "start"
            self.distinct.setdefault("end" if cut.operations == last else before, []).append(cut)
            for name in self.case.atomic if not self.case.index else ():
                old, new, now = (below(root, name) for root in (disk.source, after, state))
                if now != new and cut.operations == last:
                    count.faults.setdefault(f"{name}: a finished command's result is lost", str(cut))
                elif now not in (old, new):
                    count.faults.setdefault(f"{name}: is neither the old nor the new one (after: {before})", str(cut))

    def resume(self, until: float, most: int = 1 << 30) -> CutCount:
        """Run the command again in states of all kinds, one of each kind first, until a moment of the clock."""
        chance = random.Random(self.seed)
        groups = [chance.sample(cuts, len(cuts)) for cuts in self.distinct.values()]
        chance.shuffle(groups)
        order = [group[turn] for turn in range(max(map(len, groups))) for group in groups if turn < len(group)]
        for cut in order[:most]:
            if time.monotonic() > until:
                break
            verdict = self.try_cut(cut)
            self.count.resumed += 1
            if verdict.refused:
                line = re.sub(r"\.[a-z0-9_]{8}(?=/|$|:| )|[0-9]+", "*", verdict.refused)
                self.count.refusals[line] = self.count.refusals.get(line, 0) + 1
            for line in verdict.broken:
                self.count.faults.setdefault(f"{line} (after: {self._operation(cut)})", str(cut))
        return self.count

    def _operation(self, cut: Cut) -> str:
        return kind(self.recording[cut.operations - 1]) if cut.operations else "start"

    def try_cut(self, cut: Cut) -> Verdict:
        """Write the state to the disk and run the command again."""
        state, source = next(
            (state, disk.source)
            for at, state, disk in self._states(lambda number: number == cut.operations)
            if at.number == cut.number
        )
        self.folders.reset(self.trials.source)
        write_state(self.folders.work, state, source)
        verdict = Verdict(hit=True)
        self.trials.check_files(verdict, f"cut {cut}")
        again = [*self.case.words, *self.case.resumed.split()]
        self.trials.run_again(again, verdict, may_refuse=True)
        return verdict


def _plant(also: Callable[[], None] | None, root: Path, log: Path) -> None:
    start_recording(root, log)
    if also is not None:  # a fault is seen by the recorder, as one in our code is
        also()


def write_state(work: Path, state: State, source: State) -> None:
    """Change a copy of the source into the state."""
    other, gone = difference(state, source)
    for name in sorted(gone, reverse=True):
        path = work / name
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
    for name, content in sorted(other.items()):
        path = work / name
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            if path.is_dir():
                shutil.rmtree(path)
            path.write_bytes(content)


def kind(operation: Operation) -> str:
    """Return an operation without what tells apart files of one kind: numbers and random names."""
    words = [str(word) for word in operation[:2]]
    path = re.sub(r"\.[a-z0-9_]{8}(?=/|$|\.old)", ".*", words[1])
    return f"{words[0]} {re.sub('[0-9]+', '*', os.path.normpath(path))}"
