"""The verbs about smaller models and larger ones: `distill`, `compare`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.finetune import DataOption, JsonOption, LabelOption, PairOption, TextOption, TokenizerOption


def distill(
    teacher: Annotated[str, typer.Argument(metavar="TEACHER", help="Folder of the trained model to learn from.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[key=value ...]", help="Changes: distil.cos=0 optim.lr=1e-4; for a task: alpha=0.3 ..."
        ),
    ] = None,
    student: Annotated[
        str,
        typer.Option(
            "--student",
            help="half (every other layer of the teacher), a preset (bert-mini, albert-base ...); on text also "
            "a recipe, on a task a model folder or bilstm.",
        ),
    ] = "half",
    corpus: Annotated[str | None, typer.Option("--corpus", help="Token store to learn from, without labels.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task to learn instead, as in `bertree finetune`.")] = None,
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("distilled"),
    layers: Annotated[
        str, typer.Option(help="The teacher's layers the student begins with, from 1: 1,3,5; else evenly spread.")
    ] = "",
    epochs: Annotated[
        float, typer.Option(min=0, max=1e6, help="With --corpus: times the text is read. 0: 3, or as the recipe says.")
    ] = 0.0,
    cache: Annotated[
        str, typer.Option(help="With --corpus: folder to keep the teacher's likeliest tokens in, for other students.")
    ] = "",
    compare: Annotated[
        float, typer.Option("--compare", min=0, max=86400, help="Seconds to time teacher and student for; 0: do not.")
    ] = 10.0,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="With --task: runs; the best is kept.")] = 1,
    train: Annotated[Path | None, typer.Option(help="With --task: file to learn from, not the folder's.")] = None,
    dev: Annotated[Path | None, typer.Option(help="With --task: file to measure on, not the folder's.")] = None,
    text: TextOption = None,
    pair: PairOption = None,
    label: LabelOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    tokenizer: TokenizerOption = None,
) -> None:
    """Teach a smaller model what a larger one knows: on text (--corpus) or on a task (--task).

    On text, the student learns the teacher's distribution at masked tokens, the tokens themselves and the direction of
    the teacher's states: DistilBERT's three terms, weighted distil.ce=5 objective.mlm=2 distil.cos=1 at
    distil.temperature=2; 0 switches one off, distil.start=random forgoes the teacher's layers. Students of another
    width: distil.hidden=1 (states between) and distil.relation=1 (MiniLM) help. The text must be prepared with the
    teacher's tokenizer.

    On a task, a teacher that was fine-tuned for it labels the examples: alpha=0.5 of the loss are the true labels, the
    rest the teacher's, softened by temperature=2; kind=soft, hard or mse (logits). copies=20 adds that many altered
    copies of every text, for students like bilstm.

    OUT receives model/, the report, and how teacher and student compare: size, speed, score.

    [dim]bertree distill my-bert --corpus my-store --out small
    bertree distill my-bert --student bert-small --corpus my-store --out small distil.relation=1 distil.cos=0
    bertree distill my-bert --corpus my-store --out no-cos distil.cos=0
    bertree distill my-sst/model --task sst-2 --data glue/SST-2 --student bilstm --out tiny kind=mse alpha=0 copies=20
    bertree distill my-qa/model --task squad --data squad --student small/model --out small-qa[/dim]
    """
    from bertree.errors import UserError

    if (corpus is None) == (task is None):
        raise UserError("distill: give either a token store to learn from (--corpus) or a task (--task and --data)")
    if task is None:
        from bertree.distillation.text import distill as work

        names = ("--data", "--train", "--dev", "--tokenizer", "--text", "--pair", "--label", "--seeds")
        values = (data, train, dev, tokenizer, text, pair, label, seeds if seeds > 1 else None)
        for name, value in zip(names, values, strict=True):
            if value is not None:
                raise UserError(f"{name}: is for --task, not for --corpus")
        code = work(
            teacher,
            student,
            settings or [],
            out,
            corpus=corpus,
            layers=layers,
            cache=cache,
            epochs=epochs,
            resume=resume,
            seconds=compare,
        )
    else:
        from bertree.distillation.task import teach
        from bertree.tasks.files import TaskFiles
        from bertree.tasks.registry import make_task

        if cache or epochs:
            way = "a task's answers are kept by themselves" if cache else "for a task it is a setting: epochs=3"
            raise UserError(f"--{'cache' if cache else 'epochs'}: is for --corpus; {way}")
        code = teach(
            teacher,
            make_task(task, text, pair, label),
            TaskFiles(data, train, dev),
            student,
            out,
            settings or [],
            seeds=seeds,
            resume=resume,
            layers=layers,
            tokenizer=tokenizer,
            seconds=compare,
        )
    if code:
        raise typer.Exit(code)


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
    from bertree.comparison.run import Asked
    from bertree.comparison.run import compare as work

    work(
        [model, *others],
        Asked(task, data, {"text": text, "pair": pair, "label": label}, texts),
        device=device,
        seconds=seconds,
        out=out,
        tokenizer=tokenizer,
        as_json=as_json,
    )
