"""AdamW over shards, with lower learning rates for lower layers; and Muon, momentum made orthogonal for matrices.

`torch.optim.Optimizer` wraps some methods so that `torch.compile` leaves them alone. Their first call imports the
compiler, which takes longer than all steps of a short run. Optimizers are not compiled here, so they use the methods
inside the wrappers.

Muon (Jordan et al. 2024) is for the matrices of the layers, with AdamW for everything else. A matrix of gradients has a
few large singular values, so plain descent and Adam move it along few directions. Muon takes the momentum's nearest
(semi-)orthogonal matrix instead: all its singular values become 1. A polynomial iteration computes it with matrix
products alone, which bfloat16 is good enough for. Multiplied by 0.2 sqrt(max(rows, columns)) the step is about as large
as AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so that both have the same learning rate and weight
decay.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from bertree.config.sections import OptimSettings
from bertree.errors import UserError
from bertree.model.layers.feed_forward import GatedFeedForward
from bertree.model.torch_internals import eager_method
from bertree.scale.shards import first_row, is_sharded, local
from bertree.scale.world import World

STACKED = {".qkv.": 3, ".qv.": 2, ".lstm.": 4}  # matrices in one tensor, by a part of its name
KEPT = ("step", "exp_avg")  # for each matrix
ADAM_STEP = 0.2  # about the root mean square of AdamW's steps
# Amsel et al. 2025, "The Polar Express": x <- a x + b x^3 + c x^5 for each singular value x; the best odd polynomials
# of degree 5, one after the other, for values from 0.001 to 1.
POLYNOMIALS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
MARGIN = 1.01  # by which rounding may exceed the largest value


class EagerMethods:
    """The wrapped methods of an optimizer as they are inside; to be inherited from before the optimizer's class."""

    add_param_group = eager_method(Optimizer.add_param_group)
    load_state_dict = eager_method(Optimizer.load_state_dict)
    state_dict = eager_method(Optimizer.state_dict)
    zero_grad = eager_method(Optimizer.zero_grad)


LAYER = re.compile(r"(?:^|\.)stack\.(\w+)\.(\d+)\.")  # kind of the component, and which of its copies
_step = eager_method(AdamW.step)  # without the wrapper that imports the compiler


class ShardedAdamW(EagerMethods, AdamW):
    """AdamW over shards: each rank updates its own. Optimizer state is a DTensor where its parameter is one."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        _step(self, closure)

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        complex_numbers: bool = super()._init_group(group, *lists)
        if any(map(is_sharded, lists[0])):
            for tensors in lists:
                tensors[:] = [local(tensor) for tensor in tensors]
        return complex_numbers


def layer_factors(names: Iterable[str], decay: float) -> dict[str, float]:
    """Return the factor of each parameter's rate: 1 above the last layer, and `decay` times less for every layer below.

    Embeddings count as the layer below the first. Components that layers share count as spread evenly among them.
    """
    layer_of = {name: LAYER.search(name) for name in names}
    copies: dict[str, int] = {}
    for layer in filter(None, layer_of.values()):
        copies[layer[1]] = max(copies.get(layer[1], 0), int(layer[2]) + 1)
    layers = max(copies.values(), default=0)

    def below(name: str) -> float:
        """Return the number of layers above a parameter, including its own."""
        layer = layer_of[name]
        if layer is not None:
            return layers - int(layer[2]) * layers / copies[layer[1]]
        return layers + 1 if "embeddings." in name else 0

    return {name: decay ** below(name) for name in layer_of}


def with_layer_rates(
    groups: Sequence[Mapping[str, Any]], named: Sequence[tuple[str, Tensor]], decay: float
) -> list[dict[str, Any]]:
    """Split groups of parameters into groups of one rate each: their `rate` is a multiple of the run's."""
    if decay == 1:
        return [dict(group) for group in groups]
    factors, names = layer_factors([name for name, _ in named], decay), {id(p): name for name, p in named}
    split_groups = []
    for group in groups:
        alike: dict[float, list[Tensor]] = {}
        for p in group["params"]:
            alike.setdefault(factors[names[id(p)]], []).append(p)
        rate = group.get("rate", 1.0)
        split_groups += [
            dict(group) | {"params": parameters, "rate": rate * factor} for factor, parameters in alike.items()
        ]
    return split_groups


def orthogonal(matrices: Tensor) -> Tensor:
    """Return the nearest semi-orthogonal matrix of each of a stack, roughly; a matrix of zeros stays one."""
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonal(matrices.mT).mT
    norms = matrices.float().square().sum((-2, -1), keepdim=True).sqrt()
    x = (matrices / (norms * MARGIN).clamp_min(1e-30)).to(torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    for number, (a, b, c) in enumerate(POLYNOMIALS, 1):
        margin = MARGIN if number < len(POLYNOMIALS) else 1.0
        a, b, c = a / margin, b / margin**3, c / margin**5
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is a matrix of the layers, or several; not an embedding, a head, a norm or a bias."""
    last = name.rpartition(".")[2]
    return "stack." in name and parameter.ndim == 2 and last.startswith("weight")


def stacked_matrices(network: nn.Module) -> dict[int, int]:
    """Return how many matrices lie in one tensor, one below the other, by the parameter's identity."""
    counts = {id(p): count for name, p in network.named_parameters() for part, count in STACKED.items() if part in name}
    gated = [part for part in network.modules() if isinstance(part, GatedFeedForward)]
    return counts | {id(part.up.weight): 2 for part in gated}


def build_muon(
    network: nn.Module, settings: OptimSettings, capturable: bool = False, world: World | None = None
) -> "Muon":
    """Return Muon over all trainable parameters; `capturable`: for CUDA graphs."""
    if world is not None and world.tensor > 1:
        raise UserError("optim.name: muon: needs whole matrices, so not scale.tensor; share them by scale.zero instead")
    named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    matrices = [p for name, p in named if is_matrix(name, p)]
    rest = [p for name, p in named if not is_matrix(name, p)]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay, "matrices": True, "rate": settings.matrix_rate},
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    pieces = stacked_matrices(network)
    return Muon(
        with_layer_rates([group for group in groups if group["params"]], named, settings.layer_decay),
        settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        momentum=settings.momentum,
        pieces=lambda p: pieces.get(id(p), 1),
        capturable=capturable,
        world=world,
    )


