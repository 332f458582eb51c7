"""A linear-chain conditional random field: the tags of a sequence are chosen together, not token by token.

Beside the tokens' own scores it has scores for transitions between tags, for first tags and for last tags. All of them
start at 0, where it equals the plain classifier. The sums over all tag sequences take one step per column, for all
sequences at once, in fp32 even under autocast.

The grid is the labels' (`cells`, `width`): a row per sequence, whose chosen tokens fill its columns from
the left. An empty row is ignored.

Shape letters: m chosen tokens, q rows of the grid, w its width, c classes.
"""

import torch
from torch import Tensor, nn


class Crf(nn.Module):
    """Transition scores between tags."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(classes))
        self.end = nn.Parameter(torch.zeros(classes))
        self.transitions = nn.Parameter(torch.zeros(classes, classes))  # from, to

    def loss(self, scores_mc: Tensor, cells_m: Tensor, width: int, answers_m: Tensor) -> Tensor:
        """Return the sum over the sequences of -log p(answers | scores)."""
        assert bool((answers_m >= 0).all()), "a CRF needs an answer at every chosen token"
        if not len(scores_mc):
            return self.start.sum() * 0.0
        with torch.autocast(scores_mc.device.type, enabled=False):
            start, end, transitions, scores_mc = self._in_float32(scores_mc)
            scores_qwc, real_qw = _grid(scores_mc, cells_m, width)
            sums_qc = start + scores_qwc[:, 0]
            for column in range(1, width):
                onward_qc = (sums_qc[:, :, None] + transitions).logsumexp(1) + scores_qwc[:, column]
                sums_qc = torch.where(real_qw[:, column, None], onward_qc, sums_qc)
            everything_q = (sums_qc + end).logsumexp(-1)
            answers_qw, _ = _grid(answers_m, cells_m, width)
            last_q = real_qw.sum(-1).sub(1).clamp(min=0)
            between_qw = transitions[answers_qw[:, :-1], answers_qw[:, 1:]] * real_qw[:, 1:]
            ends_q = start[answers_qw[:, 0]] + end[answers_qw.gather(1, last_q[:, None])[:, 0]]
            filled_q = real_qw[:, 0]
            given = scores_mc.gather(1, answers_m[:, None]).sum() + between_qw.sum() + ends_q[filled_q].sum()
            return everything_q[filled_q].sum() - given

    @torch.no_grad()
    def decode(self, scores_mc: Tensor, cells_m: Tensor, width: int) -> Tensor:
        """Return the most likely tag of each chosen token (m), by Viterbi."""
        if not len(scores_mc):
            return cells_m
        with torch.autocast(scores_mc.device.type, enabled=False):
            start, end, transitions, scores_mc = self._in_float32(scores_mc)
            scores_qwc, real_qw = _grid(scores_mc, cells_m, width)
            best_qc, came_from = start + scores_qwc[:, 0], []
            for column in range(1, width):
                onward_qc, before_qc = (best_qc[:, :, None] + transitions).max(1)
                best_qc = torch.where(real_qw[:, column, None], onward_qc + scores_qwc[:, column], best_qc)
                came_from.append(before_qc)
            tag_q = (best_qc + end).argmax(-1)
            tags = [tag_q]
            for column in range(width - 1, 0, -1):
                before_q = came_from[column - 1].gather(1, tag_q[:, None])[:, 0]
                tag_q = torch.where(real_qw[:, column], before_q, tag_q)
                tags.append(tag_q)
            return torch.stack(tags[::-1], 1).flatten()[cells_m]

    def _in_float32(self, scores_mc: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kind = torch.promote_types(scores_mc.dtype, torch.float32)
        return self.start.to(kind), self.end.to(kind), self.transitions.to(kind), scores_mc.to(kind)


def _grid(values_m: Tensor, cells_m: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the value of each cell (q x w x ...), 0 in empty cells, and which cells are filled (q x w)."""
    rows = int(cells_m.max()) // width + 1
    grid = values_m.new_zeros(rows * width, *values_m.shape[1:]).index_copy(0, cells_m, values_m)
    real = torch.zeros(rows * width, dtype=torch.bool, device=cells_m.device).index_fill_(0, cells_m, True)
    real_qw = real.unflatten(0, (rows, width))
    assert not bool((real_qw[:, 1:] & ~real_qw[:, :-1]).any()), "a row is filled from the left"
    return grid.unflatten(0, (rows, width)), real_qw
