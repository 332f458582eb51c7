"""The files of a checkpoint: written by one process or by all ranks together, verified when they are read.

Files are mapped, not read, so a rank reads only its own shard. Headers are not trusted: what they say about where a
tensor lies is checked before any of it is read.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertree.errors import UserError
from bertree.files.atomic import new_folder, sync, write_text
from bertree.files.formats import Json, file_hash, parse_json, read_json
from bertree.scale.shards import Box, LocalShard, Shape
from bertree.scale.world import World

HEADER = "state.json"
FORMAT = "bertree-checkpoint"
OWN_SUM = "header_sha256"  # the checksum of the other entries of the header; checkpoints up to 0.2.0 have none
ONE_FILE, SHARDED = 1, 2  # versions
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
            tensor: Tensor = self.parts[0].file.get_tensor(self.name)
            return tensor
        box = torch.empty(size, dtype=self.dtype)
        for part in self.parts:
            for saved_box in part.boxes:
                if (overlap := saved_box.meet(offset, size)) is not None:
                    box[overlap[1]] = part.file.get_slice(self.name)[overlap[0]]
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
        kinds = {name: (tuple(tensor.get_shape()), tensor.get_dtype()) for name, tensor in local.items()}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from None
    if unknown := [name for name, (_, dtype) in kinds.items() if dtype not in DTYPES]:
        raise _damaged(path, f"'{unknown[0]}' has a type that no checkpoint has")
    if path.name == STATE:
        return [
            (name, (shape, DTYPES[dtype]), TensorPart(file, (Box((0,) * len(shape), shape, 0),)))
            for name, (shape, dtype) in kinds.items()
        ]
    layouts = parse_json(metadata.get(BOXES, ""), f"{path}: its boxes")
    if not isinstance(layouts, dict) or layouts.keys() != kinds.keys():
        raise _damaged(path, "its boxes are not those of its tensors")
    parts = []
    for name, (shape, dtype) in kinds.items():
        layout = _read_layout(layouts[name], shape)
        if layout is None:
            raise _damaged(path, f"the boxes of '{name}' are not those of such a tensor")
        parts.append((name, (layout[0], DTYPES[dtype]), TensorPart(file, layout[1])))
    return parts


def _read_layout(layout: Any, local: Shape) -> tuple[Shape, tuple[Box, ...]] | None:
    """Return the whole shape and the boxes that a header says; None if they cannot be those of a local tensor."""
    if not isinstance(layout, dict) or layout.keys() != {"shape", "boxes"}:
        return None
    shape, boxes = _numbers(layout["shape"]), layout["boxes"]
    if shape is None or len(shape) != len(local) or not isinstance(boxes, list) or not 0 < len(boxes) <= MOST_BOXES:
        return None
    parsed, rows = [], 0
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
        parsed.append(Box(offset, size, rows))
        rows += size[0] if size else 0
    if rows != (local[0] if local else 0):
        return None
    return shape, tuple(parsed)


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
        open_boxes = [earlier for earlier in open_boxes if earlier.offset[0] + earlier.size[0] > box.offset[0]]
        if any(earlier.meet(box.offset, box.size) for earlier in open_boxes):
            return False
        open_boxes.append(box)
    return True


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: is damaged ({reason})")


class Header(NamedTuple):
    """The contents of `state.json`: the checksum of each file, and what the run keeps in addition to tensors."""

    files: dict[str, str]
    extra: Json


def write_checkpoint(folder: Path, step: int, shards: Mapping[str, LocalShard], extra: Json, world: World) -> None:
    """Write a checkpoint completely or not at all; `parts` are what this rank writes. All ranks return together."""
    if world.size == 1:
        with new_folder(folder, (HEADER, *_file_names(folder))) as work:
            _save(shards, work / STATE)
            _write_header(work, {"version": ONE_FILE, "step": step, "sha256": file_hash(work / STATE)}, extra)
        return
    with ExitStack() as stack:
        work = _shared_folder(folder, stack, world)
        name = shard_name(world.rank, world.size)
        digest = world.check_together(lambda: _write_shard(shards, work / name))
        digests = _share(digest, world)

        def complete() -> None:
            if world.is_first:
                files = {shard_name(rank, world.size): digest.hex() for rank, digest in enumerate(digests)}
                _write_header(work, {"version": SHARDED, "step": step, "sha256": files}, extra)
                stack.close()

        world.check_together(complete)


def _file_names(folder: Path) -> list[str]:
    """Return the names that files with tensors of a checkpoint have here: what may be replaced."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [STATE, *(name for name in names if SHARD.fullmatch(name))]


