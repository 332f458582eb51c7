"""The verbs for models that read from left to right: `generate`, `perplexity`, `attribute`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.cli.command import USE, print_json, verb
from bertree.cli.options import (
    DeviceOption,
    FormatOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    TextOption,
    TokenizerOption,
)
from bertree.errors import UserError

if TYPE_CHECKING:
    from bertree.inference.causal.generation import Generation
    from bertree.inference.model import Model

ControlOption = Annotated[
    str | None, typer.Option("--control", help="One of the control codes that the model was trained with.")
]
GivenOption = Annotated[
    str | None,
    typer.Option("--given", metavar="TEXT", help="A text after the control code, such as a URL."),
]
PromptsOption = Annotated[
    str | None,
    typer.Option("--file", help="A file instead: a text per line (.txt), .jsonl, .csv, .tsv, .parquet; - is stdin."),
]


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    for function in (generate, perplexity, attribute):
        verb(app, panel=USE)(function)


def generate(
    model: ModelArgument,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT ...]", help="Texts to continue; - is standard input.")
    ] = None,
    file: PromptsOption = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each text at most. [default: 100, or as many as fit]")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Below 1: likelier tokens; 0: always the likeliest.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Draw from the k likeliest tokens; 0: from all.")] = 0,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw from the likeliest tokens that together have this probability.")
    ] = 1.0,
    penalty: Annotated[
        float, typer.Option(help="Above 1: tokens that occurred before are less likely; CTRL has 1.2.")
    ] = 1.0,
    beams: Annotated[
        int, typer.Option(min=1, help="Find the likeliest text by beam search of this width; 1: no search.")
    ] = 1,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Continuations of each prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same texts.")] = 0,
    control: ControlOption = None,
    given: GivenOption = None,
    endless: Annotated[bool, typer.Option("--endless", help="Go on after the token that ends a text.")] = False,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue prompts with a left-to-right model.

    Tokens are drawn by their probability; a text depends on model, prompt, seed and settings, not on the other prompts.
    A single text is printed as it comes. With --json, one object is printed per text. A model that reads from right to
    left (direction = backward) writes what comes before a prompt.

    [dim]bertree generate my-gpt "The ship" --tokens 40
    bertree generate my-gpt "The ship" --temperature 0.7 --top-p 0.9 --count 3 --seed 1
    bertree generate my-ctrl "The ship" --control Books --temperature 0.3 --penalty 1.2
    bertree generate my-links "The ship" --control Links --given https://example.org/1890/sea.html
    bertree generate my-gpt --file prompts.txt --temperature 0 --json[/dim]
    """
    from bertree.files.formats import json_text

    loaded = _load(model, device, precision, tokenizer)
    texts = _inputs(prompts, file, "prompt")
    streams = len(texts) * count == 1 and not as_json and beams == 1
    shown = 0

    def show(row: int, piece: str) -> None:
        nonlocal shown  # the prompt comes with the first piece: what is refused prints nothing but its line
        print(piece if shown else texts[0] + piece, end="", flush=True)
        shown += 1

    generated = loaded.generate(
        texts,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        penalty=penalty,
        beams=beams,
        count=count,
        seed=seed,
        control=control,
        given=given,
        stop=not endless,
        on_text=show if streams else None,
    )
    if as_json:
        for text in generated:
            print(json_text(vars(text)))
    elif streams:
        print() if shown else print(generated[0])
    else:
        _print_texts(generated)


