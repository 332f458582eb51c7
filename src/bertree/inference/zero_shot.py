"""Tasks that a model does without being fine-tuned for them: cloze probes, and questions to a language model.

Cloze probes are sentences with one word left out, and how likely a model finds the expected word. A word of several
tokens gets as many masks. Its probability is the product over its masks, all of which are empty at once; it has no rank
among single tokens, so the shares and the reciprocal rank count it as not found. The bundled file asks for trivia,
syntax and coreference.

A file of questions has one record per question: `question`, and `answer` (a text) or `answers` (several that count).
A record may also have `template`, which holds from there on: the prompt, with the fields of a record in braces. The
likeliest tokens are generated up to the end of the line, and compared with the answers as SQuAD's script does.
"""

import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.causal.generation import GenerationOptions, generate
from bertree.inference.causal.sampling import Sampling
from bertree.inference.causal.texts import check_left_to_right, is_backward, position_limit
from bertree.inference.loaded import LoadedModel
from bertree.inference.mask_filling import MaskedText, mask_logits, prepare_masks
from bertree.tasks.squad import official
from bertree.text.records import location, read_records, text_field, texts_field

CLOZE = "cloze"
BUNDLED = Path(__file__).parent / "cloze.jsonl"
BLANK = "___"
BATCH = 32  # sentences computed at once
NEAR = 5  # ranks that count as near


class Probe(NamedTuple):
    """A sentence with a blank, and the word that is expected there."""

    kind: str
    text: str
    word: str


def read_probes(path: Path = BUNDLED) -> list[Probe]:
    """Read a file of objects or a table with text, word and, optionally, kind."""
    probes = []
    for number, record in read_records(path):
        where = location(path, number)
        text, word = text_field(record, "text", where), text_field(record, "word", where).strip()
        kind = text_field(record, "kind", where) if record.get("kind") is not None else "all"
        if text.count(BLANK) != 1 or not word:
            raise UserError(f"{where}: needs a text with one {BLANK} and the word that is expected there")
        probes.append(Probe(kind, text, word))
    if not probes:
        raise UserError(f"{path}: holds no probe")
    return probes


def ask_probes(model: LoadedModel, probes: Sequence[Probe]) -> tuple[Json, list[Json]]:
    """Return figures over all probes and by kind, and a line for each probe."""
    lines: list[Json] = []
    for first in range(0, len(probes), BATCH):
        some = probes[first : first + BATCH]
        prepared, words = zip(*(_masked(model, probe) for probe in some), strict=True)
        tokenizer = model.required_tokenizer
        chances_mv = mask_logits(model, prepared).log_softmax(-1).cpu()
        counts = [len(ids) for ids in words]
        for probe, ids, rows_mv in zip(some, words, chances_mv.split(counts), strict=True):
            chosen = rows_mv[torch.arange(len(ids)), torch.tensor(ids)]
            rank = int((rows_mv[0] > chosen[0]).sum()) + 1 if len(ids) == 1 else None
            best = "" if rank is None else tokenizer.token(int(rows_mv[0].argmax()))
            probability = math.exp(float(chosen.sum()))
            line = {"kind": probe.kind, "text": probe.text, "gold": probe.word, "predicted": best}
            lines.append(line | {"rank": rank, "probability": probability, "tokens": len(ids)})
    figures = _figures(lines)
    for kind in dict.fromkeys(probe.kind for probe in probes):
        figures |= {f"{kind}_{name}": v for name, v in _figures([x for x in lines if x["kind"] == kind]).items()}
    return figures, lines


def _masked(model: LoadedModel, probe: Probe) -> tuple[MaskedText, list[int]]:
    """Return the sentence with a mask for each token of its word, and these tokens."""
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.id_of("mask") is None or model.architecture.causal:
        prepare_masks(model, "[MASK]", 1)  # raises
    assert tokenizer is not None
    before = probe.text.partition(BLANK)[0]
    # With a space in front: words of a byte-level BPE begin with one inside a sentence.
    (encoding,) = tokenizer.encode_plain([f" {probe.word}" if before[-1:].isspace() else probe.word])
    ids = list(encoding.ids)
    if not ids:
        raise UserError(f"{model.name}: its tokenizer has no token for the expected word {probe.word!r}")
    mask = tokenizer.special["mask"]
    return prepare_masks(model, probe.text.replace(BLANK, mask * len(ids)), 1), ids


def _figures(lines: Sequence[Json]) -> Json:
    """Return the share of words at rank 1 and within 5, the mean reciprocal rank, and the mean probability."""
    ranks = [line["rank"] for line in lines]
    count = len(lines)
    return {
        "accuracy": sum(rank == 1 for rank in ranks) / count,
        "within_5": sum(rank is not None and rank <= NEAR for rank in ranks) / count,
        "reciprocal_rank": sum(1 / rank for rank in ranks if rank) / count,
        "probability": sum(line["probability"] for line in lines) / count,
        "several_tokens": sum(line["tokens"] > 1 for line in lines),
        "examples": count,
    }


QUESTIONS = "questions"
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
    check_left_to_right(model, QUESTIONS)
    if is_backward(model):
        raise UserError(f"{QUESTIONS}: {model.name} reads from right to left, so an answer cannot follow a question")
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
            f"{QUESTIONS}: question {lengths.index(longest) + 1} has {longest:,} tokens with its template, and "
            f"{model.name} has {positions:,} positions; shorten it"
        )
    return min(TOKENS, positions - longest)
