"""What a token sees: the mask of attention, as a value.

A mask is defined by `sees`, on positions in a sequence, and kernels say which masks they support by type; so a new mask
touches no kernel that does not support it. Where there are more keys than queries, the last of both are at the same
position: keys before the first query are a memory.

Shape letters: q queries, k keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Full:
    """Every token of the sequence."""

    band = (-1, -1)  # how many keys before and after its own position a query sees; -1: all
    looks_ahead = True  # a token sees some of those after it

    def sees(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        shape = torch.broadcast_shapes(query_positions.shape[:-1], key_positions.shape[:-1])
        size = (*shape, query_positions.shape[-1], key_positions.shape[-1])
        return torch.ones(size, dtype=torch.bool, device=key_positions.device)


@dataclass(frozen=True)
class Causal:
    """The token itself and those before it."""

    band = (-1, 0)
    looks_ahead = False

    def sees(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        return key_positions[..., None, :] <= query_positions[..., :, None]


@dataclass(frozen=True)
class SlidingWindow:
    """At most `left` tokens before and `right` tokens after the token, and itself; causal with `right` 0."""

    left: int
    right: int

    def __post_init__(self) -> None:
        assert self.left >= 0 <= self.right, "a window has no negative side"

    @property
    def band(self) -> tuple[int, int]:
        """How many keys before and after its own position a query sees."""
        return self.left, self.right

    @property
    def looks_ahead(self) -> bool:
        """True if a token sees some of those after it."""
        return self.right > 0

    def sees(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        ahead = key_positions[..., None, :] - query_positions[..., :, None]
        return (ahead >= -self.left) & (ahead <= self.right)


@dataclass(frozen=True)
class FullButSelf:
    """Every other token of the sequence; the token itself only if there is no other."""

    band = (-1, -1)
    looks_ahead = True

    def sees(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool), if its sequence has another token."""
        return key_positions[..., None, :] != query_positions[..., :, None]


@dataclass(frozen=True)
class CausalButSelf:
    """The tokens before the token; the first token sees itself."""

    band = (-1, 0)
    looks_ahead = False

    def sees(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        return key_positions[..., None, :] < query_positions[..., :, None].clamp(min=1)


@dataclass(frozen=True)
class Chunks:
    """The tokens of the token's chunk and of the neighboring chunks; causal: itself and those before it.

    If not causal, the first chunk is also a neighbor of the last, which `sees` leaves out.
    """

    length: int
    before: int
    after: int
    causal: bool

    @property
    def band(self) -> tuple[int, int]:
        """How many keys before and after its own position a query sees at most."""
        return self.length * (self.before + 1) - 1, 0 if self.causal else self.length * (self.after + 1) - 1

    @property
    def looks_ahead(self) -> bool:
        """True if a token sees some of those after it."""
        return not self.causal

    def sees(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return where a query sees a key (... x q x k, bool)."""
        queries, keys = query_positions[..., :, None], key_positions[..., None, :]
        ahead = keys // self.length - queries // self.length
        near = (ahead >= -self.before) & (ahead <= self.after)
        return near & (keys <= queries) if self.causal else near


Mask = Full | Causal | SlidingWindow | FullButSelf | CausalButSelf | Chunks
NAMES: dict[type, str] = {
    Full: "full",
    Causal: "causal",
    SlidingWindow: "window",
    FullButSelf: "others",
    CausalButSelf: "earlier",
    Chunks: "chunks",
}
