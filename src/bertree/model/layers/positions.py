"""How a model knows the order of tokens. A kind of positions has one or both of two hooks:

    embed     a vector for each token, added to the embeddings: learned, axial, sinusoidal
    change    queries and keys are changed by their positions (rotary), or scores by their distance (relative)

The first is called by the embeddings, the second by each attention.

Shape letters: t tokens, e embedding width, h width, n heads, d head width, x distances.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.kernels import triton_rotary
from bertree.model.kernels.layout import RelativeScores, SegmentScores
from bertree.model.kernels.operators import look_up, rotary_angles
from bertree.model.kernels.triton_rotary import rotate_plainly


class TokenPositions(NamedTuple):
    """Positions of queries and keys in their sequences, including keys kept from earlier segments."""

    queries_t: Tensor
    keys_t: Tensor  # the same tensor, if they are the same tokens
    before: int  # the largest distance of a query and a key before it, on the host
    ahead: int  # the same for keys after it; 0: queries see none of them
    query_segments_t: Tensor
    key_segments_t: Tensor
    one_segment: bool = False  # all tokens are of one segment, as known on the host


class Positions:
    """The hooks, which do nothing by default."""

    def embed(self, batch: Batch) -> Tensor | None:
        """Return what is added to the embeddings (t x e), or None."""
        return None

    @property
    def same(self) -> Hashable:
        """A key that is equal for positions whose `prepare` returns the same for a batch."""
        return None

    def prepare(self, tokens: TokenPositions) -> Any:
        """Return what `change` needs for tokens at these positions: computed once, used by every layer."""
        return None

    def change(self, q_tnd: Tensor, k_tnd: Tensor, prepared: Any) -> tuple[Tensor, Tensor, RelativeScores | None]:
        """Return queries and keys as their positions change them, and what changes their scores."""
        return q_tnd, k_tnd, None

    def changes_fused(self, x_th: Tensor) -> bool:
        """Return whether `change_fused` supports such hidden states and is faster."""
        return False

    def change_fused(self, qkv_t3nd: Tensor, prepared: Any) -> Tensor:
        """Return queries, keys and values of the same tokens, in one tensor, as their positions change them."""
        raise NotImplementedError


class LearnedPositions(Positions, nn.Embedding):
    """A vector for each position. `offset`: rows before that of position 0, which are never used."""

    def __init__(self, positions: int, width: int, offset: int = 0) -> None:
        super().__init__(positions + offset, width)
        self.offset = offset

    def embed(self, batch: Batch) -> Tensor:
        """Look up the position of each token in its sequence (t x e)."""
        return look_up(self.weight, batch.positions + self.offset)


class AxialPositions(Positions, nn.Module):
    """A vector for each position of a grid, learned: that of its row, then that of its column (Kitaev et al. 2020)."""

    def __init__(self, sizes: tuple[int, int], widths: tuple[int, int]) -> None:
        super().__init__()
        self.rows, self.columns = (nn.Embedding(*shape) for shape in zip(sizes, widths, strict=True))

    def embed(self, batch: Batch) -> Tensor:
        """Look up row and column of each token's position (t x e)."""
        row_t = batch.positions // self.columns.num_embeddings
        column_t = batch.positions % self.columns.num_embeddings
        return torch.cat([look_up(self.rows.weight, row_t), look_up(self.columns.weight, column_t)], -1)


def sinusoids(positions_t: Tensor, width: int) -> Tensor:
    """Return sines, then cosines, of positions at wavelengths from 2 pi to 20,000 pi (t x width, float32)."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=positions_t.device) / width
    angles = positions_t[:, None].float() * (1.0 / 10_000.0**exponents)
    return torch.cat([angles.sin(), angles.cos()], -1)


class SinusoidalPositions(Positions, nn.Module):
    """A vector of sines and cosines for each position, which needs no table and has no longest sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def embed(self, batch: Batch) -> Tensor:
        """Return the vector of each token's position (t x e)."""
        return sinusoids(batch.positions, self.width)


