"""Answers to questions, from a passage or from an index."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bertree.errors import UserError
from bertree.serve.http.handlers import Context, Input, InputsForm, InputsRequest, route
from bertree.serve.routes.inputs import check_text, field_error, report_truncation
from bertree.serve.routes.scores import task_logits
from bertree.serve.routes.search import HitReply, SearchRequest, Where, describe_hit, find_hits
from bertree.serve.served import ServedModel
from bertree.tasks.squad.task import Answer, Answers, SquadTask, choose_answer

MOST = 5  # candidates that are shown


class AnswerRequest(Input):
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


def _write_answer(context: Context, request: InputsRequest, reply: Any) -> Any:
    places = {name: reply[name] or 0 for name in ("start", "end")}
    return {"answer": reply["answer"] or "", "score": reply["score"], **places}


# Hugging Face's form of the request and of the answer, as its clients send and read them.
ANSWER = InputsForm({"question": "question", "context": "passage"}, {}, _write_answer)


@route("POST", "/answer", reply=AnswerReply, ability="answer", inputs=ANSWER)
async def answer(context: Context, body: AnswerRequest) -> Any:
    """Return the answer to a question, from a passage or from an index."""
    served = context.model(body.model)
    check_text(body.question, "question")
    hits: list[dict[str, Any]] | None = None
    if body.passage is None:
        index = context.service.registry.index(body.index)
        request = SearchRequest(query=body.question, k=body.k, where=body.where, rerank=body.rerank)
        _, passages = await find_hits(context, index, request, "question")
        if not passages:
            raise field_error("where", "no passage of the index matches")
        hits = [describe_hit(hit) for hit in passages]
        texts, field = [hit.text for hit in passages], "index"
    else:
        for name in ("index", "where", "rerank"):
            if getattr(body, name) is not None:
                raise field_error(name, "is for questions without a passage")
        check_text(body.passage, "passage")
        texts, field = [body.passage], "passage"
    answers, cut = await read_passages(context, served, body.question, texts, field)
    candidates = [_describe(candidate, hits) for candidate in answers.candidates]
    best = _describe(answers.best, hits) | {"score": answers.score}
    return {"model": served.name, **best, "candidates": candidates, "cut": cut}


async def read_passages(
    context: Context, served: ServedModel, question: str, texts: Sequence[str], field: str
) -> tuple[Answers, bool]:
    """Return the answer from the texts of passages, and whether the question was cut."""
    task = served.task
    assert isinstance(task, SquadTask)
    try:
        examples = [task.parse({"question": question, "context": text}) for text in texts]
    except UserError as error:
        raise field_error(field, error) from None
    units, dropped, logits = await task_logits(context, served, examples, field)
    answers = choose_answer(task, [example.context for example in examples], units, logits, MOST)
    cut = dropped.examples > 0  # the question is the same in all of them
    return answers, report_truncation(context, int(cut), dropped.tokens // len(examples))


def _describe(answer: Answer | None, hits: list[dict[str, Any]] | None) -> dict[str, Any]:
    if answer is None:
        return dict.fromkeys(("answer", "score", "start", "end", "passage"))
    passage = hits[answer.passage] if hits else None
    return {"answer": answer.text, "score": answer.score, "start": answer.start, "end": answer.end, "passage": passage}
