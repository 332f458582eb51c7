"""A member with a state: batches continue each other, and a run that was stopped ends in the same bytes."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.model.encoder import State
from bertree.objectives.objective import Computed, WeightedTerms
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.checkpoint import Checkpoint, CheckpointFolder
from bertree.train.device_setup import set_deterministic
from bertree.train.held_out import evaluate_held_out
from bertree.train.lane_memory import LaneMemories, check_state
from tests.support import language_models
from tests.support.batches import run_backward
from tests.support.processes import PATIENCE, PROCESSES
from tests.support.recurrent import WIDTH, make_feed, make_loop, make_network, make_store, train
from tests.support.runs import results
from tests.support.saved import saved
from tests.support.shared import suite_has

pytestmark = pytest.mark.train
TIMED = ("seconds", "waited", "tokens_per_s", "time")


def history(out: Path) -> list[dict[str, object]]:
    """Every loss of a run."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMED} for line in lines if line["kind"] in ("train", "eval")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recurrent") / "run"
    assert train(out) is None
    return out


@pytest.mark.parametrize("step", suite_has([5], [2, 5, 14]))
def test_a_killed_run_ends_in_the_same_bytes(undisturbed: Path, tmp_path: Path, step: int) -> None:
    out = tmp_path / "run"
    process = PROCESSES.Process(target=train, args=(out, False, step))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert CheckpointFolder(out / "checkpoints").steps() == [n for n in (12, 9, 6, 3) if n < step][:2]
    assert train(out, resume=True) is None
    assert results(out) == results(undisturbed)
    assert history(out) == history(undisturbed)


def test_an_interrupted_run_ends_in_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train(out, signal_at=7, number=signal.SIGTERM) == signal.SIGTERM
    tensors = CheckpointFolder(out / "checkpoints").read(7).tensors
    assert {n for n in tensors if n.startswith("state/")} == {
        f"state/{s}/{n}" for s in (0, 1) for n in ("hidden", "read")
    }
    assert train(out, resume=True) is None
    assert results(out) == results(undisturbed)
    assert history(out) == history(undisturbed)


def test_without_the_state_it_would_be_another_run(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    assert train(out, signal_at=7, number=signal.SIGTERM) == signal.SIGTERM
    monkeypatch.setattr(LaneMemories, "restore", lambda *arguments: None)
    assert train(out, resume=True) is None
    assert results(out)["model"] != results(undisturbed)["model"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert train(out, signal_at=4, number=signal.SIGTERM) == signal.SIGTERM
    return out


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"lanes": 6}, "number of lanes"),
        ({"micro": 1}, "number of micro-batches of lanes"),
        ({"length": 12}, "length of lanes in a step"),
        ({"documents": True}, "treatment of documents in lanes"),
    ],
)
def test_a_run_with_other_lanes_is_not_resumed(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, int], named: str
) -> None:
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    monkeypatch.setattr("tests.support.recurrent.make_feed", lambda store: make_feed(store, **other))
    with pytest.raises(UserError, match=f"was started with another {named}; put it back"):
        train(out, resume=True)


def test_micro_batches_change_nothing() -> None:
    """Each has the state of its own lanes, also in steps that read two batches."""
    gradients = []
    for micro in (1, 2, 4):
        loop, feed = make_loop(dropout=0.0), make_feed(make_store(), micro)
        assert max(len(feed[n].batches) for n in range(len(feed.schedule))) == 2 * micro
        gradients.append([loop.step(feed[n]).loss for n in range(len(feed.schedule))])
    assert gradients[1] == pytest.approx(gradients[0], rel=1e-4)
    assert gradients[2] == pytest.approx(gradients[0], rel=1e-4)


def test_a_step_continues_the_one_before_it_and_a_phase_starts_fresh() -> None:
    loop, feed = make_loop(), make_feed(make_store(), 1)
    starts, read = [], []
    compute = loop.compute

    def watch(network: torch.nn.Module, batch: Batch, state: object) -> Computed:
        starts.append(state)
        computed = compute(network, batch, state)
        read.append(computed.memory)
        return computed

    loop.compute = watch
    first_of_second = next(step.number for step in feed.schedule.updates if step.phase == 1)
    for number in range(len(feed.schedule)):
        run_backward(loop, feed[number])
    batches = [feed[number].batches for number in range(len(feed.schedule))]
    fresh = {0, sum(len(some) for some in batches[:first_of_second])}
    assert {place for place, state in enumerate(starts) if state is None} == fresh
    for place, state in enumerate(starts):
        if state is not None:
            assert torch.equal(state["hidden"], read[place - 1]["hidden"])
            assert not state["hidden"].requires_grad, "gradients end at the step"
    assert read[1]["read"].tolist() == [32] * 4


def test_a_bad_step_does_not_spoil_the_state() -> None:
    carried = LaneMemories()
    carried.put(0, {"hidden": torch.tensor([1.0, float("nan"), float("inf")]), "read": torch.tensor([3])})
    assert carried.get(0)["hidden"].tolist() == [1.0, 0.0, 0.0]
    assert carried.get(0)["read"].tolist() == [3]
    assert carried.get(1) is None


