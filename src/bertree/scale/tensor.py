"""Tensor parallelism: every rank computes some heads, inner units and vocabulary entries (Shoeybi et al. 2019).

Parameters are plain tensors under the same names as on one device: this rank's shard of what `scale.split` names, all
of the others. Gradients of what is not split are equal on every rank, with one exception: with sequence parallelism
those of the layers' norms and biases cover this rank's tokens until `sum_shared_gradients` has added them up. An
adaptive softmax is not split.

Dropout: all tensor ranks must have the same random state before a batch. Dropout outside of attention then equals that
of one device. Inside attention every rank draws its own numbers for its heads; in compiled layers the i-th heads of all
ranks drop the same positions. With sequence parallelism every rank draws its own numbers in all layers. So results with
dropout equal those of one device if attention has no dropout and sequence parallelism is off.

docs/decisions.md says why PyTorch's DTensor plans are not used.
"""

from collections.abc import Iterable
from math import ceil, gcd
from typing import Any, TypeVar, cast

import torch
from torch import distributed, nn

from bertree.errors import UserError
from bertree.model.architecture import Architecture, Transformer
from bertree.model.heads import MaskHead
from bertree.model.layers.attention import Attention
from bertree.model.layers.attention_kinds import ChunkedAttention, LshAttention, SharedQueryKeyAttention
from bertree.model.layers.embeddings import AdaptiveEmbeddings, AdaptiveSoftmax, TokenEmbeddings
from bertree.model.layers.feed_forward import FeedForward, GatedFeedForward
from bertree.model.layers.stack import Stack
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder
from bertree.scale.shards import Split, parameter_layouts, split_layouts, split_of
from bertree.scale.tensor_components import (
    ComponentHooks,
    PartialLinear,
    SequenceParallelStack,
    SplitMaskHead,
    SplitTokenEmbeddings,
)
from bertree.scale.tensor_group import TensorGroup, TensorRanks

ATTENTION = (Attention, SharedQueryKeyAttention, ChunkedAttention, LshAttention)
FEED_FORWARD = (FeedForward, GatedFeedForward)
M = TypeVar("M", bound=nn.Module)


def check_tensor(a: Architecture, size: int) -> None:
    """Check that tensor parallelism can split an architecture among `size` ranks."""
    if size == 1:
        return
    if not isinstance(a, Transformer):
        raise UserError(f"scale.tensor: {size}: a {a.body} is not split among ranks; set it to 1")
    _check_sizes(a.heads, a.ffn_width, 0 if a.cutoffs else a.vocab_size, size)


def _check_sizes(heads: int, units: int, vocabulary: int, size: int) -> None:
    common = gcd(heads, units)
    possible = [n for n in range(1, common + 1) if common % n == 0 and _fills(vocabulary, n)]
    if size in possible:
        return
    what = f"{heads} heads" if heads % size else f"{units} inner units of a feed-forward layer"
    what = what if common % size else f"a vocabulary of {vocabulary} entries"
    nearest = [max(n for n in possible if n < size), *[n for n in possible if n > size][:1]]
    raise UserError(
        f"scale.tensor: {size} ranks cannot share {what}; the nearest that can: {' and '.join(map(str, nearest))}"
    )


def _fills(vocabulary: int, ranks: int) -> bool:
    """Return whether every rank gets at least one entry of a vocabulary; 0: it is not split."""
    return (ranks - 1) * ceil(vocabulary / ranks) < vocabulary or not vocabulary


def put_tensor_parallel(network: Network, world: TensorRanks, sequence_parallel: bool = False) -> None:
    """Replace a network's parameters by this rank's shards, in place, and connect it to the other ranks.

    All ranks must have built the same network. `sequence_parallel`: between the components of layers each rank has a
    share of the tokens (Korthikanti et al. 2022)."""
    if world.tensor == 1:
        return
    encoder = network.encoder
    check_components(network, world.tensor)
    assert isinstance(encoder, TransformerEncoder)
    group = TensorGroup.of(world, sequence_parallel)
    layouts = split_layouts(network)
    vars(network)["layouts"] = layouts  # for `parameter_layouts`
    for name, layout in layouts.items():
        if layout.split is not None:
            path, _, attribute = name.rpartition(".")
            module, parameter = network.get_submodule(path), network.get_parameter(name)
            shard = layout.split.cut(parameter.detach(), group.rank, group.ranks)
            setattr(module, attribute, nn.Parameter(shard, parameter.requires_grad))
            _set_sizes(module)
    for block in encoder.stack.attention:
        _split_attention(cast(Attention, block.part), group)
    for block in encoder.stack.ffn:
        feed_forward = cast(FeedForward, block.part)
        ComponentHooks(group, _change_class(feed_forward.down, PartialLinear)).register(feed_forward)
    _split_vocabulary(network, group)
    if sequence_parallel:
        _change_class(encoder.stack, SequenceParallelStack, group=group)


