"""What each of Reformer's four options saves: an architecture with none, one or all of them."""

from collections.abc import Iterator
from math import isqrt
from typing import Any, NamedTuple

from bertree.errors import UserError
from bertree.model.architecture import Architecture, Transformer

LONG = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
NONE, ALL, OWN = "none of them", "all of them", "as it is"
CHUNK = 4096  # tokens in the feed-forward part at the same time, where an architecture does not say it
_CHUNKS = {"chunked", "lsh"}


class Option(NamedTuple):
    """An option: its name, whether an architecture uses it, and its axes with it and without it."""

    name: str
    used: bool
    on: dict[str, Any]
    off: dict[str, Any]


def option_variants(a: Architecture) -> dict[str, Architecture]:
    """Return `a` with none of the options, with each of them alone, with all, and as it is; empty if it uses none."""
    options = list(_options(a)) if isinstance(a, Transformer) else []
    if not any(option.used for option in options):
        return {}
    bare = a.with_values({axis: value for option in options for axis, value in option.off.items()})
    possible = [option for option in options if option.used or _can_be(bare, option.on)]
    alone = {option.name: bare.with_values(option.on) for option in possible}
    together = a.with_values({axis: value for option in possible for axis, value in option.on.items()})
    joined = {ALL: together} if len(possible) > 1 else {}
    return {NONE: bare, **alone} | joined | ({OWN: a} if a != together else {})


def long_lengths(a: Architecture) -> tuple[int, ...]:
    """Return the lengths that are compared, as far as sequences of an architecture may be so long."""
    return tuple(length for length in LONG if length <= a.longest_input)


def _can_be(a: Architecture, changes: dict[str, Any]) -> bool:
    try:
        a.with_values(changes)
    except UserError:
        return False
    return True


def _options(a: Transformer) -> Iterator[Option]:
    used = bool(_CHUNKS & set(a.attention_kinds))
    pattern = a.attention if used else "lsh" if a.sharing in ("attention", "all") else "chunked,lsh"
    whole = "full" if a.look_ahead else "causal"
    plain = ",".join(whole if kind in _CHUNKS else kind for kind in a.attention.split(","))
    off = {"attention": plain, "look_ahead": a.look_ahead}
    on = {"attention": pattern, "look_ahead": a.look_ahead if used else not a.causal}
    yield Option("lsh attention" if "lsh" in pattern else "chunked attention", used, on, off)
    used = a.residual == "reversible"
    norms = {"embedding_norm": a.embedding_norm, "residual_init": a.residual_init}
    off = {"residual": "pre-norm" if used else a.residual} | norms
    yield Option("reversible layers", used, {"residual": "reversible"} | norms, off)
    yield Option("feed-forward in chunks", a.ffn_chunk > 0, {"ffn_chunk": a.ffn_chunk or CHUNK}, {"ffn_chunk": 0})
    if a.positions in ("axial", "learned"):
        rows = next(n for n in range(isqrt(a.max_positions), 0, -1) if a.max_positions % n == 0)
        shape = a.axial_shape if a.positions == "axial" else f"{rows},{a.max_positions // rows}"
        off = {"positions": "learned", "max_positions": a.max_positions}
        yield Option("axial positions", a.positions == "axial", {"positions": "axial", "axial_shape": shape}, off)
