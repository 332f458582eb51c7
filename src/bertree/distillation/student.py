"""The architecture of a student and its initial weights, copied from some of the teacher's layers.

Layers count from 1, the first above the embeddings.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertree.distillation.narrow_embeddings import narrow
from bertree.errors import UserError
from bertree.model.architecture import Architecture, Transformer
from bertree.model.layers.embeddings import Embeddings
from bertree.model.layers.positions import LearnedPositions
from bertree.model.network import Network
from bertree.model.stack import Stack
from bertree.model.transformer import TransformerEncoder


def halve(a: Architecture, bare: bool = True) -> Architecture:
    """Return an architecture with half the layers.

    `bare`: BERT also loses its segments and its pooler, as in DistilBERT (not if layers are shared or pre-norm: Hugging
    Face has no such models; nor if segments are relative, as XLNet's). A student of a task keeps them, because its
    teacher's head reads the pooler.
    """
    if a.layers < 2:
        raise UserError("`student=half`: the teacher has one layer only; name a smaller preset instead")
    layers = a.layers // 2
    if not isinstance(a, Transformer):
        return a.with_values({"layers": layers})
    as_bert = a.segments > 1 and a.segment_encoding == "absolute" and a.sharing == "none" and a.residual == "post-norm"
    if not (bare and as_bert):
        return a.with_values({"layers": layers, "groups": min(a.groups, layers)})
    return a.with_values({"layers": layers, "segments": 0, "pooler": False, "sequence_head": "relu"})


def spread_evenly(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the teacher's layers to start from, evenly spread from the first on; of 12 for 6: 1, 3, ... 11."""
    return [depth * teacher_layers // student_layers + 1 for depth in range(student_layers)]


def last_layers(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the teacher's layers whose states the student matches, evenly spread up to the last: 2, 4, ... 12."""
    return [max(1, depth * teacher_layers // student_layers) for depth in range(1, student_layers + 1)]


def parse_layers(given: str, teacher_layers: int, student_layers: int, name: str) -> list[int]:
    """Parse the teacher's layers from `1,3,5`: one for each layer of the student."""
    try:
        layers = [int(part) for part in given.split(",")]
    except ValueError:
        raise UserError(f"{name} '{given}': must be numbers of the teacher's layers, for example 1,3,5") from None
    if len(layers) != student_layers:
        raise UserError(f"{name} '{given}': the student has {student_layers} layers, so give {student_layers} numbers")
    for layer in layers:
        if not 1 <= layer <= teacher_layers:
            raise UserError(f"{name} '{given}': {layer} is not one of the teacher's layers 1 to {teacher_layers}")
    return layers


class CopiedWeights(NamedTuple):
    """What a student has copied from its teacher."""

    tensors: int
    layers: int  # of the student that are complete copies
    misfit: str = ""  # why not all of them are
    positions: bool = False  # whether all positions are known to it: the teacher's embeddings of them, or none


@torch.no_grad()
def copy_weights(student: Network, teacher: Network, layers: Sequence[int], ids: Tensor | None = None) -> CopiedWeights:
    """Copy the teacher's embeddings, heads and the given layers to a student, wherever the shapes are equal.

    If the student has no segments, the teacher's embedding of the first segment is added to the positions. Embeddings
    that are narrower than the teacher's begin as its principal components over `ids`, tokens of the text.
    """
    mine, its = student.encoder, teacher.encoder
    ours, theirs = mine.embeddings, its.embeddings
    copied = narrow(ours, theirs, ids)
    positions = copied > 0
    if not copied:
        for name in ("tokens", "segments", "norm", "projection"):
            copied += _copy(getattr(ours, name), getattr(theirs, name))
        moved = _copy_positions(ours, theirs)
        copied += moved
        positions = moved > 0 or ours.positions is None
    misfit = "no layer fits: one of the two is an LSTM"
    if isinstance(mine, TransformerEncoder) and isinstance(its, TransformerEncoder):
        misfit = _misfit(mine.stack, its.stack)
        copied += _copy(mine.norm, its.norm) + _copy(mine.pooler, its.pooler) + _copy_query_start(mine, its)
        copied += 0 if misfit else _copy_layers(mine.stack, its.stack, layers)
    for name, head in student.heads.items():
        copied += _copy(head, dict(teacher.heads.items()).get(name))
    return CopiedWeights(copied, 0 if misfit else mine.depth, misfit, positions)


def _copy_layers(mine: Stack, its: Stack, layers: Sequence[int]) -> int:
    """Copy the given layers of a teacher; return the number of tensors."""
    copied = 0
    for part in (0, 1):  # attention and feed-forward, each stored once however many layers use it
        given = {mine.plan[depth][part]: depth for depth in reversed(range(len(mine.plan)))}
        for place, depth in given.items():
            source = its.plan[layers[depth] - 1][part]
            stores = [(stack.attention, stack.ffn)[part] for stack in (mine, its)]
            copied += _copy(stores[0][place], stores[1][source])
    return copied


def _copy_query_start(mine: TransformerEncoder, its: TransformerEncoder) -> int:
    """Copy what a query stream starts with, if both have one of the same width; return the number of tensors."""
    ours, theirs = mine.query_start, its.query_start
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return 0
    ours.copy_(theirs)
    return 1


def _copy_positions(ours: Embeddings, theirs: Embeddings) -> int:
    """Copy the positions if the teacher has as many as the student; return the number of tensors."""
    student, teacher = ours.positions, theirs.positions
    if not isinstance(student, LearnedPositions) or not isinstance(teacher, LearnedPositions):
        return 0
    mine, its = student.weight, teacher.weight
    if student.offset != teacher.offset or mine.shape[1] != its.shape[1] or len(mine) > len(its):
        return 0
    mine.copy_(its[: len(mine)])
    if ours.segments is None and theirs.segments is not None:
        mine += theirs.segments.weight[0].to(mine)
    return 1


def _misfit(mine: Stack, its: Stack) -> str:
    """Return why no layer of one stack can be copied to the other; empty if it can."""
    if mine.residual != its.residual:
        return "no layer fits: the two differ in their residual connections (model.residual)"
    shapes = [[p.shape for part in (s.attention[0], s.ffn[0]) for p in part.parameters()] for s in (mine, its)]
    if shapes[0] != shapes[1]:
        return "no layer fits: the two differ in width or feed-forward width"
    kinds = [[type(each) for part in (s.attention[0], s.ffn[0]) for each in part.modules()] for s in (mine, its)]
    if kinds[0] != kinds[1]:
        return "no layer fits: the two differ in the parts of their layers"
    if mine.attention[0].part.heads != its.attention[0].part.heads:  # type: ignore[union-attr]
        return "no layer fits: the two differ in their number of heads"
    return ""


def _copy(target: nn.Module | None, source: nn.Module | None) -> int:
    """Copy a module if both exist and have the same shapes; return the number of tensors."""
    if target is None or source is None:
        return 0
    there, here = source.state_dict(), target.state_dict()
    if {n: t.shape for n, t in there.items()} != {n: t.shape for n, t in here.items()}:
        return 0
    target.load_state_dict(there)
    return len(there)