def gather_stack(stack: Tensor, like: Tensor) -> Tensor:
    """Return the whole tensors of a stack of what this rank holds of each, gathered from the others."""
    if not is_sharded(like):
        return stack
    from torch.distributed.tensor import DTensor, Shard  # slow to import

    assert isinstance(like, DTensor)
    placements = [
        Shard(placement.dim + 1) if isinstance(placement, Shard) else placement for placement in like.placements
    ]
    shape = torch.Size((len(stack), *like.shape))
    strides = (like.shape[0] * like.shape[1], like.shape[1], 1)
    return DTensor.from_local(stack, like.device_mesh, placements, shape=shape, stride=strides).full_tensor()


class Muon(EagerMethods, Optimizer):
    """Muon for groups with `matrices=True`, fused AdamW for the others, as one optimizer.

    With m the running mean of gradients g, m <- mu m + (1 - mu) g, and u = mu m + (1 - mu) g (Nesterov), a matrix
    changes by -lr (0.2 sqrt(max(rows, columns)) orthogonal(u) + decay w). `pieces` says how many matrices are stacked
    in a tensor; each is made orthogonal alone. Matrices of one shape share each product. Where a rank of `world` holds
    parts of them, u is gathered and every rank computes whole steps.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float],
        eps: float,
        momentum: float = 0.95,
        pieces: Callable[[Tensor], int] = lambda tensor: 1,
        capturable: bool = False,
        world: World | None = None,
    ) -> None:
        groups = [{"matrices": False, "rate": 1.0} | group for group in groups]
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0, "fused": True})
        for group in self.param_groups:
            if group["matrices"]:
                group["kept"] = KEPT
        rest = [group for group in self.param_groups if not group["matrices"]]
        self._adam = (
            ShardedAdamW(rest, lr=lr, betas=betas, eps=eps, fused=True, capturable=capturable) if rest else None
        )
        if self._adam is not None:  # one state, and groups whose rate is set once
            self._adam.state = self.state
            self.param_groups = [g for g in self.param_groups if g["matrices"]] + self._adam.param_groups
        self._momentum, self._pieces, self._world = momentum, pieces, world or World.alone()
        self.found_inf: Tensor | None = None  # 1: the gradient is not finite, so nothing is updated

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. The host waits for nothing."""
        assert closure is None, "the loop computes the gradients"
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None] if group["matrices"] else []
            if moved:
                self._move(group, moved)
        if self._adam is not None:
            self._adam.found_inf = self.found_inf  # type: ignore[attr-defined]
            self._adam.step()

    def _move(self, group: dict[str, Any], moved: list[Tensor]) -> None:
        good = 1.0 if self.found_inf is None else 1.0 - self.found_inf  # 0: nothing changes
        for p in moved:
            if not self.state[p]:
                self.state[p].update(step=torch.zeros((), device=local(p).device), exp_avg=torch.zeros_like(p))
        steps = [self.state[p]["step"] for p in moved]
        # A list: the host would wait for the value of a single tensor.
        torch._foreach_add_(steps, [good] * len(steps) if isinstance(good, Tensor) else good)
        rate = group["lr"] * good
        if group["weight_decay"]:
            torch._foreach_mul_([local(p) for p in moved], 1.0 - rate * group["weight_decay"])
        alike: dict[tuple[torch.Size, torch.Size, int], list[Tensor]] = {}
        for p in moved:
            alike.setdefault((p.shape, local(p).shape, self._pieces(p)), []).append(p)
        for (shape, own, count), parameters in alike.items():
            momenta = self._momenta(parameters, good).reshape(len(parameters) * count, shape[0] // count, shape[1])
            size = ADAM_STEP * math.sqrt(max(momenta.shape[1:]))
            steps = orthogonal(momenta).reshape(len(parameters), *shape) * (size * rate)
            first = first_row(parameters[0], self._world)
            torch._foreach_sub_([local(p) for p in parameters], list(steps[:, first : first + own[0]].unbind()))

    def _momenta(self, alike: list[Tensor], good: Tensor | float) -> Tensor:
        """Update the running means of parameters of one shape; return u of each whole parameter, as a stack."""
        grad = torch.stack([local(p.grad) for p in alike if p.grad is not None])
        if isinstance(good, Tensor):
            grad = torch.where(good > 0, grad, 0.0)  # inf and NaN stay so when multiplied by 0
        means = [local(self.state[p]["exp_avg"]) for p in alike]
        mean = torch.stack(means).lerp_(grad, (1.0 - self._momentum) * good)
        torch._foreach_copy_(means, list(mean.unbind()))
        return gather_stack(grad.lerp_(mean, self._momentum), alike[0])
