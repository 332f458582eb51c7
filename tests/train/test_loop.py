"""The loop: what a step means does not depend on how it is cut, and a bad step does nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bertree.batch import Batch
from bertree.config.sections import OPTIMIZERS, OptimSettings
from bertree.errors import UserError
from bertree.model.network import Network
from bertree.objectives.objective import Loss, WeightedTerms
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.feed import StepBatches
from bertree.train.hooks import SavedTotals, Totals
from bertree.train.loop import Diverged, Loop, StepResult
from bertree.train.metrics_log import MetricsLog
from bertree.train.optimizer import build_optimizer
from tests.support.batches import fresh, joined, make_step, run_backward, sequences
from tests.support.shared import suite_has


def gradients(dtype: torch.dtype, *batches: Batch) -> dict[str, torch.Tensor]:
    network = fresh().to(dtype)
    loop = Loop(network, pretraining_objective(mlm=1.0, nsp=0.7), build_optimizer(network, OptimSettings()))
    run_backward(loop, make_step(*batches))
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_accumulation_changes_nothing(dtype: torch.dtype, bar: float) -> None:
    rows = sequences(64)
    pieces = [joined(rows[start : start + 8]) for start in range(0, 64, 8)]
    assert len({piece.labels.masked.numel() for piece in pieces}) > 4, "micro-batches differ in their masks"
    assert len({int((piece.labels.pairs != -100).sum()) for piece in pieces}) > 2, "and in their pairs"
    whole, cut = gradients(dtype, joined(rows)), gradients(dtype, *pieces)
    assert set(whole) == set(cut)
    worst = max(float((whole[n] - cut[n]).norm() / whole[n].norm()) for n in whole)
    assert worst < bar
    skewed = gradients(dtype, *pieces[:-1])
    assert max(float((whole[n] - skewed[n]).norm() / whole[n].norm()) for n in whole) > 1e-2


def test_reported_losses_are_means_over_the_step() -> None:
    rows = sequences(12)
    objective = pretraining_objective(mlm=1.0, nsp=0.5)
    network = fresh()
    loop = Loop(network, objective, build_optimizer(network, OptimSettings(lr=0.0)))
    result = loop.step(make_step(joined(rows), lr=0.0))
    many = loop.step(make_step(*(joined(rows[i : i + 3]) for i in range(0, 12, 3)), lr=0.0))
    assert result.losses == pytest.approx(many.losses, rel=1e-6)
    assert result.norm == pytest.approx(many.norm, rel=1e-5)
    assert result.loss == pytest.approx(result.losses["mlm"] + 0.5 * result.losses["nsp"])
    assert result.tokens == many.tokens == joined(rows).ids.numel()


def test_clipping_and_rate() -> None:
    network = fresh()
    loop = Loop(
        network, pretraining_objective(mlm=1.0), torch.optim.SGD(network.parameters(), lr=9.0, fused=True), clip=0.01
    )
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    result = loop.step(make_step(joined(sequences(8)), lr=0.5))
    assert result.norm > 0.01
    moved = torch.cat([(p.detach() - before[name]).flatten() for name, p in network.named_parameters()])
    assert float(moved.norm()) == pytest.approx(0.5 * 0.01, rel=1e-3)


class Poisoned:
    """A term whose gradient is not finite in given steps."""

    def __init__(self, bad: set[int], value: float) -> None:
        self.bad, self.value, self.step = bad, value, 0

    def count(self, batch: Batch) -> int:
        return 1

    def loss(self, network: Network, hidden_th: torch.Tensor, batch: Batch) -> Loss:
        self.step += 1
        return Loss(hidden_th.square().sum() * (self.value if self.step in self.bad else 1.0), None)


def state(loop: Loop) -> list[torch.Tensor]:
    tensors = [p.detach().clone() for p in loop.network.parameters()]
    for moments in loop.optimizer.state.values():
        tensors += [value.clone() for value in moments.values()]
    return tensors


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("value", suite_has(["nan"], ["nan", "inf"]))
def test_a_step_without_a_finite_gradient_is_skipped(name: str, value: str, tmp_path: Path) -> None:
    network = fresh()
    term = Poisoned({2, 4, 5, 7}, float(value))
    loop = Loop(
        network,
        WeightedTerms({"x": term}, {"x": 1.0}),
        build_optimizer(network, OptimSettings(name=name)),
        bad_steps=3,
    )
    batch = joined(sequences(3))
    before: list[torch.Tensor] = []
    skipped = []

    def watch(result: StepResult) -> None:
        nonlocal before
        after = state(loop)
        unchanged = len(before) == len(after) and all(map(torch.equal, before, after))
        assert result.skipped == unchanged
        skipped.extend([result.step] * result.skipped)
        before = after

    totals = Totals(MetricsLog(tmp_path), SavedTotals(skipped=10))
    loop.run((make_step(batch, number=n) for n in range(8)), [totals, watch])
    assert totals.skipped == 14
    assert {float(state["step"]) for state in loop.optimizer.state.values()} == {4.0}, "what a resume checks"
    assert skipped == [2, 4, 5, 7], "and two in a row, or four in all, are not three in a row"
    assert all(tensor.isfinite().all() for tensor in before)


def test_too_many_bad_steps_in_a_row_end_the_run() -> None:
    network = fresh()
    term = Poisoned({3, 4, 5}, float("nan"))
    loop = Loop(network, WeightedTerms({"x": term}, {"x": 1.0}), build_optimizer(network, OptimSettings()), bad_steps=3)
    done: list[int] = []
    with pytest.raises(UserError, match=r"^step 5: the gradient was not finite for 3 steps in a row; [^\n]*$"):
        loop.run(
            (make_step(joined(sequences(3)), number=n) for n in range(9)), [lambda result: done.append(result.step)]
        )
    assert done == [1, 2, 3, 4, 5], "the host learns of a step while the next is under way"


def test_a_run_must_end_with_finite_weights_steps_and_loss() -> None:
    network = fresh()
    term = Poisoned({1, 2}, float("nan"))
    loop = Loop(network, WeightedTerms({"x": term}, {"x": 1.0}), build_optimizer(network, OptimSettings()))
    loop.check_end(None)
    loop.run(make_step(joined(sequences(3)), number=n) for n in range(2))
    with pytest.raises(Diverged, match="the gradient of every step not finite at the end of the run, so no model"):
        loop.check_end(1.0)
    loop.run([make_step(joined(sequences(3)), number=2)])
    loop.check_end(1.0)
    with pytest.raises(Diverged, match="the held-out loss not finite"):
        loop.check_end(float("nan"))
    next(network.parameters()).data.view(-1)[0] = float("inf")
    with pytest.raises(Diverged, match="weights not finite") as error:
        loop.check_end(1.0)
    assert error.value.exit_code == 1


def run(seed: int, first: int = 0) -> list[torch.Tensor]:
    network = fresh(dropout=0.3)
    loop = Loop(
        network,
        pretraining_objective(mlm=1.0, nsp=1.0),
        build_optimizer(network, OptimSettings(name="lamb")),
        seed=seed,
    )

    def steps() -> Iterator[StepBatches]:
        for number in range(first, first + 3):
            torch.rand(number + 1)  # whatever else draws random numbers
            yield make_step(joined(sequences(4, number)), joined(sequences(4, number + 50)), number=number)

    loop.run(steps())
    return [p.detach() for p in network.parameters()]


def test_dropout_follows_from_seed_and_step() -> None:
    result = run(seed=1)
    torch.manual_seed(12345)
    assert all(map(torch.equal, result, run(seed=1)))
    assert not all(map(torch.equal, result, run(seed=2)))


def test_micro_batches_have_dropout_of_their_own() -> None:
    network = fresh(dropout=0.5)
    seen: list[float] = []

    class Spy(Poisoned):
        def loss(self, network: Network, hidden_th: torch.Tensor, batch: Batch) -> Loss:
            seen.append(float(hidden_th.detach().square().sum()))
            return super().loss(network, hidden_th, batch)

    loop = Loop(network, WeightedTerms({"x": Spy(set(), 1.0)}, {"x": 1.0}), build_optimizer(network, OptimSettings()))
    batch = joined(sequences(3))
    run_backward(loop, make_step(batch, batch, number=0))
    run_backward(loop, make_step(batch, number=1))
    run_backward(loop, make_step(batch, number=0))
    assert len(set(seen)) == 3
    assert seen[0] == seen[3]


def test_recomputed_activations_give_the_same_gradients() -> None:
    gradients = []
    for recompute in (False, True):
        network = fresh(dropout=0.1)
        network.encoder.stack.recompute = recompute
        loop = Loop(network, pretraining_objective(mlm=1.0), torch.optim.SGD(network.parameters(), lr=0.0, fused=True))
        run_backward(loop, make_step(joined(sequences(6))))
        gradients.append([p.grad for p in network.parameters() if p.grad is not None])
    assert all(map(torch.equal, *gradients))
