"""Tensor parallelism by `bertree.scale` and by PyTorch's DTensor plans, on gloo processes of this machine.

    python -m benchmarks.tensor_parallel [--ranks 2 4] [--steps 12]

Every rank builds the same small BERT and splits it twice: with `put_tensor_parallel`, and with `parallelize_module`
(`ColwiseParallel`, `RowwiseParallel`) and what DTensor needs besides for a fused query-key-value product, a custom
look-up operator and a split vocabulary. Printed for each: the largest relative difference of loss and gradients from
the network on one device, and the median time of a forward and backward pass, measured in turn. With four ranks the
DTensor network is also put on a 2 x 2 mesh of FSDP2 and tensor ranks, and its gathered weights are compared with the
original ones.
"""

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.multiprocessing.spawn import spawn

from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.model.heads import MaskHead
from bertree.model.kernels.operators import look_up
from bertree.model.layers.embeddings import TokenEmbeddings
from bertree.model.network import Network, build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.launch import Launch
from bertree.scale.split import parameter_layouts
from bertree.scale.tensor import put_tensor_parallel
from bertree.scale.world import World, join

AXES = {"layers": 4, "width": 256, "heads": 8, "ffn_width": 1024, "vocab_size": 8000, "max_positions": 128}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
SEQUENCES, LENGTH, MASKED = 16, 96, 0.15


def make_network() -> Network:
    """A small BERT, the same in every process."""
    torch.manual_seed(0)
    return build(preset("bert-base").architecture.with_values(AXES | NO_DROPOUT), {"mask": 0})


