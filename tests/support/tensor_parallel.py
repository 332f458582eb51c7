"""Small members of the family, whole and split among gloo processes: cases that run in every rank of one spawn."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode

from bertree.batch import Batch, Continuation, Permutation, PretrainingLabels
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import Network, build
from bertree.model.presets import PRESETS
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.plan.communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, tensor_traffic, total
from bertree.scale.shards import parameter_layouts
from bertree.scale.tensor import put_tensor_parallel, sum_shared_gradients
from bertree.scale.world import World

VOCABULARY = 51  # neither 2 nor 4 ranks share it evenly
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "layers": 2,
    "width": 32,
    "heads": 4,
    "ffn_width": 64,
    "max_positions": 40,
    "init_std": 0.2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
REFORMER: dict[str, Any] = {
    "head_width": 0,
    "axial_shape": "5,8",
    "axial_widths": "",
    "attention": "chunked,lsh",
    "chunk_length": 4,
    "lsh_chunk_length": 4,
    "buckets": "0",
    "hashes": 2,
    "ffn_chunk": 4,
}
MEMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert-base", {}),
    "bert pre-norm": ("megatron-bert", {}),
    "roberta": ("roberta-base", {}),
    "albert": ("albert-base", {"embedding_width": 16}),
    "distilbert": ("distilbert-base", {}),
    "gpt1": ("gpt1", {}),
    "gpt2": ("gpt2", {}),
    "transformer-xl": ("transformer-xl-enwik8-12", {"memory": 6}),
    "transformer-xl adaptive": ("transformer-xl-base", {"memory": 6, "cutoffs": "20,40", "shared_position_bias": True}),
    "transformer-xl pre-norm": ("transformer-xl-enwik8-12", {"memory": 6, "residual": "pre-norm"}),
    "xlnet": ("xlnet-base", {}),
    "xlnet with memory": ("xlnet-base", {"memory": 6}),
    "ctrl": ("ctrl", {}),
    "reformer": ("reformer-enwik8", REFORMER),
    "reformer shared qk": ("reformer-base", REFORMER | {"attention": "full"} | {"shared_qk": True}),
    "modernbert": ("modernbert-base", {"window": 4}),
}


def member(name: str, **axes: Any) -> Architecture:
    """A small member of the family."""
    parent, own = MEMBERS[name]
    return PRESETS[parent].architecture.with_values(SMALL | own | axes)


def make_network(a: Architecture, seed: int = 0) -> Network:
    """Its network with the heads of pretraining, every parameter away from 0."""
    torch.manual_seed(seed)
    network = build(a, {"mask": 0} | ({"pair": 2} if getattr(a, "pooler", False) else {}))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return network


def make_batches(a: Any, seed: int = 0, lengths: tuple[int, ...] = (11, 17, 9)) -> list[Batch]:
    """Batches of 37 tokens, which no 2 or 4 ranks share evenly; with a memory a second one continues the first."""
    draw = torch.Generator().manual_seed(seed)
    batches = []
    for number in range(2 if a.memory else 1):
        ids = [torch.randint(5, VOCABULARY, (length,), generator=draw).tolist() for length in lengths]
        batch = Batch.pack(ids, [[0] * 4 + [1] * (length - 4) for length in lengths] if a.segments else None)
        chosen = torch.tensor([1, 4, 12, 15, 20, 30, 33])
        labels = PretrainingLabels(
            chosen, torch.tensor([6, 50, -100, 13, 26, 25, 39]), torch.tensor([1, 1, -100]) if a.pooler else None
        )
        if a.memory:
            lanes = len(lengths)
            fresh = torch.full((lanes,), number == 0)
            batch = replace(batch, continuation=Continuation(torch.arange(lanes), fresh, lanes))
        if a.query_stream:
            ranks = torch.zeros(sum(lengths), dtype=torch.int32)
            ranks[chosen] = torch.tensor([2, 1, 1, 2, 3, 1, 2], dtype=torch.int32)
            bounds = torch.tensor([0, 2, 5, 7], dtype=torch.int32)
            batch = replace(batch, permutation=Permutation(ranks, chosen, bounds, 3))
            labels = replace(labels, masked=sum(lengths) + torch.arange(len(chosen)))
        batches.append(replace(batch, labels=labels))
    return batches


def train(network: Network, batches: list[Batch], seed: int = 3) -> Tensor:
    """Compute the loss of some batches and its gradients; return the loss."""
    total = loss_of(network, batches, seed)
    total.backward()
    return total.detach()


def loss_of(network: Network, batches: list[Batch], seed: int = 3) -> Tensor:
    """The loss of some batches, with dropout by a seed."""
    torch.manual_seed(seed)
    weights = {"mlm": 1.0} | ({"nsp": 1.0} if "pair" in network.heads else {})
    objective, state, sums = pretraining_objective(**weights), None, []
    for batch in batches:
        computed = objective(network, batch, state)
        state = computed.memory
        sums += [loss.sum for loss in computed.losses.values()]
    return torch.stack(sums).sum()


def evaluate(network: Network, batches: list[Batch]) -> tuple[list[float], Tensor]:
    """Losses and numbers of correct predictions without gradients, and the logits of the last batch."""
    objective, state, figures = pretraining_objective(mlm=1.0), None, []
    with torch.no_grad():
        for batch in batches:
            computed = objective(network, batch, state)
            state = computed.memory
            figures += [x for loss in computed.losses.values() for x in (float(loss.sum), float(loss.correct))]
        hidden = network.encode(batch, None).hidden
        return figures, network.mask_logits(hidden, PretrainingLabels.of(batch).predicted[0])


def joined(network: Network, world: World, of: Callable[[Any], Tensor | None]) -> dict[str, Tensor | None]:
    """Whole tensors of the pieces of all ranks; of what all ranks have, this rank's."""
    layouts = parameter_layouts(network)
    tensors = {name: of(parameter) for name, parameter in network.named_parameters()}
    splits = {name: layouts[name].split for name, tensor in tensors.items() if tensor is not None}
    pieces = {name: tensors[name].numpy() for name, split in splits.items() if split is not None}
    of_ranks: list[Any] = [None] * world.tensor
    distributed.all_gather_object(of_ranks, pieces, group=world.tensor_group)
    for name in pieces:
        tensors[name] = splits[name].join([torch.from_numpy(rank[name]) for rank in of_ranks])
    return tensors


