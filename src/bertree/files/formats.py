"""Untrusted JSON, TOML and text are read with limits; JSON and TOML are written; files are hashed."""

import hashlib
import io
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertree.errors import UserError

Json = dict[str, Any]
MOST_TOML = 1 << 20  # characters: a file of settings is small


def check_regular(path: str | Path) -> None:
    """Raise an error for a pipe or a device, which may never end. A missing file is left to the caller."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a pipe or a device; give a file")


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    check_regular(path)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None


def read_json(path: Path) -> Json:
    """Read a file that holds a JSON object."""
    value = parse_json(read_text(path), str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return value


def read_json_lines(path: Path) -> Iterator[Json]:
    """Yield the JSON object of every line."""
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        value = parse_json(line, f"{path}: line {number}")
        if not isinstance(value, dict):
            raise UserError(f"{path}: line {number}: must hold a JSON object")
        yield value


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse untrusted JSON; what is not JSON, nested too deeply or a number of too many digits is a UserError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid JSON ({_reason(error)})") from None


def read_toml(path: Path) -> Json:
    """Read a TOML file."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, where: str) -> Json:
    """Parse untrusted TOML; what is not TOML, nested too deeply or a number of too many digits is a UserError."""
    if len(text) > MOST_TOML:
        raise UserError(f"{where}: is not valid TOML (it has {len(text):,} characters; at most {MOST_TOML:,} are read)")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not valid TOML ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    """Return why something cannot be parsed, in a few words."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError | tomllib.TOMLDecodeError | UnicodeDecodeError):
        return " ".join(str(error).split())
    return "a number has too many digits"


def toml_text(tree: Json) -> str:
    """Write plain values, tables of them and lists of tables as TOML; None is left out."""
    blocks, plain = [], []
    for name, value in tree.items():
        if isinstance(value, dict):
            blocks.append([f"[{name}]", *_toml_lines(value)])
        elif isinstance(value, list | tuple) and all(isinstance(entry, dict) for entry in value):
            blocks += [[f"[[{name}]]", *_toml_lines(entry)] for entry in value]
        else:
            plain += _toml_lines({name: value})
    return "\n".join("\n".join(block) + "\n" for block in (plain, *blocks) if block)


def _toml_lines(table: Json) -> list[str]:
    return [f"{key} = {_toml_value(value)}" for key, value in table.items() if value is not None]


def _toml_value(value: Any) -> str:
    """Return a value in the spelling of JSON, except for infinity, which JSON lacks."""
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def npy_header(rows: int, columns: int, dtype: str) -> bytes:
    """Return the header of a .npy file of a matrix. It has 128 bytes for any size, so that it can be written last."""
    from numpy.lib import format

    header = io.BytesIO()
    format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": (rows, columns)})
    return header.getvalue()


def file_hash(path: Path, advance: Callable[[int], None] = lambda count: None) -> str:
    """Return the sha256 of a file, read in pieces; `advance` is called with the size of each."""
    check_regular(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                advance(len(block))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def json_text(value: Json, indent: int | None = None) -> str:
    """Return JSON; numbers that are not finite become null."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
