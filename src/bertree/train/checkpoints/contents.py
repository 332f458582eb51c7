"""What a checkpoint holds: weights and optimizer state of a network, each rank's part of it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.scale.local_shards import Box, LocalShard, is_first_holder, local_shard
from bertree.scale.split import ParameterLayout, parameter_layouts
from bertree.scale.world import World
from bertree.train.checkpoints.tensors import SavedTensor, SavedTensors

WEIGHTS, MOMENTS_OF = "weights", "moments"
BEST_PREFIX = "best/"  # how the names of the best weights begin
STATE_PREFIX = "state/"  # and those of what is carried from step to step
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}  # kept for each parameter, if its group does not say otherwise (`kept`)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, opened and verified."""

    step: int
    tensors: SavedTensors
    extra: Json  # what the run keeps beside the tensors
    where: str  # of the header, for messages
    world: World = field(default_factory=World.alone)  # whose parts are read

    @torch.no_grad()
    def fill(self, name: str, tensor: Tensor, whole: ParameterLayout) -> None:
        """Read this rank's part of a saved tensor into the tensor that has it."""
        part, saved = local_shard(tensor, whole, self.world), self.tensors[name]
        for box in part.boxes:
            read = saved.read(box.offset, box.size)
            if part.local.ndim:
                part.local[box.row : box.row + len(read)].copy_(read)
            else:
                part.local.copy_(read)


def parts_to_save(
    network: nn.Module, optimizer: Optimizer, more: Mapping[str, Tensor], world: World
) -> dict[str, LocalShard]:
    """Return what this rank writes of a network, its optimizer's state and `more`: of what several hold, the first
    writes it."""
    wholes, parts = parameter_layouts(network), {}
    for name, tensor in _tensors(network, optimizer, more):
        parameter = parameter_of(name)
        if parameter is None:  # carried from step to step: each data-parallel rank has its own
            if world.tensor_rank == 0:
                parts[name] = LocalShard(
                    tensor, tuple(tensor.shape), (Box((0,) * tensor.ndim, tuple(tensor.shape), 0),)
                )
        elif is_first_holder(tensor, wholes[parameter], world):
            part = local_shard(tensor, wholes[parameter], world)
            if part.boxes:
                parts[name] = part
    return parts


def _tensors(network: nn.Module, optimizer: Optimizer, more: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    yield from more.items()
    for name, parameter in network.named_parameters():
        yield f"{WEIGHTS}/{name}", parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{MOMENTS_OF}/{key}/{name}", value


def parameter_of(name: str) -> str | None:
    """Return the parameter that a tensor of a checkpoint belongs to; None: to no one."""
    kind, _, rest = name.partition("/")
    if kind == MOMENTS_OF:
        return rest.partition("/")[2]
    return None if kind == STATE_PREFIX[:-1] else rest


def check_optimizer_state(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer, steps: int) -> None:
    """Refuse a checkpoint whose optimizer state does not fit the network, or is not that of `steps` steps."""
    kept = {id(p): set(group.get("kept", MOMENTS)) for group in optimizer.param_groups for p in group["params"]}
    named, wholes = dict(network.named_parameters()), parameter_layouts(network)
    found: dict[str, set[str]] = {}
    taken = 0.0
    for name, tensor in checkpoint.tensors.items():
        if name.startswith((f"{WEIGHTS}/", BEST_PREFIX, STATE_PREFIX)):
            continue
        kind, key, parameter = _parts(name)
        if kind != MOMENTS_OF or parameter not in named or key not in MOMENTS:
            raise UserError(f"{checkpoint.where}: there is '{name}', which the run does not know")
        wanted = ((), torch.float32) if key == "step" else (wholes[parameter].shape, named[parameter].dtype)
        if (tensor.shape, tensor.dtype) != wanted:
            raise UserError(f"{checkpoint.where}: the optimizer state '{name}' has another shape or type")
        if key == "step":
            taken = max(taken, float(tensor.read()))  # a parameter that has no gradient in some steps takes fewer
        found.setdefault(parameter, set()).add(key)
    if incomplete := [parameter for parameter, keys in found.items() if keys != kept.get(id(named[parameter]))]:
        raise UserError(f"{checkpoint.where}: the optimizer state of '{incomplete[0]}' is incomplete")
    if taken != steps:
        raise UserError(f"{checkpoint.where}: the optimizer has taken {taken:.0f} steps, not {steps}")


def restore(checkpoint: Checkpoint, network: nn.Module, optimizer: Optimizer) -> None:
    """Read weights and optimizer state, each rank its part."""
    saved = saved_weights(checkpoint, f"{WEIGHTS}/")
    named, wholes = dict(network.named_parameters()), parameter_layouts(network)
    if not fit(saved, named, wholes):
        raise UserError(f"{checkpoint.where}: step {checkpoint.step} is of another model than the recipe's")
    for name, parameter in named.items():
        checkpoint.fill(f"{WEIGHTS}/{name}", parameter, wholes[name])
    for name, tensor in checkpoint.tensors.items():
        kind, key, parameter_name = _parts(name)
        if kind == MOMENTS_OF:
            parameter = named[parameter_name]
            state: dict[str, Any] = optimizer.state[parameter]
            if key == "step":
                # It stays where the optimizer keeps it: fused AdamW beside the weights, LAMB on the host.
                state[key] = tensor.read().to(parameter.device if optimizer.defaults.get("fused") else "cpu")
            else:
                state[key] = torch.empty_like(parameter, requires_grad=False)
                checkpoint.fill(name, state[key], wholes[parameter_name])


def saved_weights(checkpoint: Checkpoint, prefix: str) -> dict[str, SavedTensor]:
    """Return the tensors whose names begin so, by what follows."""
    return {n.removeprefix(prefix): tensor for n, tensor in checkpoint.tensors.items() if n.startswith(prefix)}


def fit(saved: Mapping[str, SavedTensor], named: Mapping[str, Tensor], wholes: Mapping[str, ParameterLayout]) -> bool:
    """Return whether saved tensors have the names, shapes and types of these parameters."""
    wanted = {name: (wholes[name].shape, parameter.dtype) for name, parameter in named.items()}
    return {name: (tensor.shape, tensor.dtype) for name, tensor in saved.items()} == wanted


def _parts(name: str) -> tuple[str, str, str]:
    kind, key, parameter = (*name.split("/", 2), "", "")[:3]
    return kind, key, parameter
