"""Boxes against tensors that are split and sharded by plain chunks."""

import pytest
import torch

from bertree.scale.shards import Box, ParameterLayout, Split, boxes_of, local_shard
from bertree.scale.world import World

WHOLES = [
    ParameterLayout((24, 5), Split(0, 3)),
    ParameterLayout((24,), Split(0, 3)),
    ParameterLayout((16, 3), Split(0, 2)),
    ParameterLayout((7, 8), Split(1)),
    ParameterLayout((2, 4, 3), Split(1)),
    ParameterLayout((16,), Split(0)),
    ParameterLayout((13, 2), Split(0)),  # a vocabulary that no number of ranks divides
    ParameterLayout((5, 3), Split(0)),  # of 4 ranks the last has nothing
    ParameterLayout((9,), None),
]


def at(tensor: int, tensor_rank: int) -> World:
    """A rank of a mesh of tensor ranks alone."""
    return World(tensor_rank, tensor, tensor=tensor)


def cut(tensor: torch.Tensor, split: Split | None, ranks: int, rank: int) -> torch.Tensor:
    if split is None:
        return tensor
    pieces = [[*piece.chunk(ranks, split.dim)] for piece in tensor.chunk(split.pieces, split.dim)]
    nothing = tensor.narrow(split.dim, 0, 0)
    return torch.cat([piece[rank] if rank < len(piece) else nothing for piece in pieces], split.dim)


def place_of(box: Box) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(box.offset, box.size, strict=True))


@pytest.mark.parametrize("whole", WHOLES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("shards", [1, 3, 4, 16])
def test_boxes_put_every_number_in_its_place_once(whole: ParameterLayout, ranks: int, shards: int) -> None:
    tensor = torch.randn(whole.shape)
    copy, seen = torch.zeros(whole.shape), torch.zeros(whole.shape)
    for rank in range(ranks if whole.split else 1):
        first = 0
        for local in cut(tensor, whole.split, ranks, rank).chunk(shards):
            for box in boxes_of(whole, range(first, first + len(local)), at(ranks, rank)):
                copy[place_of(box)] = local[box.row : box.row + box.size[0]]
                seen[place_of(box)] += 1
            first += len(local)
    assert torch.equal(copy, tensor)
    assert (seen == 1).all()


@pytest.mark.parametrize("whole", WHOLES, ids=str)
def test_the_local_part_of_a_plain_tensor(whole: ParameterLayout) -> None:
    tensor = torch.randn(whole.shape)
    for rank in range(2):
        piece = cut(tensor, whole.split, 2, rank)
        part = local_shard(piece, whole, at(2, rank))
        assert part.local is piece
        assert part.whole_shape == whole.shape
        for box in part.boxes:
            assert torch.equal(tensor[place_of(box)], piece[box.row : box.row + box.size[0]])


def test_a_number_has_one_box() -> None:
    part = local_shard(torch.tensor(3.0), ParameterLayout((24, 5), Split(0, 3)), at(2, 1))
    assert (part.whole_shape, part.boxes) == ((), (Box((), (), 0),))


def test_two_boxes_meet_in_the_same_numbers() -> None:
    tensor, whole = torch.randn(24, 5), ParameterLayout((24, 5), Split(0, 3))
    piece = cut(tensor, whole.split, 2, 1)
    for box in boxes_of(whole, range(12), at(2, 1)):
        for offset, size in (((0, 0), (24, 5)), ((6, 1), (11, 2)), ((0, 0), (1, 5))):
            met = box.meet(offset, size)
            wanted = {*range(box.offset[0], box.offset[0] + box.size[0])} & {*range(offset[0], offset[0] + size[0])}
            assert (met is not None) == bool(wanted)
            if met is not None:
                other = tensor[tuple(slice(o, o + n) for o, n in zip(offset, size, strict=True))]
                assert torch.equal(piece[met[0]], other[met[1]])
                assert len(piece[met[0]]) == len(wanted)
