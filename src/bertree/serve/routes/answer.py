"""Answers to questions, from a passage or from an index."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bertree.errors import UserError
from bertree.inference.inputs import check_finite
from bertree.serve.http.context import Context
from bertree.serve.http.errors import HttpError
from bertree.serve.http.table import route
from bertree.serve.models.served import ServedModel, unit_tokens
from bertree.serve.routes.inputs import about, check_text, check_units, note_cut
from bertree.serve.routes.search import HitReply, Where, describe_hit, find_hits
from bertree.serve.schedule.work import Job
from bertree.tasks.squad.answers import Answer, Answers, choose_answer
from bertree.tasks.squad.task import SquadTask

MOST = 5  # candidates that are shown


class AnswerRequest(msgspec.Struct):
    """A question, and a passage or (without one) an index: its k best passages are read. `where`, `rerank`: see
    /search. `model`: the one that reads."""

    question: str
    passage: str | None = None
    index: str | None = None
    k: Annotated[int, Meta(ge=1, le=100)] = 5
    where: Where | None = None
    rerank: str | None = None
    model: str | None = None


class CandidateAnswer(msgspec.Struct):
    """A possible answer, its probability, and its place in the passage."""

    answer: str
    score: float
    start: int
    end: int
    passage: HitReply | None


class AnswerReply(msgspec.Struct):
    """The best answer of all passages; null if they have none, and `score` is the probability of that.

    `passage`: of the index, null if it was given. `cut`: the question was too long, and its end was not read."""

    model: str
    answer: str | None
    score: float
    start: int | None
    end: int | None
    passage: HitReply | None
    candidates: list[CandidateAnswer]
    cut: bool


@route(
    "POST",
    "/answer",
    body=AnswerRequest,
    reply=AnswerReply,
    does="answer",
    summary="The answer to a question, from a passage or from an index",
)
async def answer(context: Context, body: AnswerRequest) -> Any:
    """Return the answer, as `model.answer` does; from an index, that of the passages that `index.search` finds."""
    served = context.registry.model(body.model, does="answer")
    check_text(body.question, "question")
    hits: list[dict[str, Any]] | None = None
    if body.passage is None:
        index = context.registry.index(body.index)
        found = await find_hits(context, index, body.question, body.k, body.where, body.rerank, field="question")
        if not found:
            raise HttpError(422, "where: no passage of the index matches", param="where")
        hits = [describe_hit(hit, body.question) for hit in found]
        passages, field = [hit.text for hit in found], "index"
    else:
        for name in ("index", "where", "rerank"):
            if getattr(body, name) is not None:
                raise HttpError(422, f"{name}: is for questions without a passage", param=name)
        check_text(body.passage, "passage")
        passages, field = [body.passage], "passage"
    answers, cut = await read_passages(context, served, body.question, passages, field)
    best = answers.best
    return {
        "model": served.name,
        "answer": best.text if best else None,
        "score": answers.score,
        "start": best.start if best else None,
        "end": best.end if best else None,
        "passage": hits[best.passage] if best and hits else None,
        "candidates": [_describe(one, hits) for one in answers.candidates],
        "cut": cut,
    }


async def read_passages(
    context: Context, served: ServedModel, question: str, passages: Sequence[str], field: str
) -> tuple[Answers, bool]:
    """Return the answer of some passages, and whether the question was cut."""
    task = served.task
    assert isinstance(task, SquadTask)
    try:
        examples = [task.parse({"question": question, "context": text}) for text in passages]
    except UserError as error:
        raise about(field, error) from None

    def units() -> Any:
        return task.units(examples, served.model.required_tokenizer, served.task_max_length)

    found, dropped = await context.aside(units)
    check_units(context, found, field)
    logits = await context.run(served.lane("task"), [Job(unit_tokens(unit), unit) for unit in found])
    for rows in logits:
        check_finite(rows, served.name)
    answers = choose_answer(task, [example.context for example in examples], found, logits, MOST)
    cut = dropped.examples > 0  # the question is the same in all of them
    return answers, note_cut(context, int(cut), dropped.tokens // len(examples))


def _describe(one: Answer, hits: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "answer": one.text,
        "score": one.score,
        "start": one.start,
        "end": one.end,
        "passage": hits[one.passage] if hits else None,
    }
