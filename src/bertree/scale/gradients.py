"""Gradients over all ranks: summing, norms and clipping.

A parameter is a DTensor that the data ranks of a copy share, or a plain tensor: whole, or the shard of a tensor rank.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from bertree.scale.world import World

Named = Sequence[tuple[str, nn.Parameter]]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, in the same memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether the data ranks of a copy share a tensor."""
    return hasattr(tensor, "to_local")


def first_row(tensor: Tensor, world: World) -> int:
    """Return the index of the first row of a tensor that this rank holds."""
    return world.shard_rank * -(-len(tensor) // world.shard) if is_sharded(tensor) else 0


def squares(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of squares of each tensor. On the CPU PyTorch's own norm is off by up to 1e-4 of its value."""
    if tensors and tensors[0].is_cuda:
        norms = torch._foreach_norm(list(tensors))
        return list(torch._foreach_mul(norms, norms))
    return [tensor.square().sum() for tensor in tensors]


def sum_over_ranks(sums: Tensor, sharded: Iterable[bool], split: Iterable[bool], world: World) -> Tensor:
    """Sum one number per tensor over the ranks that hold its shards, in at most two calls."""
    groups = ((sharded, world.sum_over_shards, world.shard), (split, world.sum_over_tensor, world.tensor))
    for flags, add, ranks in groups:
        if ranks > 1 and any(chosen := list(flags)):
            chosen_x = torch.tensor(chosen, device=sums.device)
            sums = torch.where(chosen_x, add(torch.where(chosen_x, sums, 0.0)), sums)
    return sums


def sum_whole_gradients(named: Named, world: World) -> None:
    """Sum the gradients of unsharded parameters over the data ranks."""
    whole = [p.grad for _, p in named if p.grad is not None and not is_sharded(p)] if world.data > 1 else []
    if whole:
        flat = world.sum_over_data(torch.cat([grad.flatten() for grad in whole]))
        for grad, summed in zip(whole, flat.split([grad.numel() for grad in whole]), strict=True):
            grad.copy_(summed.view_as(grad))


def fill_missing_gradients(named: Named, world: World) -> None:
    """Set a zero gradient where another data rank has a gradient and this rank's examples did not use the parameter."""
    used = world.agree({name: int(p.grad is not None) for name, p in named})
    for name, parameter in named:
        if used[name] and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def clip(named: Named, max_norm: float, world: World, split: Collection[str] = ()) -> Tensor:
    """Clip the gradients to a norm of `max_norm` over all ranks; return the norm before clipping. `split`: names of the
    parameters of which tensor ranks hold different shards."""
    gradients = [(name, p.grad) for name, p in named if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    grads = [local(grad) for _, grad in gradients]
    sums = torch.stack([total.to(grads[0].device) for total in squares(grads)])
    sharded, by_tensor_rank = [is_sharded(grad) for _, grad in gradients], [name in split for name, _ in gradients]
    norm = sum_over_ranks(sums, sharded, by_tensor_rank, world).sum().sqrt()
    if max_norm < math.inf:
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for device in {grad.device for grad in grads}:
            torch._foreach_mul_([grad for grad in grads if grad.device == device], factor.to(device))
    return norm
