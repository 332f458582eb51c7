"""Changes of safetensors files: the header, with a right length before it, and the numbers."""

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Change
from tests.fuzz.mutations import trees, values

DTYPES = ("F32", "F16", "BF16", "F64", "I64", "I8", "U8", "BOOL", "F8_E4M3", "X", "")
NUMBERS = (float("nan"), float("inf"), 1e38, -1e38, 0.0, 1.0)


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: Any, body: bytes) -> bytes:
    """Return a file with this header and body."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _header(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    trees.mutate(header, random, ())
    return join(header, body)


def _rename(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    name = random.choice(list(header))
    header[random.choice((name + "x", "", name.replace("0", "1"), "😀\n", "../x", values.LONG))] = header.pop(name)
    return join(header, body)


def _exchange(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    left, right = random.choice(list(header)), random.choice(list(header))
    header[left], header[right] = header[right], header[left]
    return join(header, body)


def _dtype(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    header[random.choice([name for name in header if name != "__metadata__"])]["dtype"] = random.choice(DTYPES)
    return join(header, body)


def _length(data: bytes, random: Random) -> bytes:
    return struct.pack("<Q", random.choice((0, 1, 2**63, 2**64 - 1, len(data), 10**9, 100))) + data[8:]


def _added(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    size = random.choice((0, 4, 1 << 20))
    header["zzz"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [len(body), len(body) + size]}
    return join(header, body + bytes(size))


def _metadata(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    header["__metadata__"] = values.value(random)
    return join(header, body)


def _number(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    at = random.randrange(max(1, len(body) // 4)) * 4
    return join(header, body[:at] + struct.pack("<f", random.choice(NUMBERS)) + body[at + 4 :])


def _bits(data: bytes, random: Random) -> bytes:
    header, body = split(data)
    at = random.randrange(len(body))
    return join(header, body[:at] + bytes([body[at] ^ 1 << random.randrange(8)]) + body[at + 1 :])


EDITS = {
    "a value of the header": _header,
    "another value of the header": _header,
    "rename a tensor": _rename,
    "exchange two tensors": _exchange,
    "another dtype": _dtype,
    "another length of the header": _length,
    "one more tensor": _added,
    "metadata": _metadata,
    "one number": _number,
    "one bit of the numbers": _bits,
}
IN_BODY = ("one number", "one bit of the numbers", "exchange two tensors")


def tensors_change(file: str, random: Random) -> Change:
    """Change a safetensors file."""
    name, seed = random.choice(list(EDITS)), random.random()

    def make(path: Path) -> None:
        path.write_bytes(EDITS[name](path.read_bytes(), Random(seed)))

    return Change(file, f"{name} ({seed})", make)
