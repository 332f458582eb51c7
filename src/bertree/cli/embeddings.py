"""The verbs of sentence vectors: `embeddings train`, `embeddings evaluate`."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

import typer

from bertree.cli.command import TRAIN, end_run, print_json, python_verb
from bertree.cli.options import Option
from bertree.objectives.embedding_losses import loss_choices, loss_defaults_help, loss_help, loss_settings_help

if TYPE_CHECKING:
    from bertree.embeddings.evaluate import EmbeddingScores
    from bertree.inference.load import Run

TRAIN_HELP = f"""Train an encoder to make vectors of sentences that lie near each other where their meanings do.

Files: SNLI and MultiNLI, the STS benchmark, or any .csv, .tsv, .jsonl, .parquet with the columns sentence1,
sentence2 and label or score; anchor, positive and, where there are any, negative, negative2 ... Labels of NLI also
make triplets: what follows from a sentence against what contradicts it. OUT receives what finetune writes; its
model/ makes vectors; where Hugging Face knows the encoder, sentence-transformers reads it too.

Settings: pooling=mean (cls, max, min, mean+max) layers=last (sum-all, sum-last-four) normalize=false dense=(width of a
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
bertree embeddings train my-bert --data glue/STS-B --loss cross --out my-reranker
bertree embeddings train my-bert --data mined.jsonl --teacher my-reranker/model --out my-student[/dim]
"""


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verbs = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    own = {
        "data": Option(help="A folder (train, dev) or a file to learn from; may be given several times."),
        "dev": Option(help="File to evaluate on: STS scores, labels, triplets or pairs."),
        "loss": Option(metavar=loss_choices(), help=loss_help()),
        "teacher": Option(help="A cross-encoder that scores the triplets, for the loss margin."),
    }
    call = ("model", "settings")
    learn = python_verb(
        verbs, "embeddings.train.train_embeddings", call, name="train", own=own, help_text=TRAIN_HELP, on_ranks=True
    )
    learn(train)
    own = {
        "data": Option(help="A set of pairs with gold scores, or a folder of sets; may be repeated."),
        "split": Option(help="test, dev, train or all, of sets that have splits."),
        "out": Option(help="Folder for metrics.json, predictions.jsonl, report.html."),
    }
    python_verb(verbs, "embeddings.evaluate.evaluate_embeddings", ("models",), name="evaluate", own=own)(evaluate)
    app.add_typer(verbs, name="embeddings", help="Train and evaluate sentence vectors.", rich_help_panel=TRAIN)


def train(run: "Run", options: SimpleNamespace) -> None:
    """Train sentence vectors."""
    from bertree.cli.render.scores import print_finetuning

    end_run(run, options.as_json, print_finetuning)


def evaluate(scores: "EmbeddingScores", options: SimpleNamespace) -> None:
    """Evaluate sentence vectors on pairs with gold scores: Spearman and Pearson correlation x 100.

    For cosine, dot product, euclidean and manhattan distance. DATA: STS12 to STS16 (folders with STS.input.*.txt and
    STS.gs.*.txt), the STS benchmark (sts-test.csv, or GLUE's STS-B), SICK, or a .csv, .tsv, .jsonl, .parquet whose
    columns are named. A set of several parts has its score over all pairs, the mean of the parts and the weighted
    mean, since papers differ.

    [dim]bertree embeddings evaluate my-model --data STS-B
    bertree embeddings evaluate my-bert --pooling cls --pooling mean --glove glove.6B.300d.txt --data sts
    bertree embeddings evaluate my-model --data pairs.csv --text first --pair second --label score --out scores[/dim]
    """
    from bertree.cli.render.scores import print_embedding_scores
    from bertree.run_folder import PREDICTIONS, REPORT, SCORES

    if options.as_json:
        print_json(scores.metrics)
        return
    print_embedding_scores(scores)
    if options.out is not None:
        print(f"{options.out}: {SCORES}, {PREDICTIONS}, {REPORT}")
