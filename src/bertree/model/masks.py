"""What a token sees: the mask of attention, as a value.

A mask is defined by `sees`, on places in a sequence, and kernels say which masks they support by type; so a new mask
touches no kernel that does not support it. Where queries and keys are counted apart, the last of both are at the same
place: keys before the first query are a memory.

Shape letters: q queries, k keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Full:
    """Every token of the sequence."""

    band = (-1, -1)  # how many keys before and after its own place a query sees; -1: all
    looks_ahead = True  # a token sees some of those after it

    def sees(self, query_places: Tensor, key_places: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        shape = torch.broadcast_shapes(query_places.shape[:-1], key_places.shape[:-1])
        size = (*shape, query_places.shape[-1], key_places.shape[-1])
        return torch.ones(size, dtype=torch.bool, device=key_places.device)


@dataclass(frozen=True)
class Causal:
    """The token itself and those before it."""

    band = (-1, 0)
    looks_ahead = False

    def sees(self, query_places: Tensor, key_places: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        return key_places[..., None, :] <= query_places[..., :, None]


@dataclass(frozen=True)
class Window:
    """At most `left` tokens before and `right` tokens after the token, and itself; causal with `right` 0."""

    left: int
    right: int

    def __post_init__(self) -> None:
        assert self.left >= 0 <= self.right, "a window has no negative side"

    @property
    def band(self) -> tuple[int, int]:
        """How many keys before and after its own place a query sees."""
        return self.left, self.right

    @property
    def looks_ahead(self) -> bool:
        """True if a token sees some of those after it."""
        return self.right > 0

    def sees(self, query_places: Tensor, key_places: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        ahead = key_places[..., None, :] - query_places[..., :, None]
        return (ahead >= -self.left) & (ahead <= self.right)


Mask = Full | Causal | Window
NAMES = {Full: "full", Causal: "causal", Window: "window"}
