"""Questions to a language model that was trained on nothing but text: prompts from a template, answers by generation.

A file of questions has one record per question: `question`, and `answer` (a text) or `answers` (several that count).
A record may also have `template`, which holds from there on: the prompt, with the fields of a record in braces. The
likeliest tokens are generated up to the end of the line, and compared with the answers as SQuAD's script does.
"""

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.causal.generation import GenerationOptions, generate
from bertree.inference.causal.sampling import Sampling
from bertree.inference.causal.texts import check_left_to_right, is_backward, position_limit
from bertree.inference.loaded import LoadedModel
from bertree.tasks.squad import official
from bertree.text.records import location, read_records, text_field, texts_field

TASK = "questions"
TEMPLATE = "Question: {question}\nAnswer:"
TOKENS = 32  # of an answer at most


@dataclass(frozen=True)
class Question:
    """A question as a prompt, and the answers that count."""

    text: str
    prompt: str
    answers: list[str]


def answer_questions(model: LoadedModel, path: Path) -> tuple[dict[str, float], list[Json]]:
    """Return exact match and F1 over all questions of a file, and the answer to each."""
    check_left_to_right(model, TASK)
    if is_backward(model):
        raise UserError(f"{TASK}: {model.name} reads from right to left, so an answer cannot follow a question")
    if not path.is_file():
        raise UserError(f"{path}: is no file; give one of questions (.jsonl, .json, .csv, .tsv, .parquet)")
    questions = list(read_questions(path))
    if not questions:
        raise UserError(f"{path}: has no questions")
    prompts = [question.prompt for question in questions]
    options = GenerationOptions(tokens=_room(model, prompts), sampling=Sampling(temperature=0.0))
    generated = generate(model, prompts, options)
    lines = []
    for question, text in zip(questions, generated, strict=True):
        answer = text.text.strip().partition("\n")[0].strip()
        scores = [(official.exact(gold, answer), official.f1(gold, answer, False)) for gold in question.answers]
        exact, f1 = (max(column) for column in zip(*scores, strict=True))
        lines.append(
            {"question": question.text, "predicted": answer, "gold": question.answers, "exact": exact, "f1": f1}
        )
    return {name: sum(line[name] for line in lines) / len(lines) for name in ("exact", "f1")}, lines


def read_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file."""
    template = TEMPLATE
    for number, record in read_records(path):
        where = location(path, number)
        if "template" in record and record["template"] not in (None, ""):
            template = text_field(record, "template", where)
        if "question" not in record and set(record) == {"template"}:
            continue
        text = text_field(record, "question", where)
        answers = [text_field(record, "answer", where)] if "answer" in record else []
        answers += texts_field(record, "answers", where) if "answers" in record else []
        if not any(answer.strip() for answer in answers):
            raise UserError(f"{where}: the question has no answer to score by; give `answer` or `answers`")
        yield Question(text, _fill(template, record, where), answers)


def _fill(template: str, record: Json, where: str) -> str:
    """Return a template with the fields of a record in place of their names in braces."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise UserError(f"{where}: the template is not valid ({error}); a brace in the text is written twice") from None
    for name in names:
        if name not in record:
            raise UserError(f"{where}: has no field '{name}', which the template names")
    return template.format_map({name: str(record[name]) for name in names})


def _room(model: LoadedModel, prompts: Sequence[str]) -> int:
    """Return how many tokens may follow every prompt, `TOKENS` at most."""
    positions = position_limit(model.architecture)
    if positions is None:
        return TOKENS
    lengths = [len(encoding.ids) + 1 for encoding in model.required_tokenizer.encode_plain(prompts)]  # and a start
    longest = max(lengths)
    if longest >= positions:
        raise UserError(
            f"{TASK}: question {lengths.index(longest) + 1} has {longest:,} tokens with its template, and {model.name} "
            f"has {positions:,} positions; shorten it"
        )
    return min(TOKENS, positions - longest)
