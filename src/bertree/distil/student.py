"""A student's shape and its first weights: some of its teacher's layers.

Layers count from 1, the one above the embeddings, as the states they give do.
"""

from collections.abc import Sequence

import torch
from torch import nn

from bertree.errors import UserError
from bertree.model.architecture import Architecture
from bertree.model.network import Network


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


@torch.no_grad()
def warm(student: Network, teacher: Network, layers: Sequence[int]) -> int:
    """Give a student the teacher's embeddings, heads and these of its layers, wherever shapes agree. How many tensors.

    What a teacher adds for the first segment is added to the positions where the student has no segments.
    """
    mine, its = student.encoder, teacher.encoder
    copied = 0
    ours, theirs = mine.embeddings, its.embeddings
    for name in ("tokens", "segments", "norm", "projection"):
        copied += _copy(getattr(ours, name), getattr(theirs, name))
    if placed := _copy(ours.positions, theirs.positions):
        copied += placed
        if ours.segments is None and theirs.segments is not None:
            assert ours.positions is not None
            ours.positions.weight += theirs.segments.weight[0].to(ours.positions.weight)
    if type(mine.stack) is type(its.stack) and _joined(mine.stack) is _joined(its.stack):
        for part in (0, 1):  # attention and feed-forward, each stored once however many layers use it
            given = {mine.stack.plan[depth][part]: depth for depth in reversed(range(len(mine.stack.plan)))}
            for place, depth in given.items():
                source = its.stack.plan[layers[depth] - 1][part]
                stores = [(stack.attention, stack.ffn)[part] for stack in (mine.stack, its.stack)]
                copied += _copy(stores[0][place], stores[1][source])
    copied += _copy(mine.norm, its.norm) + _copy(mine.pooler, its.pooler)
    for name, head in student.heads.items():
        copied += _copy(head, dict(teacher.heads.items()).get(name))
    return copied


def _joined(stack: nn.Module) -> type:
    """How parts join the residual: a layer trained for one way is of no use in the other."""
    return type(next(iter(stack.attention)))  # type: ignore[arg-type]


def _copy(target: nn.Module | None, source: nn.Module | None) -> int:
    """Copy a module, if both are there and of one shape."""
    if target is None or source is None:
        return 0
    there, here = source.state_dict(), target.state_dict()
    if {n: t.shape for n, t in there.items()} != {n: t.shape for n, t in here.items()}:
        return 0
    target.load_state_dict(there)
    return len(there)
