"""The tensors of a checkpoint: names, shapes and types from the headers, numbers when they are asked for.

Files are mapped, not read, so a rank reads no more than its own part. Headers are not trusted: what they say about
where a tensor lies is checked before any of it is read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bertree.errors import UserError
from bertree.files.formats import parse_json
from bertree.scale.local_shards import Box, Shape

STATE = "state.safetensors"  # of one process
SHARD = re.compile(r"state-([0-9]{5})-of-([0-9]{5})\.safetensors")  # of many: one file each
BOXES = "boxes"  # the key in the header of a shard
MOST_BOXES = 64  # of one tensor in one file
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def shard_name(rank: int, size: int) -> str:
    """Return the name of the file of a rank."""
    return f"state-{rank + 1:05d}-of-{size:05d}.safetensors"


class TensorPart(NamedTuple):
    """A tensor of one file, and the boxes of the whole that it consists of."""

    file: Any  # an open safetensors file
    boxes: tuple[Box, ...]


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint, in one or more parts."""

    name: str
    shape: Shape
    dtype: torch.dtype
    parts: Sequence[TensorPart]

    def read(self, offset: Shape | None = None, size: Shape | None = None) -> Tensor:
        """Read a box of the tensor; by default all of it."""
        offset, size = offset or (0,) * len(self.shape), self.shape if size is None else size
        if not self.shape or (len(self.parts) == 1 and size == self.shape == self.parts[0].boxes[0].size):
            found: Tensor = self.parts[0].file.get_tensor(self.name)
            return found
        box = torch.empty(size, dtype=self.dtype)
        for part in self.parts:
            for there in part.boxes:
                if (met := there.meet(offset, size)) is not None:
                    box[met[1]] = part.file.get_slice(self.name)[met[0]]
        return box


SavedTensors = Mapping[str, SavedTensor]


def open_tensors(folder: Path, names: Iterable[str]) -> SavedTensors:
    """Open the files of a checkpoint, one process's or those of all ranks, and check what their headers say."""
    parts: dict[str, list[TensorPart]] = {}
    kinds: dict[str, tuple[Shape, torch.dtype]] = {}
    for name in names:
        for tensor, kind, part in _parts_of(folder / name):
            if kinds.setdefault(tensor, kind) != kind:
                raise _damaged(folder / name, f"'{tensor}' has another shape or type than in the files before it")
            parts.setdefault(tensor, []).append(part)
    for tensor, (shape, _) in kinds.items():
        if not _covers(shape, [box for part in parts[tensor] for box in part.boxes]):
            raise UserError(f"{folder}: is damaged (the parts of '{tensor}' overlap or do not make up all of it)")
    return {tensor: SavedTensor(tensor, *kind, parts[tensor]) for tensor, kind in kinds.items()}


def _parts_of(path: Path) -> list[tuple[str, tuple[Shape, torch.dtype], TensorPart]]:
    """Return the tensors of a file: name, whole shape and type, and the boxes it has of it."""
    try:
        file = safe_open(path, "pt")
        metadata = file.metadata() or {}
        local = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        kinds = {name: (tuple(there.get_shape()), there.get_dtype()) for name, there in local.items()}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if unknown := [name for name, (_, dtype) in kinds.items() if dtype not in DTYPES]:
        raise _damaged(path, f"'{unknown[0]}' has a type that no checkpoint has")
    if path.name == STATE:
        return [
            (name, (shape, DTYPES[dtype]), TensorPart(file, (Box((0,) * len(shape), shape, 0),)))
            for name, (shape, dtype) in kinds.items()
        ]
    places = parse_json(metadata.get(BOXES, ""), f"{path}: its boxes")
    if not isinstance(places, dict) or places.keys() != kinds.keys():
        raise _damaged(path, "its boxes are not those of its tensors")
    found = []
    for name, (shape, dtype) in kinds.items():
        place = _read_place(places[name], shape)
        if place is None:
            raise _damaged(path, f"the boxes of '{name}' are not those of such a tensor")
        found.append((name, (place[0], DTYPES[dtype]), TensorPart(file, place[1])))
    return found


def _read_place(place: Any, local: Shape) -> tuple[Shape, tuple[Box, ...]] | None:
    """Return the whole shape and the boxes that a header says; None if they cannot be those of a local tensor."""
    if not isinstance(place, dict) or place.keys() != {"shape", "boxes"}:
        return None
    shape, boxes = _numbers(place["shape"]), place["boxes"]
    if shape is None or len(shape) != len(local) or not isinstance(boxes, list) or not 0 < len(boxes) <= MOST_BOXES:
        return None
    found, rows = [], 0
    for box in boxes:
        if not isinstance(box, list) or len(box) != 3 or type(box[2]) is not int:
            return None
        offset, size = _numbers(box[0]), _numbers(box[1])
        if offset is None or size is None or not len(offset) == len(size) == len(shape):
            return None
        inside = all(o + n <= most for o, n, most in zip(offset, size, shape, strict=True))
        # The boxes lie one after the other in the rows of the local tensor.
        if not inside or size[1:] != local[1:] or box[2] != rows:
            return None
        found.append(Box(offset, size, rows))
        rows += size[0] if size else 0
    if rows != (local[0] if local else 0):
        return None
    return shape, tuple(found)


def _numbers(value: Any) -> Shape | None:
    """Return a list of whole numbers, none of them negative; None if it is none."""
    good = isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
    return tuple(value) if good else None


def _covers(shape: Shape, boxes: Sequence[Box]) -> bool:
    """Return whether boxes inside a tensor make up all of it, each number once."""
    if sum(torch.Size(box.size).numel() for box in boxes) != torch.Size(shape).numel():
        return False
    open_boxes: list[Box] = []  # those that reach further down than the rows before
    for box in sorted(boxes):
        if not box.size:
            return len(boxes) == 1
        open_boxes = [other for other in open_boxes if other.offset[0] + other.size[0] > box.offset[0]]
        if any(other.meet(box.offset, box.size) for other in open_boxes):
            return False
        open_boxes.append(box)
    return True


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: is damaged ({reason})")
