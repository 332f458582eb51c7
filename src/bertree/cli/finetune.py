"""The verbs that use a model for a task: `finetune`, `evaluate`, `predict`, `features`, `glue`."""

from pathlib import Path
from typing import Annotated

import typer

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model folder (bertree's or Hugging Face's), or: default.")
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        help="cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax, snli, imdb, ag-news, squad, squad2, swag, "
        "hellaswag, race, ner; for data of your own: classification, regression, tagging, choice.",
    ),
]
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder with the task's files (train, dev, test), or one file.")
]
TextOption = Annotated[str | None, typer.Option("--text", help="Your column with the text.")]
PairOption = Annotated[str | None, typer.Option("--pair", help="Your column with the second text, if there is one.")]
LabelOption = Annotated[str | None, typer.Option("--label", help="Your column with the label or score.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...; auto: cuda where there is one.")]
TokenizerOption = Annotated[Path | None, typer.Option(help="Folder with the tokenizer, if it is not the model's own.")]
LengthOption = Annotated[int, typer.Option(min=0, help="Tokens a sequence; 0: as the model was fine-tuned.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def finetune(
    model: ModelArgument,
    task: TaskOption,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value ...]", help="Settings: epochs=3 batch=32 lr=3e-5 max_length=128 ..."),
    ] = None,
    data: DataOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("finetuned"),
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs with different seeds; the best is kept.")] = 1,
    features: Annotated[
        str | None,
        typer.Option(
            help="Leave the encoder as it is and learn from its states: last, embeddings, second-to-last, "
            "sum-last-four, concat-last-four, sum-all. With lstm=256 a BiLSTM reads them."
        ),
    ] = None,
    train: Annotated[Path | None, typer.Option(help="File to learn from, in place of the folder's.")] = None,
    dev: Annotated[Path | None, typer.Option(help="File to measure on, in place of the folder's.")] = None,
    text: TextOption = None,
    pair: PairOption = None,
    label: LabelOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    tokenizer: TokenizerOption = None,
) -> None:
    """Fine-tune a model on a task: classification, regression, tagging, spans, multiple choice.

    OUT receives model/, metrics.json, predictions.jsonl and, for each seed, a report. The best evaluation on the dev
    split counts; a file without a dev split gets a tenth of its examples held out.

    Settings: epochs=3 batch=32 lr=(by the model's width) max_length=(the task's) warmup=0.1 shape=linear
    evaluations=1 (an epoch) patience=3 held_out=0.1 seed=0 weight_decay=0.01 clip=1 dropout=... attention_dropout=0
    metric=... lstm=0 lstm_layers=2 device=auto precision=auto micro_tokens=0; SQuAD: stride=128 max_answer=30 best=20
    threshold=0; tags: crf=false scheme=auto.

    [dim]bertree finetune my-bert --task sst-2 --data glue/SST-2 --out my-sst
    bertree finetune my-bert --task squad2 --data squad --out my-qa epochs=2 batch=16
    bertree finetune my-bert --task ner --data conll2003 --out my-ner --seeds 3 crf=true
    bertree finetune my-bert --task ner --data conll2003 --out frozen --features concat-last-four lstm=256
    bertree finetune my-bert --task classification --data mail.csv --text body --label folder --out my-mail[/dim]
    """
    from bertree.finetuning.run import finetune as work
    from bertree.tasks.files import TaskFiles
    from bertree.tasks.registry import make_task

    code = work(
        model,
        make_task(task, text, pair, label),
        TaskFiles(data, train, dev),
        out,
        settings or [],
        seeds=seeds,
        features=features,
        resume=resume,
        tokenizer=tokenizer,
    )
    if code:
        raise typer.Exit(code)


def evaluate(
    model: ModelArgument,
    task: TaskOption,
    data: Annotated[Path, typer.Option("--data", help="Folder with the task's files, or one file.")],
    split: Annotated[str | None, typer.Option(help="dev, test ...; without it, dev.")] = None,
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
    from bertree.finetuning.evaluate import evaluate as work
    from bertree.tasks.files import TaskFiles

    work(
        model,
        task,
        TaskFiles(data),
        split,
        columns={"text": text, "pair": pair, "label": label},
        as_json=as_json,
        out=out,
        submission=submission,
        max_length=max_length,
        device=device,
        tokenizer=tokenizer,
    )


def predict(
    model: ModelArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts; - or none: standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A file instead: .txt (a text a line), .jsonl, .csv, .tsv, .parquet.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="Ask this of every TEXT (question answering).")] = None,
    max_length: LengthOption = 0,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a fine-tuned model says: label with probabilities, entities, answer, chosen option.

    A line is a text; where the model reads pairs, a tab stands between the two. A line that is a JSON object gives
    the parts by name: text, pair; words; question, context; context, question, options.

    [dim]bertree predict my-sst/model "What a film." "Not again."
    bertree predict my-ner/model --file news.txt --json
    bertree predict my-qa/model --question "Who wrote it?" "Moby Dick was written by Herman Melville."
    cat questions.jsonl | bertree predict my-race/model[/dim]
    """
    from bertree.cli.predict import predict as work
    from bertree.cli.predict import records

    work(
        model,
        records(texts or [], file, question),
        as_json=as_json,
        max_length=max_length,
        device=device,
        tokenizer=tokenizer,
    )


def features(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(help="A text file, a text a line; or .jsonl with text or words.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")],
    layers: Annotated[
        str,
        typer.Option(help="last, embeddings, second-to-last, sum-last-four, concat-last-four, sum-all."),
    ] = "concat-last-four",
    max_length: Annotated[int, typer.Option(min=0, help="Tokens a window; 0: as many as the model reads.")] = 0,
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
) -> None:
    """Write an encoder's states for every word of a text: features for another program.

    OUT receives features.npy (words x width, float32; the state of a word is that of its first sub-word) and
    words.jsonl (for each line its words, their character offsets and the row of the first). Sums are plain means,
    unless the model has learned its weights.

    [dim]bertree features my-bert news.txt --layers sum-last-four --out my-features[/dim]
    """
    from bertree.finetuning.features import features as work

    work(model, file, out, layers, max_length, device, tokenizer)


def glue(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN ...", help="Folders of `finetune` or `evaluate --out`.")],
) -> None:
    """Put the scores of several GLUE tasks together, with the averages that circulate, each by its name.

    [dim]bertree glue runs/cola runs/sst-2 runs/mrpc ...[/dim]
    """
    from bertree.finetuning.evaluate import glue as work

    work(runs)
