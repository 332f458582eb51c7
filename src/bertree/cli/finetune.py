"""The verbs `finetune`, `evaluate`, `features`, `glue`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import end_run, print_json, verb
from bertree.cli.options import (
    DataOption,
    DevFileOption,
    DeviceOption,
    JsonOption,
    LabelOption,
    LengthOption,
    ModelArgument,
    PairOption,
    ResumeOption,
    SeedsOption,
    SettingsArgument,
    TaskOption,
    TextOption,
    TokenizerOption,
    TrainDeviceOption,
    TrainFileOption,
    TrainPrecisionOption,
    training_settings,
)


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verb(app, on_ranks=True)(finetune)
    for function in (evaluate, features, glue):
        verb(app)(function)


def finetune(
    model: ModelArgument,
    task: TaskOption,
    settings: SettingsArgument = None,
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("finetuned"),
    seeds: SeedsOption = 1,
    frozen: Annotated[
        str | None,
        typer.Option(
            "--frozen",
            metavar="LAYERS",
            help="Freeze the encoder and learn from its states: last, embeddings, second-to-last, sum-last-four, "
            "concat-last-four, sum-all. With lstm=256 a BiLSTM reads them.",
        ),
    ] = None,
    from_task: Annotated[
        Path | None,
        typer.Option(
            "--from-task",
            metavar="RUN",
            help="A run on another task that began with MODEL: start from its encoder, with a new head.",
        ),
    ] = None,
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
    """Fine-tune a model on a task: classification, regression, tagging, spans, multiple choice.

    OUT receives model/, metrics.json, predictions.jsonl and, for each seed, a report. The best evaluation on the dev
    split counts; without a dev split a tenth of the examples is held out. Under torchrun all processes share the
    examples of each step: the same batch, the same result.

    Settings: epochs=3 batch=32 lr=(by the model's width) max_length=(the task's) warmup=0.1 shape=linear
    evaluations=1 (per epoch) patience=3 held_out=0.1 seed=0 weight_decay=0.01 clip=1 dropout=... attention_dropout=0
    layer_decay=1 (rate of a layer as a multiple of that above) metric=... lstm=0 lstm_layers=2 micro_tokens=0;
    SQuAD: stride=128 max_answer=30 best=20 threshold=0
    head=span (or beam: the end given the start); tags: crf=false scheme=auto. Left-to-right models:
    lm=0.5 (weight of the language-model loss on the task's texts), both_orders (of a pair; true for mrpc, qqp, sts-b),
    no_answer=last (SQuAD), subword=last (tags).

    [dim]bertree finetune my-bert --task sst-2 --data glue/SST-2 --out my-sst
    bertree finetune my-bert --task squad2 --data squad --out my-qa epochs=2 batch=16
    bertree finetune my-bert --task ner --data conll2003 --out my-ner --seeds 3 crf=true
    bertree finetune my-bert --task ner --data conll2003 --out frozen --frozen concat-last-four lstm=256
    bertree finetune my-bert --task rte --data glue/RTE --from-task my-mnli --out my-rte epochs=5
    bertree finetune my-bert --task classification --data mail.csv --text body --label folder --out my-mail[/dim]
    """
    from bertree.cli.render.scores import print_finetuning
    from bertree.finetuning.finetune import finetune as run_finetuning

    run = run_finetuning(
        model,
        task=task,
        data=data,
        out=out,
        train=train,
        dev=dev,
        text=text,
        pair=pair,
        label=label,
        frozen=frozen,
        from_task=from_task,
        seeds=seeds,
        resume=resume,
        tokenizer=tokenizer,
        overrides=training_settings(settings, device, precision),
    )
    end_run(run, as_json, print_finetuning)


def evaluate(
    model: ModelArgument,
    task: TaskOption,
    data: Annotated[Path, typer.Option("--data", help="Folder with the task's files, or one file.")],
    split: Annotated[str | None, typer.Option(help="dev, test ... [default: dev]", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for metrics.json, predictions.jsonl, report.html.")] = None,
    submission: Annotated[
        Path | None, typer.Option(help="Folder for the file that the task's server takes (GLUE, SQuAD).")
    ] = None,
    text: TextOption = None,
    pair: PairOption = None,
    label: LabelOption = None,
    max_length: LengthOption = 0,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a fine-tuned model on a task's files, as the task's own script does.

    [dim]bertree evaluate my-sst/model --task sst-2 --data glue/SST-2
    bertree evaluate my-sst/model --task sst-2 --data glue/SST-2 --split test --submission for-the-server
    bertree evaluate my-qa/model --task squad --data dev-v1.1.json --json[/dim]
    """
    from bertree.cli.render.scores import print_scores
    from bertree.files.formats import json_text
    from bertree.finetuning.evaluate import evaluate as evaluate_model

    scores = evaluate_model(
        model,
        task=task,
        data=data,
        split=split,
        text=text,
        pair=pair,
        label=label,
        out=out,
        submission=submission,
        max_length=max_length,
        device=device,
        tokenizer=tokenizer,
    )
    print(json_text(scores.metrics, 2)) if as_json else print_scores(scores)


def features(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(help="A text file with one text per line, or .jsonl with text or words.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    layers: Annotated[
        str,
        typer.Option(help="last, embeddings, second-to-last, sum-last-four, concat-last-four, sum-all."),
    ] = "concat-last-four",
    max_length: LengthOption = 0,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an encoder's states for every word of a text: features for another program.

    OUT receives features.npy (words x width, float32; the state of a word is that of its first sub-word, or of its last
    if the model reads left to right) and words.jsonl (for each line its words, their character offsets and the row of
    the first). Sums are plain means, unless the model has learned its weights.

    [dim]bertree features my-bert news.txt --layers sum-last-four --out my-features[/dim]
    """
    from bertree.finetuning.features import FEATURES, WORDS, write_features

    found = write_features(model, file, out, layers=layers, max_length=max_length, device=device, tokenizer=tokenizer)
    if as_json:
        print_json(asdict(found) | {"folder": str(found.folder)})
    else:
        print(f"{out}: {FEATURES} ({found.words:,} words x {found.width}), {WORDS} ({found.texts:,} texts)")


def glue(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Folders of `finetune` or `evaluate --out`.")],
    as_json: JsonOption = False,
) -> None:
    """Collect the scores of several GLUE tasks, with the averages that are called the GLUE score, each by its name.

    [dim]bertree glue runs/cola runs/sst-2 runs/mrpc ...[/dim]
    """
    from bertree.cli.render.scores import print_glue
    from bertree.finetuning.evaluate import summarize_glue

    found = summarize_glue(runs)
    print_json(asdict(found)) if as_json else print_glue(found)