def test_evaluation_starts_fresh_and_leaves_the_run_alone() -> None:
    loop, feed = make_loop(), make_feed(make_store(), 1)
    loop.step(feed[0])
    before = loop.memories.tensors()
    objective, stream = pretraining_objective(mlm=1.0), make_feed(make_store(1)).streams[0][0]
    scores = [evaluate_held_out(loop.network, objective, stream, 10**6, loop.autocast)["loss"] for _ in range(2)]
    assert scores[0] == scores[1]
    assert all(tensor is before[name] for name, tensor in loop.memories.tensors().items())

    class Forgetful(WeightedTerms):
        def __call__(self, network: torch.nn.Module, batch: Batch, state: State | None = None) -> Computed:
            return super().__call__(network, batch)

    forgetful = Forgetful(objective.terms, objective.weights)
    other = evaluate_held_out(loop.network, forgetful, stream, 10**6, loop.autocast)["loss"]
    assert other != scores[0], "the state is carried from batch to batch"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu_the_state_is_carried_and_restored() -> None:
    set_deterministic(True)
    feed = make_feed(make_store())
    first, second, forgetful = (make_loop(device="cuda") for _ in range(3))
    for number in range(6):
        first.step(feed[number])
    kept = {name: tensor.cpu() for name, tensor in first.memories.tensors().items()}
    assert {tensor.device.type for tensor in first.memories.tensors().values()} == {"cuda"}
    for loop in (second, forgetful):
        loop.network.load_state_dict(first.network.state_dict())
    second.memories.restore(saved(kept), second.device, range(2))
    wanted, restored, forgotten = (loop.step(feed[6]).loss for loop in (first, second, forgetful))
    assert wanted == restored != forgotten


def checkpoint(**changes: torch.Tensor | None) -> Checkpoint:
    good = {f"state/{s}/hidden": torch.zeros(2, WIDTH) for s in (0, 1)}
    good |= {f"state/{s}/read": torch.zeros(2, dtype=torch.int64) for s in (0, 1)}
    tensors = good | {"state/" + name: tensor for name, tensor in changes.items()}
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return Checkpoint(step=3, tensors=saved(present), extra={}, where="here")


BAD: dict[str, Callable[[], dict[str, torch.Tensor | None]]] = {
    "another shape": lambda: {"0/hidden": torch.zeros(3, WIDTH)},
    "another rank": lambda: {"0/hidden": torch.zeros(2 * WIDTH)},
    "another type": lambda: {"1/read": torch.zeros(2)},
    "half": lambda: {"1/hidden": torch.zeros(2, WIDTH).half()},
    "not a number": lambda: {"1/hidden": torch.full((2, WIDTH), float("nan"))},
    "infinite": lambda: {"1/hidden": torch.full((2, WIDTH), float("inf"))},
    "missing": lambda: {"1/read": None},
    "unknown name": lambda: {"1/more": torch.zeros(2)},
    "unknown slot": lambda: {"2/hidden": torch.zeros(2, WIDTH)},
    "no slot": lambda: {"hidden": torch.zeros(2, WIDTH)},
    "a path": lambda: {"../0/hidden": torch.zeros(2, WIDTH)},
}


@pytest.mark.parametrize("name", BAD)
def test_a_state_of_another_run_is_refused(name: str) -> None:
    network = make_network()
    check_state(checkpoint(), network, [2, 2], range(2))
    with pytest.raises(UserError, match="here: "):
        check_state(checkpoint(**BAD[name]()), network, [2, 2], range(2))


def test_a_rank_reads_its_own_slots_alone() -> None:
    spoilt = checkpoint(**{"1/hidden": torch.full((2, WIDTH), float("nan"))})
    check_state(spoilt, make_network(), [2, 2], range(1))
    with pytest.raises(UserError, match="state/1/hidden"):
        check_state(spoilt, make_network(), [2, 2], range(1, 2))
    carried = LaneMemories()
    carried.restore(checkpoint().tensors, torch.device("cpu"), range(1, 2))
    assert {*carried.tensors()} == {"state/1/hidden", "state/1/read"}


def test_a_run_without_lanes_has_no_state() -> None:
    empty = replace(checkpoint(), tensors={})
    check_state(empty, torch.nn.Linear(2, 2), [], ())
    with pytest.raises(UserError, match="which the run does not know"):
        check_state(checkpoint(), torch.nn.Linear(2, 2), [], ())


def test_a_forged_state_is_passed_over(undisturbed: Path, tmp_path: Path) -> None:
    """The checkpoint before it is taken, and the run ends as it should."""
    from safetensors.torch import load_file, save_file

    from bertree.files.formats import file_hash
    from bertree.train.checkpoint_files import header_text

    out = tmp_path / "run"
    assert train(out, signal_at=7, number=signal.SIGTERM) == signal.SIGTERM
    newest = CheckpointFolder(out / "checkpoints").path(7)
    tensors = load_file(newest / "state.safetensors")
    tensors["state/1/hidden"][0, 0] = float("nan")
    save_file(tensors, newest / "state.safetensors")
    header = json.loads((newest / "state.json").read_text())
    header["sha256"] = file_hash(newest / "state.safetensors")
    (newest / "state.json").write_text(header_text(header))
    assert train(out, resume=True) is None
    assert results(out) == results(undisturbed)


@pytest.mark.parametrize(("kind", "least"), [("transformer-xl-base", 0), ("zeros", 8)])
def test_a_memory_holds_no_more_than_its_length(kind: str, least: int) -> None:
    memory = language_models.network(kind, 90, memory=8)
    specs, state = memory.state_specs(2), memory.start_state(2)
    assert state is not None
    assert all(specs[name].fits(tensor) for name, tensor in state.items())
    for length in (-5, 9, 2**40, least - 1):
        assert not specs["lengths"].fits(torch.tensor([8, length]))
    assert not specs["memory"].fits(state["memory"].half())
    assert not specs["memory"].fits(state["memory"] * torch.nan)
