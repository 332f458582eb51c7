"""AdamW, Adam, LAMB, Muon and SGD, with weight decay kept off norms and biases."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree.config.sections import OptimSettings
from bertree.scale.distribute import Distribution
from bertree.scale.shards import first_row, is_sharded, local, squares, sum_over_ranks
from bertree.scale.world import World
from bertree.train.adamw_muon import KEPT, EagerMethods, ShardedAdamW, build_muon, with_layer_rates

Tensors = list[Tensor] | tuple[Tensor, ...]
STACKED = {".qkv.": 3, ".qv.": 2}  # matrices in one tensor, by a part of its name


def build_optimizer(
    network: nn.Module,
    settings: OptimSettings,
    capturable: bool = False,
    distribution: Distribution | None = None,
) -> Optimizer:
    """Return the optimizer over all trainable parameters; `capturable`: for CUDA graphs."""
    distribution = distribution or Distribution()
    if settings.name == "muon":
        return build_muon(network, settings, capturable, distribution.world)
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = with_layer_rates([group for group in groups if group["params"]], named, settings.layer_decay)
    if settings.name == "sgd":
        return Sgd(groups, settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)
    if settings.name in ("adamw", "adam"):
        groups = [group | {"decoupled_weight_decay": settings.name == "adamw"} for group in groups]
        return ShardedAdamW(
            groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True, capturable=capturable
        )
    # Queries, keys and values are one tensor here and several in the papers' models: a trust ratio for each.
    pieces = {id(p): count for name, p in named for part, count in STACKED.items() if part in name}
    split = {id(p) for name, p in named if name in distribution.split}
    return Lamb(
        groups,
        settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        pieces=lambda p: pieces.get(id(p), 1),
        split=lambda p: id(p) in split,
        world=distribution.world,
    )


class Sgd(EagerMethods, Optimizer):
    """Gradient descent with momentum (Sutskever et al. 2013, in PyTorch's form).

    With g the gradient plus decay * w, m <- momentum * m + g; a parameter changes by -lr * m, or with `nesterov` by
    -lr * (g + momentum * m). The host never waits for the GPU. Each rank updates its shards.
    """

    def __init__(self, params: Iterable[Any], lr: float, *, momentum: float = 0.0, nesterov: bool = False) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, "fused": True})
        for group in self.param_groups:
            group["kept"] = KEPT if momentum else KEPT[:1]
        self._momentum, self._nesterov = momentum, nesterov
        self.found_inf: Tensor | None = None  # 1: the gradient is not finite, so nothing is updated

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loop computes the gradients"
        for group in self.param_groups:
            updated = [p for p in group["params"] if p.grad is not None]
            if updated:
                self._move(group, updated)

    def _move(self, group: dict[str, Any], updated: list[Tensor]) -> None:
        for p in updated:
            if not self.state[p]:
                self.state[p]["step"] = torch.zeros((), device=local(p).device)
                if self._momentum:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
        weights = [local(p) for p in updated]
        steps: Tensors = [local(p.grad) for p in updated if p.grad is not None]
        if group["weight_decay"]:
            steps = torch._foreach_add(steps, weights, alpha=group["weight_decay"])
        good: Tensor | float = 1.0
        if self.found_inf is not None:
            good = 1.0 - self.found_inf  # 0: nothing changes. Inf and NaN stay so when multiplied by 0.
            steps = [torch.where(good > 0, step, 0.0) for step in steps]
        counts = [self.state[p]["step"] for p in updated]
        # A list: the host would wait for the value of a single tensor.
        torch._foreach_add_(counts, [good] * len(counts) if isinstance(good, Tensor) else good)
        if self._momentum:
            momenta = [local(self.state[p]["exp_avg"]) for p in updated]
            torch._foreach_mul_(momenta, 1.0 - good * (1.0 - self._momentum))
            torch._foreach_add_(momenta, steps)
            steps = torch._foreach_add(steps, momenta, alpha=self._momentum) if self._nesterov else momenta
        torch._foreach_sub_(weights, torch._foreach_mul(steps, group["lr"] * good))


class MatrixPart(NamedTuple):
    """A rank's part of a matrix and of its step; it may be empty."""

    weight: Tensor
    step: Tensor
    sharded: bool  # the ranks of a copy hold different parts
    split: bool  # tensor ranks hold different parts


class Lamb(EagerMethods, Optimizer):
    """LAMB (You et al. 2019, algorithm 2): Adam's step, rescaled for each matrix to the norm of its weights.

    With m and v Adam's bias-corrected moments, r = m / (sqrt(v) + eps) and u = r + decay * w, a tensor changes by
    lr * |w| / |u| * u. Where either norm is 0 the ratio is 1. `pieces` says how many matrices are stacked in
    a tensor, `split` whether tensor ranks hold pieces of it. All tensors are handled by the same few calls. Norms are
    those of whole matrices, of which a rank of `world` may hold a part.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        pieces: Callable[[Tensor], int] = lambda tensor: 1,
        split: Callable[[Tensor], bool] = lambda tensor: False,
        world: World | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._pieces, self._split, self._world = pieces, split, world or World.alone()
        self.found_inf: Tensor | None = None  # 1: the gradient is not finite, so nothing is updated

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loop computes the gradients"
        if self.found_inf is not None and bool(self.found_inf):
            return
        for group in self.param_groups:
            updated = [p for p in group["params"] if p.grad is not None]
            if updated:
                self._move(group, updated)

    def _move(self, group: dict[str, Any], updated: list[Tensor]) -> None:
        steps = self._adam_steps(group, updated)
        parts = [part for p, u in zip(updated, steps, strict=True) for part in self._parts(p, u)]
        weights, steps = [part.weight for part in parts], [part.step for part in parts]
        sums = torch.stack([*squares(weights), *squares(steps)])
        sharded, split = [part.sharded for part in parts], [part.split for part in parts]
        sizes, lengths = sum_over_ranks(sums, 2 * sharded, 2 * split, self._world).sqrt().chunk(2)
        ratios = torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0) * -group["lr"]
        torch._foreach_mul_(steps, list(ratios.unbind()))
        torch._foreach_add_(weights, steps)

    def _parts(self, p: Tensor, step: Tensor) -> Iterator[MatrixPart]:
        """Yield this rank's part of each matrix in a tensor."""
        weight, first, count = local(p), first_row(p, self._world), self._pieces(p)
        if count == 1:
            yield MatrixPart(weight, step, is_sharded(p), self._split(p))
            return
        for piece in range(count):
            rows = slice(*(max(0, len(p) * i // count - first) for i in (piece, piece + 1)))
            yield MatrixPart(weight[rows], step[rows], is_sharded(p), self._split(p))

    def _adam_steps(self, group: dict[str, Any], updated: list[Tensor]) -> list[Tensor]:
        """Return Adam's step with weight decay for this rank's shard of each parameter."""
        beta1, beta2 = group["betas"]
        for p in updated:
            if not self.state[p]:
                self.state[p].update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            self.state[p]["step"] += 1
        count = int(self.state[updated[0]]["step"])
        grads = [local(p.grad) for p in updated if p.grad is not None]
        means = [local(self.state[p]["exp_avg"]) for p in updated]
        squared = [local(self.state[p]["exp_avg_sq"]) for p in updated]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squared, beta2)
        torch._foreach_addcmul_(squared, grads, grads, 1 - beta2)
        scales = torch._foreach_sqrt(squared)
        torch._foreach_div_(scales, math.sqrt(1 - beta2**count))
        torch._foreach_add_(scales, group["eps"])
        steps = list(torch._foreach_div(means, 1 - beta1**count))
        torch._foreach_div_(steps, scales)
        if group["weight_decay"]:
            torch._foreach_add_(steps, [local(p) for p in updated], alpha=group["weight_decay"])
        return steps
