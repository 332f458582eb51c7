"""Scores of texts and pairs by a classifier or a cross-encoder, for the routes that rank and predict."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.inference.inputs import check_finite
from bertree.search.rerank import positive_label
from bertree.serve.http.context import Context
from bertree.serve.models.served import ServedModel, unit_tokens
from bertree.serve.routes.vectors import TextOptions, check_tokens
from bertree.serve.schedule.work import Job
from bertree.tasks.metrics import softmax
from bertree.tasks.task import Unit
from bertree.tasks.text import TextTask


class PairScores(NamedTuple):
    """The outputs of a classifier for texts or pairs."""

    logits: NDArray[np.float64]  # a row each
    tokens: int
    truncated: list[int]


async def class_logits(
    context: Context, served: ServedModel, inputs: Sequence[tuple[str, str | None]], reading: TextOptions
) -> PairScores:
    """Return the logits of texts, or of pairs of texts."""
    task = served.task
    assert isinstance(task, TextTask)

    def units() -> list[Unit]:
        examples = [task.example(text, pair) for text, pair in inputs]
        return task.units(examples, served.model.required_tokenizer, served.task_max_length, reading.cut)[0]

    found = await context.aside(units)
    first = [unit.sequences[0] for unit in found]
    truncated = check_tokens(context, first, served.task_max_length, reading)
    rows = await context.run(served.lane("task"), [Job(unit_tokens(unit), unit) for unit in found])
    logits = np.stack([np.asarray(row, np.float64).reshape(-1) for row in rows])
    check_finite(logits, served.name)
    return PairScores(logits, sum(unit_tokens(unit) for unit in found), truncated)


def class_names(served: ServedModel) -> list[str]:
    """Return the names of the classes of a classifier."""
    assert served.task is not None
    return list(served.task.labels) or list(served.model.labels) or ["LABEL_0"]


def class_scores(logits: NDArray[np.float64], raw: bool) -> NDArray[np.float64]:
    """Return probabilities of the classes; of a single output, which is no class, its sigmoid. `raw`: the logits."""
    if raw:
        return logits
    if logits.shape[1] == 1:
        return 1 / (1 + np.exp(-logits))
    return np.stack([softmax(row) for row in logits])


def relevance(served: ServedModel, logits: NDArray[np.float64], raw: bool = False) -> NDArray[np.float64]:
    """Return how well each pair matches: the score of the positive class, or of the only output."""
    scores = class_scores(logits, raw)
    if scores.shape[1] == 1:
        return scores[:, 0]
    names = class_names(served)
    return scores[:, names.index(positive_label(names))]
