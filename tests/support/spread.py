"""Small networks spread over meshes, with weights and optimizer state that do not depend on the mesh."""

from typing import Any

import torch
from torch import Tensor, nn

from bertree.config.sections import OptimSettings
from bertree.model.network import Network, build
from bertree.scale.shard import put_sharding
from bertree.scale.split import splits_of
from bertree.scale.world import World
from bertree.train.optim import build_optimizer
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
    network = build(batches.tiny(heads=4, vocab_size=51), {"mask": 0, "pair": 0})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return network


def spread(network: Network, world: World, zero: int = 0) -> Network:
    """Split and shard the parameters of a network as training does."""
    if world.tensor > 1:
        wholes = splits_of(network)
        for name, whole in wholes.items():
            if whole.split is not None:
                module, _, own = name.rpartition(".")
                piece = whole.split.cut(network.get_parameter(name).detach(), world.tensor_rank, world.tensor)
                setattr(network.get_submodule(module), own, nn.Parameter(piece))
        vars(network)["wholes"] = wholes
    if world.data > 1:
        put_sharding(network, world, zero)
    return network


def train(network: nn.Module, world: World, steps: int) -> torch.optim.Optimizer:
    """Take steps whose gradients follow from each weight for itself."""
    optimizer = build_optimizer(network, OptimSettings(lr=0.01), world=world)
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.grad = parameter.detach() * 0.3 + 0.1
        optimizer.step()
    return optimizer


def state_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Local tensors of a network and of its optimizer's state."""
    found: dict[str, Any] = {}
    for name, parameter in network.named_parameters():
        found[name] = parameter.detach()
        for key, value in optimizer.state[parameter].items():
            found[f"{key} of {name}"] = value
    return {name: getattr(tensor, "to_local", lambda tensor=tensor: tensor)() for name, tensor in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        tensor.shape == other[name].shape and torch.equal(tensor, other[name]) for name, tensor in one.items()
    )
