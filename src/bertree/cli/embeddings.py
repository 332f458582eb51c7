"""The verbs of sentence vectors: `embeddings train`, `embeddings evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import end_run, verb
from bertree.cli.options import (
    BatchTokensOption,
    DeviceOption,
    JsonOption,
    LabelOption,
    LengthOption,
    ModelArgument,
    PairOption,
    PrecisionOption,
    PromptOption,
    ResumeOption,
    SeedsOption,
    SettingsArgument,
    TextOption,
    TokenizerOption,
    TrainDeviceOption,
    TrainPrecisionOption,
    training_settings,
)
from bertree.objectives.embedding_losses import loss_choices, loss_defaults_help, loss_help, loss_settings_help

embedding_verbs = typer.Typer(
    help="Train and evaluate sentence vectors.", no_args_is_help=True, rich_markup_mode="rich"
)


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.add_typer(embedding_verbs, name="embeddings")


TRAIN_HELP = f"""Train an encoder to make vectors of sentences that lie near each other where their meanings do.

Files: SNLI and MultiNLI, the STS benchmark, or any .csv, .tsv, .jsonl, .parquet with the columns sentence1,
sentence2 and label or score; anchor, positive and, where there are any, negative, negative2 ... Labels of NLI also
make triplets: what follows from a sentence against what contradicts it. OUT receives what finetune writes; its
model/ makes vectors; where Hugging Face knows the encoder, sentence-transformers reads it too.

Settings: pooling=mean (cls, max, mean+max ...) layers=last (sum-all, sum-last-four) normalize=false dense=(width of a
linear layer after the pooling) frozen=false (true: the encoder stays as it is). Of the losses:
{loss_settings_help()}. dimensions=768,256,64 trains vectors that can be truncated to each of these widths (Matryoshka).
And those of finetune: epochs={loss_defaults_help("epochs")} batch={loss_defaults_help("batch")}, of any size: what does
not fit into micro_tokens=... is computed in pieces; evaluations={loss_defaults_help("evaluations")}, an epoch;
lr=(by the width) max_length=128 warmup=0.1 patience=3 held_out=0.1 seed=0 dropout=... device=auto precision=auto ...

Under torchrun all processes share the rows of each step: the same batch, the same result.

[dim]bertree embeddings train my-bert --data snli --dev sts/sts-dev.csv --loss softmax --out my-sbert
bertree embeddings train my-bert --data snli --data mnli --loss ranking --dev sts/sts-dev.csv --out my-sbert batch=256
bertree embeddings train my-sbert/model --data glue/STS-B --out my-sts epochs=4
bertree embeddings train my-bert --data faq.csv --text question --pair answer --out my-faq
bertree embeddings train my-bert --data glue/STS-B --loss cross --out my-reranker[/dim]
"""


@verb(embedding_verbs, help_text=TRAIN_HELP, on_ranks=True)
def train(
    model: ModelArgument,
    data: Annotated[
        list[Path],
        typer.Option("--data", help="A folder (train, dev) or a file to learn from; may be given several times."),
    ],
    settings: SettingsArgument = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar=loss_choices(),
            help=loss_help(),
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("sentences"),
    dev: Annotated[
        Path | None, typer.Option(help="File to evaluate on: STS scores, labels, triplets or pairs.")
    ] = None,
    text: TextOption = None,
    pair: PairOption = None,
    negative: Annotated[
        list[str] | None, typer.Option("--negative", help="Column with a negative; may be given several times.")
    ] = None,
    label: LabelOption = None,
    seeds: SeedsOption = 1,
    resume: ResumeOption = False,
    tokenizer: TokenizerOption = None,
    device: TrainDeviceOption = None,
    precision: TrainPrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train sentence vectors."""
    from bertree.cli.render.scores import print_finetuning
    from bertree.embeddings.train import train_embeddings

    run = train_embeddings(
        model,
        data=data,
        loss=loss,
        dev=dev,
        out=out,
        text=text,
        pair=pair,
        negative=negative or [],
        label=label,
        seeds=seeds,
        resume=resume,
        tokenizer=tokenizer,
        overrides=training_settings(settings, device, precision),
    )
    end_run(run, as_json, print_finetuning)


@verb(embedding_verbs)
def evaluate(
    data: Annotated[
        list[Path],
        typer.Option("--data", help="A set of pairs with gold scores, or a folder of sets; may be repeated."),
    ],
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL ...]", help="Model folders, or: default.")
    ] = None,
    pooling: Annotated[
        list[str] | None,
        typer.Option(help="cls, mean, max, last, sqrt, weighted in place of the model's own; may be repeated."),
    ] = None,
    glove: Annotated[
        list[Path] | None, typer.Option(help="Word vectors as a baseline: one word and its numbers per line; also .xz.")
    ] = None,
    split: Annotated[str, typer.Option(help="test, dev, train or all, of sets that have splits.")] = "test",
    text: TextOption = None,
    pair: PairOption = None,
    label: LabelOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder for metrics.json, predictions.jsonl, report.html.")] = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: BatchTokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate sentence vectors on pairs with gold scores: Spearman and Pearson correlation x 100.

    For cosine, dot product, euclidean and manhattan distance. DATA: STS12 to STS16 (folders with STS.input.*.txt and
    STS.gs.*.txt), the STS benchmark (sts-test.csv, or GLUE's STS-B), SICK, or a .csv, .tsv, .jsonl, .parquet whose
    columns are named. A set of several parts has its score over all pairs, the mean of the parts and the weighted
    mean, since papers differ.

    [dim]bertree embeddings evaluate my-model --data STS-B
    bertree embeddings evaluate my-bert --pooling cls --pooling mean --glove glove.6B.300d.txt --data sts
    bertree embeddings evaluate my-model --data pairs.csv --text first --pair second --label score --out scores[/dim]
    """
    from bertree.cli.render.embeddings import print_embedding_scores
    from bertree.embeddings.evaluate import evaluate_embeddings
    from bertree.files.formats import json_text
    from bertree.run_folder import PREDICTIONS, REPORT, SCORES

    scores = evaluate_embeddings(
        models or [],
        data=data,
        pooling=pooling or [],
        glove=glove or [],
        split=split,
        text=text,
        pair=pair,
        label=label,
        prompt=prompt,
        max_length=max_length,
        batch_tokens=batch_tokens,
        precision=precision,
        device=device,
        tokenizer=tokenizer,
        out=out,
    )
    if as_json:
        print(json_text(scores.metrics, 2))
        return
    print_embedding_scores(scores)
    if out is not None:
        print(f"{out}: {SCORES}, {PREDICTIONS}, {REPORT}")
