"""The labels of a batch of a task.

Shape letters: s sequences, m chosen tokens, c classes.
"""

from dataclasses import dataclass

from torch import Tensor

from bertree.batch import Labels, PretrainingLabels
from bertree.model.heads import Grid


@dataclass(frozen=True)
class TaskLabels(Labels):
    """The answers of a task, in the layout that its head's loss reads."""

    # s for `sequence` (float: regression), m for `token`; for `span` and `beam-span` questions x 2, the
    # columns of start and end; for `choice`, each question's column. -100: ignored.
    answers: Tensor
    chosen: Tensor | None = None  # m, int64: tokens of the stream that a `token` or `span` head reads
    # Cell of each score in the grid of questions x `width` that a softmax or CRF needs, counted row by row.
    # Tokens of a `span` or CRF head (m): a row per sequence. Sequences of a `choice` head (s): a row per question.
    cells: Tensor | None = None
    width: int = 0
    soft: Tensor | None = None  # a teacher's logits, if it was run beforehand: a row for each row of the student's
    texts: PretrainingLabels | None = None  # the next tokens of the texts, where a language model is trained too

    @property
    def grid(self) -> Grid:
        """The grid of the scores that share a softmax."""
        assert self.cells is not None
        return Grid(self.cells, len(self.answers), self.width)
