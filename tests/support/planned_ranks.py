"""Steps of real gloo ranks, whose bytes and collectives are compared with the planner's."""

import json
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.scale_memory import Collectives
from bertree.config.sections import OptimSettings
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.distribute import distribute
from bertree.scale.launch import Launch
from bertree.scale.plan.memory import Mesh, MicroBatch
from bertree.scale.shards import local, sum_whole_gradients
from bertree.scale.world import join
from bertree.train.optimizer import build_optimizer
from tests.support.processes import PATIENCE, PROCESSES
from tests.support.tensor_parallel import make_batches

# Widths and a vocabulary that 4 ranks do not share evenly.
SMALL: dict[str, Any] = {
    "pooler": False,
    "layers": 3,
    "width": 36,
    "heads": 4,
    "vocab_size": 203,
    "max_positions": 40,
    "attention_dropout": 0.0,
}


class Case(NamedTuple):
    """A step on a mesh."""

    model: str
    data: int
    tensor: int
    zero: int
    micro_batches: int = 1
    bf16: bool = False
    recompute: bool = False
    sequence_parallel: bool = False

    @property
    def architecture(self) -> Transformer:
        small = SMALL | ({"embedding_width": 20} if self.model.startswith("albert") else {})
        a = preset(self.model).architecture.with_values(small)
        assert isinstance(a, Transformer)
        return a

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.data, self.tensor, self.zero, self.sequence_parallel)

    @property
    def batch(self) -> MicroBatch:
        """As the planner has it: the micro-batches must be of one size."""
        batch = make_batches(self.architecture)[0]
        predicted, _ = batch.labels.predicted
        return MicroBatch(len(batch.ids), len(predicted), self.micro_batches, self.recompute, self.bf16)


def bytes_of(tensors: Sequence[Tensor]) -> int:
    return sum(local(tensor).numel() * tensor.element_size() for tensor in tensors)


def step(case: Case, launch: Launch) -> dict[str, Any]:
    """Take a step; return this rank's bytes, and its collectives."""
    with join(launch, tensor=case.tensor, zero=case.zero) as world:
        torch.manual_seed(0)
        network = build(case.architecture, {"mask": 0})
        options = {"bf16": case.bf16, "recompute": case.recompute, "sequence_parallel": case.sequence_parallel}
        distribution = distribute(network, world, zero=case.zero, **options)
        optimizer = build_optimizer(network, OptimSettings(), distribution=distribution)
        named = list(network.named_parameters())
        batch, objective = make_batches(case.architecture)[0], pretraining_objective(mlm=1.0)
        with Collectives() as calls:
            for number in range(case.micro_batches):
                distribution.before_micro_batch(number == case.micro_batches - 1)
                with torch.autocast("cpu", torch.bfloat16, enabled=case.bf16):
                    loss = objective(network, batch).losses["mlm"].sum
                loss.backward()
            sum_whole_gradients(named, world)
        distribution.clip_gradients(named, 1.0)
        optimizer.step()
        state = [value for values in optimizer.state.values() for name, value in values.items() if name != "step"]
        gradients = [p.grad for _, p in named if p.grad is not None]
        sizes = {"weights": bytes_of([p for _, p in named]), "gradients": bytes_of(gradients)}
        sizes["optimizer"] = bytes_of(state)
        return sizes | {"calls": [[*key, calls.calls[key], calls.bytes[key]] for key in sorted(calls.calls)]}


def _rank(rank: int, folder: str, cases: Sequence[Case]) -> None:
    torch.set_num_threads(1)
    results = []
    try:
        for number, case in enumerate(cases):
            size = case.data * case.tensor
            if rank < size:
                results.append(step(case, Launch(rank, size, rank, 0, f"file://{folder}/meet-{number}")))
    except BaseException:
        Path(folder, f"failed-{rank}").write_text(traceback.format_exc())
        os._exit(1)  # no waiting for the others
    Path(folder, f"result-{rank}.json").write_text(json.dumps(results))


def measure(folder: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Take all steps; return what rank 0 found, which holds most."""
    ranks = max(case.data * case.tensor for case in cases)
    started = [PROCESSES.Process(target=_rank, args=(rank, str(folder), cases)) for rank in range(ranks)]
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE)
    failed = [path.read_text() for path in sorted(folder.glob("failed-*"))]
    assert not failed, failed[0]
    result: list[dict[str, Any]] = json.loads((folder / "result-0.json").read_text())
    return result
