"""The verb `predict`."""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from bertree.cli.command import verb
from bertree.cli.options import DeviceOption, JsonOption, LengthOption, ModelArgument, TokenizerOption
from bertree.console import note
from bertree.errors import UserError

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
    from bertree.files.formats import json_text
    from bertree.inference.load import choose_device, load

    if file is not None and texts:
        raise UserError("give texts or --file, not both")
    loaded = load(model, device=choose_device(device), tokenizer=tokenizer)
    try:
        task = loaded.find_task()
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    rest, done = _examples(task, texts or [], file, question), 0
    while some := list(islice(rest, CHUNK)):
        for line in loaded.predict_examples(task, some, max_length):
            print(json_text(line) if as_json else task.prediction_text(line))
        done += len(some)
    if not done:
        raise UserError(f"{file or 'standard input'}: nothing to predict: the input is empty")


def _examples(task: Any, texts: Sequence[str], file: Path | None, question: str | None) -> Iterator[Any]:
    """Yield what is to be predicted: the examples of a file, of texts of the command line, or of standard input."""
    from bertree.tasks.files import parse_inputs, parse_line, read_inputs

    if file is not None:
        return read_inputs(task, file, question)
    if texts and list(texts) != ["-"]:
        places = ((f"text {number}", text) for number, text in enumerate(texts, 1))
        return parse_inputs(task, ((where, parse_line(text, where)) for where, text in places), "input", question)
    if sys.stdin.isatty():
        note("reading standard input, one text per line; end with Ctrl-D")
    places = ((f"standard input: line {number}", line.rstrip("\r\n")) for number, line in enumerate(sys.stdin, 1))
    return parse_inputs(task, ((where, parse_line(text, where)) for where, text in places), "standard input", question)
