"""Tensor parallelism: every rank computes some heads, inner units and entries of the vocabulary (Shoeybi et al. 2019).

Parameters are plain tensors, this rank's pieces of those that `split` names, under the names of one device. What is not
split is the same on every rank, and so are its gradients; with sequence parallelism those of the layers' norms and
biases are of this rank's tokens, until `sum_shared_gradients` has added them up. An adaptive softmax is not split.

Dropout: all tensor ranks must have the same random state before a batch. Dropout of whole tensors is then the same on
all of them, as on one device. Within attention every rank draws other numbers for its heads, unless layers are
compiled: then the i-th heads of all ranks drop the same. With sequence parallelism all layers draw other numbers on
every rank. Without dropout in attention, and without sequence parallelism, results with dropout are those of one
device.
"""

from collections.abc import Iterable
from math import ceil, gcd
from typing import Any, TypeVar, cast

import torch
from torch import distributed, nn

from bertree.errors import UserError
from bertree.model.architecture import Architecture, Transformer
from bertree.model.embeddings import TokenEmbeddings
from bertree.model.heads import MaskHead
from bertree.model.layers.adaptive import AdaptiveEmbeddings, AdaptiveSoftmax
from bertree.model.layers.attention import Attention
from bertree.model.layers.feed_forward import FeedForward, GatedFeedForward
from bertree.model.layers.lsh import ChunkedAttention, LshAttention, SharedQueryKeyAttention
from bertree.model.network import Network
from bertree.model.stack import Stack
from bertree.model.transformer import TransformerEncoder
from bertree.scale.split import split_of, splits_of, wholes_of
from bertree.scale.tensor_parts import PartEnds, PartialLinear, SequenceParallelStack
from bertree.scale.vocabulary import SplitMaskHead, SplitTokenEmbeddings, entries_of
from bertree.scale.wires import TensorRanks, Wires

ATTENTION = (Attention, SharedQueryKeyAttention, ChunkedAttention, LshAttention)
FEED_FORWARD = (FeedForward, GatedFeedForward)
M = TypeVar("M", bound=nn.Module)


def check_tensor(a: Architecture, size: int) -> None:
    """Check that tensor parallelism can split an architecture among so many ranks."""
    if size == 1:
        return
    if not isinstance(a, Transformer):
        raise UserError(f"scale.tensor: {size}: a {a.body} is not split among ranks; set it to 1")
    _check_sizes(a.heads, a.ffn_width, 0 if a.cutoffs else a.vocab_size, size)


def _check_sizes(heads: int, units: int, vocabulary: int, size: int) -> None:
    most = gcd(heads, units)
    works = [n for n in range(1, most + 1) if most % n == 0 and _fills(vocabulary, n)]
    if size in works:
        return
    what = f"{heads} heads" if heads % size else f"{units} inner units of a feed-forward part"
    what = what if most % size else f"a vocabulary of {vocabulary} entries"
    near = [max(n for n in works if n < size), *[n for n in works if n > size][:1]]
    raise UserError(
        f"scale.tensor: {size} ranks cannot share {what}; the nearest that can: {' and '.join(map(str, near))}"
    )


def _fills(vocabulary: int, ranks: int) -> bool:
    """Return whether every rank has an entry of a vocabulary; 0: it is not split."""
    return (ranks - 1) * ceil(vocabulary / ranks) < vocabulary or not vocabulary


def put_tensor_parallel(network: Network, world: TensorRanks, sequence_parallel: bool = False) -> None:
    """Keep this rank's pieces of a network, in place, and connect it to the ranks that have the others.

    All ranks must have built the same network. `sequence_parallel`: between the parts of layers each rank has a share
    of the tokens (Korthikanti et al. 2022)."""
    if world.tensor == 1:
        return
    encoder = network.encoder
    check_parts(network, world.tensor)
    assert isinstance(encoder, TransformerEncoder)
    wires = Wires.of(world, sequence_parallel)
    wholes = splits_of(network)
    vars(network)["wholes"] = wholes  # for `wholes_of`
    for name, whole in wholes.items():
        if whole.split is not None:
            module, _, own = name.rpartition(".")
            owner, parameter = network.get_submodule(module), network.get_parameter(name)
            piece = whole.split.cut(parameter.detach(), wires.rank, wires.ranks)
            setattr(owner, own, nn.Parameter(piece, parameter.requires_grad))
            _set_sizes(owner)
    for block in encoder.stack.attention:
        _split_attention(cast(Attention, block.part), wires)
    for block in encoder.stack.ffn:
        part = cast(FeedForward, block.part)
        PartEnds(wires, _turned(part.down, PartialLinear)).put_on(part)
    _split_vocabulary(network, wires)
    if sequence_parallel:
        _turned(encoder.stack, SequenceParallelStack, wires=wires)


