"""Lower learning rates for lower layers (Howard and Ruder 2018; Clark et al. 2020 for ELECTRA): `optim.layer_decay`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

PLACE = re.compile(r"(?:^|\.)stack\.(\w+)\.(\d+)\.")  # kind of the part, and which of its copies


def layer_factors(names: Iterable[str], decay: float) -> dict[str, float]:
    """Return the factor of each parameter's rate: 1 above the last layer, and `decay` times less for every layer below.

    Embeddings count as the layer below the first. Parts that layers share lie evenly among them.
    """
    places = {name: PLACE.search(name) for name in names}
    copies: dict[str, int] = {}
    for place in filter(None, places.values()):
        copies[place[1]] = max(copies.get(place[1], 0), int(place[2]) + 1)
    layers = max(copies.values(), default=0)

    def below(name: str) -> float:
        """Return how many layers lie above a parameter, its own included."""
        place = places[name]
        if place is not None:
            return layers - int(place[2]) * layers / copies[place[1]]
        return layers + 1 if "embeddings." in name else 0

    return {name: decay ** below(name) for name in places}


def with_layer_rates(
    groups: Sequence[Mapping[str, Any]], named: Sequence[tuple[str, Tensor]], decay: float
) -> list[dict[str, Any]]:
    """Split groups of parameters into groups of one rate each: their `rate` is a multiple of the run's."""
    if decay == 1:
        return [dict(group) for group in groups]
    factors, names = layer_factors([name for name, _ in named], decay), {id(p): name for name, p in named}
    found = []
    for group in groups:
        alike: dict[float, list[Tensor]] = {}
        for p in group["params"]:
            alike.setdefault(factors[names[id(p)]], []).append(p)
        rate = group.get("rate", 1.0)
        found += [dict(group) | {"params": some, "rate": rate * factor} for factor, some in alike.items()]
    return found
