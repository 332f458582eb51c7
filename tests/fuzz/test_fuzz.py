"""A short run of the fuzzer, and that it finds what it looks for."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import planted, shrinking
from tests.fuzz.case import Case
from tests.fuzz.checks import Violation
from tests.fuzz.kinds import KINDS
from tests.fuzz.mutations.trees import document
from tests.fuzz.running import Result
from tests.fuzz.samples import LEARNED_NOTHING

CASES_A_KIND = 1


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the samples, which all sessions here share."""
    return tmp_path_factory.mktemp("fuzz")


def printed(work: Path) -> Any:
    return json.loads((work / "printed.json").read_text())


def test_promises_hold_in_a_short_run(work: Path) -> None:
    planted.start(planted.run, work, CASES_A_KIND * len(KINDS))
    text = printed(work)
    assert text["failures"] == []
    assert {name: sum(codes.values()) for name, codes in text["counts"].items()} == dict.fromkeys(KINDS, CASES_A_KIND)


def test_samples_are_accepted_as_they_are(work: Path) -> None:
    planted.start(planted.run_unchanged, work)
    text = printed(work)
    assert len(text) > 10
    for kind, (code, err, promises) in text.items():
        assert code in (0, 143) or LEARNED_NOTHING in err, f"{kind}: {err}"
        assert promises == [], kind


def test_a_pipe_in_the_place_of_a_file_is_no_hang(work: Path) -> None:
    planted.start(planted.run_pipes, work)
    assert printed(work) == []


def test_the_same_seed_draws_the_same_cases() -> None:
    assert planted.draws(3) == planted.draws(3)
    assert planted.draws(3) != planted.draws(4)


def test_shrinking_ends_when_its_runs_are_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Violation("traceback", "of the whole file alone")
    cut, cuts = shrinking._with_content, Counter[str]()

    def count(case: Case, file: str, content: bytes) -> Case:
        cuts[file] += 1
        return cut(case, file, content)

    def attempt(case: Case) -> tuple[Result, list[Violation]]:
        shutil.rmtree(folder := tmp_path / "case", ignore_errors=True)
        case.build(tmp_path, folder)
        file = folder / "file.txt"
        return Result(1, "", "", 0, 0), [broken] if file.is_file() and file.stat().st_size == 5000 else []

    monkeypatch.setattr(shrinking, "_with_content", count)
    shrinking.shrink(Case({}, [document("file.txt", b"x" * 5000)], []), broken, attempt)
    assert 0 < cuts["file.txt"] < shrinking.MOST_TRIES


@pytest.fixture(scope="module")
def faults(work: Path) -> Any:
    """What was found of the planted faults."""
    planted.start(planted.run_planted, work)
    return printed(work)


@pytest.mark.parametrize("fault", planted.FAULTS)
def test_a_planted_fault_is_found_and_shrunk(faults: Any, fault: str) -> None:
    violation = faults[fault]
    assert violation["promise"] == {"temporary": "left-over"}.get(fault, fault)
    assert violation["promise"] in violation["written"]["output.txt"]
    assert "exec bertree" in violation["written"]["again.sh"]
    if fault == "silent difference":
        assert list(violation["files"]) == ["store/tokens-00000.bin"]
    elif fault in planted.SHRUNK:
        assert list(violation["files"]) == ["hf/config.json"]
        assert len(violation["files"]["hf/config.json"]) < 30
        assert "boom" in violation["files"]["hf/config.json"]
