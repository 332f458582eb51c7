"""Data parallelism and ZeRO by PyTorch's FSDP2: who holds which part of weights, gradients and optimizer state."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from bertree.errors import UserError
from bertree.model.layers.norms import RmsNorm
from bertree.model.layers.residual import Reversible
from bertree.model.stack import Stack
from bertree.scale.world import World

FORWARD_METHODS = ("encode",)  # methods beside `forward` through which objectives enter a network


class Stage(NamedTuple):
    """What a stage of ZeRO does. All stages but 0 shard weights and optimizer state while no step is computed."""

    frees_weights: bool  # after the forward pass of each layer; they are gathered again for the backward pass
    reduces_each: bool  # gradients of each micro-batch, so that no rank holds all of them; else those of the last


STAGES = {0: Stage(False, False), 1: Stage(False, False), 2: Stage(False, True), 3: Stage(True, True)}


@dataclass(frozen=True)
class Sharding:
    """What the loop tells sharded modules."""

    stage: Stage
    root: Any  # FSDPModule
    modules: tuple[Any, ...]  # all of them, the root too

    def before_micro_batch(self, is_last: bool) -> None:
        """Say whether the gradients of the next micro-batch complete those of the step."""
        if not self.stage.reduces_each:
            self.root.set_requires_gradient_sync(is_last)
        if not self.stage.frees_weights:
            self.root.set_reshard_after_backward(is_last)

    def free_weights(self) -> None:
        """Free what was gathered for a pass without gradients."""
        for module in self.modules:
            module.reshard()


def put_sharding(network: nn.Module, world: World, zero: int, bf16: bool = False, offload: bool = False) -> Sharding:
    """Put FSDP2 on a network: its parameters become DTensors, sharded on their first dimension.

    Gradients are sums over the data ranks. `bf16`: weights are gathered in bfloat16, gradients added up in float32.
    Some small parameters stay whole on every rank (`whole_parameters`).
    """
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        FSDPModule,
        MixedPrecisionPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    if offload and world.mesh.device_type != "cuda":
        raise UserError("scale.offload=true: moves weights out of a GPU's memory; this run has no GPU, so leave it out")
    stage = STAGES[zero]
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None,
        reduce_dtype=torch.float32 if bf16 else None,
        cast_forward_inputs=False,
    )
    options: dict[str, Any] = {
        "mesh": world.mesh,
        "mp_policy": precision,
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        "ignored_params": whole_parameters(network, bf16),
    }
    for layer in layers_of(network):
        fully_shard(layer, reshard_after_forward=stage.frees_weights, **options)
    root = fully_shard(network, reshard_after_forward=False, **options)
    for method in FORWARD_METHODS:
        if hasattr(network, method):
            register_fsdp_forward_method(network, method)
    modules = tuple(module for module in network.modules() if isinstance(module, FSDPModule))
    for module in modules if world.data > 1 else ():
        module.set_gradient_divide_factor(1.0)  # the loop divides by the targets of all ranks
        module.set_force_sum_reduction_for_comms(True)
    return Sharding(stage, root, modules)


def layers_of(network: nn.Module) -> list[list[nn.Module]]:
    """Return the blocks of each layer, which are gathered together. Blocks that several layers use, and those of
    reversible layers, whose backward pass computes them again, are gathered with the rest of the network."""
    found: list[list[nn.Module]] = []
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        if isinstance(stack.residual, Reversible):
            continue
        uses = Counter(("attention", a) for a, _ in stack.plan) + Counter(("ffn", f) for _, f in stack.plan)
        for a, f in stack.plan:
            blocks = [(("attention", a), stack.attention[a]), (("ffn", f), stack.ffn[f])]
            found.append([block for key, block in blocks if uses[key] == 1])
    return [blocks for blocks in found if blocks]


def whole_parameters(network: nn.Module, bf16: bool) -> set[nn.Parameter]:
    """Return the parameters that every data rank holds whole: those that a layer borrows from another, and with
    `bf16` those of norms, which are computed in float32."""
    borrowed = {parameter for module in network.modules() for parameter in getattr(module, "borrowed", ())}
    norms = [module for module in network.modules() if bf16 and isinstance(module, nn.LayerNorm | RmsNorm)]
    return borrowed | {parameter for norm in norms for parameter in norm.parameters()}
