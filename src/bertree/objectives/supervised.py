"""The objectives of fine-tuning: a class or a score per sequence, a class per token, a span, one option of several.

Scores that share a softmax (the tokens of a passage, the options of a question) come from the packed stream and are
scattered into a padded grid of questions x `width`. These are single numbers, not vectors: the only padding there is.

Shape letters: s sequences, m chosen tokens, q questions, w grid width, c classes, h width, t tokens.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import IGNORED, Batch, Labels, PretrainingLabels
from bertree.model.heads import BeamSpanHead, Grid
from bertree.model.network import Network
from bertree.objectives.objective import Loss, Term, WeightedTerms, cross_entropy
from bertree.objectives.pretraining import MaskedTokens

ANSWERABLE = 0.5  # weight of the loss of `BeamSpanSelection` on whether there is an answer


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
    teacher_logits: Tensor | None = None  # a row for each row of the student's logits, if there is a teacher
    texts: PretrainingLabels | None = None  # the next tokens of the texts, where a language model is trained too

    @property
    def grid(self) -> Grid:
        """The grid of the scores that share a softmax."""
        assert self.cells is not None
        return Grid(self.cells, len(self.answers), self.width)


class Classification:
    """A class for what the head reads; its subclasses say what that is."""

    def count(self, batch: Batch) -> int:
        """Count the labels that are known."""
        return int((TaskLabels.of(batch).answers != IGNORED).sum())


class SequenceClassification(Classification):
    """One class per sequence."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy."""
        return cross_entropy(network.class_logits("sequence", hidden_th, batch), TaskLabels.of(batch).answers)


