"""Reading from right to left is reading reversed texts from left to right; both directions stand side by side."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch, PretrainingLabels
from bertree.errors import UserError
from bertree.model.architecture import Architecture
from bertree.model.directions import DirectedEncoder
from bertree.model.network import Network, build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.distribute import distribute
from bertree.scale.tensor import check_components
from bertree.scale.world import World

SMALL = {"vocab_size": 50, "layers": 3, "width": 16, "heads": 2, "max_positions": 16, "init_std": 0.3, "dropout": 0.0}
TEXTS = [[3, 9, 4, 17, 8], [5], [6, 41, 2, 2, 30, 31, 7]]
REVERSED = [ids[::-1] for ids in TEXTS]


def small(direction: str) -> Architecture:
    axes = {"direction": direction, "attention_dropout": 0.0, "residual": "pre-norm", "mask_bias": True}
    return preset("gpt1").architecture.with_values(SMALL | axes)


def networks() -> dict[str, Network]:
    """One for each direction, with the weights of that of both."""
    torch.manual_seed(0)
    model = {direction: build(small(direction), {"mask": 0}).eval() for direction in ("both", "forward", "backward")}
    weights = model["both"].state_dict()
    for direction, prefix in (("forward", ""), ("backward", "backward_reader.")):
        own = model[direction].state_dict()
        reader = f"encoder.{direction}_reader."
        own |= {name: weights[name] for name in own if name in weights}
        own |= {
            name.replace(reader, f"encoder.{prefix}"): tensor
            for name, tensor in weights.items()
            if name.startswith(reader)
        }
        model[direction].load_state_dict(own)
    return model


def flip(states_th: Tensor, batch: Batch) -> Tensor:
    return torch.cat([state.flip(0) for state in batch.split(states_th)])


def labels(batch: Batch) -> Batch:
    """Every token predicts the next one of its sequence, and one label is ignored."""
    follows = (batch.positions > 0).nonzero()[:, 0]
    last = torch.tensor([len(batch.ids) - 1])
    targets = torch.cat([batch.ids[follows], torch.tensor([-100])])
    return replace(batch, labels=PretrainingLabels(torch.cat([follows - 1, last]), targets))


@torch.no_grad()
def test_states_of_both_directions_are_those_of_each() -> None:
    nets, batch, reverse = networks(), Batch.pack(TEXTS), Batch.pack(REVERSED)
    encoder = nets["backward"].encoder
    assert isinstance(encoder, DirectedEncoder)
    ahead, back = list(nets["forward"].encoder.states(batch)), list(encoder.states(batch))
    in_reverse = list(encoder.read_in_reverse().states(reverse))
    for state_th, reverse_th in zip(back, in_reverse, strict=True):
        assert torch.equal(state_th, flip(reverse_th, batch))
    both = list(nets["both"].encoder.states(batch))
    assert len(both) == 4
    for joined, forward, backward in zip(both, ahead, back, strict=True):
        assert torch.equal(joined, torch.cat([forward, backward], -1))
    assert torch.equal(nets["both"](batch), both[-1])
    assert torch.equal(encoder.sequence_states(back[-1], batch), back[-1][batch.first])
    ends = nets["both"].encoder.sequence_states(torch.cat(both[-2:], -1), batch)
    wanted = [state for depth in (-2, -1) for state in (ahead[depth][batch.last], back[depth][batch.first])]
    assert torch.equal(ends, torch.cat(wanted, -1))


def test_the_loss_of_both_is_the_mean_of_each_and_a_backward_model_predicts_reversed_texts() -> None:
    nets, batch = networks(), labels(Batch.pack(TEXTS))
    objective = pretraining_objective(mlm=1.0)
    loss = {name: objective(network, batch).losses["mlm"].sum for name, network in nets.items()}
    loss["both"].backward()
    assert torch.allclose(loss["both"], (loss["forward"] + loss["backward"]) / 2, atol=1e-5)
    assert all(parameter.grad is not None for parameter in nets["both"].parameters())
    encoder = nets["backward"].encoder
    assert isinstance(encoder, DirectedEncoder)
    reading = Network(encoder.read_in_reverse(), {"mask": nets["backward"].heads["mask"]})
    expected = objective(reading, labels(Batch.pack(REVERSED))).losses["mlm"].sum
    assert torch.allclose(loss["backward"], expected, atol=1e-5)
    with torch.no_grad():
        judged = objective(nets["both"], batch).losses["mlm"]
    assert torch.allclose(judged.sum, loss["both"])


@pytest.mark.parametrize(
    ("axes", "line"),
    [
        ({"direction": "backward", "attention": "full"}, "set attention = causal"),
        ({"direction": "both", "positions": "relative", "memory": 4}, "set memory = 0"),
        ({"direction": "left"}, "unknown value 'left'"),
        ({"direction": "backward", "body": "bilstm"}, "a bilstm always reads in both"),
    ],
)
def test_impossible_directions(axes: dict[str, object], line: str) -> None:
    with pytest.raises(UserError, match=line):
        preset("gpt1").architecture.with_values(axes)


def test_tensor_ranks_refuse_what_they_do_not_split() -> None:
    network = build(small("both"), {"mask": 0})
    distribute(network, World.alone(), recompute=True)
    with pytest.raises(UserError, match="a DirectedEncoder is not split among ranks"):
        check_components(network, 2)
