"""The planner's arithmetic: what a rank holds, needs, sends, and which mesh is recommended."""

from dataclasses import replace
from typing import Any

import pytest

import bertree
from bertree.errors import UserError
from bertree.model import cost
from bertree.model.presets import preset
from bertree.scale.plan.communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, step_traffic
from bertree.scale.plan.memory import Mesh, MicroBatch, at_rest, moments, paper_bytes, peak
from bertree.scale.plan.meshes import Hardware, step_time
from bertree.scale.plan.plan import Plan
from bertree.scale.plan.sizes import shapes

LARGE = {
    "megatron-bert-336m": 0.336, "megatron-bert-1.3b": 1.3, "megatron-bert-3.9b": 3.9, "megatron-gpt-1.2b": 1.2,
    "megatron-gpt-2.5b": 2.5, "megatron-gpt-4.2b": 4.2, "megatron-gpt-8.3b": 8.3, "t-nlg-17b": 17,
}  # fmt: skip
SMALL = preset("bert-tiny").architecture.with_values({"layers": 4, "width": 64, "heads": 4, "vocab_size": 1001})


@pytest.mark.parametrize(("stage", "gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_the_table_of_the_zero_paper(stage: int, gb: float) -> None:
    assert paper_bytes(7.5e9, 64, stage) / 1e9 == pytest.approx(gb, abs=0.05)


def test_a_plan_has_the_paper_s_figures_for_its_own_model() -> None:
    plan = bertree.plan("megatron-gpt-8.3b", 64)
    assert plan.as_dict()["zero_paper_bytes"]["0"] == 16 * plan.parameters
    assert plan.paper[3] == pytest.approx(16 * plan.parameters / 64)


@pytest.mark.parametrize("name", LARGE)
def test_a_plan_counts_the_published_parameters(name: str) -> None:
    a = preset(name).architecture
    counts = cost.parameters(a)
    total = shapes(a).total
    assert total == counts.total + counts.mlm_head
    assert total / 1e9 == pytest.approx(LARGE[name], rel=0.02)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("sharing", ["none", "all"])
def test_the_shards_of_all_ranks_are_the_whole_network(bf16: bool, sharing: str) -> None:
    a = SMALL.with_values({"sharing": sharing})
    sizes = shapes(a, bf16)
    alone = sizes.on(1, 1)
    assert alone.whole + alone.norms == alone.held == sizes.total
    assert bool(alone.norms) == bf16
    assert len(alone.layers) == (4 if sharing == "none" else 0)
    spread = sizes.on(1, 3)  # 1,001 entries of the vocabulary are not a multiple of 3
    assert 0 <= 3 * spread.shard + spread.norms - sizes.total <= 0.05 * sizes.total


def test_tensor_ranks_hold_pieces_of_what_is_split_alone() -> None:
    a: Any = SMALL
    whole, half = shapes(a).on(1, 1), shapes(a).on(2, 1)
    kept = sum(a.layers * size for size in (a.width, a.width)) + a.max_positions * a.width + a.segments * a.width
    assert half.whole > whole.whole / 2
    assert half.layers[0].whole == pytest.approx(whole.layers[0].whole / 2, rel=0.01)
    assert 2 * half.whole - whole.whole >= kept  # biases after the sums, positions, segments, the pooler


def test_each_stage_shards_more() -> None:
    a, batch = preset("megatron-gpt-2.5b").architecture, MicroBatch(1024, 1024)
    totals = [peak(a, Mesh(64, 1, stage), batch).bytes.total for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > 16 * shapes(a).total  # weights, moments and gradients in float32
    assert at_rest(a, Mesh(64, 1, 0)) == at_rest(a, Mesh(1, 1, 3))
    assert sum(at_rest(a, Mesh(64, 1, 3))) == pytest.approx(16 * shapes(a).total / 64, rel=0.02)


def test_parts_of_the_peak_are_the_largest_moment() -> None:
    a, mesh, batch = preset("megatron-bert-1.3b").architecture, Mesh(8, 2, 3), MicroBatch(8192, 1229)
    memory = peak(a, mesh, batch)
    assert memory.bytes.total == sum(memory.bytes) == max(each.bytes.total for each in moments(a, mesh, batch))
    assert all(size >= 0 for each in moments(a, mesh, batch) for size in each.bytes)


def test_recomputing_keeps_less() -> None:
    a, mesh = preset("megatron-bert-3.9b").architecture, Mesh(8, 1, 3)
    kept, again = (peak(a, mesh, MicroBatch(8192, 1229, recompute=again)).bytes for again in (False, True))
    assert kept.activations > 5 * again.activations


def test_micro_batches_add_up_in_gradients_of_whole_tensors_below_stage_2() -> None:
    a, whole = preset("megatron-gpt-1.2b").architecture, 4 * shapes(preset("megatron-gpt-1.2b").architecture).total
    left, right = (peak(a, Mesh(8, 1, 1), MicroBatch(1024, 1024, count)).bytes for count in (1, 2))
    assert right.gradients > 0.9 * whole > left.gradients
    assert peak(a, Mesh(8, 1, 2), MicroBatch(1024, 1024, 2)).bytes.gradients < 0.3 * whole


def test_the_volume_of_the_stages_is_that_of_the_zero_paper() -> None:
    """In units of the parameters: two for stages 0 to 2, three for stage 3, if all were sent in the same precision."""
    a = preset("megatron-gpt-2.5b").architecture
    total, batch = shapes(a).total, MicroBatch(1024, 1024, bf16=False)
    units = {}
    for stage in range(4):
        mesh = Mesh(64, 1, stage)
        units[stage] = sum(entry.sent(64) for entry in step_traffic(a, mesh, batch)) / (63 / 64) / (4 * total)
    root = shapes(a).on(1, 1).root.whole / total  # which stage 3 gathers once
    assert [units[stage] for stage in range(3)] == pytest.approx([2, 2, 2], rel=0.01)
    assert units[3] == pytest.approx(3 - root, rel=0.01)


def test_calls_of_a_step() -> None:
    a, batch = SMALL, MicroBatch(64, 10, 2)
    calls = {entry[:3]: entry.calls for entry in step_traffic(a, Mesh(2, 2, 3), batch)}
    assert calls == {
        (ALL_GATHER, "weights", "data"): 2 * (1 + 2 * 4),
        (REDUCE_SCATTER, "gradients", "data"): 2 * (1 + 4),
        (ALL_REDUCE, "norms' gradients", "data"): 1,
        (ALL_GATHER, "states", "tensor"): 2 * (6 * 4 + 2),
        (REDUCE_SCATTER, "states", "tensor"): 2 * 6 * 4,
        (ALL_REDUCE, "states", "tensor"): 2 * 4,
    }
    assert step_traffic(a, Mesh(1, 1, 3), batch) == []
    assert {entry.kind for entry in step_traffic(a, Mesh(1, 2, 0, False), batch)} == {ALL_REDUCE}


def test_time_follows_from_the_assumptions() -> None:
    a, batch, hardware = preset("megatron-gpt-1.2b").architecture, MicroBatch(8192, 8192, 1, False), Hardware()
    mesh = Mesh(8, 1, 0)
    alone = step_time(a, mesh, batch, 1024, [], hardware)
    assert alone.mfu(mesh, hardware) == pytest.approx(0.5)
    assert alone.seconds == pytest.approx(8 * 8192 * cost.training_flops(a, 1024) / (8 * 312e12 * 0.5))
    again = step_time(a, mesh, replace(batch, recompute=True), 1024, [], hardware)
    assert 1.25 < again.seconds / alone.seconds < 4 / 3
    slow = step_time(a, mesh, batch, 1024, step_traffic(a, mesh, batch), replace(hardware, link=0.1))
    assert slow.seconds == slow.parameters == pytest.approx(2 * 7 / 8 * 4 * shapes(a).total / 1e8, rel=0.01)


def test_rings_between_machines_share_the_network_cards() -> None:
    hardware = Hardware()
    assert hardware.bandwidth("data", Mesh(8, 1)) == hardware.bandwidth("tensor", Mesh(8, 8)) == 300e9
    assert hardware.bandwidth("data", Mesh(64, 1)) == 200e9
    assert hardware.bandwidth("data", Mesh(8, 8)) == 25e9


def test_less_memory_needs_a_higher_stage() -> None:
    plans = [bertree.plan("megatron-gpt-2.5b", 16, card=card, tensor=1, recompute=True) for card in (80, 40, 10, 5)]
    stages = [entry.best.mesh.zero for entry in plans if entry.best]
    assert len(stages) == 4
    assert stages == sorted(stages)
    assert (stages[0], stages[-1]) == (0, 3)


def test_what_cannot_fit_is_said() -> None:
    plan = bertree.plan("t-nlg-17b", 4, card=16)
    assert plan.best is None
    assert plan.settings == {}
    assert plan.reason.startswith("nothing fits: the least is ")
    assert not any(row.fits for row in plan.rows)


def test_the_recommended_mesh_fits_and_is_the_fastest() -> None:
    plan = bertree.plan("t-nlg-17b", 256, card=32)
    assert plan.best is not None
    assert plan.best.fits
    fastest = min(row.time.seconds for row in plan.rows if row.fits)
    assert plan.best.time.seconds <= 1.02 * fastest
    assert {row.mesh.tensor for row in plan.rows} == {1, 2, 4}  # 28 heads, at most 8 devices of a machine
    assert plan.settings["scale.zero"] == plan.best.mesh.zero


def test_time_of_a_whole_training() -> None:
    plan = bertree.plan("megatron-gpt-8.3b", 512, tokens=157e9, tensor=8, zero=0, recompute=True)
    assert plan.best is not None
    seconds = plan.seconds(plan.best)
    assert seconds == pytest.approx(157e9 / 524_288 * plan.best.time.seconds)


def test_presets_folders_recipes_and_axes(small_folder: object) -> None:
    assert bertree.plan("bert-base", 2, layers=6).architecture.layers == 6
    assert (
        bertree.plan("bert-base", 2, overrides=["layers=6"]).parameters
        == bertree.plan("bert-base", 2, layers=6).parameters
    )
    assert bertree.plan(str(small_folder), 2).architecture.layers == 2
    recipe = bertree.plan("bert-base-tiny", 2, overrides=["phases.0.batch_tokens=8192", "layers=3"])
    assert isinstance(recipe, Plan)
    assert recipe.architecture.layers == 3
    assert recipe.batches.tokens == 8192
    assert recipe.tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "megatron-gpt-8.4b"}, "megatron-gpt-8.3b"),
        ({"model": "nowhere.toml"}, "nowhere.toml: no such recipe file"),
        ({"model": "bilstm"}, "bilstm: plans are for transformers"),
        ({"devices": 0}, "devices: 0"),
        ({"devices": 8, "tensor": 3}, "tensor: 3 does not divide the 8 devices"),
        ({"devices": 5, "tensor": 5}, "12"),
        ({"zero": 4}, "zero: 4"),
        ({"length": 1024}, "512 positions"),
        ({"batch_tokens": 512, "devices": 8, "tensor": 1}, "fewer than 8 sequences"),
        ({"card": -1}, "card: -1"),
        ({"tokens": -5}, "tokens: -5"),
        ({"layer": 3}, "layers"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        bertree.plan(**{"model": "bert-base", **options})
