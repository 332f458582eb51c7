"""Gradients of all ranks: completed, measured, clipped; and sums of squares over parts of tensors.

A parameter is a DTensor, of which each rank of a copy holds a part, or a plain tensor that is whole, or a piece of one
that tensor ranks share.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from bertree.scale.world import World

Named = Sequence[tuple[str, nn.Parameter]]


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, in the same memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the ranks of a copy hold parts of a tensor."""
    return hasattr(tensor, "to_local")


def first_row(tensor: Tensor, world: World) -> int:
    """Return the place in a tensor of the first row that this rank holds."""
    return world.shard_rank * -(-len(tensor) // world.shard) if is_sharded(tensor) else 0


def squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of squares of each tensor. PyTorch's norm on the CPU is off by as much as 1e-4 of it."""
    if tensors and tensors[0].is_cuda:
        norms = torch._foreach_norm(list(tensors))
        return list(torch._foreach_mul(norms, norms))
    return [tensor.square().sum() for tensor in tensors]


def sum_over_ranks(sums: Tensor, sharded: Iterable[bool], split: Iterable[bool], world: World) -> Tensor:
    """Add up a sum for each tensor over the ranks that hold its parts, in two calls at most."""
    both = ((sharded, world.sum_over_shards, world.shard), (split, world.sum_over_tensor, world.tensor))
    for flags, add, ranks in both:
        if ranks > 1 and any(chosen := list(flags)):
            chosen_x = torch.tensor(chosen, device=sums.device)
            sums = torch.where(chosen_x, add(torch.where(chosen_x, sums, 0.0)), sums)
    return sums


def sum_whole_gradients(named: Named, world: World) -> None:
    """Add up over the data ranks the gradients of parameters that all of them hold whole."""
    whole = [p.grad for _, p in named if p.grad is not None and not is_sharded(p)] if world.data > 1 else []
    if whole:
        flat = world.sum_over_data(torch.cat([grad.flatten() for grad in whole]))
        for grad, part in zip(whole, flat.split([grad.numel() for grad in whole]), strict=True):
            grad.copy_(part.view_as(grad))


def fill_missing_gradients(named: Named, world: World) -> None:
    """Give a parameter that has a gradient on another data rank one of zeros here: this rank's examples did not use
    it."""
    there = world.agree({name: int(p.grad is not None) for name, p in named})
    for name, parameter in named:
        if there[name] and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def clip(named: Named, max_norm: float, world: World, split: Collection[str] = ()) -> Tensor:
    """Scale the gradients down to a norm of `max_norm` over all ranks; return the norm before. Of the parameters in
    `split` tensor ranks hold different pieces."""
    found = [(name, p.grad) for name, p in named if p.grad is not None]
    if not found:
        return torch.zeros(())
    grads = [local(grad) for _, grad in found]
    sums = torch.stack([total.to(grads[0].device) for total in squares(grads)])
    norm = (
        sum_over_ranks(sums, (is_sharded(grad) for _, grad in found), (name in split for name, _ in found), world)
        .sum()
        .sqrt()
    )
    if max_norm < math.inf:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for device in {grad.device for grad in grads}:
            torch._foreach_mul_([grad for grad in grads if grad.device == device], factor.to(device))
    return norm