def perplexity(
    model: ModelArgument,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Plain text is one text; .jsonl, .csv, .tsv, .parquet: a text per record; - is stdin.",
        ),
    ],
    lines: Annotated[bool, typer.Option("--lines", help="Every line of a text file is a text of its own.")] = False,
    context: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens of a window, or with a memory of a segment. [default: what the model reads]"),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1, help="Tokens that a window predicts anew; 1: a window for every token. [default: half a window]"
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(help="Tokens remembered from the segments before. [default: the model's memory if it has one]"),
    ] = None,
    task: Annotated[str | None, typer.Option(help="lambada: predict the last word of each line or record.")] = None,
    control: ControlOption = None,
    given: GivenOption = None,
    text: TextOption = None,
    format: FormatOption = None,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how well a left-to-right model predicts a text.

    Every token is predicted once, from the tokens before it in its window or memory. Perplexity per token is for models
    with the same tokenizer; per word, and bits per character and byte, are for any.

    [dim]bertree perplexity my-gpt book.txt
    bertree perplexity my-gpt book.txt --context 256 --stride 32
    bertree perplexity my-xl book.txt --memory 1600 --json
    bertree perplexity my-gpt lambada.jsonl --task lambada[/dim]
    """
    from bertree.cli.render.texts import print_last_words, print_perplexity
    from bertree.inference.causal.texts import read_texts

    if task not in (None, "lambada"):
        raise UserError(f"--task {task}: unknown; known: lambada")
    loaded = _load(model, device, precision, tokenizer)
    texts = read_texts(file, lines=lines or task == "lambada", column=text, format=format)
    if task == "lambada":
        settings = {"context": context, "stride": stride, "memory": memory, "control": control, "given": given}
        for name, value in settings.items():
            if value is not None:
                raise UserError(f"--{name}: has no meaning with --task lambada, which reads each passage as a whole")
        words = loaded.last_words(texts)
        print_json(vars(words)) if as_json else print_last_words(words)
        return
    result = loaded.perplexity(texts, context=context, stride=stride, memory=memory, control=control, given=given)
    print_json(result.as_mapping()) if as_json else print_perplexity(result)


def attribute(
    model: ModelArgument,
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts; - is standard input.")] = None,
    file: PromptsOption = None,
    codes: Annotated[
        list[str] | None, typer.Option("--code", help="A control code to compare; again for more. [default: all]")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--given", metavar="TEXT", help="A text after the code, such as a URL; again for more."),
    ] = None,
    prior: Annotated[
        Path | None,
        typer.Option("--prior", help="A token store: a code is as likely beforehand as it is frequent there."),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Codes to show.")] = 10,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rank the control codes of a model by the likelihood they give a text: where could it come from?

    With --given, texts after a code are ranked. Without --prior all codes are equally likely before the text is read.

    [dim]bertree attribute my-ctrl "The ship went down in the storm."
    bertree attribute my-ctrl --file mail.txt --json
    bertree attribute my-ctrl "The ship went down." --code Books --code News
    bertree attribute my-links "The ship went down." --given https://a.org/1890 --given https://a.org/2020[/dim]
    """
    from bertree.cli.render.texts import print_attributions
    from bertree.files.formats import json_text

    loaded = _load(model, device, precision, tokenizer)
    attributions = loaded.attribute(
        _inputs(texts, file, "text"), codes=codes or None, given=given or (), prior=prior or "uniform"
    )
    if as_json:
        for attribution in attributions:
            ranked = [vars(score) for score in attribution.codes[:k]]
            print(json_text({"text": attribution.text, "tokens": attribution.tokens, "codes": ranked}))
    else:
        print_attributions(attributions, k)


def _load(model: str, device: str, precision: str, tokenizer: str | None) -> "Model":
    from bertree.console import note
    from bertree.inference.load import choose_device, load

    loaded = load(model, device=choose_device(device), precision=precision, tokenizer=tokenizer)
    if not loaded.trained:
        note("a preset has random weights: what it says means nothing")
    return loaded


def _inputs(texts: list[str] | None, file: str | None, what: str) -> list[str]:
    from bertree.inference.causal.texts import read_texts

    if file is not None and texts:
        raise UserError(f"give a {what} or --file, not both")
    if file is not None:
        return read_texts(file, lines=True)
    if not texts:
        raise UserError(f'no {what} given; give one ("" for none), --file FILE, or - for standard input')
    if texts == ["-"]:
        return [sys.stdin.read().rstrip("\n")]
    return texts


def _print_texts(generated: "Generation") -> None:
    for number, text in enumerate(generated, 1):
        print(f"--- {number}" if number == 1 else f"\n--- {number}")
        print(text)