def check_components(network: Network, size: int) -> None:
    """Check that tensor parallelism knows every component of a network and can split it among `size` ranks.

    Types are compared exactly: a subclass may compute something that is wrong on a shard."""
    encoder = network.encoder
    if not isinstance(encoder, TransformerEncoder):
        raise UserError(f"scale.tensor: {size}: a {type(encoder).__name__} is not split among ranks; set it to 1")
    stack = encoder.stack
    components: list[tuple[str, nn.Module, tuple[type[nn.Module], ...]]] = [("stack", stack, (Stack,))]
    components.append(("embeddings.tokens", encoder.embeddings.tokens, (TokenEmbeddings, AdaptiveEmbeddings)))
    for kind, blocks, types in (("attention", stack.attention, ATTENTION), ("ffn", stack.ffn, FEED_FORWARD)):
        for number, block in enumerate(blocks):
            name, component = f"stack.{kind}.{number}.part", cast(nn.Module, block.part)
            components.append((name, component, types))
            components += [
                (f"{name}.{child}", module, (nn.Linear,))
                for child, module in component.named_children()
                if child in ("qkv", "qv", "out", "up", "down")
            ]
    for name, module, allowed in components:
        if type(module) not in allowed:
            raise UserError(
                f"scale.tensor: encoder.{name} is a {type(module).__name__}, which is not split among ranks"
            )
    head = dict(network.heads.items()).get("mask")
    if head is not None and type(head) not in (MaskHead, AdaptiveSoftmax):
        raise UserError(f"scale.tensor: heads.mask is a {type(head).__name__}, which is not split among ranks")
    tokens = encoder.embeddings.tokens
    vocabulary = len(tokens.weight) if isinstance(tokens, TokenEmbeddings) else 0
    heads = gcd(*(cast(Attention, block.part).heads for block in stack.attention))
    units = gcd(*(cast(FeedForward, block.part).down.in_features for block in stack.ffn))
    _check_sizes(heads, units, vocabulary, size)


def _split_attention(attention: Attention, group: TensorGroup) -> None:
    """Make an attention compute this rank's heads; their weights are split already."""
    heads = attention.heads // group.ranks
    if isinstance(attention, LshAttention):
        attention.own_heads = slice(group.rank * heads, (group.rank + 1) * heads)
    attention.heads = heads
    ComponentHooks(group, _change_class(attention.out, PartialLinear)).register(attention)


def _split_vocabulary(network: Network, group: TensorGroup) -> None:
    """Make token embeddings and mask head use this rank's vocabulary entries; their weights are split already."""
    tokens, layouts = network.encoder.embeddings.tokens, parameter_layouts(network)
    if not isinstance(tokens, TokenEmbeddings):
        return
    vocabulary = layouts["encoder.embeddings.tokens.weight"].shape[0]
    entries = Split(0).spans(vocabulary, group.rank, group.ranks)[0]
    _change_class(tokens, SplitTokenEmbeddings, group=group, first=entries.start)
    if "mask" in network.heads:
        attributes = {"group": group, "first": entries.start, "entries": vocabulary, "vocab_size": len(entries)}
        _change_class(network.heads["mask"], SplitMaskHead, **attributes)


def _change_class(module: nn.Module, kind: type[M], **attributes: Any) -> M:
    """Make a module an instance of a subclass, in place: its parameters, their names and references to it stay."""
    assert issubclass(kind, type(module))
    module.__class__ = kind
    for name, value in attributes.items():
        setattr(module, name, value)
    return cast(M, module)


def _set_sizes(module: nn.Module) -> None:
    """Set the sizes that a module states to those of its weight."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    if isinstance(module, nn.Embedding):
        module.num_embeddings = len(module.weight)


def summed_over_tensor(name: str) -> bool:
    """Return whether, with sequence parallelism, the gradient of a parameter covers this rank's tokens only."""
    return "encoder.stack." in name and split_of(name) is None


def sum_shared_gradients(named: Iterable[tuple[str, nn.Parameter]], world: TensorRanks) -> None:
    """With sequence parallelism, sum the gradients that cover each rank's tokens: once per step, before clipping.
    Sharded parameters are summed shard by shard."""
    gradients = [p.grad for name, p in named if p.grad is not None and summed_over_tensor(name)]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    if world.tensor == 1 or not local:
        return
    flat = torch.cat([gradient.flatten() for gradient in local])
    distributed.all_reduce(flat, group=world.tensor_group)
    for gradient, summed in zip(local, flat.split([gradient.numel() for gradient in local]), strict=True):
        gradient.copy_(summed.view_as(gradient))
