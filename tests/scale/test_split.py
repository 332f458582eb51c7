"""The table of split tensors against the networks that are built."""

import pytest
import torch

from bertree.model.network import build
from bertree.model.presets import preset
from bertree.scale.shards import Split, parameter_layouts, split_layouts, split_of

MEMBERS = ["bert-tiny", "albert-base", "gpt1", "xlnet-base", "reformer-base", "modernbert-base", "transformer-xl-base"]


def on_meta(name: str):
    with torch.device("meta"):
        return build(preset(name).architecture, {"mask": 0})


@pytest.mark.parametrize(("length", "ranks"), [(12, 2), (12, 4), (30, 4), (5, 4)])
@pytest.mark.parametrize("split", [Split(0), Split(1), Split(0, 3)])
def test_parts_of_all_ranks_joined_are_the_whole_tensor(split: Split, length: int, ranks: int) -> None:
    whole = torch.arange(length * length * split.pieces).view(length * split.pieces, length)
    parts = [split.cut(whole, rank, ranks) for rank in range(ranks)]
    assert torch.equal(split.join(parts), whole)
    for rank, part in enumerate(parts):
        places = [place for span in split.spans(whole.shape[split.dim], rank, ranks) for place in span]
        assert torch.equal(part, whole.index_select(split.dim, torch.tensor(places, dtype=torch.int64)))


def test_a_rank_has_some_heads_of_queries_keys_and_values() -> None:
    qkv = torch.tensor([10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33])
    assert Split(0, 3).cut(qkv, 1, 2).tolist() == [12, 13, 22, 23, 32, 33]


@pytest.mark.parametrize("name", MEMBERS)
def test_every_matrix_of_the_layers_is_split(name: str) -> None:
    for parameter, whole in split_layouts(on_meta(name)).items():
        in_part = ".part." in parameter
        adds_after_the_sum = parameter.endswith(("out.bias", "down.bias"))
        if parameter.startswith("encoder.stack"):
            assert (whole.split is not None) == (in_part and not adds_after_the_sum), parameter


def test_a_gate_and_its_input_are_two_pieces() -> None:
    layouts = split_layouts(on_meta("modernbert-base"))
    assert layouts["encoder.stack.ffn.0.part.up.weight"].split == Split(0, 2)
    assert split_layouts(on_meta("bert-tiny"))["encoder.stack.ffn.0.part.up.weight"].split == Split(0)


def test_an_adaptive_softmax_is_not_split() -> None:
    rest = {n: w for n, w in split_layouts(on_meta("transformer-xl-base")).items() if ".stack." not in n}
    assert rest
    assert all(whole.split is None for whole in rest.values())


def test_heads_of_tasks_are_not_split() -> None:
    assert split_of("heads.sequence.out.weight") is None
    assert split_of("encoder.pooler.weight") is None


def test_a_network_that_is_not_split_has_whole_parameters() -> None:
    network = on_meta("bert-tiny")
    assert {n: w.shape for n, w in parameter_layouts(network).items()} == {
        n: tuple(p.shape) for n, p in network.named_parameters()
    }
    assert all(whole.split is None for whole in parameter_layouts(network).values())
