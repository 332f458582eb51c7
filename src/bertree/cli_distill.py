"""The verbs about smaller models and larger ones: `compare`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli_tasks import JsonOption, LabelOption, PairOption, TextOption, TokenizerOption


def compare(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model the others are measured against: a folder, or a preset.")
    ],
    others: Annotated[list[str], typer.Argument(metavar="OTHER [MORE ...]", help="The models to measure against it.")],
    task: Annotated[
        str | None, typer.Option("--task", help="Score them too, on this task: sst-2, squad, ner ...")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The task's files: its dev split is read.")] = None,
    texts: Annotated[
        Path | None, typer.Option("--texts", help="Texts to time them on: .txt (a text a line), .jsonl, .csv, .tsv.")
    ] = None,
    text: TextOption = None,
    pair: PairOption = None,
    label: LabelOption = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1 ...; auto: CPU and, where there is one, GPU.")
    ] = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, max=86400, help="Time for timing, all models together.")] = 20.0,
    out: Annotated[Path | None, typer.Option(help="Folder for comparison.json and report.html.")] = None,
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure models against the first: parameters, bytes, latency, throughput and, with a task, score.

    Latency is that of one text at a time (median, 90th percentile; from ids, and with tokenising), throughput that of
    many, packed and sorted by length. The models take turns on the same texts, so that what else the machine does
    falls on all of them alike. With --task and --data each is scored on the dev split, timed on its examples with the
    task's head, and the share of the first model's score that is kept is shown; without, encoders alone are timed.

    [dim]bertree compare teacher/model student/model --task sst-2 --data glue/SST-2 --out versus
    bertree compare my-bert my-small-bert --texts mail.txt --device cpu --seconds 60
    bertree compare bert-base distilbert-base albert-base --tokenizer my-bert --json[/dim]
    """
    from bertree.pipelines_compare import Asked
    from bertree.pipelines_compare import compare as work

    work(
        [model, *others],
        Asked(task, data, {"text": text, "pair": pair, "label": label}, texts),
        device=device,
        seconds=seconds,
        out=out,
        tokenizer=tokenizer,
        as_json=as_json,
    )
