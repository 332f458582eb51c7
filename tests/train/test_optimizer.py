"""LAMB against the paper's formula, SGD and Adam against PyTorch's; who gets weight decay."""

from collections.abc import Callable

import pytest
import torch

from bertree.config.sections import OPTIMIZERS, OptimSettings
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.checkpoint import MOMENTS
from bertree.train.optimizer import Lamb, build_optimizer
from tests.support.batches import fresh, joined, sequences


def reference(
    weights: dict[str, torch.Tensor], history: list[dict[str, torch.Tensor]], lr: float, eps: float, decay: float
) -> dict[str, torch.Tensor]:
    """You et al. 2019, algorithm 2, in double precision, one tensor after the other."""
    beta1, beta2 = 0.9, 0.999
    groups = {}
    for name, start in weights.items():
        w = start.double().clone()
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t, grads in enumerate(history, 1):
            g = grads[name].double()
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            r = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + eps)
            u = r + (decay if start.ndim >= 2 else 0.0) * w
            ratio = w.norm() / u.norm() if w.norm() > 0 and u.norm() > 0 else 1.0
            w = w - lr * ratio * u
        groups[name] = w
    return groups


def parts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Queries, keys and values as the papers' models have them: tensors of their own."""
    pieces_of = {}
    for name, tensor in tensors.items():
        stacked = next((letters for letters in ("qkv", "qv") if f".{letters}." in name), "")
        pieces = tensor.chunk(len(stacked)) if stacked else ()
        pieces_of |= {f"{name} {letter}": piece for letter, piece in zip(stacked, pieces, strict=True)} or {
            name: tensor
        }
    return pieces_of


@pytest.mark.parametrize("shared_qk", [False, True])
def test_lamb_is_the_papers(shared_qk: bool) -> None:
    network = fresh(shared_qk=shared_qk)
    named = dict(network.named_parameters())
    with torch.no_grad():
        network.heads["mask"].bias.zero_()  # norm 0: its ratio is 1 in the first step
    optimizer = build_optimizer(network, OptimSettings(name="lamb", lr=0.02, eps=1e-6, weight_decay=0.1))
    before = parts({name: p.detach().clone() for name, p in named.items()})
    history = []
    for number in range(5):
        losses = pretraining_objective(mlm=1.0, nsp=1.0)(network, joined(sequences(6, number))).losses
        sum(loss.sum for loss in losses.values()).backward()
        history.append(parts({name: p.grad.clone() for name, p in named.items()}))
        optimizer.step()
        optimizer.zero_grad()
    expected = reference(before, history, 0.02, 1e-6, 0.1)
    for name, tensor in parts({name: p.detach() for name, p in named.items()}).items():
        moved = float((expected[name] - before[name]).norm())
        assert moved > 0
        assert float((tensor - expected[name]).norm()) < 1e-4 * moved, name
    assert any(name.endswith("q") for name in expected)


def test_where_a_norm_is_zero_the_ratio_is_one() -> None:
    zero, still = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = Lamb([zero, still], lr=0.1)
    zero.grad, still.grad = torch.tensor([2.0, -2.0, 4.0]), torch.zeros(3)
    optimizer.step()
    assert zero.tolist() == pytest.approx([-0.1, 0.1, -0.1], rel=1e-5), "Adam's step"
    assert still.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_norms_and_biases_do_not_decay(name: str) -> None:
    network = fresh()
    optimizer = build_optimizer(network, OptimSettings(name=name, weight_decay=0.3))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(network.parameters())), "every parameter is moved, once"
    for path, parameter in network.named_parameters():
        plain = path.endswith("bias") or ".norm." in path
        assert decay[id(parameter)] == (0.0 if plain else 0.3), path


@pytest.mark.parametrize(
    ("settings", "peer"),
    [
        ({"name": "sgd", "momentum": 0.0}, lambda groups: torch.optim.SGD(groups, lr=0.05)),
        ({"name": "sgd", "momentum": 0.9}, lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9)),
        (
            {"name": "sgd", "momentum": 0.8, "nesterov": True},
            lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=True),
        ),
        ({"name": "adam", "eps": 1e-7}, lambda groups: torch.optim.Adam(groups, lr=0.05, eps=1e-7, fused=True)),
    ],
)
def test_sgd_and_adam_are_pytorchs(
    settings: dict[str, object], peer: Callable[[list[dict[str, object]]], torch.optim.Optimizer]
) -> None:
    networks = [fresh(), fresh()]
    ours = build_optimizer(networks[0], OptimSettings(lr=0.05, weight_decay=0.1, **settings))
    named = list(networks[1].parameters())
    theirs = peer(
        [
            {"params": [p for p in named if (p.ndim >= 2) == wide], "weight_decay": decay}
            for wide, decay in ((True, 0.1), (False, 0.0))
        ]
    )
    for number in range(4):
        for network, optimizer in zip(networks, (ours, theirs), strict=True):
            losses = pretraining_objective(mlm=1.0, nsp=1.0)(network, joined(sequences(6, number))).losses
            sum(loss.sum / 10 for loss in losses.values()).backward()
            optimizer.step()
            optimizer.zero_grad()
    for left, right in zip(*(network.parameters() for network in networks), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    assert {tuple(sorted(state)) for state in ours.state.values()} == {
        tuple(sorted(ours.param_groups[0].get("kept", MOMENTS)))
    }


def test_adamw_has_the_recipes_settings() -> None:
    settings = OptimSettings(lr=0.25, betas=(0.8, 0.98), eps=1e-5)
    for group in build_optimizer(fresh(), settings).param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.25, (0.8, 0.98), 1e-5)