class SequenceRegression:
    """One score per sequence; NaN is no target."""

    def count(self, batch: Batch) -> int:
        """Count the sequences that have a label."""
        return int((~TaskLabels.of(batch).answers.isnan()).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Squared error."""
        answers_s = TaskLabels.of(batch).answers
        given_s = network.class_logits("sequence", hidden_th, batch)[:, 0].float()
        errors_s = torch.where(answers_s.isnan(), 0.0, given_s - answers_s.nan_to_num())
        return Loss(errors_s.square().sum(), None)


class TokenClassification(Classification):
    """One class per chosen token."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy."""
        labels = TaskLabels.of(batch)
        return cross_entropy(network.class_logits("token", hidden_th, batch, labels.chosen), labels.answers)


class CrfTagging(TokenClassification):
    """One class per chosen token, scored together by a CRF; counted by token."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Negative log-likelihood of the tag sequences."""
        assert network.crf is not None
        labels = TaskLabels.of(batch)
        assert labels.cells is not None
        scores_mc = network.class_logits("token", hidden_th, batch, labels.chosen)
        return Loss(network.crf.loss(scores_mc, labels.cells, labels.width, labels.answers), None)


class SpanSelection:
    """Start and end of an answer among the chosen tokens: the mean of two softmax losses."""

    def count(self, batch: Batch) -> int:
        """Count the questions that have an answer."""
        return int((TaskLabels.of(batch).answers[:, 0] != IGNORED).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Mean of the two cross-entropies."""
        labels = TaskLabels.of(batch)
        both_qw2 = labels.grid.scatter(network.class_logits("span", hidden_th, batch, labels.chosen))
        targets = labels.answers.T.flatten()
        scores = torch.cat([both_qw2[..., 0], both_qw2[..., 1]])
        return Loss(F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum") / 2, None)


class BeamSpanSelection(SpanSelection):
    """Start and end of an answer, the end given the true start, and whether there is an answer among the tokens."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Mean of the two cross-entropies, and half the binary one."""
        labels, head = TaskLabels.of(batch), network.heads["beam-span"]
        assert isinstance(head, BeamSpanHead)
        assert labels.chosen is not None
        grid, states_mh, answers_q2 = labels.grid, hidden_th[labels.chosen], labels.answers
        rows_qw, known_q = grid.rows, answers_q2[:, 0] != IGNORED
        starts_qh = states_mh[rows_qw.gather(1, answers_q2[:, :1].clamp(min=0))[:, 0]]
        starts_qw = grid.scatter(head.start_logits(states_mh))
        ends_qw = grid.scatter(head.end_logits(states_mh, starts_qh, grid.question))
        logits = torch.cat([starts_qw, ends_qw])
        spans = F.cross_entropy(logits, answers_q2.T.flatten(), ignore_index=IGNORED, reduction="sum") / 2
        none_q = head.answer_logits(starts_qh, states_mh[rows_qw[:, 0]]).float()
        absent_q = (answers_q2[:, 0] == 0).float()
        answerable_q = F.binary_cross_entropy_with_logits(none_q, absent_q, reduction="none")
        return Loss(spans + ANSWERABLE * torch.where(known_q, answerable_q, 0.0).sum(), None)


class MultipleChoice(Classification):
    """One option of several."""

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy over the options."""
        labels = TaskLabels.of(batch)
        logits_s1 = network.class_logits("choice", hidden_th, batch)
        return cross_entropy(labels.grid.scatter(logits_s1)[..., 0], labels.answers)


class NextTokens:
    """The language model of a task's texts: each token predicts the next one."""

    def count(self, batch: Batch) -> int:
        """Count the tokens to predict."""
        return MaskedTokens().count(_texts(batch))

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy over the vocabulary."""
        return MaskedTokens().loss(network, hidden_th, _texts(batch))


def _texts(batch: Batch) -> Batch:
    labels = TaskLabels.of(batch).texts
    assert labels is not None, "the batch must have the next tokens"
    return replace(batch, labels=labels)


@dataclass(frozen=True)
class HeadKind:
    """One kind of head that tasks use: what it reads of a unit, how its labels are laid out, and its loss.

    A new kind needs a module in model/heads.py, a value below (and a loss above, if none fits), and a task."""

    name: str
    term: type[Term] | None = None  # its loss in fine-tuning; None: it is trained by an objective of its own
    reads_tokens: bool = False  # it scores the chosen tokens of a unit; otherwise each of its sequences
    competing: bool = False  # the scores of a unit share one softmax, so they are laid into a grid
    labels: Literal["unit", "row", "span"] = "unit"  # one label a unit, one a row of scores, or first and last row
    rows_per_unit: int = 0  # rows of scores a unit; 0: one for each of what it reads
    orders: bool = False  # the sequences of a unit are one input in several orders, whose hidden states are added
    named_classes: bool = True  # its classes have names, which a model folder keeps
    default_task: str = ""  # the task of a model with such a head whose folder names none
    pair_names: tuple[str, str] = ("text", "pair")  # names of two texts that are given without any


_SPAN = HeadKind(
    "span",
    SpanSelection,
    reads_tokens=True,
    competing=True,
    labels="span",
    named_classes=False,
    default_task="squad",
    pair_names=("question", "context"),
)
HEAD_KINDS = {
    kind.name: kind
    for kind in (
        HeadKind("sequence", SequenceClassification, rows_per_unit=1, orders=True, default_task="classification"),
        HeadKind("token", TokenClassification, reads_tokens=True, labels="row", default_task="tagging"),
        _SPAN,
        replace(_SPAN, name="beam-span", term=BeamSpanSelection),
        HeadKind("choice", MultipleChoice, competing=True, named_classes=False, default_task="choice"),
        HeadKind("vector", competing=True),  # a vector for each sequence: embedding_losses.py
        HeadKind("compare", competing=True, rows_per_unit=1),  # a classifier on the vectors of a unit
    )
}


def head_term(head: str, regression: bool = False, crf: bool = False) -> Term:
    """Return the loss that trains a head."""
    if regression:
        return SequenceRegression()
    kind = CrfTagging if crf else HEAD_KINDS[head].term
    assert kind is not None, f"{head} has no loss of its own"
    return kind()


def with_language_model(objective: WeightedTerms, weight: float) -> WeightedTerms:
    """Return the objective plus `weight` times the mean loss of the next tokens (Radford et al. 2018)."""
    return WeightedTerms({**objective.terms, "lm": NextTokens()}, {**objective.weights, "lm": weight})


def supervised_objective(head: str, regression: bool = False, crf: bool = False) -> WeightedTerms:
    """Return the objective that trains a head."""
    return WeightedTerms({head: head_term(head, regression, crf)}, {head: 1.0})
