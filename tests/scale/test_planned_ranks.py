"""The planner against steps of real ranks and against a simulated one: bytes, collectives, the peak."""

from collections import Counter
from typing import Any

import pytest

from benchmarks import scale_memory
from bertree.scale.plan.communication import step_traffic
from bertree.scale.plan.memory import at_rest
from tests.support.planned_ranks import Case, measure
from tests.support.shared import suite_has

CASES = [
    Case("bert-base", 1, 1, 3),
    Case("bert-base", 2, 1, 0, micro_batches=2),
    Case("bert-base", 2, 1, 1, micro_batches=2, bf16=True),
    Case("megatron-bert", 2, 1, 2, micro_batches=2),
    Case("gpt2", 2, 1, 3, micro_batches=2, bf16=True),
    Case("gpt2", 4, 1, 3, bf16=True, recompute=True),
    Case("albert-base", 4, 1, 3),
    Case("bert-base", 1, 2, 0),
    Case("megatron-bert", 2, 2, 3, bf16=True, sequence_parallel=True),
    Case("megatron-bert", 1, 4, 0, recompute=True, sequence_parallel=True),
    Case("gpt2", 2, 2, 1, recompute=True),
]
SUITE = [CASES[number] for number in (2, 5, 8)]  # shards, and shards of what is split; the others are proofs


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> dict[Case, dict[str, Any]]:
    cases = CASES if pytestconfig.option.proofs else SUITE
    return dict(zip(cases, measure(tmp_path_factory.mktemp("ranks"), cases), strict=True))


@pytest.mark.parametrize("case", suite_has(SUITE, CASES), ids=str)
def test_bytes_of_a_rank_are_as_planned(case: Case, measured: dict[Case, dict[str, Any]]) -> None:
    planned = at_rest(case.architecture, case.mesh, case.bf16)._asdict()
    for part, size in planned.items():
        assert measured[case][part] == pytest.approx(size, rel=0.03), part


@pytest.mark.parametrize("case", suite_has(SUITE, CASES), ids=str)
def test_collectives_of_a_step_are_as_planned(case: Case, measured: dict[Case, dict[str, Any]]) -> None:
    calls: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for entry in step_traffic(case.architecture, case.mesh, case.batch):
        calls[entry.kind, entry.group] += entry.calls
        sizes[entry.kind, entry.group] += round(entry.bytes)
    counted = {(kind, group): (count, size) for kind, group, count, size in measured[case]["calls"]}
    assert counted == {key: (calls[key], sizes[key]) for key in calls}


SIMULATED = [
    scale_memory.Case("megatron-bert-336m", 64, 1, 3, True, 4096, layers=3),
    scale_memory.Case("t-nlg-17b", 64, 1, 3, True, 1024, layers=3),  # more gradients than activations
    scale_memory.Case("megatron-gpt-1.2b", 16, 4, 2, True, 8192, layers=2),
    scale_memory.Case("megatron-gpt-1.2b", 8, 1, 1, False, 1024, micro_batches=2, layers=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", suite_has(SIMULATED[2:3], SIMULATED), ids=str)
def test_the_peak_of_a_simulated_step_is_as_planned(case: scale_memory.Case) -> None:
    compared = scale_memory.compare(case, scale_memory.simulate(case))
    assert compared["planned"] == pytest.approx(compared["peak"], rel=0.05)
    assert compared["planned_at_rest"] == pytest.approx(compared["at_rest"], rel=0.01)
    assert compared["planned_calls"] == compared["calls"]
