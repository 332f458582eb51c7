"""Small networks spread over meshes, with weights and optimizer state that do not depend on the mesh."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from bertree.config.sections import OptimSettings
from bertree.model.network import Network, build
from bertree.scale.distribute import put_sharding
from bertree.scale.shards import Split, local, split_layouts
from bertree.scale.world import World
from bertree.train.optimizer import build_optimizer
from tests.support import batches

MESHES: dict[str, dict[str, int]] = {
    "data 4": {},
    "tensor 4": {"tensor": 4},
    "2 x 2": {"tensor": 2},
    "2 x 2, zero 3": {"tensor": 2, "zero": 3},
    "zero 3": {"zero": 3},
    "zero 2 in pairs": {"zero": 2, "shard": 2},
}


def make(seed: int = 0) -> Network:
    """A BERT whose vocabulary neither 2 nor 4 ranks share evenly."""
    torch.manual_seed(seed)
    network = build(batches.tiny(layers=1, heads=4, vocab_size=51), {"mask": 0, "pair": 0})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return network


def trained(steps: int, seed: int = 0) -> tuple[Network, Optimizer]:
    """A whole network after some steps."""
    network = make(seed)
    optimizer = build_optimizer(network, OptimSettings(lr=0.01))
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.grad = parameter.detach() * 0.3 + 0.1
        optimizer.step()
    return network, optimizer


def spread(network: Network, optimizer: Optimizer, world: World, zero: int = 0) -> tuple[Network, Optimizer]:
    """Split and shard a network and its optimizer's state, without what places them when checkpoints are read."""
    layouts = split_layouts(network)
    states = {name: optimizer.state[parameter] for name, parameter in network.named_parameters()}
    if world.tensor > 1:
        for name, layout in layouts.items():
            module, _, own = name.rpartition(".")
            piece = _cut(network.get_parameter(name).detach(), layout.split, world)
            setattr(network.get_submodule(module), own, nn.Parameter(piece))
        vars(network)["layouts"] = layouts
    if world.data > 1:
        put_sharding(network, world, zero)
    placed = build_optimizer(network, OptimSettings(lr=0.01))
    for name, parameter in network.named_parameters():
        for key, value in states[name].items():
            piece = _cut(value, layouts[name].split, world) if value.ndim else value
            if value.ndim and isinstance(parameter, DTensor):
                piece = distribute_tensor(piece, parameter.device_mesh, parameter.placements, src_data_rank=None)
            placed.state[parameter][key] = piece
    return network, placed


def _cut(tensor: Tensor, split: Split | None, world: World) -> Tensor:
    return tensor.clone() if split is None else split.cut(tensor, world.tensor_rank, world.tensor)


def state_of(network: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Local tensors of a network and of its optimizer's state."""
    tensors: dict[str, Any] = {}
    for name, parameter in network.named_parameters():
        tensors[name] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key} of {name}"] = value
    return {name: local(tensor) for name, tensor in tensors.items()}


def different(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors that are not the same, or that one of them lacks."""
    both = [name for name in wanted if name in state]
    names = {*state} ^ {*wanted} | {name for name in both if not torch.equal(state[name], wanted[name])}
    return sorted(names)
