"""A student's shape and its first weights: some of its teacher's layers.

Layers count from 1, the one above the embeddings, as the states they give do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from bertree.errors import UserError
from bertree.model.architecture import Architecture
from bertree.model.bilstm import LstmStack
from bertree.model.embeddings import Embeddings
from bertree.model.network import Network
from bertree.model.stack import Stack


def halved(a: Architecture, bare: bool = True) -> Architecture:
    """Half the layers. `bare`: BERT also loses its segments and its pooler, as DistilBERT did (where layers are shared
    Hugging Face knows no such model); a student of a task keeps them, for its teacher's head reads the pooler."""
    if a.layers < 2:
        raise UserError("--student half: the teacher has one layer only; name a smaller preset instead")
    layers = a.layers // 2
    if not bare or a.segments < 2 or a.sharing != "none":
        return a.with_values({"layers": layers, "groups": min(a.groups, layers)})
    return a.with_values({"layers": layers, "segments": 0, "pooler": False, "sequence_head": "relu"})


def spread(teacher_layers: int, student_layers: int) -> list[int]:
    """The teacher's layers that a student begins with: evenly spread from the first on; of 12 for 6: 1, 3, ... 11."""
    return [depth * teacher_layers // student_layers + 1 for depth in range(student_layers)]


def ends(teacher_layers: int, student_layers: int) -> list[int]:
    """The teacher's layers whose states the student's are to resemble: evenly spread up to the last: 2, 4, ... 12."""
    return [max(1, depth * teacher_layers // student_layers) for depth in range(1, student_layers + 1)]


def chosen(given: str, teacher_layers: int, student_layers: int, name: str) -> list[int]:
    """Layers of a teacher, written as 1,3,5: one for each of the student's."""
    try:
        layers = [int(part) for part in given.split(",")]
    except ValueError:
        raise UserError(f"{name} '{given}': must be numbers of the teacher's layers, for example 1,3,5") from None
    if len(layers) != student_layers:
        raise UserError(f"{name} '{given}': the student has {student_layers} layers, so {student_layers} are wanted")
    for layer in layers:
        if not 1 <= layer <= teacher_layers:
            raise UserError(f"{name} '{given}': {layer} is not one of the teacher's layers 1 to {teacher_layers}")
    return layers


class Copied(NamedTuple):
    """What a student was given."""

    tensors: int
    layers: int  # of its own that are whole
    misfit: str = ""  # why not all of them


@torch.no_grad()
def warm(student: Network, teacher: Network, layers: Sequence[int]) -> Copied:
    """Give a student the teacher's embeddings, heads and these of its layers, wherever shapes agree.

    What a teacher adds for the first segment is added to the positions where the student has no segments.
    """
    mine, its = student.encoder, teacher.encoder
    copied = 0
    ours, theirs = mine.embeddings, its.embeddings
    for name in ("tokens", "segments", "norm", "projection"):
        copied += _copy(getattr(ours, name), getattr(theirs, name))
    copied += _copy_positions(ours, theirs)
    misfit = _misfit(mine.stack, its.stack)
    if not misfit:
        for part in (0, 1):  # attention and feed-forward, each stored once however many layers use it
            given = {mine.stack.plan[depth][part]: depth for depth in reversed(range(len(mine.stack.plan)))}
            for place, depth in given.items():
                source = its.stack.plan[layers[depth] - 1][part]
                stores = [(stack.attention, stack.ffn)[part] for stack in (mine.stack, its.stack)]
                copied += _copy(stores[0][place], stores[1][source])
    copied += _copy(mine.norm, its.norm) + _copy(mine.pooler, its.pooler)
    for name, head in student.heads.items():
        copied += _copy(head, dict(teacher.heads.items()).get(name))
    return Copied(copied, 0 if misfit else len(mine.stack.plan), misfit)


def _copy_positions(ours: Embeddings, theirs: Embeddings) -> int:
    """As many positions as the student has, where the teacher knows them."""
    if ours.positions is None or theirs.positions is None or ours.position_offset != theirs.position_offset:
        return 0
    mine, its = ours.positions.weight, theirs.positions.weight
    if mine.shape[1] != its.shape[1] or len(mine) > len(its):
        return 0
    mine.copy_(its[: len(mine)])
    if ours.segments is None and theirs.segments is not None:
        mine += theirs.segments.weight[0].to(mine)
    return 1


def _misfit(mine: Stack, its: Stack) -> str:
    """Why no layer of the one can be one of the other; nothing if they can."""
    if isinstance(mine, LstmStack) or isinstance(its, LstmStack):
        return "no layer fits: one of the two is an LSTM"
    one, other = mine.attention[0], its.attention[0]
    if type(one) is not type(other):
        return "no layer fits: the two join their residuals differently (model.residual)"
    shapes = [[p.shape for part in (s.attention[0], s.ffn[0]) for p in part.parameters()] for s in (mine, its)]
    if shapes[0] != shapes[1]:
        return "no layer fits: the two differ in width or feed-forward width"
    if one.part.heads != other.part.heads:  # type: ignore[union-attr]
        return "no layer fits: the two differ in their number of heads"
    return ""


def _copy(target: nn.Module | None, source: nn.Module | None) -> int:
    """Copy a module, if both are there and of one shape."""
    if target is None or source is None:
        return 0
    there, here = source.state_dict(), target.state_dict()
    if {n: t.shape for n, t in there.items()} != {n: t.shape for n, t in here.items()}:
        return 0
    target.load_state_dict(there)
    return len(there)
