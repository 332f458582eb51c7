"""The verb `predict`."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertree.cli.command import verb
from bertree.cli.options import DeviceOption, JsonOption, LengthOption, ModelArgument, TokenizerOption
from bertree.console import note
from bertree.errors import UserError

if TYPE_CHECKING:
    from bertree.files import Json

CHUNK = 1024  # lines read at once


def register(app: typer.Typer) -> None:
    """Add the verb to the application."""
    verb(app)(predict)


def predict(
    model: ModelArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts; - or none: standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A file instead: .txt (one text per line), .jsonl, .csv, .tsv, .parquet.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="A question about every TEXT (question answering).")] = None,
    max_length: LengthOption = 0,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict with a fine-tuned model: label with probability, entities, answer, or chosen option.

    A line is a text; where the model reads pairs, a tab separates the two. A line that is a JSON object gives
    the parts by name: text, pair; words; question, context; context, question, options. With --json, one object is
    printed per line.

    [dim]bertree predict my-sst/model "What a film." "Not again."
    bertree predict my-ner/model --file news.txt --json
    bertree predict my-qa/model --question "Who wrote it?" "Moby Dick was written by Herman Melville."
    cat questions.jsonl | bertree predict my-race/model[/dim]
    """
    from bertree.files import json_text
    from bertree.inference.load import choose_device, load

    if file is not None and texts:
        raise UserError("give texts or --file, not both")
    loaded = load(model, device=choose_device(device), tokenizer=tokenizer)
    task = loaded.find_task()
    rest, done = _records(task, texts or [], file, question), 0
    while some := list(islice(rest, CHUNK)):
        for line in loaded.predict(some, max_length, done + 1):
            print(json_text(line) if as_json else task.prediction_text(line))
        done += len(some)
    if not done:
        raise UserError(f"{file or 'standard input'}: nothing to predict: the input is empty")


def _records(task: Any, texts: Sequence[str], file: Path | None, question: str | None) -> "Iterator[str | Json]":
    """Yield what is to be predicted: texts of the command line, a file's rows or lines, or standard input."""
    from bertree.tasks.files import parse_line, read

    given: Iterable[str | Json]
    if file is not None:
        given = read(file)
    elif texts and list(texts) != ["-"]:
        given = (parse_line(text, f"text {number}") for number, text in enumerate(texts, 1))
    else:
        if sys.stdin.isatty():
            note("reading standard input, one text per line; end with Ctrl-D")
        given = (parse_line(line.rstrip("\r\n"), f"line {number}") for number, line in enumerate(sys.stdin, 1))
    blank = 0
    for record in given:
        if isinstance(record, str) and not record.strip():
            blank += 1
            continue
        if question is not None:
            record = {"question": question} | ({"context": record} if isinstance(record, str) else record)
        yield record
    if blank:
        note(f"{file or 'input'}: {blank:,} empty lines were left out")
