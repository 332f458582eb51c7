"""Networks whose heads, inner units and vocabulary are split among processes, against whole ones."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from bertree.errors import UserError
from bertree.model.presets import preset
from bertree.scale.launch import Launch
from bertree.scale.tensor import check_tensor, put_tensor_parallel
from bertree.scale.world import World, join
from tests.support import batches
from tests.support.parts import ScaledAttention
from tests.support.ranks import read_results, run_ranks
from tests.support.shared import common_folder, make_once, suite_has
from tests.support.split_networks import (
    attention_of_equal_heads,
    compiled,
    generated,
    in_half_precision,
    on_a_mesh,
    slope,
    states_and_logits,
)
from tests.support.tensor_parallel import (
    MEMBERS,
    compare,
    count_collectives,
    make_network,
    member,
)

# The members that 4 ranks share too, and whether each has some tokens.
FOUR = {"bert": True, "albert": False, "modernbert": True}
COUNTED = ("bert", "bert pre-norm", "transformer-xl", "transformer-xl pre-norm", "xlnet with memory", "reformer")
RECOMPUTED = ("bert", "bert pre-norm", "albert", "xlnet with memory")
# Members on 2 data ranks of 2 tensor ranks each, and whether these have some tokens each.
ON_A_MESH = {"modernbert": True, "xlnet with memory": True, "transformer-xl adaptive": False, "reformer": True}
# The members of the suite; the others are proofs. Together they have every part that is split.
SUITE = ("bert", "albert", "ctrl", "transformer-xl adaptive", "xlnet with memory", "reformer", "modernbert")
SUITE_TWICE = ("bert", "xlnet with memory")  # those that are recomputed and counted, too
TOLERANCE = 1e-5


def run_cases(launch: Launch, proofs: bool) -> dict[str, Any]:
    """Run all cases as one of 4 processes."""
    rank_results: dict[str, Any] = {}
    with join(launch._replace(job="two"), tensor=2) as world:
        rank_results.update(cases_of_two(world, proofs))
    with join(launch._replace(job="four"), tensor=4) as world:
        rank_results.update(cases_of_four(world, proofs))
    for name in chosen(ON_A_MESH, SUITE[4:5], proofs):
        rank_results[f"{name} on a mesh"] = on_a_mesh(name, launch._replace(job=name), ON_A_MESH[name])
    return rank_results


def chosen(names: Iterable[str], suite: Sequence[str], proofs: bool) -> list[str]:
    return [name for name in names if proofs or name in suite]


def cases_of_two(world: World, proofs: bool) -> Iterator[tuple[str, Any]]:
    """Two pairs of tensor ranks, the second with sequence parallelism."""
    second = world.data_rank == 1
    for name in chosen(MEMBERS, SUITE, proofs):
        yield f"{name}, 2", compare(name, world, second)
    for name in chosen(RECOMPUTED, SUITE_TWICE, proofs):
        yield f"{name} recomputed, 2", compare(name, world, second, recompute=True)
    yield "slope", slope(world, second)
    for rate in (0.0, 0.5):
        yield f"attention that drops {rate}", attention_of_equal_heads(world, second, rate)
    if proofs:
        yield "compiled", compiled("bert", world, second, "attention" if second else "ffn")
    yield "states", states_and_logits(world, second)
    yield "half precision", in_half_precision(world, second)
    yield "generated", generated(world, second)
    for name in chosen(COUNTED, SUITE_TWICE, proofs):
        yield f"collectives of {name}", count_collectives(name, world, second)
        yield f"collectives of {name}, recomputed", count_collectives(name, world, second, True)
    yield "collectives with dropout", count_collectives("bert pre-norm", world, second, True, dropout=0.1)


def cases_of_four(world: World, proofs: bool) -> Iterator[tuple[str, Any]]:
    """Four tensor ranks."""
    for name in chosen(FOUR, SUITE_TWICE, proofs):
        yield f"{name}, 4", compare(name, world, FOUR[name])
    yield "dropout, 4", compare("bert", world, False, dropout=0.3)
    yield "dropout recomputed, 4", compare("bert", world, False, recompute=True, dropout=0.3)
    yield "collectives of bert, 4", count_collectives("bert", world, True)


@pytest.fixture(scope="module")
def rank_results(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> list[dict[str, Any]]:
    proofs = pytestconfig.option.proofs
    folder = make_once(
        common_folder(tmp_path_factory) / "split", lambda folder: run_ranks(4, folder, run_cases, proofs)
    )
    return read_results(4, folder)


def check_equal(rank_results: list[dict[str, Any]], start: str) -> None:
    names = [name for name in rank_results[0] if name.startswith(f"{start}, ")]
    assert names
    for name in names:
        for result in (rank[name] for rank in rank_results):
            assert result["weights"][0] == 0.0, name
            assert max(result[key] for key in ("loss", "evaluation", "logits")) < TOLERANCE, (name, result)
            assert result["gradients"][0] < TOLERANCE, (name, result["gradients"])
        size = 2 if ", 2" in name else 4
        digests = [rank[name]["digest"] for rank in rank_results]
        assert all(len(set(digests[first : first + size])) == 1 for first in range(0, 4, size)), name


@pytest.mark.parametrize("name", suite_has(SUITE, MEMBERS))
def test_a_split_network_computes_what_the_whole_one_does(rank_results: list[dict[str, Any]], name: str) -> None:
    check_equal(rank_results, name)


@pytest.mark.parametrize("name", suite_has(SUITE_TWICE, RECOMPUTED))
def test_layers_that_are_computed_again_have_the_same_gradients(rank_results: list[dict[str, Any]], name: str) -> None:
    check_equal(rank_results, f"{name} recomputed")


@pytest.mark.parametrize("name", ["dropout", "dropout recomputed"])
def test_dropout_of_whole_tensors_is_that_of_one_device(rank_results: list[dict[str, Any]], name: str) -> None:
    check_equal(rank_results, name)


@pytest.mark.parametrize("name", suite_has(SUITE[4:5], ON_A_MESH))
def test_shards_of_split_tensors_have_the_gradients_of_the_whole(rank_results: list[dict[str, Any]], name: str) -> None:
    for rank in rank_results:
        result = rank[f"{name} on a mesh"]
        assert result["gradients"][0] < TOLERANCE, result["gradients"]
        assert result["norm"] < TOLERANCE
        assert result["share"] < 0.45


def test_gradients_are_those_of_what_was_dropped(rank_results: list[dict[str, Any]]) -> None:
    for rank in rank_results:
        assert rank["slope"]["by gradients"] == pytest.approx(rank["slope"]["by losses"], rel=1e-3)
    for first, second in ((0, 1), (2, 3)):
        assert rank_results[first]["slope"]["loss"] == rank_results[second]["slope"]["loss"]
        assert (
            rank_results[first]["slope"]["random"] == rank_results[second]["slope"]["random"]
        )  # the next batch drops alike


def test_heads_of_other_ranks_drop_other_tokens(rank_results: list[dict[str, Any]]) -> None:
    for first, second in ((0, 1), (2, 3)):
        assert rank_results[first]["attention that drops 0.0"] == rank_results[second]["attention that drops 0.0"]
        assert rank_results[first]["attention that drops 0.5"] != rank_results[second]["attention that drops 0.5"]


@pytest.mark.proof  # tests/scale/test_compiled_parts.py compiles parts that are not split
def test_each_block_is_compiled_without_a_break(rank_results: list[dict[str, Any]]) -> None:
    assert max(rank["compiled"][0] for rank in rank_results) < TOLERANCE


def test_states_of_all_layers_and_logits_are_whole(rank_results: list[dict[str, Any]]) -> None:
    for rank in rank_results:
        assert max(rank["states"].values()) < TOLERANCE


def test_half_precision_is_kept(rank_results: list[dict[str, Any]]) -> None:
    for rank in rank_results:
        whole, parts = rank["half precision"]["losses"]
        assert parts == pytest.approx(whole, rel=2e-2)
        assert len(set(rank["half precision"]["kinds"])) == 1


def test_a_token_after_a_cached_text_is_predicted_alike(rank_results: list[dict[str, Any]]) -> None:
    assert max(rank["generated"] for rank in rank_results) < TOLERANCE


def test_calls_and_bytes_between_ranks_are_those_of_the_formula(rank_results: list[dict[str, Any]]) -> None:
    counts = [name for name in rank_results[0] if name.startswith("collectives of ")]
    assert counts
    for name in counts:
        for rank in rank_results:
            counted, wanted = rank[name]
            assert counted == wanted, name


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("bert-base", 8, "8 ranks cannot share 12 heads; the nearest that can: 6 and 12"),
        ("bert-base", 24, "24 ranks cannot share 12 heads; the nearest that can: 12"),
        ("bilstm", 2, "a bilstm is not split"),
    ],
)
def test_a_size_that_does_not_work_is_refused_with_those_that_do(name: str, size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_tensor(preset(name).architecture, size)


def test_inner_units_and_a_tiny_vocabulary_are_checked_too() -> None:
    with pytest.raises(UserError, match="4 ranks cannot share 6 inner units"):
        check_tensor(batches.tiny(heads=4, ffn_width=6), 4)
    with pytest.raises(UserError, match="4 ranks cannot share a vocabulary of 6 entries"):
        check_tensor(batches.tiny(heads=4, ffn_width=8, vocab_size=6), 4)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 12])
def test_sizes_that_divide_heads_and_units_work(size: int) -> None:
    check_tensor(preset("bert-base").architecture, size)


def test_a_part_of_ones_own_is_refused_by_name() -> None:
    network = make_network(member("bert"))
    network.encoder.stack.attention[1].part = ScaledAttention(32, 4, 0.0)
    with pytest.raises(UserError, match=r"encoder.stack.attention.1.part is a ScaledAttention"):
        put_tensor_parallel(network, World(size=2, tensor=2))


def test_one_rank_leaves_the_network_as_it_is() -> None:
    network = make_network(member("bert"))
    before = {name: (type(module), len(module._forward_hooks)) for name, module in network.named_modules()}
    put_tensor_parallel(network, World(), sequence_parallel=True)
    assert {name: (type(m), len(m._forward_hooks)) for name, m in network.named_modules()} == before
