"""The files of a checkpoint: written by one process, or by all ranks together, and verified when they are read."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file

from bertree.errors import UserError
from bertree.files.atomic import new_folder, sync, write_text
from bertree.files.formats import Json, file_hash, read_json
from bertree.scale.local_shards import LocalShard
from bertree.scale.world import World
from bertree.train.checkpoints.tensors import BOXES, SHARD, STATE, shard_name

HEADER = "state.json"
FORMAT = "bertree-checkpoint"
ONE_FILE, SHARDED = 1, 2  # versions


class Header(NamedTuple):
    """What `state.json` says: the checksum of each file, and what the run keeps beside the tensors."""

    files: dict[str, str]
    extra: Json


def write_checkpoint(folder: Path, step: int, parts: Mapping[str, LocalShard], extra: Json, world: World) -> None:
    """Write a checkpoint completely or not at all; `parts` are what this rank writes. All ranks return together."""
    if world.size == 1:
        with new_folder(folder, (HEADER, *_file_names(folder))) as work:
            _save(parts, work / STATE)
            _write_header(work, {"version": ONE_FILE, "step": step, "sha256": file_hash(work / STATE)}, extra)
        return
    with ExitStack() as stack:
        work = _shared_folder(folder, stack, world)
        name = shard_name(world.rank, world.size)
        digest = world.check_together(lambda: _write_shard(parts, work / name))
        digests = _share(digest, world)

        def complete() -> None:
            if world.is_first:
                files = {shard_name(rank, world.size): digest.hex() for rank, digest in enumerate(digests)}
                _write_header(work, {"version": SHARDED, "step": step, "sha256": files}, extra)
                stack.close()

        world.check_together(complete)


def _file_names(folder: Path) -> list[str]:
    """Return the names that files with tensors of a checkpoint have here: what may be replaced."""
    there = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [STATE, *(name for name in there if SHARD.fullmatch(name))]


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


def _share(mine: bytes, world: World) -> list[bytes]:
    """Return the bytes of every rank; all have the same number of them."""
    return [bytes(int(number) for number in row) for row in world.gather(list(mine))]


def _write_shard(parts: Mapping[str, LocalShard], path: Path) -> bytes:
    """Write the file of this rank, and return its checksum."""
    places = {name: {"shape": part.whole_shape, "boxes": part.boxes} for name, part in parts.items()}
    try:
        _save(parts, path, {BOXES: json.dumps(places, sort_keys=True)})
        sync(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
    except SafetensorError as error:
        raise UserError(f"{path}: cannot be written ({error})") from None
    return bytes.fromhex(file_hash(path))


def _save(parts: Mapping[str, LocalShard], path: Path, metadata: dict[str, str] | None = None) -> None:
    save_file({name: part.local.contiguous().cpu() for name, part in parts.items()}, path, metadata)


def _write_header(work: Path, known: Json, extra: Json) -> None:
    write_text(work / HEADER, json.dumps({"format": FORMAT} | known | {"extra": extra}) + "\n")


def read_header(folder: Path, step: int) -> Header:
    """Read the header of a checkpoint and check it."""
    found = read_json(folder / HEADER)
    version, sums, extra = found.get("version"), found.get("sha256"), found.get("extra")
    files = {STATE: sums} if version == ONE_FILE and isinstance(sums, str) else sums if version == SHARDED else None
    known = (found.get("format"), found.get("step")) == (FORMAT, step) and isinstance(extra, dict)
    if not known or not isinstance(files, dict) or not isinstance(extra, dict) or not files:
        raise UserError(f"{folder / HEADER}: is not the header of this checkpoint")
    if version == SHARDED and sorted(files) != [shard_name(rank, len(files)) for rank in range(len(files))]:
        raise UserError(f"{folder / HEADER}: does not name the files of a checkpoint")
    return Header(files, extra)


def verify_files(folder: Path, header: Header, world: World) -> None:
    """Compare files with their checksums: on each rank some of them, on all ranks together all."""
    for number, (name, digest) in enumerate(sorted(header.files.items())):
        if number % world.size == world.rank and file_hash(folder / name) != digest:
            raise UserError(f"{folder / name}: is damaged (its checksum differs)")
