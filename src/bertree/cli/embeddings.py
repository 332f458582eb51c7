"""The verbs about sentence vectors that belong together under `bertree sentence`: `train`, `evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.finetune import DeviceOption, JsonOption, ModelArgument, TokenizerOption
from bertree.cli.similar import LengthOption, PrecisionOption, PromptOption, TextOption, TokensOption

sentence = typer.Typer(help="Train and judge vectors of sentences.", no_args_is_help=True, rich_markup_mode="rich")


@sentence.command()
def train(
    model: ModelArgument,
    data: Annotated[
        list[Path],
        typer.Option("--data", help="A folder (train, dev) or a file to learn from; may be given several times."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value ...]", help="Settings: epochs=1 batch=16 lr=2e-5 pooling=mean ..."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="softmax|cosine|triplet|ranking|cross",
            help="What is learned: classes of pairs, their scores, triplets, finding the right one among all; without "
            "it, what the data are for. cross: no vectors, but a model that reads both texts at once.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("sentences"),
    dev: Annotated[Path | None, typer.Option(help="File to measure on: STS scores, labels, triplets or pairs.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Your column with the first text.")] = None,
    pair: Annotated[str | None, typer.Option("--pair", help="Your column with the second text.")] = None,
    negative: Annotated[
        list[str] | None, typer.Option("--negative", help="Your column with a negative; may be given several times.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="Your column with the label or score.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs with different seeds; the best is kept.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    tokenizer: TokenizerOption = None,
) -> None:
    """Train an encoder to make vectors of sentences that lie near each other where their meanings do.

    Files: SNLI and MultiNLI, the STS benchmark, or any .csv, .tsv, .jsonl, .parquet with the columns sentence1,
    sentence2 and label or score; anchor, positive and, where there are any, negative, negative2 ... Labels of NLI also
    make triplets: what follows from a sentence against what contradicts it. OUT receives what finetune writes; its
    model/ makes vectors; where Hugging Face knows the encoder, sentence-transformers reads it too.

    Settings: pooling=mean (cls, max, mean+max ...) layers=last (sum-all, sum-last-four) normalise=false;
    softmax: concat="u,v,|u-v|" (also u*v); cosine: low=0 high=5 (found, if not given); triplet: margin=5
    distance=euclidean (manhattan, cosine); ranking: scale=20 symmetric=false; and those of finetune: epochs=1 (cosine:
    4) batch=16 (ranking: 64, of any size: what does not fit into micro_tokens=... is computed in pieces) lr=(by the
    width) max_length=128 warmup=0.1 evaluations=4 (an epoch) patience=3 held_out=0.1 seed=0 dropout=... device=auto
    precision=auto ...

    [dim]bertree sentence train my-bert --data snli --dev sts/sts-dev.csv --loss softmax --out my-sbert
    bertree sentence train my-bert --data snli --data mnli --loss ranking --dev sts/sts-dev.csv --out my-sbert batch=256
    bertree sentence train my-sbert/model --data glue/STS-B --out my-sts epochs=4
    bertree sentence train my-bert --data faq.csv --text question --pair answer --out my-faq
    bertree sentence train my-bert --data glue/STS-B --loss cross --out my-reranker[/dim]
    """
    from bertree.embeddings.train import Source
    from bertree.embeddings.train import train as work
    from bertree.tasks.similarity.read import Named

    source = Source(data, dev, Named(text, pair, label, tuple(negative or ())))
    code = work(model, source, loss, out, settings or [], seeds=seeds, resume=resume, tokenizer=tokenizer)
    if code:
        raise typer.Exit(code)


@sentence.command()
def evaluate(
    data: Annotated[
        list[Path], typer.Option("--data", help="A set of pairs with gold, or a folder of sets; may be repeated.")
    ],
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL ...]", help="Model folders, or: default.")
    ] = None,
    pooling: Annotated[
        list[str] | None,
        typer.Option(help="cls, mean, max, last, sqrt, weighted in place of the model's own; may be repeated."),
    ] = None,
    glove: Annotated[
        list[Path] | None, typer.Option(help="Word vectors as a baseline: a word and its numbers a line; also .xz.")
    ] = None,
    split: Annotated[str, typer.Option(help="test, dev, train or all, of sets that have splits.")] = "test",
    text: TextOption = None,
    pair: Annotated[str | None, typer.Option("--pair", help="The column with the second text.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="The column with the gold score.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for metrics.json, predictions.jsonl, report.html.")] = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: TokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge sentence vectors by what people say about pairs: Spearman and Pearson x 100.

    For cosine, dot product, euclidean and manhattan distance. DATA: STS12 to STS16 (folders with STS.input.*.txt and
    STS.gs.*.txt), the STS benchmark (sts-test.csv, or GLUE's STS-B), SICK, or a .csv, .tsv, .jsonl, .parquet whose
    columns are named. A set of several parts has its score over all pairs, the mean of the parts and the weighted
    mean, since papers differ.

    [dim]bertree sentence evaluate my-model --data STS-B
    bertree sentence evaluate my-bert --pooling cls --pooling mean --glove glove.6B.300d.txt --data sts
    bertree sentence evaluate my-model --data pairs.csv --text first --pair second --label score --out judged[/dim]
    """
    from bertree.embeddings.embed import How
    from bertree.embeddings.evaluate import Subjects
    from bertree.embeddings.evaluate import evaluate as work
    from bertree.embeddings.sts import Named

    work(
        Subjects(models or [], pooling or [], glove or []),
        data,
        Named(text, pair, label),
        split,
        How(device, tokenizer, prompt, max_length, batch_tokens, precision=precision),
        out=out,
        as_json=as_json,
    )
