"""The planner against a simulation: one training step of a real network on fake tensors in a fake world.

    python -m benchmarks.scale_memory --out steps.jsonl   # the cases of the table, about a minute each
    python -m benchmarks.scale_memory --only t-nlg-17b    # those of one model
    python -m benchmarks.scale_memory --case megatron-gpt-2.5b 8 2 3 recompute 2048   # one of your own: model, ranks,
                                                                                      # tensor size, stage, tokens

Rank 0 of as many ranks as a case names is simulated, up to 512: its network is built and spread by the package's own
functions, and computes a forward and a backward pass. Tensors have shapes and no content, and a process group that
sends nothing stands for the others. Counted are the bytes of all storages that are alive, and the calls of collectives.
Steps that are in the file of --out are not simulated again; all of them are planned anew.

What a GPU does otherwise is done as there: dropout keeps one byte for each number. Not simulated: the CUDA context,
workspaces, what the allocator loses, buffers of NCCL, and layer norms that autocast computes in float32 on a GPU unless
layers are compiled (2 bytes of a state more for each).
"""

import argparse
import json
import logging
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common import environment, table
from bertree.batch import Batch, PretrainingLabels
from bertree.model.architecture import Transformer
from bertree.model.cost import GIB, MASK_RATE
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.distribute import distribute
from bertree.scale.plan.communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, step_traffic
from bertree.scale.plan.memory import Mesh, MicroBatch, at_rest, peak
from bertree.scale.tensor_components import SequenceParallelStack
from bertree.scale.world import World

KINDS = {"allgather": ALL_GATHER, "all_gather": ALL_GATHER, "reduce_scatter": REDUCE_SCATTER}
KINDS |= {"allreduce": ALL_REDUCE, "all_reduce": ALL_REDUCE}


