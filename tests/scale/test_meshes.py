"""Runs on meshes of 2 and 4 processes against the same run on one device."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.meshes import Case, run_cases, write_references
from tests.support.ranks import read_results, run_ranks
from tests.support.shared import common_folder, make_once, suite_has

TOLERANCE = 1e-5
NO_DROPOUT = ("model.dropout=0.0",)
MUON = ("optim.name=muon",)
SGD = ("optim.name=sgd", "optim.lr=0.1", "optim.nesterov=true")
TWO = [
    *(Case("bert", {"zero": zero}, micro_batches=4) for zero in (0, 1, 2, 3)),
    Case("bert", {"zero": 3}, ("run.recompute=true",)),
    Case("bert", {"zero": 3}, again=True, micro_batches=4),
    Case("albert", {"zero": 3}),
    *(Case(family, {"zero": 3}) for family in ("roberta", "gpt", "modernbert", "transformer-xl", "xlnet", "reformer")),
    *(Case(family, {"zero": zero}, MUON) for family, zero in (("bert", 0), ("modernbert", 3))),
    Case("bert", {"zero": 3}, SGD),
    Case("bert", {"tensor": 2}),
    Case("bert", {"tensor": 2, "sequence_parallel": True}, NO_DROPOUT),
]
FOUR = [
    Case("bert", {"zero": 0}, micro_batches=4),
    Case("roberta", {"zero": 3, "shard": 2}, micro_batches=4),
    Case("xlnet", {"zero": 1}, micro_batches=4),
    Case("bert", {"tensor": 2, "zero": 3}),
    Case("albert", {"tensor": 2, "zero": 2}),
    Case("bert", {"tensor": 2, "zero": 1, "sequence_parallel": True}, NO_DROPOUT),
]
# The others are proofs: more families and optimizers on the same meshes.
SUITE = [*TWO[3:6], TWO[11], TWO[14], FOUR[1], FOUR[5]]


@pytest.fixture(scope="module")
def measured(
    token_store: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[int, list[dict[str, Any]]]:
    cases = {
        size: [c for c in cases if pytestconfig.option.proofs or c in SUITE] for size, cases in ((2, TWO), (4, FOUR))
    }
    folder = make_once(common_folder(tmp_path_factory) / "meshes", lambda folder: run_all(folder, token_store, cases))
    return {size: read_results(size, folder / str(size)) for size in (2, 4)}


def run_all(folder: Path, store: Path, cases: dict[int, list[Case]]) -> None:
    folder.mkdir()
    write_references([*cases[2], *cases[4]], store, folder)
    for size in cases:
        run_ranks(size, folder / str(size), run_cases, cases[size], store, folder)


@pytest.mark.parametrize(
    ("size", "case"),
    suite_has(
        [(size, case) for size in (2, 4) for case in SUITE], [(2, case) for case in TWO] + [(4, case) for case in FOUR]
    ),
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mesh_learns_what_one_device_learns(measured: dict[int, list[dict[str, Any]]], size: int, case: Case) -> None:
    ranks = [rank[case.name] for rank in measured[size]]
    assert ranks[0]["loss"] < TOLERANCE
    assert ranks[0]["weights"][0] < TOLERANCE, ranks[0]["weights"]
    assert len({rank["digest"] for rank in ranks}) == 1, "every rank has the same weights"
    assert ranks[0]["moved"] > 100 * TOLERANCE, "nothing was learned"


def test_the_same_mesh_ends_in_the_same_bytes(measured: dict[int, list[dict[str, Any]]]) -> None:
    digest, again = (measured[2][0][name]["digest"] for name in ("bert zero=3", "bert zero=3 again"))
    assert digest == again
