"""Muon against its definition in double precision; which parameter is moved how; learning; resuming."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bertree.config.sections import OptimSettings
from bertree.model.network import build
from bertree.model.presets import PRESETS
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.adamw_muon import KEPT, MARGIN, POLYNOMIALS, orthogonal, stacked_matrices
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support import runs
from tests.support.batches import fresh, joined, make_step, sequences
from tests.support.shared import suite_has

DECAY, RATE, EPS = 0.1, 0.02, 1e-6


def polar(u: Tensor) -> Tensor:
    """Its singular values through the polynomials, one by one."""
    left, values, right = torch.linalg.svd(u.double(), full_matrices=False)
    x = values / (values.norm() * MARGIN)
    for number, (a, b, c) in enumerate(POLYNOMIALS, 1):
        x = x / MARGIN if number < len(POLYNOMIALS) else x
        x = a * x + b * x**3 + c * x**5
    return left @ torch.diag(x) @ right


def by_muon(start: Tensor, history: list[Tensor]) -> Tensor:
    w, m = start.double().clone(), torch.zeros_like(start, dtype=torch.float64)
    for g in history:
        m = 0.95 * m + 0.05 * g.double()
        u = 0.95 * m + 0.05 * g.double()
        w = w * (1 - RATE * DECAY) - RATE * 0.2 * max(w.shape) ** 0.5 * polar(u)
    return w


def by_adamw(start: Tensor, history: list[Tensor]) -> Tensor:
    w = start.double().clone()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(history, 1):
        m, v = 0.9 * m + 0.1 * g.double(), 0.999 * v + 0.001 * g.double() ** 2
        w = w * (1 - RATE * (DECAY if w.ndim >= 2 else 0.0))
        w = w - RATE * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + EPS)
    return w


def pieces_of(name: str, gated: bool) -> int:
    """How many of the papers' matrices a tensor holds; 0: it is not a matrix of the layers."""
    if "stack." not in name or not name.endswith(".weight") or ".norm." in name:
        return 0
    part = name.split(".")[-2]
    return {"qkv": 3, "qv": 2, "up": 2 if gated else 1}.get(part, 1)


@pytest.mark.parametrize("axes", [{}, {"shared_qk": True}, {"ffn": "gated", "ffn_width": 24}])
def test_muon_is_its_definition(axes: dict[str, object]) -> None:
    network = fresh(**axes)
    settings = OptimSettings(name="muon", lr=RATE, eps=EPS, weight_decay=DECAY)
    optimizer = build_optimizer(network, settings)
    named = dict(network.named_parameters())
    before = {name: p.detach().clone() for name, p in named.items()}
    history: dict[str, list[Tensor]] = {name: [] for name in named}
    for number in range(5):
        losses = pretraining_objective(mlm=1.0, nsp=1.0)(network, joined(sequences(6, number))).losses
        sum(loss.sum for loss in losses.values()).backward()
        for name, p in named.items():
            assert p.grad is not None
            history[name].append(p.grad.clone())
        optimizer.step()
        optimizer.zero_grad()
    assert max(pieces_of(name, "ffn" in axes) for name in named) == (2 if "shared_qk" in axes else 3)
    for name, p in named.items():
        count = pieces_of(name, "ffn" in axes)
        if count:
            parts = zip(before[name].chunk(count), *(grad.chunk(count) for grad in history[name]), strict=True)
            expected = torch.cat([by_muon(start, grads) for start, *grads in parts])
        else:
            expected = by_adamw(before[name], history[name])
        moved = float((expected - before[name]).norm())
        assert moved > 0
        assert float((p.detach() - expected).norm()) < 2e-3 * moved, name


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16])
def test_the_step_is_about_orthogonal(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(3, 40, 96, dtype=torch.float64), full_matrices=False)
    stretched = left * torch.logspace(0, -2.5, 40, dtype=torch.float64) @ right
    step = orthogonal((1e-6 * stretched).to(kind)).double()
    values = torch.linalg.svdvals(step)
    assert values.max() < 1.2
    assert values.min() > 0.6
    nearest = left @ right
    assert float((step - nearest).norm() / nearest.norm()) < 0.15
    assert not orthogonal(torch.zeros(2, 3, 4, dtype=kind)).any(), "no gradient, no step"


def test_gradients_of_any_size_give_the_same_step() -> None:
    grad = torch.randn(1, 8, 12)
    for factor in (1e-12, 1e12):
        assert torch.allclose(orthogonal(grad * factor), orthogonal(grad), atol=1e-5)


