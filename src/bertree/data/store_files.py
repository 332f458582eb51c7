"""The files of a token store: names, header (`store.json`) with checksums, control codes, encoding of lengths.

Lengths are variable-length integers: seven bits per byte, and the high bit says that more bytes follow. Nearly every
sentence has fewer than 128 tokens and nearly every document fewer than 128 sentences, so a length takes one byte
instead of four. In return lengths must be decoded before use; numpy decodes some hundred million a second.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError
from bertree.files.formats import Json, read_json
from bertree.keyed_random import Ints, concatenate_ranges, cumulative_offsets

HEADER, WORDS, TOKENIZER, JOURNAL = "store.json", "words.bin", "tokenizer", "journal.json"
FORMAT, VERSION = "bertree-store", 1
PARTS = ("tokens", "sentences", "documents")  # files of every shard
CONTROLS = "controls"  # one more file, if documents have control codes
GIVEN = ("given-lengths", "given")  # two more, if given texts follow the codes: their lengths, and their tokens
CLS_LAST = "cls_last"  # in the header only where it is true
SPECIAL = ("cls", "sep", "mask", "pad", "unk")
LENGTH_BYTES = 9  # of an encoded length at most: 63 bits
ALTERED = "is altered (its checksum differs); prepare the store again"


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


def shard_file_name(part: str, number: int) -> str:
    """Return the name of one file of a shard."""
    return f"{part}-{number:05d}.bin"


@dataclass(frozen=True)
class ControlCode:
    """A control code (text/corpus.py), the tokens before its texts, and how much text has it."""

    code: str
    prefix: tuple[int, ...]
    documents: int = 0
    tokens: int = 0


def read_control_codes(entries: Any, vocab_size: int) -> tuple[ControlCode, ...]:
    """Parse the codes of a header or a journal; raise ValueError if they are invalid."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("control codes")
    codes = tuple(ControlCode(**entry | {"prefix": tuple(entry["prefix"])}) for entry in entries)
    for code in codes:
        if not isinstance(code.code, str) or not code.prefix:
            raise ValueError("a control code without tokens")
        if any(type(token) is not int or not 0 <= token < vocab_size for token in code.prefix):
            raise ValueError("a control code outside the vocabulary")
        if type(code.documents) is not int or type(code.tokens) is not int:
            raise ValueError("counts of a control code")
    if len({code.code for code in codes}) != len(codes):
        raise ValueError("a control code twice")
    return codes


@dataclass(frozen=True)
class Prefixes:
    """The tokens before texts, concatenated: of each control code, or of each document."""

    ids: Ints
    bounds: Ints  # codes or documents + 1

    @classmethod
    def of(cls, codes: Sequence[ControlCode]) -> "Prefixes":
        """Return the prefixes of these codes."""
        lengths = np.array([len(code.prefix) for code in codes], np.int64)
        return cls(np.array([token for code in codes for token in code.prefix], np.int64), cumulative_offsets(lengths))

    def take(self, numbers: Ints) -> "Prefixes":
        """Return the prefixes of these numbers."""
        lengths = self.lengths[numbers]
        ids = self.ids[concatenate_ranges(self.bounds[numbers], lengths)]
        return Prefixes(ids, cumulative_offsets(lengths))

    def followed_by(self, other: "Prefixes") -> "Prefixes":
        """Return each prefix with the one of the same number of another after it."""
        bounds = cumulative_offsets(self.lengths + other.lengths)
        ids = np.empty(int(bounds[-1]), np.int64)
        ids[concatenate_ranges(bounds[:-1], self.lengths)] = self.ids
        ids[concatenate_ranges(bounds[:-1] + self.lengths, other.lengths)] = other.ids
        return Prefixes(ids, bounds)

    @property
    def lengths(self) -> Ints:
        """Number of tokens of each prefix."""
        return np.diff(self.bounds)

    @property
    def longest(self) -> int:
        """Number of tokens of the longest prefix; 0 if there are no codes."""
        return int(self.lengths.max(initial=0))


def encode_lengths(lengths: NDArray[Any]) -> bytes:
    """Encode non-negative integers as variable-length bytes, least significant group first."""
    values = np.asarray(lengths, dtype=np.int64)
    assert values.size == 0 or values.min() >= 0, "a length is never negative"
    sizes = np.ones(values.size, dtype=np.int64)
    for group in range(1, LENGTH_BYTES):
        sizes += values >= (1 << (7 * group))
    ends = np.cumsum(sizes)
    data = np.zeros(int(ends[-1]) if ends.size else 0, dtype=np.uint8)
    starts = ends - sizes
    for group in range(int(sizes.max(initial=0))):
        present = sizes > group
        more = (sizes[present] > group + 1).astype(np.uint8) << 7
        data[starts[present] + group] = ((values[present] >> (7 * group)) & 0x7F).astype(np.uint8) | more
    return data.tobytes()


def decode_lengths(data: bytes) -> Ints:
    """Decode the integers; raise ValueError if the bytes are not valid."""
    raw = np.frombuffer(data, dtype=np.uint8)
    last = raw < 0x80
    if last.all():
        return raw.astype(np.int64)
    if not last[-1]:
        raise ValueError("the last length is cut off")
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if int(sizes.max()) > LENGTH_BYTES:
        raise ValueError("a length is too long")
    group = np.arange(raw.size) - np.repeat(starts, sizes)
    return np.add.reduceat((raw & 0x7F).astype(np.int64) << (7 * group), starts)


@dataclass(frozen=True)
class ShardFile:
    """One file of a shard as the header describes it."""

    count: int
    size: int
    sha256: str


def fingerprint(shards: Sequence[Mapping[str, ShardFile]], controls: Sequence[ControlCode] = ()) -> str:
    """Return the identity of the content: sha256 over the checksums of all shards in order and the control codes."""
    text = "\n".join(file.sha256 for parts in shards for file in parts.values())
    text += "".join(f"\n{code.code} {code.prefix}" for code in controls)
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
    coded = bool(read_control_codes(header.get(CONTROLS, []), size))
    if type(given := header.get(GIVEN[-1], False)) is not bool or (given and not coded):
        raise ValueError(f"{GIVEN[-1]} is not true or false")
    labels = label_parts(coded, given)
    return [read_shard_files(entry, dtype_for(size).itemsize, labels) for entry in header["shards"]]


def label_parts(coded: bool, given: bool) -> tuple[str, ...]:
    """Return the files of a shard with what comes before the texts: control codes and given texts, as far as
    documents have them."""
    return (*([CONTROLS] if coded else []), *(GIVEN if given else ()))


def read_shard_files(entry: Json, width: int, labels: Sequence[str]) -> dict[str, ShardFile]:
    """Parse one shard's entry in the header or the journal; raise ValueError if it is invalid.

    `width` is the number of bytes of an id; `labels`: files with control codes and given texts.
    """
    parts = {part: ShardFile(**entry[part]) for part in (*PARTS, *labels)}
    for part, file in parts.items():
        if type(file.count) is not int or type(file.size) is not int or file.count < (part != GIVEN[-1]):
            raise ValueError(f"{part} count {file.count!r}")
        if not isinstance(file.sha256, str) or len(file.sha256) != 64:
            raise ValueError(f"{part} checksum")
    if parts["tokens"].size != parts["tokens"].count * width:
        raise ValueError("token count and size do not agree")
    return parts
