"""Spread a network over the ranks of a run: tensor parallelism, then data parallelism and ZeRO by PyTorch's FSDP2.

`distribute` is the only entry point; the training loop asks the `Distribution` it returns.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertree.errors import UserError
from bertree.model.heads import MaskHead
from bertree.model.layers.basic import RmsNorm
from bertree.model.layers.embeddings import TokenEmbeddings
from bertree.model.layers.residual import Block, Reversible
from bertree.model.layers.stack import Stack
from bertree.model.network import Network
from bertree.model.torch_internals import limit_recompilations, prepare_compiler
from bertree.model.transformer import TransformerEncoder
from bertree.scale.shards import clip, fill_missing_gradients, parameter_layouts, sum_whole_gradients
from bertree.scale.tensor import put_tensor_parallel, sum_shared_gradients
from bertree.scale.world import World

FORWARD_METHODS = ("encode",)  # methods beside `forward` through which objectives enter a network


class Stage(NamedTuple):
    """What a stage of ZeRO does. Stages 1 to 3 shard weights and optimizer state between steps."""

    frees_weights: bool  # after each layer's forward pass; they are gathered again for the backward pass
    reduces_each: bool  # reduce gradients after every micro-batch instead of after the last one


STAGES = {0: Stage(False, False), 1: Stage(False, False), 2: Stage(False, True), 3: Stage(True, True)}


@dataclass(frozen=True)
class Sharding:
    """The FSDP2 modules of a network, as the training loop drives them."""

    stage: Stage
    root: Any  # FSDPModule
    modules: tuple[Any, ...]  # all of them, the root too

    def before_micro_batch(self, is_last: bool) -> None:
        """Tell the modules whether the next micro-batch is the last one of the step."""
        if not self.stage.reduces_each:
            self.root.set_requires_gradient_sync(is_last)
        if not self.stage.frees_weights:
            self.root.set_reshard_after_backward(is_last)

    def free_weights(self) -> None:
        """Free the weights that a pass without gradients has gathered."""
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
    """Return the blocks of each layer, which are gathered together. Blocks that several layers share, and those of
    reversible layers, whose backward pass recomputes them, are gathered with the rest of the network."""
    layers: list[list[nn.Module]] = []
    for stack in [module for module in network.modules() if isinstance(module, Stack)]:
        if isinstance(stack.residual, Reversible):
            continue
        uses = Counter(("attention", a) for a, _ in stack.sharing) + Counter(("ffn", f) for _, f in stack.sharing)
        for a, f in stack.sharing:
            blocks = [(("attention", a), stack.attention[a]), (("ffn", f), stack.ffn[f])]
            layers.append([block for key, block in blocks if uses[key] == 1])
    return [blocks for blocks in layers if blocks]


def whole_parameters(network: nn.Module, bf16: bool) -> set[nn.Parameter]:
    """Return the parameters that are not sharded: those that a layer borrows from another, and with `bf16` those of
    norms, which are computed in float32."""
    borrowed = {parameter for module in network.modules() for parameter in getattr(module, "borrowed", ())}
    norms = [module for module in network.modules() if bf16 and isinstance(module, nn.LayerNorm | RmsNorm)]
    return borrowed | {parameter for norm in norms for parameter in norm.parameters()}


Named = Sequence[tuple[str, nn.Parameter]]
RECOMPILE_LIMIT = 64  # one graph per shape, phase of a run and kind of layer; PyTorch's default is 8


@dataclass(frozen=True)
class Distribution:
    """How a network is spread over ranks; by default it is on one device."""

    world: World = field(default_factory=World.alone)
    sharding: Sharding | None = None
    split: frozenset[str] = frozenset()  # parameters of which tensor ranks hold different shards
    sequence_parallel: bool = False
    compiled: bool = False  # each component of the network is compiled on its own

    @property
    def device(self) -> torch.device | None:
        """The device a sharded network computes on, even if its weights are offloaded; None: where the weights are."""
        on_gpu = self.sharding is not None and self.world.mesh.device_type == "cuda"
        return torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def before_micro_batch(self, is_last: bool) -> None:
        """Tell FSDP2 whether the next micro-batch is the last one of the step."""
        if self.sharding is not None:
            self.sharding.before_micro_batch(is_last)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluate without compiling, because held-out batches have many shapes; then free gathered weights."""
        if self.compiled:
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield
        if self.sharding is not None:
            self.sharding.free_weights()

    def clip_gradients(self, named: Named, max_norm: float) -> Tensor:
        """Finish the gradients of a step and clip them to a norm of `max_norm` over all ranks; return the norm before
        clipping."""
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

    After it, `named_parameters()` has the same names as on one device; each is a plain tensor (whole, or the shard of a
    tensor rank) or a DTensor that the data ranks of a copy share.
    """
    put_tensor_parallel(network, world, sequence_parallel)
    network.encoder.recompute(recompute)
    if compiled:
        compile_components(network)
    split = frozenset(name for name, layout in parameter_layouts(network).items() if layout.split is not None)
    sharding = put_sharding(network, world, zero, bf16, offload) if world.data > 1 or zero else None
    return Distribution(world, sharding, split, sequence_parallel and world.tensor > 1, compiled)


def compile_components(network: Network) -> None:
    """Compile embeddings, blocks, the last norm and the mask head with its loss, each on its own: hooks that gather
    weights run between them and would break a graph.

    Not compiled: blocks of reversible layers, which must draw the same random numbers twice, and an adaptive softmax,
    whose shapes depend on the tokens."""
    prepare_compiler()
    limit_recompilations(RECOMPILE_LIMIT)
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
