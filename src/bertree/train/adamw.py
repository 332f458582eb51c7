"""AdamW over shards, without PyTorch's compiler, and with lower learning rates for lower layers.

`torch.optim.Optimizer` wraps some methods so that `torch.compile` leaves them alone. Their first call imports the
compiler, which takes longer than all steps of a short run. Optimizers are not compiled here, so they use the methods
inside the wrappers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from bertree.model.torch_internals import eager_method
from bertree.scale.gradients import is_sharded, local


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
