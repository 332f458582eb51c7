"""Initial weights of embeddings that are narrower than the teacher's, with a projection to the width of the layers.

The student adds and normalizes its embeddings in E dimensions and projects them to H (as ALBERT does). The E directions
are the principal components of what the teacher's first layer reads, over a sample of tokens; the projection is fitted
to the same sample by least squares.

Shape letters: n sampled tokens, v vocabulary, p positions, e the student's embedding width, h the teacher's.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.model.embeddings import Embeddings, TokenEmbeddings
from bertree.model.layers.positions import LearnedPositions

SAMPLE = 50_000  # tokens that the directions are found on
PLACES = 128  # the first places of a sequence, at which they stand


class _Tables(NamedTuple):
    tokens: Tensor
    positions: Tensor
    offset: int  # rows before that of position 0
    segments: Tensor | None
    norm: nn.LayerNorm


def _tables(embeddings: Embeddings) -> _Tables | None:
    """Return the parts of embeddings that add learned tables and normalize the sum; None if these are others."""
    tokens, positions, norm = embeddings.tokens, embeddings.positions, embeddings.norm
    if not isinstance(tokens, TokenEmbeddings) or not isinstance(positions, LearnedPositions) or tokens.scale != 1.0:
        return None
    if not isinstance(norm, nn.LayerNorm):
        return None
    segments = None if embeddings.segments is None else embeddings.segments.weight
    return _Tables(tokens.weight, positions.weight, positions.offset, segments, norm)


@torch.no_grad()
def narrow(student: Embeddings, teacher: Embeddings, ids: Tensor | None = None) -> int:
    """Set the student's embeddings from the wider ones of its teacher; return the number of tensors, 0 if they do not
    fit together.

    `ids`: tokens of the text, in which each counts as often as it occurs; by default every token counts once.
    """
    mine, its, projection = _tables(student), _tables(teacher), student.projection
    if mine is None or its is None or projection is None or teacher.projection is not None:
        return 0
    if mine.offset != its.offset or len(mine.tokens) != len(its.tokens) or len(mine.positions) > len(its.positions):
        return 0
    if not mine.tokens.shape[1] < its.tokens.shape[1] == projection.out_features:
        return 0
    tokens_vh, positions_ph = its.tokens.double(), its.positions[: len(mine.positions)].double()
    first_h = torch.zeros_like(positions_ph[0]) if its.segments is None else its.segments[0].double()
    if mine.segments is None:
        positions_ph = positions_ph + first_h
        first_h = torch.zeros_like(first_h)
    sum_nh = _sample(tokens_vh, positions_ph[its.offset :], ids) + first_h
    scale_h, shift_h = its.norm.weight.double(), torch.zeros_like(first_h) if its.norm.bias is None else its.norm.bias
    scaled_nh = F.layer_norm(sum_nh, its.norm.normalized_shape, scale_h, eps=its.norm.eps)
    linear_he = _directions(scaled_nh, scale_h, mine.tokens.shape[1])

    mine.tokens.copy_(tokens_vh @ linear_he)
    mine.positions.copy_(positions_ph @ linear_he)
    if mine.segments is not None:
        mine.segments.zero_()
    if mine.segments is not None and its.segments is not None:
        both = min(len(mine.segments), len(its.segments))
        mine.segments[:both] = its.segments[:both].double() @ linear_he
    mine.norm.reset_parameters()
    narrow_ne = F.layer_norm(sum_nh @ linear_he, linear_he.shape[1:], eps=mine.norm.eps)
    fitted = torch.linalg.lstsq(F.pad(narrow_ne, (0, 1), value=1.0), scaled_nh + shift_h).solution
    projection.weight.copy_(fitted[:-1].T)
    projection.bias.copy_(fitted[-1])
    return len(student.state_dict())


def _sample(tokens_vh: Tensor, positions_ph: Tensor, ids: Tensor | None) -> Tensor:
    """Return sums of token and position embeddings."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.arange(len(tokens_vh)) if ids is None else ids.cpu()
    ids_n = ids[torch.randint(len(ids), (SAMPLE,), generator=draw)].to(tokens_vh.device)
    places_n = torch.randint(min(PLACES, len(positions_ph)), (SAMPLE,), generator=draw).to(tokens_vh.device)
    return tokens_vh[ids_n] + positions_ph[places_n]


def _directions(scaled_nh: Tensor, scale_h: Tensor, width: int) -> Tensor:
    """Return the linear map of a sum of embeddings to its coordinates (h x e) before it is divided by its deviation.

    The principal components are rotated at random, so that all coordinates have about the same size: the student's norm
    divides by their deviation.
    """
    components_he = torch.linalg.eigh(scaled_nh.T @ scaled_nh).eigenvectors[:, -width:]
    draw = torch.Generator().manual_seed(0)
    rotation_ee = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64)).Q
    scaled_he = scale_h[:, None] * components_he @ rotation_ee.to(components_he)
    return scaled_he - scaled_he.mean(0)  # the norm takes the mean off
