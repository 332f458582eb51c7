"""Random numbers of each rank's own beside those that all ranks draw."""

import torch

from bertree.scale.tensor_components import RankRandom

CPU = torch.device("cpu")


def drawn_by(rank: int) -> tuple[list[float], list[float], list[float], list[float]]:
    """What a rank draws: commonly, by itself, by itself again, and commonly afterwards."""
    torch.manual_seed(1)
    before = torch.rand(3).tolist()
    random = RankRandom(rank, CPU)
    with random.drawn():
        first = torch.rand(rank + 1).tolist()
    between = torch.rand(2).tolist()
    with random.drawn():
        second = torch.rand(2).tolist()
    return before, first, second, between + torch.rand(2).tolist()


def test_ranks_draw_other_numbers_and_then_the_same_again() -> None:
    first, second = drawn_by(0), drawn_by(1)
    assert (first[0], first[3]) == (second[0], second[3])
    assert not {*first[1], *first[2]} & {*second[1], *second[2]}


def test_a_rank_goes_on_where_its_own_stream_was() -> None:
    _, first, second, _ = drawn_by(0)
    torch.manual_seed(1)
    torch.rand(3)
    with RankRandom(0, CPU).drawn():
        assert torch.rand(1).tolist() + torch.rand(2).tolist() == first + second


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert drawn_by(1) == drawn_by(1)
