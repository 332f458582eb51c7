"""A few kills of a few commands, and that the trials can find a broken promise. `make kill` runs all of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bertree.files import atomic
from tests.kill.campaign import run_case
from tests.kill.cases import CASES, uncovered
from tests.kill.trial import Fault, TrialFolders, Trials
from tests.support.shared import suite_has

pytest.importorskip("faiss")
BY_NAME = {case.name: case for case in CASES}
SHORT = ("tokenizer train, replacing", "convert, replacing", "embed", "index add", "cluster")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> TrialFolders:
    return TrialFolders(tmp_path_factory.mktemp("kill"), [BY_NAME[name] for name in SHORT])


def test_every_verb_and_option_that_writes_is_killed() -> None:
    assert uncovered() == [], "needs a Case in tests/kill/cases.py; a verb that writes nothing belongs to READING there"


@pytest.mark.parametrize("name", suite_has(SHORT[1:4:2], SHORT))
def test_a_killed_command_ends_in_the_same_bytes(name: str, folders: TrialFolders) -> None:
    counts = run_case(folders, BY_NAME[name], 1, 0, signals=False)
    assert counts.lines == []
    assert counts.kinds["operation"] == 2


def write_in_place() -> None:
    """Plant a writer that is not atomic."""
    atomic.write_atomically = lambda path, text: path.write_text(text)


def leave_everything() -> None:
    """Plant a writer that leaves its temporary files."""
    atomic.remove_leftovers = lambda targets: None


@pytest.mark.parametrize(("plant", "broken"), [(write_in_place, "lost"), (leave_everything, "left")])
def test_a_planted_fault_is_found(plant: Callable[[], None], broken: str, folders: TrialFolders) -> None:
    trials = Trials(folders, replace(BY_NAME["cluster"], plant=plant))
    write = next(n for n, line in enumerate(trials.expected.operations, 1) if line.startswith("write"))
    verdict = trials.trial([Fault("operation", write)])
    assert verdict.hit
    assert getattr(verdict, broken), verdict
