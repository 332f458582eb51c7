"""A student's initial weights, copied from some of the teacher's layers wherever the shapes are equal.

Layers count from 1, the first above the embeddings. Embeddings narrower than the teacher's are fitted: the student adds
and normalizes its embeddings in E dimensions and projects them to H (as ALBERT does). The E directions are the
principal components of what the teacher's first layer reads, over a sample of tokens; the projection is fitted to the
same sample by least squares.

Shape letters: n sampled tokens, v vocabulary, p positions, e the student's embedding width, h the teacher's.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.model.directions import DirectedEncoder, Reader
from bertree.model.encoder import Encoder
from bertree.model.layers.embeddings import Embeddings, TokenEmbeddings
from bertree.model.layers.positions import LearnedPositions
from bertree.model.layers.stack import Stack
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder

SAMPLE = 50_000  # tokens that the directions are computed from
POSITIONS = 128  # the first positions of a sequence, at which they are sampled


class CopiedWeights(NamedTuple):
    """What a student has copied from its teacher."""

    tensors: int
    layers: int  # of the student that are complete copies
    misfit: str = ""  # why not all of them are
    positions: bool = False  # whether it has the teacher's embeddings of all positions, or needs none


@torch.no_grad()
def copy_weights(student: Network, teacher: Network, layers: Sequence[int], ids: Tensor | None = None) -> CopiedWeights:
    """Copy the teacher's embeddings, heads and the given layers to a student, wherever the shapes are equal.

    If the student has no segments, the teacher's embedding of the first segment is added to the positions. Embeddings
    that are narrower than the teacher's begin as its principal components over `ids`, tokens of the text.
    """
    encoder, teacher_encoder = student.encoder, teacher.encoder
    embeddings, teacher_embeddings = encoder.embeddings, teacher_encoder.embeddings
    copied = narrow(embeddings, teacher_embeddings, ids)
    positions = copied > 0
    if not copied:
        for name in ("tokens", "segments", "norm", "projection"):
            copied += _copy(getattr(embeddings, name), getattr(teacher_embeddings, name))
        moved = _copy_positions(embeddings, teacher_embeddings)
        copied += moved
        positions = moved > 0 or embeddings.positions is None
    readers, teacher_readers = _readers(encoder), _readers(teacher_encoder)
    misfit = "no layer fits: one of the two is an LSTM"
    if readers and teacher_readers:
        misfit = "" if readers.keys() == teacher_readers.keys() else "no layer fits: the two read in other directions"
    for direction, reader in {} if misfit else readers.items():
        other = teacher_readers[direction]
        misfit = _misfit(reader.stack, other.stack)
        copied += _copy(reader.norm, other.norm) + (0 if misfit else _copy_layers(reader.stack, other.stack, layers))
    copied += _copy(getattr(encoder, "pooler", None), getattr(teacher_encoder, "pooler", None))
    if isinstance(encoder, TransformerEncoder) and isinstance(teacher_encoder, TransformerEncoder):
        copied += _copy_query_start(encoder, teacher_encoder)
    for name, head in student.heads.items():
        copied += _copy(head, dict(teacher.heads.items()).get(name))
    return CopiedWeights(copied, 0 if misfit else encoder.depth, misfit, positions)


def _readers(encoder: Encoder) -> dict[str, TransformerEncoder | Reader]:
    """Return what holds the layers of each direction in which an encoder reads; empty if it is an LSTM."""
    if isinstance(encoder, TransformerEncoder):
        return {"forward": encoder}
    if not isinstance(encoder, DirectedEncoder):
        return {}
    readers = {"forward": encoder.forward_reader, "backward": encoder.backward_reader}
    return {direction: reader for direction, reader in readers.items() if reader is not None}


def _copy_layers(student: Stack, teacher: Stack, layers: Sequence[int]) -> int:
    """Copy the given layers of a teacher; return the number of tensors."""
    copied = 0
    for kind in (0, 1):  # attention and feed-forward, each stored once however many layers use it
        first_uses = {student.sharing[depth][kind]: depth for depth in reversed(range(len(student.sharing)))}
        for target, depth in first_uses.items():
            source = teacher.sharing[layers[depth] - 1][kind]
            stores = [(stack.attention, stack.ffn)[kind] for stack in (student, teacher)]
            copied += _copy(stores[0][target], stores[1][source])
    return copied


def _copy_query_start(student: TransformerEncoder, teacher: TransformerEncoder) -> int:
    """Copy what a query stream starts with, if both have one of the same width; return the number of tensors."""
    start, teacher_start = student.query_start, teacher.query_start
    if start is None or teacher_start is None or start.shape != teacher_start.shape:
        return 0
    start.copy_(teacher_start)
    return 1


def _copy_positions(student: Embeddings, teacher: Embeddings) -> int:
    """Copy the positions if the teacher has as many as the student; return the number of tensors."""
    positions, teacher_positions = student.positions, teacher.positions
    if not isinstance(positions, LearnedPositions) or not isinstance(teacher_positions, LearnedPositions):
        return 0
    weight, teacher_weight = positions.weight, teacher_positions.weight
    if (
        positions.offset != teacher_positions.offset
        or weight.shape[1] != teacher_weight.shape[1]
        or len(weight) > len(teacher_weight)
    ):
        return 0
    weight.copy_(teacher_weight[: len(weight)])
    if student.segments is None and teacher.segments is not None:
        weight += teacher.segments.weight[0].to(weight)
    return 1


def _misfit(student: Stack, teacher: Stack) -> str:
    """Return why no layer of one stack can be copied to the other; empty if it can."""
    if student.residual != teacher.residual:
        return "no layer fits: the two differ in their residual connections (model.residual)"
    shapes = [[p.shape for part in (s.attention[0], s.ffn[0]) for p in part.parameters()] for s in (student, teacher)]
    if shapes[0] != shapes[1]:
        return "no layer fits: the two differ in width or feed-forward width"
    kinds = [[type(each) for part in (s.attention[0], s.ffn[0]) for each in part.modules()] for s in (student, teacher)]
    if kinds[0] != kinds[1]:
        return "no layer fits: the two differ in the components of their layers"
    if student.attention[0].part.heads != teacher.attention[0].part.heads:  # type: ignore[union-attr]
        return "no layer fits: the two differ in their number of heads"
    return ""


def _copy(target: nn.Module | None, source: nn.Module | None) -> int:
    """Copy a module if both exist and have the same shapes; return the number of tensors."""
    if target is None or source is None:
        return 0
    weights, target_weights = source.state_dict(), target.state_dict()
    if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in target_weights.items()}:
        return 0
    target.load_state_dict(weights)
    return len(weights)


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
    tables, teacher_tables, projection = _tables(student), _tables(teacher), student.projection
    if tables is None or teacher_tables is None or projection is None or teacher.projection is not None:
        return 0
    if (
        tables.offset != teacher_tables.offset
        or len(tables.tokens) != len(teacher_tables.tokens)
        or len(tables.positions) > len(teacher_tables.positions)
    ):
        return 0
    if not tables.tokens.shape[1] < teacher_tables.tokens.shape[1] == projection.out_features:
        return 0
    # On the CPU: a GPU solves least squares only where no column follows from the others.
    tokens_vh, positions_ph = _exact(teacher_tables.tokens), _exact(teacher_tables.positions[: len(tables.positions)])
    segments_ch = (
        torch.zeros_like(positions_ph[:1]) if teacher_tables.segments is None else _exact(teacher_tables.segments)
    )
    if tables.segments is None:
        positions_ph = positions_ph + segments_ch[0]
        segments_ch = torch.zeros_like(segments_ch)
    sum_nh = _sample(tokens_vh, positions_ph[teacher_tables.offset :], ids) + segments_ch[0]
    scale_h = _exact(teacher_tables.norm.weight)
    shift_h = torch.zeros_like(scale_h) if teacher_tables.norm.bias is None else _exact(teacher_tables.norm.bias)
    scaled_nh = F.layer_norm(sum_nh, teacher_tables.norm.normalized_shape, scale_h, eps=teacher_tables.norm.eps)
    linear_he = _directions(scaled_nh, scale_h, tables.tokens.shape[1])

    tables.tokens.copy_(tokens_vh @ linear_he)
    tables.positions.copy_(positions_ph @ linear_he)
    if tables.segments is not None:
        common = min(len(tables.segments), len(segments_ch))
        tables.segments.zero_()
        tables.segments[:common].copy_(segments_ch[:common] @ linear_he)
    tables.norm.reset_parameters()
    narrow_ne = F.layer_norm(sum_nh @ linear_he, linear_he.shape[1:], eps=tables.norm.eps)
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
    positions_n = torch.randint(min(POSITIONS, len(positions_ph)), (SAMPLE,), generator=draw)
    return tokens_vh[ids_n] + positions_ph[positions_n]


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