def difference(tensor: Tensor, wanted: Tensor) -> float:
    """The relative norm of the difference."""
    return float(
        (tensor.detach().double() - wanted.detach().double()).norm() / wanted.detach().double().norm().clamp(min=1e-12)
    )


def worst(tensors: dict[str, Tensor | None], wanted: dict[str, Tensor | None]) -> tuple[float, str]:
    """The largest difference of two networks' tensors, and its name."""
    assert tensors.keys() == wanted.keys()
    pairs = []
    for name, tensor in wanted.items():
        got = tensors[name]
        assert (tensor is None) == (got is None), name
        if tensor is not None and got is not None:
            assert tensor.shape == got.shape, name
            # A bias of keys, which adds the same to all scores, has no gradient but noise.
            pairs.append((difference(got, tensor) if tensor.norm() > 1e-5 else float(got.norm()), name))
    return max(pairs)


def compare(name: str, world: World, sequence_parallel: bool, recompute: bool = False, **axes: Any) -> dict[str, Any]:
    """How far a split member is from the whole one: loss, gradients, and evaluation."""
    a = member(name, **axes)
    whole, wanted_loss, wanted_figures, wanted_logits, batches = _of_whole(name, tuple(axes.items()))
    network = make_network(a)
    put_tensor_parallel(network, world, sequence_parallel)
    network.encoder.recompute(recompute)
    loss = train(network, batches)
    if sequence_parallel:
        sum_shared_gradients(network.named_parameters(), world)
    gradients = joined(network, world, lambda parameter: parameter.grad)
    weights = joined(network, world, lambda parameter: parameter.detach())
    figures, logits = evaluate(network.eval(), batches)
    return {
        "loss": abs(float(loss / wanted_loss) - 1.0),
        "gradients": worst(gradients, {name: p.grad for name, p in whole.named_parameters()}),
        "weights": worst(weights, {name: p.detach() for name, p in whole.named_parameters()}),
        "evaluation": max(abs(x / y - 1.0) if y else abs(x) for x, y in zip(figures, wanted_figures, strict=True)),
        "logits": difference(logits, wanted_logits),
        "digest": digest(gradients),
    }


@cache
def _of_whole(name: str, axes: tuple[tuple[str, Any], ...]) -> tuple[Network, Tensor, list[float], Tensor, list[Batch]]:
    a = member(name, **dict(axes))
    batches, network = make_batches(a), make_network(a)
    loss = train(network, batches)
    return network, loss, *evaluate(network.eval(), batches), batches


def digest(tensors: dict[str, Tensor | None]) -> str:
    """What differs if any bit of some tensors does."""
    sha = hashlib.sha256()
    for name, tensor in tensors.items():
        sha.update(name.encode() + (b"" if tensor is None else tensor.contiguous().numpy().tobytes()))
    return sha.hexdigest()


class Collectives(TorchDispatchMode):
    """Counts the calls and the bytes of functional collectives, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        kind = KINDS.get(func.overloadpacket._qualified_op_name)
        if kind is not None:
            larger = max(args[0].nbytes, out.nbytes)
            calls, size = self.found.get(kind, [0, 0])
            self.found[kind] = [calls + 1, size + larger]
        return out


KINDS = {
    "_c10d_functional::all_reduce": ALL_REDUCE,
    "_c10d_functional::all_gather_into_tensor": ALL_GATHER,
    "_c10d_functional::reduce_scatter_tensor": REDUCE_SCATTER,
}


def count_collectives(
    name: str, world: World, sequence_parallel: bool, recompute: bool = False, **axes: Any
) -> tuple[dict[str, list[int]], dict[str, tuple[int, int]]]:
    """What the ranks tell each other for a batch: counted, and by the formula."""
    a = member(name, **{"pooler": False} | axes)
    network, batches = make_network(a), make_batches(a)
    put_tensor_parallel(network, world, sequence_parallel)
    network.encoder.recompute(recompute)
    with Collectives() as counted:
        train(network, batches)
    predicted = len(PretrainingLabels.of(batches[0]).predicted[0])
    sizes = (len(batches[0].ids), predicted, world.tensor)
    lanes = len(batches[0].cu_seqlens) - 1
    wanted = tensor_traffic(
        cast(Transformer, a), *sizes, sequence_parallel=sequence_parallel, recompute=recompute, lanes=lanes
    )
    return counted.found, {
        kind: (calls * len(batches), size * len(batches)) for kind, (calls, size) in total(wanted).items()
    }
