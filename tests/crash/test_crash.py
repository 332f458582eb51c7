"""A few power cuts, failing operations and writers side by side, and that faults are found. `make crash` runs all."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.crash.cuts import PowerCuts
from tests.crash.disk import Disk, State
from tests.crash.disturbed import DisturbedTrials, run_disturbed
from tests.kill.cases import CASES
from tests.kill.trial import TrialFolders, Trials
from tests.support.shared import suite_has

pytest.importorskip("faiss")
BY_NAME = {case.name: case for case in CASES}
SHORT = ("convert, replacing", "prepare", "embed", "index add")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> TrialFolders:
    return TrialFolders(tmp_path_factory.mktemp("crash"), [BY_NAME[name] for name in SHORT])


def states(tmp_path: Path, *operations: list[str]) -> list[State]:
    """States that a power cut may leave of a file `a` with old content, after these operations."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new" * 1000)
    disk = Disk(tmp_path / "source", tmp_path)
    for operation in operations:
        disk.apply(operation)
    return [state for seed in range(20) for state in disk.cuts(Random(seed), 3)]


def test_a_power_cut_keeps_what_was_synced(tmp_path: Path) -> None:
    new = {"a": b"new" * 1000}
    outcomes = states(
        tmp_path, ["file", "b"], ["data", "b", "new"], ["sync", "b"], ["rename", "b", "a"], ["sync", ""]
    )  # fmt: skip
    assert all(state == new for state in outcomes)


def test_a_power_cut_may_leave_any_part_of_what_was_not_synced(tmp_path: Path) -> None:
    outcomes = states(tmp_path, ["file", "b"], ["data", "b", "new"], ["rename", "b", "a"])
    contents = {state["a"] for state in outcomes}
    assert {b"old", b"", b"new" * 1000, bytes(3000)} <= contents
    assert any(content and 512 <= len(content) < 3000 for content in contents), "some sectors"
    assert any("b" in state for state in outcomes), "the file without its new name"


@pytest.mark.process
@pytest.mark.parametrize("name", suite_has(("index add",), SHORT))
def test_a_command_survives_power_cuts_errors_and_another_writer(name: str, folders: TrialFolders) -> None:
    trials = DisturbedTrials(folders, BY_NAME[name])
    cuts = PowerCuts(trials).resume(math.inf, most=2)
    assert cuts.faults == {}
    assert cuts.checked > 20
    assert cuts.resumed == 2
    assert run_disturbed(trials, "errors", 2, 0).lines == []
    assert run_disturbed(trials, "beside", 1, 0).lines == []


def forget_files() -> None:
    """Plant a writer that syncs no file."""
    sync, os.fsync = os.fsync, lambda handle: sync(handle) if os.path.isdir(f"/proc/self/fd/{handle}") else None


def forget_folders() -> None:
    """Plant a writer that syncs no folder."""
    sync, os.fsync = os.fsync, lambda handle: None if os.path.isdir(f"/proc/self/fd/{handle}") else sync(handle)


@pytest.mark.process
@pytest.mark.parametrize(("plant", "fault"), [(forget_files, "neither"), (forget_folders, "is lost")])
def test_a_missing_sync_is_found(plant: Callable[[], None], fault: str, folders: TrialFolders) -> None:
    cuts = PowerCuts(Trials(folders, replace(BY_NAME["embed"], plant=plant)))
    assert any(fault in line for line in cuts.count.faults), cuts.count.faults