class Case(NamedTuple):
    """What is simulated."""

    model: str
    ranks: int
    tensor: int
    zero: int
    recompute: bool
    tokens: int  # of a micro-batch of a data rank
    micro_batches: int = 1
    layers: int = 0  # instead of the model's
    sequence_parallel: bool = True

    @property
    def architecture(self) -> Transformer:
        changes: dict[str, Any] = {"attention_dropout": 0.0, "pooler": False}  # which next sentences alone would train
        changes |= {"layers": self.layers} if self.layers else {}
        a = preset(self.model).architecture.with_values(changes)
        assert isinstance(a, Transformer)
        return a

    @property
    def mesh(self) -> Mesh:
        return Mesh(self.ranks // self.tensor, self.tensor, self.zero, self.sequence_parallel and self.tensor > 1)

    @property
    def batch(self) -> MicroBatch:
        predicted = self.tokens if self.architecture.causal else round(MASK_RATE * self.tokens)
        return MicroBatch(self.tokens, predicted, self.micro_batches, self.recompute)


CASES = [
    Case("t-nlg-17b", 512, 1, 3, True, 1024),
    Case("t-nlg-17b", 64, 1, 3, True, 1024),
    Case("t-nlg-17b", 64, 1, 2, True, 1024),
    Case("t-nlg-17b", 8, 1, 3, True, 4096),
    Case("t-nlg-17b", 8, 1, 3, True, 1024),
    Case("t-nlg-17b", 256, 4, 2, True, 2048),
    Case("t-nlg-17b", 256, 4, 3, True, 8192),
    Case("megatron-gpt-8.3b", 512, 8, 2, True, 8192),
    Case("megatron-gpt-8.3b", 512, 8, 2, True, 8192, sequence_parallel=False),
    Case("megatron-gpt-8.3b", 8, 1, 3, True, 8192),
    Case("megatron-bert-3.9b", 8, 1, 3, True, 8192),
    Case("megatron-bert-3.9b", 8, 1, 3, False, 8192),
    Case("megatron-bert-3.9b", 64, 1, 1, True, 2048, micro_batches=2),
    Case("megatron-bert-3.9b", 64, 1, 0, True, 2048, micro_batches=2),
    Case("megatron-bert-3.9b", 1, 1, 3, True, 8192),
    Case("megatron-gpt-8.3b", 1, 1, 3, True, 8192),
    Case("t-nlg-17b", 4, 1, 3, True, 4096),
    Case("megatron-bert-3.9b", 1, 1, 3, True, 65536),
]


class LiveStorages(TorchDispatchMode):
    """Follows the storages that operations make, fake ones too, and their resizing; `most` is the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: dict[int, list[Any]] = {}
        self._resize = torch.UntypedStorage.resize_

    def watch(self, tensor: Tensor) -> None:
        """Count the storage of a tensor from now on."""
        tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known[key] = [weakref.ref(storage, lambda _: self._add(-self._known.pop(key)[1])), storage.nbytes()]
            self._add(storage.nbytes())

    def _add(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.watch(tensor)
        return out

    def __enter__(self) -> "LiveStorages":
        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            self._resize(storage, size)
            if (storage_entry := self._known.get(storage._cdata)) is not None:
                self._add(size - storage_entry[1])
                storage_entry[1] = size
            return storage

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign,assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)


class Collectives(TorchDispatchMode):
    """Counts calls of collectives and the bytes of whole tensors, by kind, and among which ranks.

    Inside a network tensor ranks call by operators that a compiler can trace; all others are calls of data ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        space, _, name = func._schema.name.partition("::")
        kind = next((kind for begin, kind in KINDS.items() if name.strip("_").startswith(begin)), None)
        if kind is not None and space in ("c10d", "_c10d_functional"):
            inside = space == "_c10d_functional"
            sizes = [t.numel() * t.element_size() for t in tree_leaves((args, out)) if isinstance(t, Tensor)]
            key = (kind, "tensor" if inside else "data")
            self.calls[key] += 1
            self.bytes[key] += max(sizes)
        return out


@contextmanager
def fake_world(mesh: Mesh) -> Iterator[World]:
    """Rank 0 of a mesh whose other ranks do not exist."""
    distributed.init_process_group("fake", rank=0, world_size=mesh.devices, store=FakeStore())
    try:
        sizes = {"replicate": mesh.data // mesh.shards, "shard": mesh.shards, "tensor": mesh.tensor}
        device_mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        ranks = init_device_mesh("cpu", (mesh.data, mesh.tensor), mesh_dim_names=("data", "tensor"))
        yield World(
            size=mesh.devices,
            data=mesh.data,
            tensor=mesh.tensor,
            shard=mesh.shards,
            joined=True,
            mesh=device_mesh["replicate", "shard"] if mesh.shards < mesh.data else device_mesh["shard"],
            data_group=ranks.get_group("data"),
            shard_group=device_mesh.get_group("shard"),
            tensor_group=ranks.get_group("tensor"),
        )
    finally:
        distributed.destroy_process_group()


def fake_batch(tokens: int, predicted: int, length: int) -> Batch:
    """A batch of sequences of equal lengths."""

    def zeros(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(count, dtype=dtype)

    labels = PretrainingLabels(zeros(predicted), zeros(predicted))
    bounds = zeros(tokens // length + 1, torch.int32)
    return Batch(zeros(tokens), zeros(tokens), zeros(tokens), bounds, length, labels=labels)


def drop_as_on_a_gpu(module: nn.Dropout, x: Tensor) -> Tensor:
    """Dropout that keeps a byte for each number, as CUDA's does; the CPU's keeps a number."""
    return torch.native_dropout(x, module.p, True)[0] if module.training and module.p else x


def simulate(case: Case) -> dict[str, Any]:
    """Take one step as rank 0; return its bytes and its calls."""
    a, mesh, work = case.architecture, case.mesh, case.batch
    objective = pretraining_objective(mlm=1.0)
    with fake_world(mesh) as world, FakeTensorMode(allow_non_fake_inputs=True):
        network = build(a, {"mask": 0})
        options = {"sequence_parallel": mesh.sequence_parallel, "recompute": work.recompute}
        distribution = distribute(network, world, zero=mesh.zero, bf16=True, **options)
        batch = fake_batch(work.tokens, work.predicted, min(1024, a.max_positions))
        live, calls = LiveStorages(), Collectives()
        same_random = patch.object(SequenceParallelStack, "_random", lambda *_: nullcontext)  # there are no numbers
        with live, calls, same_random, patch.object(nn.Dropout, "forward", drop_as_on_a_gpu):
            for parameter in network.parameters():
                live.watch(parameter)
            weights = live.now
            moments = [torch.zeros_like(parameter) for parameter in network.parameters() for _ in range(2)]
            optimizer = live.now - weights
            for number in range(work.count):
                distribution.before_micro_batch(number == work.count - 1)
                with torch.autocast("cpu", torch.bfloat16):
                    loss = objective(network, batch).losses["mlm"].sum
                loss.backward()
                del loss
            gradients = live.now - weights - optimizer
        assert moments
    return {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "at_rest": {"weights": weights, "gradients": gradients, "optimizer": optimizer},
        "peak": live.most,
        "calls": sorted([*key, count, calls.bytes[key]] for key, count in calls.calls.items()),
    }


def compare(case: Case, measured: dict[str, Any]) -> dict[str, Any]:
    """Plan a case that was simulated."""
    planned = peak(case.architecture, case.mesh, case.batch)
    sent = step_traffic(case.architecture, case.mesh, case.batch)
    rest = at_rest(case.architecture, case.mesh)
    # The gradients of norms are summed after the backward pass.
    sent = [entry for entry in sent if not entry.what.startswith("norms")]
    return measured | {
        "case": case._asdict(),
        "planned_at_rest": rest._asdict(),
        "planned": planned.bytes.total,
        "moment": planned.moment,
        "planned_calls": sorted([entry.kind, entry.group, entry.calls, round(entry.bytes)] for entry in sent),
    }


def row(measured: dict[str, Any]) -> list[str]:
    """One line of the table."""
    case = Case(**measured["case"])
    rest, planned = sum(measured["at_rest"].values()), sum(measured["planned_at_rest"].values())
    kind = f"ZeRO {case.zero}{', recomputed' if case.recompute else ''}"
    kind += "" if case.tensor == 1 or case.sequence_parallel else ", not sequence parallel"
    sizes = [f"{size / GIB:.2f}" for size in (rest, planned, measured["peak"], measured["planned"])]
    off = f"{100 * (measured['planned'] / measured['peak'] - 1):+.1f} %"
    tokens = f"{case.micro_batches} x {case.tokens:,}" if case.micro_batches > 1 else f"{case.tokens:,}"
    same = "yes" if sorted(measured["calls"]) == measured["planned_calls"] else "no"
    return [case.model, f"{case.mesh.data} x {case.tensor}", kind, tokens, *sizes, measured["moment"], off, same]


def run_apart(case: Case) -> dict[str, Any]:
    """Simulate a case in a process of its own, whose memory is given back."""
    command = [sys.executable, "-m", "benchmarks.scale_memory", "--inside", json.dumps(case)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def read(path: Path | None) -> dict[Case, dict[str, Any]]:
    """Return the steps that were simulated before."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return {Case(**measured.pop("case")): measured for measured in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases of one model")
    parser.add_argument("--case", nargs=6, metavar=("MODEL", "RANKS", "TENSOR", "STAGE", "recompute|keep", "TOKENS"))
    parser.add_argument("--out", type=Path, help="file of the simulated steps (.jsonl)")
    parser.add_argument("--done", action="store_true", help="simulate nothing: those of --out alone")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if options.inside:
        print(json.dumps(simulate(Case(*json.loads(options.inside)))))
        return
    cases = [case for case in CASES if options.only in case.model]
    if options.case:
        model, ranks, tensor, stage, again, tokens = options.case
        cases = [Case(model, int(ranks), int(tensor), int(stage), again == "recompute", int(tokens))]
    measured, rows = read(options.out), []
    for case in cases:
        if case not in measured and not options.done:
            measured[case] = run_apart(case)
            if options.out is not None:
                with open(options.out, "a") as file:
                    file.write(json.dumps({"case": case._asdict()} | measured[case]) + "\n")
        if case in measured:
            rows.append(row(compare(case, measured[case])))
    print(f"{environment()}\n")
    head = ("model", "data x tensor", "stage", "tokens a rank", "weights, moments, gradients, GiB", "planned")
    print(table((*head, "peak, GiB", "planned", "moment", "difference", "collectives as planned"), rows))


if __name__ == "__main__":
    main()
