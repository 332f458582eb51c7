"""One function that spreads a network over the ranks of a world, and what a loop must know of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertree.model.layers.residual import Block, Reversible
from bertree.model.network import Network
from bertree.model.stack import Stack
from bertree.scale.gradients import clip, fill_missing_gradients, sum_whole_gradients
from bertree.scale.shard import Sharding, put_sharding
from bertree.scale.split import wholes_of
from bertree.scale.tensor import put_tensor_parallel, sum_shared_gradients
from bertree.scale.world import World

Named = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Distribution:
    """How a network is spread over ranks; by default it is not."""

    world: World = field(default_factory=World.alone)
    sharding: Sharding | None = None
    split: frozenset[str] = frozenset()  # parameters of which tensor ranks hold different pieces
    sequence_parallel: bool = False

    @property
    def device(self) -> torch.device | None:
        """Where a sharded network is computed, wherever its weights are kept; None: where they are."""
        on_gpu = self.sharding is not None and self.world.mesh.device_type == "cuda"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def before_micro_batch(self, is_last: bool) -> None:
        """Say whether the gradients of the next micro-batch complete those of the step."""
        if self.sharding is not None:
            self.sharding.before_micro_batch(is_last)

    def free_weights(self) -> None:
        """Free what was gathered for a pass without gradients."""
        if self.sharding is not None:
            self.sharding.free_weights()

    def clip_gradients(self, named: Named, max_norm: float) -> Tensor:
        """Complete the gradients of a step, scale them down to a norm of `max_norm` over all ranks, return the norm
        before."""
        if self.world.data > 1 and self.sharding is None:
            fill_missing_gradients(named, self.world)
        sum_whole_gradients(named, self.world)
        if self.sequence_parallel:
            sum_shared_gradients(named, self.world)
        return clip(named, max_norm, self.world, self.split)


def distribute(
    network: Network,
    world: World,
    *,
    zero: int = 0,
    sequence_parallel: bool = False,
    bf16: bool = False,
    recompute: bool = False,
    compiled: bool = False,
    offload: bool = False,
) -> Distribution:
    """Spread a network over the ranks, in place.

    After it, `named_parameters()` has the same names as on one device; each is a plain tensor (whole, or a piece of a
    split one) or a DTensor that the ranks of a copy share.
    """
    put_tensor_parallel(network, world, sequence_parallel)
    network.encoder.recompute(recompute)
    if compiled:
        compile_blocks(network)
    split = frozenset(name for name, whole in wholes_of(network).items() if whole.split is not None)
    sharding = put_sharding(network, world, zero, bf16, offload) if world.data > 1 or zero else None
    return Distribution(world, sharding, split, sequence_parallel and world.tensor > 1)


def compile_blocks(network: nn.Module) -> None:
    """Compile each block on its own: the hooks that gather weights lie between them, where a graph would break. Blocks
    of reversible layers, which must draw the same random numbers twice, are left as they are."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True  # as where a whole step is compiled
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        if not isinstance(stack.residual, Reversible):
            for block in [module for module in stack.modules() if isinstance(module, Block)]:
                block.compile(dynamic=False)