def check_parts(network: Network, size: int) -> None:
    """Check that tensor parallelism knows the parts of a network, and can split them among so many ranks.

    Exact types: what a subclass computes besides would not be right in pieces."""
    encoder = network.encoder
    if not isinstance(encoder, TransformerEncoder):
        raise UserError(f"scale.tensor: {size}: a {type(encoder).__name__} is not split among ranks; set it to 1")
    stack = encoder.stack
    known: list[tuple[str, nn.Module, tuple[type[nn.Module], ...]]] = [("stack", stack, (Stack,))]
    known.append(("embeddings.tokens", encoder.embeddings.tokens, (TokenEmbeddings, AdaptiveEmbeddings)))
    for kind, blocks, types in (("attention", stack.attention, ATTENTION), ("ffn", stack.ffn, FEED_FORWARD)):
        for number, block in enumerate(blocks):
            name, part = f"stack.{kind}.{number}.part", cast(nn.Module, block.part)
            known.append((name, part, types))
            linear = [
                (own, module) for own, module in part.named_children() if own in ("qkv", "qv", "out", "up", "down")
            ]
            known += [(f"{name}.{own}", module, (nn.Linear,)) for own, module in linear]
    for name, module, allowed in known:
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


def _split_attention(part: Attention, wires: Wires) -> None:
    """Let an attention compute this rank's heads; their weights are split."""
    heads = part.heads // wires.ranks
    if isinstance(part, LshAttention):
        part.own_heads = slice(wires.rank * heads, (wires.rank + 1) * heads)
    part.heads = heads
    PartEnds(wires, _turned(part.out, PartialLinear)).put_on(part)


def _split_vocabulary(network: Network, wires: Wires) -> None:
    """Let token embeddings and mask head work with this rank's entries of the vocabulary; their weights are split."""
    tokens, whole = network.encoder.embeddings.tokens, wholes_of(network)
    if not isinstance(tokens, TokenEmbeddings):
        return
    vocabulary = whole["encoder.embeddings.tokens.weight"].shape[0]
    own = entries_of(vocabulary, wires)
    _turned(tokens, SplitTokenEmbeddings, wires=wires, first=own.start)
    if "mask" in network.heads:
        changes = {"wires": wires, "first": own.start, "entries": vocabulary, "vocab_size": len(own)}
        _turned(network.heads["mask"], SplitMaskHead, **changes)


def _turned(module: nn.Module, kind: type[M], **attributes: Any) -> M:
    """Turn a module into one of a subclass, in place: its parameters, their names and whoever refers to it stay."""
    assert issubclass(kind, type(module))
    module.__class__ = kind
    for name, value in attributes.items():
        setattr(module, name, value)
    return cast(M, module)


def _set_sizes(module: nn.Module) -> None:
    """Let the sizes of a module be those of its weight."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    if isinstance(module, nn.Embedding):
        module.num_embeddings = len(module.weight)


def summed_over_tensor(name: str) -> bool:
    """Return whether gradients of a parameter are, with sequence parallelism, of this rank's tokens alone."""
    return "encoder.stack." in name and split_of(name) is None


def sum_shared_gradients(named: Iterable[tuple[str, nn.Parameter]], world: TensorRanks) -> None:
    """Add up, with sequence parallelism, the gradients that are of each rank's tokens: once a step, before they are
    clipped. Of sharded parameters this is done shard by shard."""
    gradients = [p.grad for name, p in named if p.grad is not None and summed_over_tensor(name)]
    local = [g.to_local() if hasattr(g, "to_local") else g for g in gradients]
    if world.tensor == 1 or not local:
        return
    flat = torch.cat([gradient.flatten() for gradient in local])
    distributed.all_reduce(flat, group=world.tensor_group)
    for gradient, summed in zip(local, flat.split([gradient.numel() for gradient in local]), strict=True):
        gradient.copy_(summed.view_as(gradient))
