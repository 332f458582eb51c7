"""AdamW over shards."""

from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from bertree.scale.gradients import is_sharded, local
from bertree.train.optimizers.eager import EagerMethods

_step = unwrap(AdamW.step)  # without the wrapper that imports the compiler


class ShardedAdamW(EagerMethods, AdamW):
    """AdamW of which each rank updates what it holds. State has the kind of its parameter: a DTensor or a tensor."""

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
