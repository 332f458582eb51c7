"""The work behind `bertree predict` and `features`: new texts through a trained model."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from bertree.console import note
from bertree.errors import UserError
from bertree.files import Json, json_text
from bertree.finetuning.features import CHUNK
from bertree.inference.load import device_of, load
from bertree.tasks.files import _parsed, read


def records(texts: Sequence[str], file: Path | None, question: str | None) -> Iterator[str | Json]:
    """What is to be predicted: texts of the command line, a file's rows or lines, or standard input."""
    if file is not None and texts:
        raise UserError("give texts or --file, not both")
    given: Iterable[str | Json]
    if file is not None:
        given = read(file)
    elif texts and list(texts) != ["-"]:
        given = (_parsed(text, f"text {number}") for number, text in enumerate(texts, 1))
    else:
        if sys.stdin.isatty():
            note("reading standard input, a text a line; end with Ctrl-D")
        given = (_parsed(line.rstrip("\r\n"), f"line {number}") for number, line in enumerate(sys.stdin, 1))
    blank = 0
    for record in given:
        if isinstance(record, str) and not record.strip():
            blank += 1
            continue
        if question is not None:
            record = {"question": question} | ({"context": record} if isinstance(record, str) else record)
        yield record
    if blank:
        note(f"{blank:,} empty lines were left out")


def predict(
    model: str,
    records: Iterable[str | Json],
    *,
    as_json: bool = False,
    max_length: int = 0,
    device: str = "auto",
    tokenizer: Path | None = None,
) -> None:
    """`bertree predict`: what a fine-tuned model says about lines, a thousand at a time."""
    loaded = load(model, device=device_of(device), tokenizer=tokenizer)
    head = loaded.task_named().head
    rest, done = iter(records), 0
    while some := list(islice(rest, CHUNK)):
        for line in loaded.predict(some, max_length, done + 1):
            print(json_text(line) if as_json else readable(head, line))
        done += len(some)
    if not done:
        raise UserError("nothing to predict: the input is empty")


def readable(head: str, line: Json) -> str:
    """A prediction as one or more lines for people, columns between tabs."""
    if head == "token":
        if "entities" not in line:
            return " ".join(f"{word}/{tag}" for word, tag in zip(line["words"], line["predicted"], strict=True))
        found = [f"  {e['type']}\t{e['text']}\t{e['start']}-{e['end']}{_sure(e['score'])}" for e in line["entities"]]
        return "\n".join([str(line["text"]), *(found or ["  no entity"])])
    if head == "span":
        place = f"{line['start']}-{line['end']}" if line.get("start") is not None else "-"
        return f"{' '.join(line['predicted'].split()) or 'no answer'}\t{line['score']:.3f}\t{place}\t{line['question']}"
    if head == "choice":
        return f"{line['predicted']}\t{line['answer']}\t{line['score']:.3f}"
    said = line["predicted"]
    text = "\t".join(" ".join(str(line[key]).split()) for key in ("text", "pair") if line.get(key) is not None)
    return f"{said:.3f}\t{text}" if isinstance(said, float) else f"{said}\t{line['score']:.3f}\t{text}"


def _sure(score: float | None) -> str:
    return "" if score is None else f"\t{score:.3f}"
