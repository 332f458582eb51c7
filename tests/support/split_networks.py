"""What else is asked of a network that is split among ranks: dropout, compilation, states of all layers, a cache."""

from typing import Any

import torch
from torch import Tensor, distributed

from bertree.batch import Batch, Continuation, PretrainingLabels
from bertree.model.layers.attention import Attention
from bertree.model.network import Network
from bertree.scale.split import wholes_of
from bertree.scale.tensor import put_tensor_parallel, sum_shared_gradients
from tests.support.tensor_parallel import (
    Ranks,
    difference,
    digest,
    joined,
    loss_of,
    make_batches,
    make_network,
    member,
    train,
    worst,
)


def split(name: str, ranks: Ranks, sequence_parallel: bool, **axes: Any) -> Network:
    """A small member, split."""
    network = make_network(member(name, **axes))
    put_tensor_parallel(network, ranks, sequence_parallel)
    return network


def slope(ranks: Ranks, sequence_parallel: bool) -> dict[str, Any]:
    """With dropout everywhere: how fast the loss falls in a random direction, by gradients and by two losses; and
    what all ranks must have alike afterwards."""
    network = split("bert", ranks, sequence_parallel, dropout=0.2, attention_dropout=0.2).double()
    batches = make_batches(member("bert"))
    loss = train(network, batches)
    state = digest({"random": torch.get_rng_state()})
    if sequence_parallel:
        sum_shared_gradients(network.named_parameters(), ranks)
    draw, directions, slopes, wholes = torch.Generator().manual_seed(5), {}, [0.0, 0.0], wholes_of(network)
    for name, parameter in network.named_parameters():
        shape, how = wholes[name]
        whole = torch.randn(shape, generator=draw, dtype=torch.float64)
        directions[name] = whole if how is None else how.cut(whole, ranks.tensor_rank, ranks.tensor)
        assert parameter.grad is not None
        slopes[how is None] += float((parameter.grad * directions[name]).sum())
    in_pieces = torch.tensor(slopes[0])
    distributed.all_reduce(in_pieces, group=ranks.tensor_group)
    step, losses = 1e-4, []
    for sign in (1.0, -2.0):
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.add_(directions[name], alpha=sign * step)
        losses.append(float(loss_of(network, batches).detach()))
    return {
        "by gradients": float(in_pieces) + slopes[1],
        "by losses": (losses[0] - losses[1]) / (2 * step),
        "loss": float(loss),
        "random": state,
    }


def attention_of_equal_heads(ranks: Ranks, sequence_parallel: bool, dropout: float) -> str:
    """A digest of what the heads of a rank compute where all heads have the same weights: what they drop is left."""
    network = split("gpt1", ranks, sequence_parallel, attention_dropout=dropout)
    part = network.encoder.stack.attention[0].part
    assert isinstance(part, Attention)
    with torch.no_grad():
        for piece in (*part.qkv.weight.chunk(3), *part.qkv.bias.chunk(3)):
            heads = piece.unflatten(0, (part.heads, part.head_width))
            distributed.broadcast(first := heads[0].clone(), group_src=0, group=ranks.tensor_group)
            heads.copy_(first.expand_as(heads))
    seen: dict[str, Tensor | None] = {}
    part.out.register_forward_pre_hook(lambda module, given: seen.update(mixed=given[0].detach()))
    loss_of(network, make_batches(member("gpt1")))
    return digest(seen)


def compiled(name: str, ranks: Ranks, sequence_parallel: bool, kind: str) -> tuple[float, str]:
    """How far gradients of a split network with compiled blocks of a kind are from those of a whole one."""
    batches, whole = make_batches(member(name)), make_network(member(name))
    network = split(name, ranks, sequence_parallel)
    for block in network.encoder.stack.get_submodule(kind).children():
        block.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    train(whole, batches)
    train(network, batches)
    if sequence_parallel:
        sum_shared_gradients(network.named_parameters(), ranks)
    gradients = joined(network, ranks, lambda parameter: parameter.grad)
    return worst(gradients, {name: p.grad for name, p in whole.named_parameters()})


def states_and_logits(ranks: Ranks, sequence_parallel: bool) -> dict[str, float]:
    """The states of all layers, and gradients through logits of the whole vocabulary, against a whole network."""
    batch = make_batches(member("bert"))[0]
    chosen, _ = PretrainingLabels.of(batch).predicted
    networks = [make_network(member("bert")), split("bert", ranks, sequence_parallel)]
    states = []
    for network in networks:
        states.append(list(network.encoder.states(batch)))
        logits = network.mask_logits(network(batch), chosen)
        logits.float().softmax(-1).square().sum().backward()
    if sequence_parallel:
        sum_shared_gradients(networks[1].named_parameters(), ranks)
    gradients = joined(networks[1], ranks, lambda parameter: parameter.grad)
    return {
        "states": max(difference(x, y) for x, y in zip(*states, strict=True)),
        "gradients": worst(gradients, {name: p.grad for name, p in networks[0].named_parameters()})[0],
    }


def in_half_precision(ranks: Ranks, sequence_parallel: bool) -> dict[str, Any]:
    """Loss and precision of the states under autocast, and the loss of a whole network."""
    batches = make_batches(member("bert"))
    networks = [make_network(member("bert")), split("bert", ranks, sequence_parallel)]
    with torch.autocast("cpu", torch.bfloat16):
        losses = [float(loss_of(network, batches).detach()) for network in networks]
        kinds = [str(network(batches[0]).dtype) for network in networks]
    return {"losses": losses, "kinds": kinds}


def generated(ranks: Ranks, sequence_parallel: bool) -> float:
    """How far logits of a token after a cached text are from those of a whole network."""
    found = []
    for network in (make_network(member("gpt2")), split("gpt2", ranks, sequence_parallel)):
        encoder: Any = network.eval().encoder
        with torch.no_grad():
            state = encoder.start_cache(2, 16)
            state = encoder.encode(Batch.pack([[7, 8, 9, 10], [11, 12, 13]]), state).state
            lanes = Continuation(torch.arange(2), torch.zeros(2, dtype=torch.bool), 2)
            batch = Batch(
                torch.tensor([5, 6]), torch.tensor([4, 3]), torch.zeros(2, dtype=torch.int64),
                torch.tensor([0, 1, 2], dtype=torch.int32), 1, continuation=lanes,
            )  # fmt: skip
            hidden = encoder.encode(batch, state).hidden
            found.append(network.mask_logits(hidden, torch.arange(2)))
    return difference(found[1], found[0])
