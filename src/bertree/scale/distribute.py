"""One function that spreads a network over the ranks of a world, and what a loop must know of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bertree.model.compiler import prepare_compiler
from bertree.model.embeddings import TokenEmbeddings
from bertree.model.heads import MaskHead
from bertree.model.layers.residual import Block, Reversible
from bertree.model.network import Network
from bertree.model.stack import Stack
from bertree.model.transformer import TransformerEncoder
from bertree.scale.gradients import clip, fill_missing_gradients, sum_whole_gradients
from bertree.scale.shard import Sharding, put_sharding
from bertree.scale.split import wholes_of
from bertree.scale.tensor import put_tensor_parallel, sum_shared_gradients
from bertree.scale.world import World

Named = Sequence[tuple[str, nn.Parameter]]
GRAPHS = 64  # of one function: for each shape, each phase of a run and each kind of layer; PyTorch's limit is 8


@dataclass(frozen=True)
class Distribution:
    """How a network is spread over ranks; by default it is not."""

    world: World = field(default_factory=World.alone)
    sharding: Sharding | None = None
    split: frozenset[str] = frozenset()  # parameters of which tensor ranks hold different pieces
    sequence_parallel: bool = False
    compiled: bool = False  # the parts of the network, each on its own

    @property
    def device(self) -> torch.device | None:
        """Where a sharded network is computed, wherever its weights are kept; None: where they are."""
        on_gpu = self.sharding is not None and self.world.mesh.device_type == "cuda"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def before_micro_batch(self, is_last: bool) -> None:
        """Say whether the gradients of the next micro-batch complete those of the step."""
        if self.sharding is not None:
            self.sharding.before_micro_batch(is_last)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """While the block runs nothing is compiled: held-out batches have many shapes. Then free what was gathered."""
        if self.compiled:
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield
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
        compile_parts(network)
    split = frozenset(name for name, whole in wholes_of(network).items() if whole.split is not None)
    sharding = put_sharding(network, world, zero, bf16, offload) if world.data > 1 or zero else None
    return Distribution(world, sharding, split, sequence_parallel and world.tensor > 1, compiled)


def compile_parts(network: Network) -> None:
    """Compile embeddings, blocks, the last norm, and the head of tokens with its loss, each on its own: the hooks that
    gather weights lie between them, where a graph would break.

    Blocks of reversible layers, which must draw the same random numbers twice, and clusters of a vocabulary, whose
    shapes depend on the tokens, are left as they are."""
    import torch._dynamo.config

    prepare_compiler()
    torch._dynamo.config.recompile_limit = GRAPHS
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        if not isinstance(stack.residual, Reversible):
            for block in [module for module in stack.modules() if isinstance(module, Block)]:
                block.compile(dynamic=False)
    encoder = network.encoder
    if isinstance(encoder.embeddings.tokens, TokenEmbeddings):
        _compile_method(encoder.embeddings, "forward")
    if isinstance(encoder, TransformerEncoder) and encoder.norm is not None:
        _compile_method(encoder.norm, "forward")
    if "mask" in network.heads and isinstance(network.heads["mask"], MaskHead):
        _compile_method(network, "mask_loss")


def _compile_method(module: nn.Module, name: str) -> None:
    vars(module)[name] = torch.compile(getattr(module, name), dynamic=False)
