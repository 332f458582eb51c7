"""The header of a token store, `store.json`: which files it has, and what their checksums are."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertree.data.controls import ControlCode, read_codes
from bertree.errors import UserError
from bertree.files.formats import Json, read_json

HEADER, WORDS, TOKENIZER, JOURNAL = "store.json", "words.bin", "tokenizer", "journal.json"
FORMAT, VERSION = "bertree-store", 1
PARTS = ("tokens", "sentences", "documents")
CONTROLS = "controls"  # a part of stores with control codes
CLS_LAST = "cls_last"  # only where it is true
SPECIAL = ("cls", "sep", "mask", "pad", "unk")
ALTERED = "is altered (its checksum differs); prepare the store again"


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


def shard_file_name(part: str, number: int) -> str:
    """Return the name of one file of a shard."""
    return f"{part}-{number:05d}.bin"


@dataclass(frozen=True)
class ShardFile:
    """One file of a shard as the header describes it."""

    count: int
    size: int
    sha256: str


def fingerprint(shards: Sequence[Mapping[str, ShardFile]], controls: Sequence[ControlCode] = ()) -> str:
    """Return a name for the content: sha256 over the checksums of all shards in order, and over the control codes."""
    text = "\n".join(file.sha256 for parts in shards for file in parts.values())
    text += "".join(f"\n{known.code} {known.prefix}" for known in controls)
    return hashlib.sha256(text.encode()).hexdigest()


def read_header(folder: Path) -> Json:
    """Read and check `store.json`; its shards as a mapping from part to `ShardFile`."""
    path = folder / HEADER
    if not path.is_file():
        if (folder / JOURNAL).is_file():
            raise UserError(f"{folder}: is not finished; run the same `bertree prepare` again to resume")
        raise UserError(f"{folder}: is not a token store (no {HEADER}); make one with `bertree prepare`")
    header = read_json(path)
    if header.get("format") != FORMAT:
        raise UserError(f"{path}: is not the header of a token store")
    if header.get("version") != VERSION:
        raise UserError(
            f"{path}: has version {header.get('version')!r}, but this bertree reads {VERSION}; prepare it again"
        )
    digest = header_hash(header)
    try:
        header["shards"] = _check_header(header)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: is damaged ({error}); prepare the store again") from None
    if header.get("sha256") != digest:
        raise UserError(f"{path}: {ALTERED}")
    return header


def header_hash(header: Json) -> str:
    """Return the sha256 of a header without its own checksum."""
    rest = {key: value for key, value in header.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _check_header(header: Json) -> list[dict[str, ShardFile]]:
    size, special = header["vocab_size"], header["special"]
    if type(size) is not int or not 0 < size < 2**32:
        raise ValueError(f"vocab_size {size!r}")
    if header["dtype"] != dtype_for(size).name:
        raise ValueError(f"dtype {header['dtype']!r} for {size} ids")
    if not isinstance(header["tokenizer"], str):
        raise ValueError("tokenizer is not a hash")
    if not isinstance(special, dict) or not set(special) <= set(SPECIAL):
        raise ValueError("special tokens")
    if any(type(token) is not int or not 0 <= token < size for token in special.values()):
        raise ValueError("a special token lies outside the vocabulary")
    summary = header["summary"]
    if not isinstance(summary, dict) or any(type(count) is not int for count in summary.values()):
        raise ValueError("summary")
    if not isinstance(header["shards"], list):
        raise ValueError("no list of shards")
    if type(header.get(CLS_LAST, False)) is not bool:
        raise ValueError(f"{CLS_LAST} is not true or false")
    coded = bool(read_codes(header.get(CONTROLS, []), size))
    return [read_shard_files(entry, dtype_for(size).itemsize, coded) for entry in header["shards"]]


def read_shard_files(entry: Json, width: int, coded: bool) -> dict[str, ShardFile]:
    """Parse one shard's entry in the header or the journal; raise ValueError if it is invalid. `coded`: documents have
    control codes."""
    parts = {part: ShardFile(**entry[part]) for part in (*PARTS, *([CONTROLS] if coded else []))}
    for part, found in parts.items():
        if type(found.count) is not int or type(found.size) is not int or found.count < 1:
            raise ValueError(f"{part} count {found.count!r}")
        if not isinstance(found.sha256, str) or len(found.sha256) != 64:
            raise ValueError(f"{part} checksum")
    if parts["tokens"].size != parts["tokens"].count * width:
        raise ValueError("token count and size do not agree")
    return parts
