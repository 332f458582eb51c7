"""AdamW and LAMB, with weight decay kept off norms and biases."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bertree.config.sections import OptimSettings

STACKED = {".qkv.": 3, ".qv.": 2}  # matrices in one tensor, by a part of its name


def build_optimizer(network: nn.Module, settings: OptimSettings, capturable: bool = False) -> Optimizer:
    """Return the optimizer over all trainable parameters; `capturable`: for CUDA graphs."""
    named = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in named if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings.name == "adamw":
        return AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True, capturable=capturable)
    # Queries, keys and values are one tensor here and several in the papers' models: a trust ratio for each.
    pieces = {id(p): count for name, p in named for part, count in STACKED.items() if part in name}
    return Lamb(groups, settings.lr, settings.betas, settings.eps, lambda p: pieces.get(id(p), 1))


class Lamb(Optimizer):
    """LAMB (You et al. 2019, algorithm 2): Adam's step, rescaled for each matrix to the norm of its weights.

    With m and v Adam's bias-corrected moments, r = m / (sqrt(v) + eps) and u = r + decay * w, a tensor changes by
    lr * |w| / |u| * u. Where either norm is 0 the ratio is 1. `pieces` says how many matrices are stacked in
    a tensor. All tensors are handled by the same few calls.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        pieces: Callable[[Tensor], int] = lambda tensor: 1,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._pieces = pieces
        self.found_inf: Tensor | None = None  # 1: the gradient is not finite, so nothing is updated

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loop computes the gradients"
        if self.found_inf is not None and bool(self.found_inf):
            return
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            if moved:
                self._move(group, moved)

    def _move(self, group: dict[str, Any], moved: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for p in moved:
            if not self.state[p]:
                self.state[p].update(step=torch.zeros(()), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            self.state[p]["step"] += 1
        count = int(self.state[moved[0]]["step"])
        grads = [p.grad for p in moved if p.grad is not None]
        means = [self.state[p]["exp_avg"] for p in moved]
        squares = [self.state[p]["exp_avg_sq"] for p in moved]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, math.sqrt(1 - beta2**count))
        torch._foreach_add_(scales, group["eps"])
        steps = list(torch._foreach_div(means, 1 - beta1**count))
        torch._foreach_div_(steps, scales)
        if group["weight_decay"]:
            torch._foreach_add_(steps, moved, alpha=group["weight_decay"])
        cut = [self._pieces(p) for p in moved]
        weights = [part for p, n in zip(moved, cut, strict=True) for part in p.chunk(n)]
        steps = [part for u, n in zip(steps, cut, strict=True) for part in u.chunk(n)]
        sizes, lengths = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(steps))
        ratios = torch.where((sizes > 0) & (lengths > 0), sizes / lengths, 1.0) * -group["lr"]
        torch._foreach_mul_(steps, list(ratios.unbind()))
        torch._foreach_add_(weights, steps)
