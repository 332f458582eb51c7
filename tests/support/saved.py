"""Tensors in memory as a checkpoint gives them."""

from collections.abc import Mapping

from torch import Tensor

from bertree.scale.shards import Box
from bertree.train.checkpoint_files import SavedTensor, SavedTensors, TensorPart


class InMemory:
    """What is asked of an open file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def get_tensor(self, name: str) -> Tensor:
        return self._tensors[name]


def saved(tensors: Mapping[str, Tensor]) -> SavedTensors:
    file = InMemory(tensors)
    return {
        name: SavedTensor(name, tuple(t.shape), t.dtype, [TensorPart(file, (Box((0,) * t.ndim, tuple(t.shape), 0),))])
        for name, t in tensors.items()
    }
