"""One function that spreads a network over the ranks of a world."""

from torch import nn

from bertree.model.layers.residual import Block, Reversible
from bertree.model.network import Network
from bertree.model.stack import Stack
from bertree.scale.shard import Sharding, put_sharding
from bertree.scale.world import World


def distribute(
    network: Network,
    world: World,
    *,
    zero: int = 0,
    bf16: bool = False,
    recompute: bool = False,
    compiled: bool = False,
    offload: bool = False,
) -> Sharding | None:
    """Spread a network over the ranks, in place; return what its loop tells it, if it is sharded.

    After it, `named_parameters()` has the same names as on one device; each is a plain tensor (whole, or a piece of a
    split one) or a DTensor that the ranks of a copy share.
    """
    network.encoder.recompute(recompute)
    if compiled:
        compile_blocks(network)
    if world.data > 1 or zero:
        return put_sharding(network, world, zero, bf16, offload)
    return None


def compile_blocks(network: nn.Module) -> None:
    """Compile each block on its own: the hooks that gather weights lie between them, where a graph would break. Blocks
    of reversible layers, which must draw the same random numbers twice, are left as they are."""
    import torch._inductor.config

    torch._inductor.config.fallback_random = True  # as where a whole step is compiled
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        if not isinstance(stack.residual, Reversible):
            for block in [module for module in stack.modules() if isinstance(module, Block)]:
                block.compile(dynamic=False)