def make_batch() -> Batch:
    """Sequences of different lengths with masked tokens."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(LENGTH // 4, LENGTH, (SEQUENCES,), generator=draw).tolist()
    batch = Batch.pack([torch.randint(5, 8000, (n,), generator=draw).tolist() for n in lengths], None)
    masked = torch.randperm(len(batch.ids), generator=draw)[: round(MASKED * len(batch.ids))].sort().values
    labels = PretrainingLabels(masked, torch.randint(5, 8000, (len(masked),), generator=draw))
    return Batch(**{**vars(batch), "labels": labels})


def forward_backward(network: Network, batch: Batch) -> float:
    """Compute the loss and its gradients."""
    network.zero_grad()
    (loss,) = pretraining_objective(mlm=1.0)(network, batch, None).losses.values()
    loss.sum.backward()
    return float(loss.sum.detach())


# The same network by DTensor. From here to `dtensor_parallel`: what DTensor's own styles do not cover.


class FusedProjection(ColwiseParallel):
    """Split queries, keys and values of one product by heads; the stock style would split their concatenation."""

    def _partition_linear_fn(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module.named_parameters()):
            split = distribute_tensor(parameter, mesh, [_StridedShard(0, split_factor=3)])
            module.register_parameter(key, nn.Parameter(split))

    @staticmethod
    def _prepare_output_fn(layouts: Any, local: Any, module: Any, outputs: Any, mesh: Any) -> Tensor:
        return outputs.to_local()  # the stock hook redistributes a strided shard and changes its order


class DTensorTokens(TokenEmbeddings):
    """Token embeddings split by rows, looked up locally: the custom operator has no sharding rule."""

    def forward(self, ids_t: Tensor) -> Tensor:
        """Look up token ids."""
        weight: Any = self.weight
        mesh, rows_ve = weight.device_mesh, weight.to_local()
        first = mesh.get_local_rank() * -(-weight.shape[0] // mesh.size())
        index_t = ids_t - first
        here_t = (index_t >= 0) & (index_t < len(rows_ve))
        rows_te = look_up(rows_ve, torch.where(here_t, index_t, 0)) * here_t[:, None]
        summed: Any = DTensor.from_local(rows_te, mesh, [Partial()], run_check=False).redistribute(mesh, [Replicate()])
        return summed.to_local()


class DTensorMaskHead(MaskHead):
    """A mask head with the output matrix split by the vocabulary."""

    def _loss(self, hidden_mh: Tensor, tokens: nn.Embedding, targets_m: Tensor) -> Tensor:
        from torch.distributed.tensor.parallel import loss_parallel

        matrix: Any = tokens.weight
        mesh = matrix.device_mesh
        transformed = DTensor.from_local(self.transform(hidden_mh), mesh, [Replicate()], run_check=False)
        logits_mv = F.linear(transformed, matrix, self.bias)
        targets = DTensor.from_local(targets_m, mesh, [Replicate()], run_check=False)
        with loss_parallel():
            total: Any = F.cross_entropy(logits_mv.float(), targets, ignore_index=IGNORED, reduction="sum")
        return total.to_local()


def dtensor_parallel(network: Network, mesh: DeviceMesh) -> Network:
    """Split a network by DTensor plans, in place."""
    encoder: Any = network.encoder
    for block in encoder.stack.attention:
        parallelize_module(block.part, mesh, {"qkv": FusedProjection(), "out": RowwiseParallel()})
        block.part.heads //= mesh.size()
    for block in encoder.stack.ffn:
        parallelize_module(block.part, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    tokens, head = encoder.embeddings.tokens, cast(Any, network.heads["mask"])
    tokens.weight = nn.Parameter(distribute_tensor(tokens.weight.detach(), mesh, [Shard(0)]))
    head.bias = nn.Parameter(distribute_tensor(head.bias.detach(), mesh, [Shard(0)]))
    tokens.__class__, head.__class__ = DTensorTokens, DTensorMaskHead
    return network


def difference(gradient: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value."""
    return float((gradient - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def own_differences(network: Network, reference: Network, world: World) -> float:
    """The largest difference of the gradients of a network that `put_tensor_parallel` has split."""
    wholes, worst = parameter_layouts(network), 0.0
    for (name, parameter), expected in zip(network.named_parameters(), reference.parameters(), strict=True):
        if expected.grad is None or parameter.grad is None:
            continue
        split = wholes[name].split
        whole = expected.grad if split is None else split.cut(expected.grad, world.tensor_rank, world.tensor)
        worst = max(worst, difference(parameter.grad, whole))
    return worst


def dtensor_differences(network: Network, reference: Network) -> float:
    """The same for DTensors: their gathered gradients."""
    worst = 0.0
    for parameter, expected in zip(network.parameters(), reference.parameters(), strict=True):
        gradient: Any = parameter.grad
        if expected.grad is not None and gradient is not None:
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            worst = max(worst, difference(whole, expected.grad))
    return worst


def run_rank(rank: int, ranks: int, folder: str, steps: int) -> None:
    """Measure as one rank; rank 0 prints."""
    torch.set_num_threads(1)
    launch = Launch(rank, ranks, rank, host=f"file://{folder}/meet")
    batch, reference = make_batch(), make_network()
    loss = forward_backward(reference, batch)
    with join(launch, tensor=ranks) as world:
        ours, theirs = copy.deepcopy(reference), copy.deepcopy(reference)
        put_tensor_parallel(ours, world)
        dtensor_parallel(theirs, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",)))
        row: dict[str, Any] = {"ranks": ranks}
        losses = {"ours": forward_backward(ours, batch), "dtensor": forward_backward(theirs, batch)}
        row |= {f"{name}_loss_difference": abs(value - loss) / loss for name, value in losses.items()}
        row["ours_gradient_difference"] = own_differences(ours, reference, world)
        row["dtensor_gradient_difference"] = dtensor_differences(theirs, reference)
        times: dict[str, list[float]] = {"ours": [], "dtensor": []}
        for _ in range(steps):
            for name, network in (("ours", ours), ("dtensor", theirs)):
                distributed.barrier()
                began = time.perf_counter()
                forward_backward(network, batch)
                times[name].append(time.perf_counter() - began)
        row |= {f"{name}_ms": 1000 * statistics.median(values) for name, values in times.items()}
        row["dtensor_time_ratio"] = row["dtensor_ms"] / row["ours_ms"]
        if ranks == 4:
            row["mesh_weight_difference"] = mesh_difference(reference)
    if rank == 0:
        print(json.dumps(row), flush=True)


def mesh_difference(reference: Network) -> dict[str, float]:
    """Gathered weights of 2 data x 2 tensor ranks against the original ones: parameters that differ."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    network = dtensor_parallel(copy.deepcopy(reference), mesh["tensor"])
    encoder: Any = network.encoder
    for block in [*encoder.stack.attention, *encoder.stack.ffn]:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(network, mesh=mesh["data"])
    found = {}
    for (name, parameter), expected in zip(network.named_parameters(), reference.parameters(), strict=True):
        whole: Any = parameter
        gap = difference(whole.full_tensor().detach(), expected.detach())
        if gap > 1e-6:
            found[name] = gap
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for ranks in arguments.ranks:
        with tempfile.TemporaryDirectory() as folder:
            spawn(run_rank, (ranks, str(Path(folder)), arguments.steps), nprocs=ranks)


if __name__ == "__main__":
    main()