EmbeddedPositions = LearnedPositions | AxialPositions | SinusoidalPositions


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles (each t x 1 x d / 2, float32)."""

    cos: Tensor
    sin: Tensor


class RotaryPositions(Positions, nn.Module):
    """Rotate pairs of a head's components by angles that grow with the position (Su et al. 2021).

    Components i and i + d / 2 are a pair, whose angle is position / base^(2 i / d); so a score depends on the distance
    of query and key. Angles are computed in float32, whatever the precision of the model.
    """

    def __init__(self, head_width: int, base: float) -> None:
        super().__init__()
        self.head_width, self.base = head_width, base

    @property
    def same(self) -> Hashable:
        """Width and base."""
        return self.head_width, self.base

    def prepare(self, tokens: TokenPositions) -> tuple[Rotation, Rotation]:
        """Return cosines and sines of the angles of queries and of keys."""
        queries = self._angles(tokens.queries_t)
        return queries, queries if tokens.keys_t is tokens.queries_t else self._angles(tokens.keys_t)

    def _angles(self, positions_t: Tensor) -> Rotation:
        return Rotation(*rotary_angles(positions_t, self.head_width, self.base))

    def change(
        self, q_tnd: Tensor, k_tnd: Tensor, prepared: tuple[Rotation, Rotation]
    ) -> tuple[Tensor, Tensor, RelativeScores | None]:
        """Rotate queries and keys."""
        return rotate_plainly(q_tnd, *prepared[0]), rotate_plainly(k_tnd, *prepared[1]), None

    def changes_fused(self, x_th: Tensor) -> bool:
        """True on a GPU."""
        return triton_rotary.usable(x_th, self.head_width)

    def change_fused(self, qkv_t3nd: Tensor, prepared: tuple[Rotation, Rotation]) -> Tensor:
        """Rotate queries and keys."""
        return triton_rotary.rotate(qkv_t3nd, *prepared[0])


class DistanceVectors(NamedTuple):
    """Vectors of the distances that occur (x x h), from `lowest` on, and the segments of queries and keys."""

    vectors_xh: Tensor
    lowest: int
    query_segments_t: Tensor
    key_segments_t: Tensor
    one_segment: bool = False  # all tokens are of one segment, as known on the host


class RelativePositions(Positions, nn.Module):
    """Scores by content and by distance (Dai et al. 2019): (q + u) k + (q + v) W r, r a sinusoid of the distance.

    `clamp`: larger distances count as this one; 0: none does. `biases_of`: positions whose u and v these use.
    `segments`: scores by segment too (Yang et al. 2019): (q + s) e[0] for keys of the query's segment, e[1] for others.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int,
        clamp: int,
        biases_of: "RelativePositions | None" = None,
        segments: bool = False,
    ) -> None:
        super().__init__()
        self.clamp = clamp
        self.project = nn.Linear(width, heads * head_width, bias=False)
        self._biases_of = (biases_of,)  # in a tuple: not a part of this module
        if biases_of is None:
            self.content_bias = nn.Parameter(torch.zeros(heads, head_width))
            self.distance_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.tells_segments = segments
        self.drawn = ("segment_vectors", "segment_bias") if segments else ()
        if segments:
            self.segment_vectors = nn.Parameter(torch.zeros(2, heads, head_width))
            self.segment_bias = nn.Parameter(torch.zeros(heads, head_width))

    @property
    def borrowed(self) -> list[nn.Parameter]:
        """Parameters of another layer that these positions use."""
        lender = self._biases_of[0]
        return [] if lender is None else [lender.content_bias, lender.distance_bias]

    @property
    def same(self) -> Hashable:
        """Width and largest distance."""
        return self.project.in_features, self.clamp

    def prepare(self, tokens: TokenPositions) -> DistanceVectors:
        """Return the vectors of all distances that may occur."""
        distances_x = torch.arange(-tokens.ahead, tokens.before + 1, device=tokens.keys_t.device)
        if self.clamp:
            distances_x = distances_x.clamp(-self.clamp, self.clamp)
        vectors_xh = sinusoids(distances_x, self.project.in_features)
        of_queries, of_keys = (x.to(torch.int32) for x in (tokens.query_segments_t, tokens.key_segments_t))
        return DistanceVectors(vectors_xh, -tokens.ahead, of_queries, of_keys, tokens.one_segment)

    def change(self, q_tnd: Tensor, k_tnd: Tensor, prepared: DistanceVectors) -> tuple[Tensor, Tensor, RelativeScores]:
        """Return queries and keys as they are, and the scores of distances and segments."""
        r_xnd = self.project(prepared.vectors_xh.to(self.project.weight.dtype)).unflatten(-1, q_tnd.shape[1:])
        biases = self._biases_of[0] or self
        scores = (r_xnd, biases.content_bias, biases.distance_bias, prepared.lowest)
        if not self.tells_segments or prepared.one_segment:
            return q_tnd, k_tnd, RelativeScores(*scores)
        other_nd = (self.segment_vectors[1] - self.segment_vectors[0]).to(q_tnd.dtype)
        apart_tn = ((q_tnd + self.segment_bias.to(q_tnd.dtype)) * other_nd).sum(-1)
        segments = SegmentScores(apart_tn, prepared.query_segments_t, prepared.key_segments_t)
        return q_tnd, k_tnd, RelativeScores(*scores, segments)


class PositionKind(NamedTuple):
    """What is built for a value of the axis `positions`: what the embeddings add, and the positions of each attention
    of some kinds."""

    embedded: Callable[[Transformer], EmbeddedPositions | None]
    attention: Callable[[Transformer, list[str]], list[Positions | None]]


def _no_positions(a: Transformer, kinds: list[str]) -> list[Positions | None]:
    return [None for _ in kinds]


def _rotary(a: Transformer, kinds: list[str]) -> list[Positions | None]:
    bases = {kind: a.local_rotary_base if kind == "local" else a.rotary_base for kind in kinds}
    shared = {kind: RotaryPositions(a.head_size, base) for kind, base in bases.items()}
    return [shared[kind] for kind in kinds]


def _relative(a: Transformer, kinds: list[str]) -> list[Positions | None]:
    built: list[RelativePositions] = []
    for _ in kinds:
        shared = built[0] if built and a.shared_position_bias else None
        built.append(
            RelativePositions(a.width, a.heads, a.head_size, a.clamp, shared, a.segment_encoding == "relative")
        )
    return [*built]


POSITIONS = {
    "learned": PositionKind(
        lambda a: LearnedPositions(a.max_positions, a.embedding_width, a.position_offset), _no_positions
    ),
    "axial": PositionKind(lambda a: AxialPositions(a.axial_sizes, a.axial_vector_widths), _no_positions),
    "sinusoidal": PositionKind(lambda a: SinusoidalPositions(a.embedding_width), _no_positions),
    "relative": PositionKind(lambda a: None, _relative),
    "rotary": PositionKind(lambda a: None, _rotary),
}
