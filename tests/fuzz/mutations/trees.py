"""Changes of JSON and TOML documents: one value in them, or the whole document."""

import json
import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Change
from tests.fuzz.mutations import values

Place = tuple[Any, ...]


def json_change(file: str, random: Random, within: Place = ()) -> Change:
    """Change a JSON file: now and then all of it, else one value of it (below `within`)."""
    if random.random() < 0.15:
        return document(file, random.choice(values.JSON_DOCUMENTS))
    seed = random.random()

    def make(path: Path) -> None:
        tree = json.loads(path.read_bytes())
        mutate(tree, Random(seed), within)
        path.write_text(json.dumps(tree))

    return Change(file, f"one value of the JSON ({seed})", make)


def toml_change(file: str, random: Random, within: Place = ()) -> Change:
    """Change a TOML file: now and then all of it, else one value of it (below `within`)."""
    if random.random() < 0.15:
        return document(file, random.choice(values.TOML_DOCUMENTS))
    seed = random.random()

    def make(path: Path) -> None:
        tree = tomllib.loads(path.read_text())
        mutate(tree, Random(seed), within)
        path.write_bytes(toml(tree).encode(errors="surrogatepass"))

    return Change(file, f"one value of the TOML ({seed})", make)


def json_lines_change(file: str, random: Random) -> Change:
    """Change one line of a file of JSON lines."""
    seed = random.random()

    def make(path: Path) -> None:
        draw = Random(seed)
        lines = path.read_bytes().splitlines()
        number = draw.randrange(len(lines))
        if draw.random() < 0.3:
            lines[number] = draw.choice(values.JSON_DOCUMENTS)
        else:
            tree = json.loads(lines[number])
            mutate(tree, draw, ())
            lines[number] = json.dumps(tree).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")

    return Change(file, f"one line ({seed})", make)


def document(file: str, content: bytes) -> Change:
    """Replace a file."""
    start = content[:40].decode(errors="backslashreplace")
    return Change(file, f"{len(content)} bytes: {start}", lambda path: _replace(path, content))


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def mutate(tree: Any, random: Random, within: Place) -> None:
    """Change one value somewhere in a tree, in place: set, delete, add, rename, exchange."""
    places = [place for place in _places(tree) if place[: len(within)] == within and len(place) > len(within)]
    if not places:
        if isinstance(tree, dict):
            tree["zzz"] = values.value(random)
        return
    # As likely near the root as deep in a long list.
    depth = random.choice(sorted({len(place) for place in places}))
    place = random.choice([place for place in places if len(place) == depth])
    parent, key = _parent(tree, place), place[-1]
    deed = random.choice(("set", "set", "near", "near", "delete", "add", "rename", "exchange"))
    if deed == "delete":
        del parent[key]
    elif deed == "add" and isinstance(parent, dict):
        parent[random.choice(("zzz", "", "x" * 300, "\0", key + "_", key.upper()))] = values.value(random)
    elif deed == "rename" and isinstance(parent, dict):
        parent[random.choice((key + "x", key[:-1], key.upper(), ""))] = parent.pop(key)
    elif deed == "exchange":
        other = random.choice(places)
        other_parent, held = _parent(tree, other), parent[key]
        if other[: len(place)] != place and place[: len(other)] != other:
            parent[key] = other_parent[other[-1]]
            other_parent[other[-1]] = held
    elif deed == "near":
        parent[key] = values.near(parent[key], random)
    else:
        parent[key] = values.value(random)


def _places(tree: Any, above: Place = ()) -> Iterator[Place]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*above, key)
        yield from _places(value, (*above, key))


def _parent(tree: Any, place: Place) -> Any:
    for key in place[:-1]:
        tree = tree[key]
    return tree


def toml(tree: dict[str, Any]) -> str:
    """Write a tree as TOML, with one line for each key of the root; TOML has no None."""
    return "".join(f"{_toml_key(key)} = {toml_value(value)}\n" for key, value in tree.items() if value is not None)


def toml_value(value: Any) -> str:
    """Return one value as TOML."""
    if isinstance(value, dict):
        inner = (f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{{', '.join(inner)}}}"
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value if item is not None)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("-" if value < 0 else "") + "inf" if math.isinf(value) else repr(value)
    return json.dumps(value, ensure_ascii=True) if isinstance(value, str) else str(value)


def _toml_key(key: Any) -> str:
    return json.dumps(str(key))
