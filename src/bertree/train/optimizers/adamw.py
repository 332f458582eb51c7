"""AdamW over shards."""

from typing import Any

from torch import Tensor
from torch.optim import AdamW

from bertree.scale.gradients import is_sharded, local


class ShardedAdamW(AdamW):
    """AdamW of which each rank updates what it holds. State has the kind of its parameter: a DTensor or a tensor."""

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        complex_numbers: bool = super()._init_group(group, *lists)
        if any(map(is_sharded, lists[0])):
            for tensors in lists:
                tensors[:] = [local(tensor) for tensor in tensors]
        return complex_numbers
