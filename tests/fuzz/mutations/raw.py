"""Changes of bytes, lines and of what a path is."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz.case import Change

Edit = Callable[[bytes, Random], bytes]


def _slice(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 2, 8, 64, 1000)))


def _flip(data: bytes, random: Random) -> bytes:
    at = random.randrange(max(1, len(data)))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] if data else b"\0"


def _set(data: bytes, random: Random) -> bytes:
    at = random.randrange(max(1, len(data)))
    return data[:at] + bytes([random.choice((0, 10, 32, 34, 127, 255))]) + data[at + 1 :]


def _cut(data: bytes, random: Random) -> bytes:
    first, last = _slice(data, random)
    return data[:first] + data[last:]


def _double(data: bytes, random: Random) -> bytes:
    first, last = _slice(data, random)
    return data[:last] + data[first:last] + data[last:]


def _exchange(data: bytes, random: Random) -> bytes:
    width = random.choice((1, 2, 4, 64))
    if len(data) < 2 * width:
        return data[::-1]
    a, b = sorted(random.randrange(len(data) // width) * width for _ in range(2))
    return data[:a] + data[b : b + width] + data[a + width : b] + data[a : a + width] + data[b + width :]


def _lines(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    left, right = random.randrange(len(lines)), random.randrange(len(lines))
    lines[left], lines[right] = lines[right], lines[left]
    return b"\n".join(lines)


EDITS: dict[str, Edit] = {
    "flip a bit": _flip,
    "flip another bit": _flip,
    "set a byte": _set,
    "truncate": lambda data, random: data[: random.randrange(len(data) + 1)],
    "cut out": _cut,
    "double": _double,
    "exchange two pieces": _exchange,
    "exchange two lines": _lines,
    "append zeros": lambda data, random: data + bytes(random.choice((1, 8, 1000))),
    "append itself": lambda data, random: data + data,
    "zeros": lambda data, random: bytes(len(data)),
    "all ones": lambda data, random: b"\xff" * len(data),
    "empty": lambda data, random: b"",
    "random": lambda data, random: random.randbytes(min(len(data), 10_000)),
    "a byte order mark": lambda data, random: b"\xef\xbb\xbf" + data,
    "other line ends": lambda data, random: data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data, random: data.decode("latin-1").encode("utf-16"),
}


def bytes_change(file: str, random: Random) -> Change:
    """Change the bytes of a file."""
    name, seed = random.choice(list(EDITS)), random.random()

    def make(path: Path) -> None:
        path.write_bytes(EDITS[name](path.read_bytes(), Random(seed)))

    return Change(file, f"{name} ({seed})", make)


def _gone(path: Path) -> None:
    path.unlink(missing_ok=True)


def _linked(path: Path, target: str) -> None:
    _gone(path)
    path.symlink_to(target)


def _folder(path: Path) -> None:
    _gone(path)
    path.mkdir()


def _pipe(path: Path) -> None:
    _gone(path)
    os.mkfifo(path)


PATHS: dict[str, Callable[[Path], None]] = {
    "gone": _gone,
    "a folder": _folder,
    "a pipe": _pipe,
    "a link to nothing": lambda path: _linked(path, "no-such-file"),
    "a link to itself": lambda path: _linked(path, path.name),
    "a link to /dev/zero": lambda path: _linked(path, "/dev/zero"),
    "a link to /dev/null": lambda path: _linked(path, "/dev/null"),
}


def path_change(file: str, random: Random) -> Change:
    """Change what a path is."""
    name = random.choice(list(PATHS))
    return Change(file, f"is {name}", PATHS[name])