def _shared_folder(folder: Path, stack: ExitStack, world: World) -> Path:
    """Create a temporary folder on rank 0, and return it on all ranks. It becomes the checkpoint when the stack ends
    well."""

    def create() -> bytes:
        if not world.is_first:
            return bytes(8)
        work = stack.enter_context(new_folder(folder, (HEADER, *_file_names(folder))))
        return work.name.rpartition(".")[2].encode()

    suffix = _share(world.check_together(create), world)[0].decode()
    return folder.resolve().with_name(f".{folder.name}.{suffix}")


def _share(own: bytes, world: World) -> list[bytes]:
    """Return the bytes of every rank; all have the same number of them."""
    return [bytes(int(number) for number in row) for row in world.gather(list(own))]


def _write_shard(shards: Mapping[str, LocalShard], path: Path) -> bytes:
    """Write the file of this rank, and return its checksum."""
    layouts = {name: {"shape": shard.whole_shape, "boxes": shard.boxes} for name, shard in shards.items()}
    try:
        _save(shards, path, {BOXES: json.dumps(layouts, sort_keys=True)})
        sync(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    except SafetensorError as error:
        raise UserError(f"{path}: cannot be written ({error})") from None
    return bytes.fromhex(file_hash(path))


def _save(shards: Mapping[str, LocalShard], path: Path, metadata: dict[str, str] | None = None) -> None:
    save_file({name: shard.local.contiguous().cpu() for name, shard in shards.items()}, path, metadata)


def _write_header(work: Path, about: Json, extra: Json) -> None:
    write_text(work / HEADER, header_text({"format": FORMAT} | about | {"extra": extra}))


def header_text(header: Json) -> str:
    """Return the text of a header, with the checksum of its entries."""
    entries = {key: value for key, value in header.items() if key != OWN_SUM}
    return json.dumps(entries | {OWN_SUM: _sum_of(entries)}) + "\n"


def _sum_of(entries: Json) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def read_header(folder: Path, step: int) -> Header:
    """Read the header of a checkpoint and check it."""
    header = read_json(folder / HEADER)
    own_sum = header.pop(OWN_SUM, None)
    if own_sum is not None and own_sum != _sum_of(header):
        raise _damaged(folder / HEADER, "its checksum differs")
    version, sums, extra = header.get("version"), header.get("sha256"), header.get("extra")
    files = {STATE: sums} if version == ONE_FILE and isinstance(sums, str) else sums if version == SHARDED else None
    valid = (header.get("format"), header.get("step")) == (FORMAT, step) and isinstance(extra, dict)
    if not valid or not isinstance(files, dict) or not isinstance(extra, dict) or not files:
        raise UserError(f"{folder / HEADER}: is not the header of this checkpoint")
    if version == SHARDED and sorted(files) != [shard_name(rank, len(files)) for rank in range(len(files))]:
        raise UserError(f"{folder / HEADER}: does not name the files of a checkpoint")
    return Header(files, extra)


def verify_files(folder: Path, header: Header, world: World) -> None:
    """Compare files with their checksums: on each rank some of them, on all ranks together all."""
    for number, (name, digest) in enumerate(sorted(header.files.items())):
        if number % world.size == world.rank and file_hash(folder / name) != digest:
            raise UserError(f"{folder / name}: is damaged (its checksum differs)")
