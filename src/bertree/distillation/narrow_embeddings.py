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

from bertree.model.layers.embeddings import Embeddings, TokenEmbeddings
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
    # On the CPU: a GPU solves least squares only where no column follows from the others.
    tokens_vh, positions_ph = _exact(its.tokens), _exact(its.positions[: len(mine.positions)])
    segments_ch = torch.zeros_like(positions_ph[:1]) if its.segments is None else _exact(its.segments)
    if mine.segments is None:
        positions_ph = positions_ph + segments_ch[0]
        segments_ch = torch.zeros_like(segments_ch)
    sum_nh = _sample(tokens_vh, positions_ph[its.offset :], ids) + segments_ch[0]
    scale_h = _exact(its.norm.weight)
    shift_h = torch.zeros_like(scale_h) if its.norm.bias is None else _exact(its.norm.bias)
    scaled_nh = F.layer_norm(sum_nh, its.norm.normalized_shape, scale_h, eps=its.norm.eps)
    linear_he = _directions(scaled_nh, scale_h, mine.tokens.shape[1])

    mine.tokens.copy_(tokens_vh @ linear_he)
    mine.positions.copy_(positions_ph @ linear_he)
    if mine.segments is not None:
        both = min(len(mine.segments), len(segments_ch))
        mine.segments.zero_()
        mine.segments[:both].copy_(segments_ch[:both] @ linear_he)
    mine.norm.reset_parameters()
    narrow_ne = F.layer_norm(sum_nh @ linear_he, linear_he.shape[1:], eps=mine.norm.eps)
    # What a norm gives adds up to zero, so one column follows from the others: only an SVD (gelsd) solves that surely.
    fitted = torch.linalg.lstsq(F.pad(narrow_ne, (0, 1), value=1.0), scaled_nh + shift_h, driver="gelsd").solution
    projection.weight.copy_(fitted[:-1].T)
    projection.bias.copy_(fitted[-1])
    return len(student.state_dict())


def _exact(weights: Tensor) -> Tensor:
    return weights.detach().cpu().double()


def _sample(tokens_vh: Tensor, positions_ph: Tensor, ids: Tensor | None) -> Tensor:
    """Return sums of token and position embeddings."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.arange(len(tokens_vh)) if ids is None else ids
    ids_n = ids[torch.randint(len(ids), (SAMPLE,), generator=draw)]
    places_n = torch.randint(min(PLACES, len(positions_ph)), (SAMPLE,), generator=draw)
    return tokens_vh[ids_n] + positions_ph[places_n]


def _directions(scaled_nh: Tensor, scale_h: Tensor, width: int) -> Tensor:
    """Return the linear map of a sum of embeddings to its coordinates (h x e) before it is divided by its deviation.

    The student's norm takes the mean off the coordinates and divides by their deviation. So one principal component
    fewer is kept than there are coordinates, turned such that their mean is 0 and all have about the same size.
    """
    components_hk = torch.linalg.eigh(scaled_nh.T @ scaled_nh).eigenvectors[:, len(scale_h) - width + 1 :]
    drawn_ee = torch.randn(width, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn_ee[:, 0] = 1.0
    turned_ke = torch.linalg.qr(drawn_ee).Q[:, 1:].T  # each row is orthogonal to (1, ..., 1)
    scaled_he = scale_h[:, None] * components_hk @ turned_ke
    return scaled_he - scaled_he.mean(0)  # the teacher's norm takes the mean off