@pytest.mark.parametrize("name", suite_has(sorted(PRESETS)[::3], sorted(PRESETS)))
def test_every_member_of_the_family_has_its_matrices_and_the_rest(name: str) -> None:
    with torch.device("meta"):
        network = build(PRESETS[name].architecture.with_values({"layers": 2}), {})
    optimizer = build_optimizer(network, OptimSettings(name="muon"))
    kinds = {id(p): group["matrices"] for group in optimizer.param_groups for p in group["params"]}
    assert len(kinds) == len(list(network.parameters())), "every parameter is moved, once"
    stacked = stacked_matrices(network)
    for path, p in network.named_parameters():
        linear = ".stack." in path and ".norm." not in path and ".weight" in path
        assert kinds[id(p)] == linear, path
        assert len(p) % stacked.get(id(p), 1) == 0, path
    assert any(kinds.values())


class ReadsCounted(TorchDispatchMode):
    """Counts how often a tensor's value is read by the host, which on a GPU waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.reads += operator is torch.ops.aten._local_scalar_dense.default
        return operator(*args, **(kwargs or {}))


def test_the_host_reads_no_value_in_a_step() -> None:
    network = fresh()
    optimizer = build_optimizer(network, OptimSettings(name="muon"))
    for p in network.parameters():
        p.grad = torch.ones_like(p)
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    with ReadsCounted() as counted:
        optimizer.step()
    assert counted.reads == 0


def test_a_frozen_encoder_leaves_adamw_alone() -> None:
    network = fresh()
    network.encoder.requires_grad_(False)
    optimizer = build_optimizer(network, OptimSettings(name="muon"))
    assert not any(group["matrices"] for group in optimizer.param_groups)
    Loop(network, pretraining_objective(mlm=1.0), optimizer).step(make_step(joined(sequences(3))))
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}


def test_matrices_may_have_another_rate() -> None:
    def moved(**settings: float) -> dict[str, Tensor]:
        network = fresh()
        before = {name: p.detach().clone() for name, p in network.named_parameters()}
        optimizer = build_optimizer(network, OptimSettings(name="muon", weight_decay=0.0, **settings))
        Loop(network, pretraining_objective(mlm=1.0, nsp=1.0), optimizer).step(make_step(joined(sequences(6)), lr=1e-3))
        return {name: p.detach() - before[name] for name, p in network.named_parameters()}

    plain, doubled = moved(), moved(matrix_rate=2.0)
    for name, change in plain.items():
        factor = 2.0 if pieces_of(name, False) else 1.0
        assert torch.allclose(doubled[name], factor * change, atol=1e-7), name


def small_network(seed: int) -> nn.ModuleDict:
    torch.manual_seed(seed)
    layers = [part for _ in range(3) for part in (nn.Linear(24, 24), nn.Tanh())]
    return nn.ModuleDict({"stack": nn.Sequential(*layers), "head": nn.Linear(24, 8)})


def loss_after(name: str, lr: float, steps: int = 150) -> float:
    """The loss of a small network that imitates another, whose inputs vary little in most directions."""
    teacher, network = small_network(1), small_network(2)
    with torch.no_grad():
        for layer in teacher["stack"][::2]:
            layer.weight.mul_(3)
    optimizer = build_optimizer(network, OptimSettings(name=name, lr=lr, weight_decay=0.0))
    spread, draw = torch.logspace(0, -1.5, 24), torch.Generator().manual_seed(0)
    losses = []
    for number in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - number / steps)
        x = torch.randn(64, 24, generator=draw) * spread
        wanted = teacher["head"](teacher["stack"](x)).detach()
        loss = (network["head"](network["stack"](x)) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return sum(losses[-20:]) / 20


@pytest.mark.train
def test_muon_learns_more_in_as_many_steps_as_adamw_at_its_best_rate() -> None:
    rates = (1e-2, 3e-2, 1e-1)
    adamw, losses = ([loss_after(name, lr) for lr in rates] for name in ("adamw", "muon"))
    assert adamw[1] < min(adamw[0], adamw[2]), "its best rate is among these"
    assert min(losses) < 0.85 * min(adamw)


def test_a_killed_run_ends_in_the_same_bytes(token_store: Path, tmp_path: Path) -> None:
    log, whole, out = tmp_path / "log", tmp_path / "whole", tmp_path / "out"
    arguments = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(token_store), "optim.name=muon")
    arguments += ("model.ffn=gated", "optim.lr=1e-3", "optim.matrix_rate=2", "--out")
    assert runs.finish(*arguments, str(whole), log=log) == 0, log.read_text()
    runs.kill(*arguments, str(out), "--resume", log=log, after=(1, 3), moments=random.Random("muon"))
    assert runs.finish(*arguments, str(out), "--resume", log=log) == 0, log.read_text()
    assert runs.results(out) == runs.results(whole)
    held = load_file(max((out / "checkpoints").glob("step-*")) / "state.safetensors")
    matrix = "encoder.stack.attention.0.part.qkv.weight"
    kept = {name.split("/")[1] for name in held if name.startswith("moments/") and name.endswith(matrix)}
    assert kept == set(KEPT)
