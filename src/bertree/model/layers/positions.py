"""How a model knows the order of tokens. A kind of positions has one or both of two hooks:

    embed     a vector for each token, added to the embeddings: learned
    rotate    queries and keys are changed by their places: rotary

The first is called by the embeddings, the second by each attention.

Shape letters: t tokens, e embedding width, n heads, d head width.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.kernels.custom_ops import look_up


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles (each t x 1 x d / 2, float32)."""

    cos: Tensor
    sin: Tensor


class Positions:
    """The hooks. Those that a kind does not have do nothing."""

    def embed(self, batch: Batch) -> Tensor | None:
        """Return what is added to the embeddings (t x e), or None."""
        return None

    def prepare(self, places_t: Tensor) -> Rotation | None:
        """Return what `rotate` needs for tokens at these places: computed once, used by every layer."""
        return None

    def rotate(self, q_tnd: Tensor, k_tnd: Tensor, queries: Rotation, keys: Rotation) -> tuple[Tensor, Tensor]:
        """Return queries and keys as their places change them."""
        return q_tnd, k_tnd


class LearnedPositions(Positions, nn.Embedding):
    """A vector for each place. `offset`: rows before that of place 0, which are never used."""

    def __init__(self, places: int, width: int, offset: int = 0) -> None:
        super().__init__(places + offset, width)
        self.offset = offset

    def embed(self, batch: Batch) -> Tensor:
        """Look up the place of each token in its sequence (t x e)."""
        return look_up(self.weight, batch.positions + self.offset)


class RotaryPositions(Positions, nn.Module):
    """Rotate pairs of a head's components by angles that grow with the place (Su et al. 2021).

    Components i and i + d / 2 are a pair, whose angle is place / base^(2 i / d); so a score depends on the distance
    of query and key. Angles are computed in float32, whatever the precision of the model.
    """

    def __init__(self, head_width: int, base: float) -> None:
        super().__init__()
        self.head_width, self.base = head_width, base

    def prepare(self, places_t: Tensor) -> Rotation:
        """Return cosine and sine of the angles at these places."""
        exponents = torch.arange(0, self.head_width, 2, dtype=torch.float32, device=places_t.device) / self.head_width
        angles = places_t[:, None, None].float() * (1.0 / self.base**exponents)
        return Rotation(angles.cos(), angles.sin())

    def rotate(self, q_tnd: Tensor, k_tnd: Tensor, queries: Rotation, keys: Rotation) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys."""
        return _rotated(q_tnd, queries), _rotated(k_tnd, keys)


def _rotated(x_tnd: Tensor, rotation: Rotation) -> Tensor:
    one, two = x_tnd.to(torch.promote_types(x_tnd.dtype, torch.float32)).chunk(2, -1)
    cos, sin = rotation
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(x_tnd.dtype)


class PositionKind(NamedTuple):
    """What is built for a value of the axis `positions`; layers of one kind of attention share theirs."""

    embedded: Callable[[Transformer], LearnedPositions | None]
    attention: Callable[[Transformer, str], Positions | None]


POSITIONS = {
    "learned": PositionKind(
        lambda a: LearnedPositions(a.max_positions, a.embedding_width, a.position_offset), lambda a, kind: None
    ),
    "rotary": PositionKind(
        lambda a: None,
        lambda a, kind: RotaryPositions(a.head_width, a.local_rotary_base if kind == "local" else a.rotary_base),
    ),
}


def build_embedded_positions(a: Transformer) -> LearnedPositions | None:
    """Build what is added to the embeddings."""
    return POSITIONS[a.positions].embedded(a)


def build_attention_positions(a: Transformer, kind: str) -> Positions | None:
    """Build what changes queries and keys in attention of a kind."""
    return POSITIONS[a.positions].attention(a, kind)
