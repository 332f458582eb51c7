"""The verbs `distill` and `compare`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import end_run, verb
from bertree.cli.options import (
    DataOption,
    DevFileOption,
    JsonOption,
    LabelOption,
    PairOption,
    ResumeOption,
    SeedsOption,
    SettingsArgument,
    StoreOption,
    TextOption,
    TokenizerOption,
    TrainDeviceOption,
    TrainFileOption,
    TrainPrecisionOption,
    training_settings,
)


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verb(app, on_ranks=True)(distill)
    verb(app)(compare)


def distill(
    teacher: Annotated[str, typer.Argument(metavar="TEACHER", help="Folder of the trained model to learn from.")],
    settings: SettingsArgument = None,
    student: Annotated[
        str,
        typer.Option(
            "--student",
            help="half (every other layer of the teacher), a preset (bert-mini, albert-base ...); on text also "
            "a recipe, on a task a model folder or bilstm.",
        ),
    ] = "half",
    store: StoreOption = None,
    task: Annotated[str | None, typer.Option("--task", help="Task to learn instead, as in `bertree finetune`.")] = None,
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("distilled"),
    layers: Annotated[
        str, typer.Option(help="The teacher's layers the student begins with, from 1: 1,3,5; else evenly spread.")
    ] = "",
    epochs: Annotated[
        float, typer.Option(min=0, max=1e6, help="Passes over the data. 0: 3, or as the recipe says.")
    ] = 0.0,
    cache: Annotated[
        str, typer.Option(help="With --store: folder to keep the teacher's likeliest tokens in, for other students.")
    ] = "",
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, max=86400, help="Time for timing teacher and student; 0: they are not.")
    ] = 10.0,
    seeds: SeedsOption = 1,
    train: TrainFileOption = None,
    dev: DevFileOption = None,
    text: TextOption = None,
    pair: PairOption = None,
    label: LabelOption = None,
    resume: ResumeOption = False,
    tokenizer: TokenizerOption = None,
    device: TrainDeviceOption = None,
    precision: TrainPrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a smaller model with a larger one as its teacher: on text (--store) or on a task (--task).

    On text, the student learns the teacher's distribution at masked tokens, the tokens themselves and the direction of
    the teacher's states: DistilBERT's three terms, weighted distill.ce=5 objective.mlm=2 distill.cos=1 at
    distill.temperature=2; 0 switches one off; distill.start=random copies no layers. Students of another width:
    distill.hidden=1 (states between) and distill.relation=1 (MiniLM) help. A sentence encoder teaches its vectors:
    distill.vector=4 distill.ce=0. The text must be prepared with the teacher's tokenizer.

    On a task, a teacher that was fine-tuned for it labels the examples: alpha=0.5 of the loss comes from labels, the
    rest from the teacher, softened by temperature=2; kind=soft, hard or mse (logits). copies=20 adds that many altered
    copies of every text, for students like bilstm.

    OUT receives model/, the report, and how teacher and student compare: size, speed, score. Under torchrun all
    processes share the batches of each step.

    [dim]bertree distill my-bert --store my-store --out small
    bertree distill my-bert --student bert-small --store my-store --out small distill.relation=1 distill.cos=0
    bertree distill my-bert --store my-store --out no-cos distill.cos=0
    bertree distill my-sbert/model --store my-store --out small distill.ce=0 distill.vector=4 data.format=doc-sentences
    bertree distill my-sst/model --task sst-2 --data glue/SST-2 --student bilstm --out tiny kind=mse alpha=0 copies=20
    bertree distill my-qa/model --task squad --data squad --student small/model --out small-qa[/dim]
    """
    from bertree.cli.render.comparison import print_comparison
    from bertree.cli.render.scores import print_finetuning
    from bertree.distillation.distill import distill as run_distillation
    from bertree.inference.trained_run import Run
    from bertree.report.comparison import read_comparison
    from bertree.run_folder import CHECKPOINTS, COMPARISON, METRICS, MODEL, REPORT

    run = run_distillation(
        teacher,
        student=student,
        store=store,
        task=task,
        data=data,
        out=out,
        layers=layers,
        epochs=epochs,
        cache=cache,
        seeds=seeds,
        train=train,
        dev=dev,
        text=text,
        pair=pair,
        label=label,
        resume=resume,
        tokenizer=tokenizer,
        seconds=seconds,
        overrides=training_settings(settings, device, precision),
    )

    def show(run: Run) -> None:
        if task is not None:
            print_finetuning(run)
            return
        print(f"{run.folder}: {MODEL}/, {REPORT}, {METRICS}, {CHECKPOINTS}/")
        if (run.folder / COMPARISON).is_file():
            print_comparison(read_comparison(run.folder / COMPARISON))

    end_run(run, as_json, show)


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

    Latency is that of one text at a time (median, 90th percentile; from ids, and with tokenization), throughput that of
    many, packed and sorted by length. The models take turns on the same texts, so that other load on the machine
    affects all of them alike. With --task and --data each is scored on the dev split, timed on its examples with the
    task's head, and the share of the first model's score that is kept is shown; without, encoders alone are timed.

    [dim]bertree compare teacher/model student/model --task sst-2 --data glue/SST-2 --out versus
    bertree compare my-bert my-small-bert --texts mail.txt --device cpu --seconds 60
    bertree compare bert-base distilbert-base albert-base --tokenizer my-bert --json[/dim]
    """
    from bertree.cli.render.comparison import print_comparison
    from bertree.comparison.run import compare as compare_models
    from bertree.files.formats import json_text
    from bertree.run_folder import COMPARISON, REPORT

    found = compare_models(
        [model, *others],
        task=task,
        data=data,
        texts=texts,
        text=text,
        pair=pair,
        label=label,
        seconds=seconds,
        device=device,
        out=out,
        tokenizer=tokenizer,
    )
    if as_json:
        print(json_text(found.as_json(), 2))
        return
    print_comparison(found)
    if out is not None:
        print(f"{out}: {COMPARISON}, {REPORT}")
