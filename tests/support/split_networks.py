"""What else is asked of a network that is split among ranks: dropout, compilation, states of all layers, a cache."""

from typing import Any

import torch
from torch import Tensor, distributed

from bertree.batch import Batch, Continuation, PretrainingLabels
from bertree.model.layers.attention import Attention
from bertree.model.network import Network
from bertree.scale.distribute import distribute
from bertree.scale.launch import Launch
from bertree.scale.shards import local, parameter_layouts
from bertree.scale.tensor import put_tensor_parallel, sum_shared_gradients
from bertree.scale.world import World, join
from tests.support.tensor_parallel import (
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


def split(name: str, world: World, sequence_parallel: bool, **axes: Any) -> Network:
    """A small member, split."""
    network = make_network(member(name, **axes))
    put_tensor_parallel(network, world, sequence_parallel)
    return network


def slope(world: World, sequence_parallel: bool) -> dict[str, Any]:
    """With dropout everywhere: how fast the loss falls in a random direction, by gradients and by two losses; and
    what all ranks must have alike afterwards."""
    network = split("bert", world, sequence_parallel, dropout=0.2, attention_dropout=0.2).double()
    batches = make_batches(member("bert"))
    loss = train(network, batches)
    state = digest({"random": torch.get_rng_state()})
    if sequence_parallel:
        sum_shared_gradients(network.named_parameters(), world)
    draw, directions, slopes, layouts = torch.Generator().manual_seed(5), {}, [0.0, 0.0], parameter_layouts(network)
    for name, parameter in network.named_parameters():
        shape, how = layouts[name]
        whole = torch.randn(shape, generator=draw, dtype=torch.float64)
        directions[name] = whole if how is None else how.cut(whole, world.tensor_rank, world.tensor)
        assert parameter.grad is not None
        slopes[how is None] += float((parameter.grad * directions[name]).sum())
    in_pieces = torch.tensor(slopes[0])
    distributed.all_reduce(in_pieces, group=world.tensor_group)
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


def attention_of_equal_heads(world: World, sequence_parallel: bool, dropout: float) -> str:
    """A digest of what the heads of a rank compute where all heads have the same weights: what they drop is left."""
    network = split("gpt1", world, sequence_parallel, attention_dropout=dropout)
    part = network.encoder.stack.attention[0].part
    assert isinstance(part, Attention)
    with torch.no_grad():
        for piece in (*part.qkv.weight.chunk(3), *part.qkv.bias.chunk(3)):
            heads = piece.unflatten(0, (part.heads, part.head_width))
            distributed.broadcast(first := heads[0].clone(), group_src=0, group=world.tensor_group)
            heads.copy_(first.expand_as(heads))
    seen: dict[str, Tensor | None] = {}
    part.out.register_forward_pre_hook(lambda module, arguments: seen.update(mixed=arguments[0].detach()))
    loss_of(network, make_batches(member("gpt1")))
    return digest(seen)


def compiled(name: str, world: World, sequence_parallel: bool, kind: str) -> tuple[float, str]:
    """How far gradients of a split network with compiled blocks of a kind are from those of a whole one. One rank of a
    pair compiles: the first, or with sequence parallelism the second."""
    batches, whole = make_batches(member(name)), make_network(member(name, layers=1))
    network = split(name, world, sequence_parallel, layers=1)
    for block in network.encoder.stack.get_submodule(kind).children() if world.tensor_rank == sequence_parallel else ():
        block.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    train(whole, batches)
    train(network, batches)
    if sequence_parallel:
        sum_shared_gradients(network.named_parameters(), world)
    gradients = joined(network, world, lambda parameter: parameter.grad)
    return worst(gradients, {name: p.grad for name, p in whole.named_parameters()})


def states_and_logits(world: World, sequence_parallel: bool) -> dict[str, float]:
    """The states of all layers, and gradients through logits of the whole vocabulary, against a whole network."""
    batch = make_batches(member("bert"))[0]
    chosen, _ = PretrainingLabels.of(batch).predicted
    networks = [make_network(member("bert")), split("bert", world, sequence_parallel)]
    states = []
    for network in networks:
        states.append(list(network.encoder.states(batch)))
        logits = network.mask_logits(network(batch), chosen)
        logits.float().softmax(-1).square().sum().backward()
    if sequence_parallel:
        sum_shared_gradients(networks[1].named_parameters(), world)
    gradients = joined(networks[1], world, lambda parameter: parameter.grad)
    return {
        "states": max(difference(x, y) for x, y in zip(*states, strict=True)),
        "gradients": worst(gradients, {name: p.grad for name, p in networks[0].named_parameters()})[0],
    }


def in_half_precision(world: World, sequence_parallel: bool) -> dict[str, Any]:
    """Loss and precision of the states under autocast, and the loss of a whole network."""
    batches = make_batches(member("bert"))
    networks = [make_network(member("bert")), split("bert", world, sequence_parallel)]
    with torch.autocast("cpu", torch.bfloat16):
        losses = [float(loss_of(network, batches).detach()) for network in networks]
        kinds = [str(network(batches[0]).dtype) for network in networks]
    return {"losses": losses, "kinds": kinds}


def generated(world: World, sequence_parallel: bool) -> float:
    """How far logits of a token after a cached text are from those of a whole network."""
    differences = []
    for network in (make_network(member("gpt2")), split("gpt2", world, sequence_parallel)):
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
            differences.append(network.mask_logits(hidden, torch.arange(2)))
    return difference(differences[1], differences[0])


def gathered(tensor: Any) -> Tensor | None:
    """The shards of all data ranks, if a tensor is sharded."""
    full: Tensor | None = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def on_a_mesh(name: str, launch: Launch, sequence_parallel: bool) -> dict[str, Any]:
    """Gradients of two data ranks of two tensor ranks each, sharded on top (ZeRO 3), against those of one network that
    reads the batches of both."""
    a = member(name)
    each = [make_batches(a, seed) for seed in (0, 1)]
    whole = make_network(a)
    for batches in each:
        train(whole, batches)
    with join(launch, data=2, tensor=2, zero=3) as world:
        network = make_network(a)
        distribution = distribute(network, world, zero=3, sequence_parallel=sequence_parallel)
        distribution.before_micro_batch(is_last=True)
        named = list(network.named_parameters())
        train(network, each[world.data_rank])
        norm = distribution.clip_gradients(named, 1e9)
        held = sum(local(parameter).numel() for _, parameter in named)
        gradients = joined(network, world, lambda parameter: gathered(parameter.grad))
        wanted = {name: p.grad for name, p in whole.named_parameters()}
        squares = sum(float(g.double().square().sum()) for g in wanted.values() if g is not None)
        return {
            "gradients": worst(gradients, wanted),
            "norm": abs(float(norm) / squares**0.5 - 1.0),
            "share": held / sum(p.numel() for p in whole.parameters()),
        }
