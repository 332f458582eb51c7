"""Outputs of a model's task head: logits of prepared examples, scores of texts and pairs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertree.inference.inputs import check_finite
from bertree.search.rerank import NO_BOUNDS, positive_label, relevance_of
from bertree.serve.http.handlers import Context
from bertree.serve.routes.inputs import TextOptions, check_texts, check_token_count, check_tokens
from bertree.serve.served import ServedModel, unit_tokens
from bertree.serve.token_queue import Job
from bertree.tasks.metrics import softmax
from bertree.tasks.task import Truncation, Unit
from bertree.tasks.text import TextTask


class PairScores(NamedTuple):
    """The outputs of a classifier for texts or pairs."""

    logits: NDArray[np.float64]  # a row each
    tokens: int
    truncated: list[int]


class Ranking(NamedTuple):
    """Texts by their relevance to a query."""

    order: list[int]  # numbers of the texts, the most relevant first
    scores: list[float]  # of the texts
    outputs: PairScores


async def task_logits(
    context: Context, served: ServedModel, examples: Sequence[Any], field: str
) -> tuple[Sequence[Unit], Truncation, list[NDArray[np.float32]]]:
    """Return the units of examples, what was truncated, and the logits of each unit. `field`: of the texts."""
    task = served.task
    assert task is not None

    def prepare() -> tuple[Sequence[Unit], Truncation]:
        return task.units(examples, served.model.required_tokenizer, served.task_max_length)

    units, dropped = await context.call_in_helper(prepare)
    check_token_count(context, sum(map(unit_tokens, units)), field)
    logits = await context.run(served.job_kind("task"), [Job(unit_tokens(unit), unit) for unit in units])
    for rows in logits:
        check_finite(rows, served.name)
    return units, dropped, logits


async def class_logits(
    context: Context, served: ServedModel, inputs: Sequence[tuple[str, str | None]], options: TextOptions
) -> PairScores:
    """Return the logits of texts, or of pairs of texts."""
    task = served.task
    assert isinstance(task, TextTask)

    def prepare() -> list[Unit]:
        examples = [task.example(text, pair) for text, pair in inputs]
        return task.units(examples, served.model.required_tokenizer, served.task_max_length, options.cut)[0]

    units = await context.call_in_helper(prepare)
    first = [unit.sequences[0] for unit in units]
    truncated = check_tokens(context, first, served.task_max_length, options)
    rows = await context.run(served.job_kind("task"), [Job(unit_tokens(unit), unit) for unit in units])
    logits = np.stack([np.asarray(row, np.float64).reshape(-1) for row in rows])
    check_finite(logits, served.name)
    return PairScores(logits, sum(unit_tokens(unit) for unit in units), truncated)


def class_names(served: ServedModel) -> list[str]:
    """Return the names of the classes of a classifier; those of a known task whose files have numbers, in words."""
    assert served.task is not None
    words = {label: word for word, label in getattr(served.task, "aliases", {}).items()}
    labels = [words.get(label, label) for label in served.task.labels]
    return labels or list(served.model.labels) or ["LABEL_0"]


def class_scores(logits: NDArray[np.float64], raw: bool) -> NDArray[np.float64]:
    """Return probabilities of the classes; of a single output, which is no class, its sigmoid. `raw`: the logits."""
    if raw:
        return logits
    if logits.shape[1] == 1:
        return 1 / (1 + np.exp(-logits))
    return np.stack([softmax(row) for row in logits])


def relevance(served: ServedModel, logits: NDArray[np.float64], raw: bool = False) -> NDArray[np.float64]:
    """Return how well each pair matches, from 0 to 1: the probability of the positive class; of a single output, its
    place within the bounds of the task, or its sigmoid. `raw`: the logits."""
    if logits.shape[1] == 1:
        bounds = served.task.bounds if isinstance(served.task, TextTask) else NO_BOUNDS
        return logits[:, 0] if raw else relevance_of(logits[:, 0], bounds)
    scores = class_scores(logits, raw)
    names = class_names(served)
    return scores[:, names.index(positive_label(names))]


async def rank_texts(
    context: Context, served: ServedModel, query: str, texts: Sequence[str], options: TextOptions, *, raw: bool = False
) -> Ranking:
    """Rank texts by their relevance to a query."""
    check_texts(context, [query], "query")
    check_texts(context, list(texts), options.field)
    outputs = await class_logits(context, served, [(query, text) for text in texts], options)
    scores = relevance(served, outputs.logits, raw).tolist()
    return Ranking(sorted(range(len(texts)), key=lambda row: (-scores[row], row)), scores, outputs)
