"""The verbs of sentence vectors: `embeddings train`, `embeddings evaluate`; `embed`, `similar`, `pairs`, `cluster`."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import typer

from bertree.cli.command import TRAIN, USE, end_run, print_json, python_verb
from bertree.cli.options import Keyword, Option
from bertree.console import note
from bertree.objectives.embedding_losses import loss_choices, loss_defaults_help, loss_help, loss_settings_help

if TYPE_CHECKING:
    from bertree.embeddings.embed import EmbeddedFile
    from bertree.embeddings.evaluate import EmbeddingScores
    from bertree.embeddings.mine_files import SimilarPairs, TextClusters
    from bertree.embeddings.similar import Matches
    from bertree.inference.load import Run

SHOWN = 160  # characters of a text on the terminal
TABLE = Option(help="File to write: .jsonl, .csv or .tsv.")


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    _register_group(app)
    own = {"out": Option(help="The .npy file to write: rows x numbers.")}
    python_verb(app, "embeddings.embed.embed_file", ("model", "file"), name="embed", panel=USE, own=own)(embed)
    own = {
        "a": Option(metavar="A", help="A text, or a file of texts."),
        "b": Option(metavar="B", help="A text, or a file of texts."),
        "k": Option(flags=("-k", "--top"), min=1, help="Matches in file B for each text of A."),
    }
    python_verb(app, "embeddings.similar.similar", ("model", "a", "b"), panel=USE, own=own)(similar)
    own = {
        "k": Option(flags=("-k", "--top"), min=1, max=10_000_000, help="Pairs to find."),
        "min_similarity": Option(help="The smallest cosine of a pair; with --cross its smallest score."),
        "cross": Option(help="MODEL is a cross-encoder: score every pair of texts with it. For small files."),
        "label": Option(help="With --cross: the positive class of MODEL.", default="by its name"),
        "max_pairs": Option(min=1, help="With --cross: refuse a file with more pairs than these."),
        "duplicates": Option(help="List texts that occur several times."),
        "out": TABLE,
    }
    list_duplicates = Keyword("duplicates", "bool", False)
    find = "embeddings.mine_files.find_pairs"
    python_verb(app, find, ("model", "file"), name="pairs", panel=USE, own=own, only_here=[list_duplicates])(pairs)
    own = {
        "min_similarity": Option(help="Without --clusters: smallest cosine with the centre of a group."),
        "seed": Option(min=0, help="With --clusters: seed of the starting points."),
        "show": Option(min=1, help="Clusters to print."),
        "out": TABLE,
    }
    group = "embeddings.mine_files.cluster_texts"
    shown = [Keyword("show", "int", 20)]
    python_verb(app, group, ("model", "file"), name="cluster", panel=USE, own=own, only_here=shown)(cluster)


def embed(file: "EmbeddedFile", options: SimpleNamespace) -> None:
    """Write the vector of every text of a file, of any size, as one .npy file.

    Row n is line n: an empty line has the vector of the empty text. Run again after a stop of any kind, it continues
    where it was and ends in the same bytes; until then the rows are in OUT.part.

    [dim]bertree embed my-model mail.txt --out vectors.npy
    bertree embed my-model corpus.jsonl.zst --text body --dtype float16 --out vectors.npy
    zcat lines.gz | bertree embed my-model - --out vectors.npy[/dim]
    """
    if options.as_json:
        shape = {"rows": file.rows, "dimension": file.dimension, "dtype": file.dtype}
        print_json({"file": str(file.path)} | shape | {"new_rows": file.new_rows, "seconds": file.seconds})
    elif not file.new_rows and file.rows:
        print(f"{file.path}: is complete already")
    else:
        speed = f"; {file.new_rows / max(file.seconds, 1e-9):,.0f} texts/s" if file.new_rows else ""
        print(f"{file.path}: {file.rows:,} vectors x {file.dimension}, {file.dtype}{speed}")


def similar(matches: "Matches", options: SimpleNamespace) -> None:
    """Print the cosine similarity of two texts, or the best matches in a file for each text of another.

    Models differ in scale, so it also says which percentage of random pairs of English sentences is less similar: 50 %
    is what any two sentences have, close paraphrases have 99 % or more.

    [dim]bertree similar my-model "A dog runs." "The hound is running."
    bertree similar my-model questions.txt answers.txt -k 3
    bertree similar my-model "How do I return it?" answers.txt --json[/dim]
    """
    from bertree.files.formats import json_text

    def scores(cosine: float) -> dict[str, float]:
        return {"cosine": round(cosine, 6), "percentile": round(matches.percentile(cosine), 2)}

    if not matches.a.is_file and not matches.b.is_file:
        cosine, texts = matches.nearest[0][0][1], [matches.a.texts[0], matches.b.texts[0]]
        reading = f"more similar than {_percent(matches.percentile(cosine))} of random pairs"
        print(json_text(scores(cosine) | {"texts": texts}) if options.as_json else f"{cosine:.4f}  {reading}")
        return
    for row, nearest in enumerate(matches.nearest):
        text = matches.a.texts[row]
        if options.as_json:
            listed = [{"row": j + 1, **scores(cosine), "text": matches.b.texts[j]} for j, cosine in nearest]
            print(json_text({"row": row + 1, "text": text, "matches": listed}))
            continue
        print(f"{row + 1}  {_one_line(text)}" if matches.a.is_file else _one_line(text))
        for j, cosine in nearest:
            match = f"  {j + 1}  {_one_line(matches.b.texts[j])}" if matches.b.is_file else ""
            print(f"   {cosine:7.4f}  {_percent(matches.percentile(cosine)):>7}{match}")


def pairs(result: "SimilarPairs", options: SimpleNamespace) -> None:
    """Find the most similar pairs of texts in a file: paraphrases, near copies.

    Every text is compared with every other, in blocks that fit into memory. Texts that are the same word for word
    are not compared with each other but counted, and listed with --duplicates.

    With --cross, MODEL reads the two texts of a pair together, as for `index query --rerank`: better than vectors, but
    n texts take n(n-1)/2 passes. The time is estimated first.

    [dim]bertree pairs my-model questions.txt
    bertree pairs my-model tickets.csv --text subject --min-similarity 0.85 -k 1000 --out pairs.csv
    bertree pairs my-model lines.txt --vectors vectors.npy
    bertree pairs --cross my-reranker questions.txt[/dim]
    """
    if result.duplicates:
        repeated = sum(len(group["rows"]) - 1 for group in result.duplicates)
        hint = "" if options.duplicates or options.as_json else "; --duplicates lists them"
        note(f"{options.file}: {repeated:,} rows repeat another word for word and are not compared again{hint}")
    if options.out is not None:
        print(f"{options.out}: {len(result.pairs):,} pairs")
    if options.as_json:
        print_json({"sentences": len(result.texts), "pairs": result.pairs, "duplicates": result.duplicates})
    elif options.out is None:
        _print_pairs(result, options)


def cluster(result: "TextClusters", options: SimpleNamespace) -> None:
    """Group the texts of a file: into a number of clusters (k-means), or by a smallest similarity.

    OUT receives row, cluster and text of every row, clusters numbered by size; a text of no cluster has no number.

    [dim]bertree cluster my-model questions.txt
    bertree cluster my-model tickets.csv --text subject --clusters 20 --out clusters.csv
    bertree cluster my-model lines.txt --min-similarity 0.9 --json[/dim]
    """
    if options.as_json:
        groups = [
            {
                "cluster": number,
                "size": len(cluster.rows),
                "cosine": round(cluster.mean, 6),
                "central": {"row": (row := result.rows[cluster.central]) + 1, "text": result.texts[row]},
                "rows": [result.rows[place] + 1 for place in cluster.rows],
            }
            for number, cluster in enumerate(result.clusters.clusters, 1)
        ]
        print_json({"sentences": len(result.texts), "clusters": groups, "alone": result.unclustered})
        return
    _print_clusters(result, options.show)
    if options.out is not None:
        print(f"{options.out}: {len(result.texts):,} rows, {len(result.clusters.clusters):,} clusters")


def _percent(value: float) -> str:
    """Write a percentage, rounded down: only what no random pair reaches is 100 %."""
    digits = 0 if value < 99 or value == 100 else 2
    return f"{math.floor(value * 10**digits) / 10**digits:.{digits}f} %"


def _print_pairs(result: "SimilarPairs", options: SimpleNamespace) -> None:
    measure = "score" if options.cross else "cosine"
    for pair in result.pairs:
        print(f"{pair[measure]:.4f}  {pair['rows'][0]}  {_one_line(pair['texts'][0])}")
        print(f"        {pair['rows'][1]}  {_one_line(pair['texts'][1])}")
    if not result.pairs:
        print(f"no two texts have a {measure} of {options.min_similarity:g} or more; try a smaller --min-similarity")
    for group in result.duplicates if options.duplicates else []:
        print(f"same    {', '.join(map(str, group['rows']))}  {_one_line(group['text'])}")


def _print_clusters(result: "TextClusters", show: int) -> None:
    from rich.text import Text

    from bertree.cli.render import make_console, make_table

    clusters: Sequence[object] = result.clusters.clusters
    table = make_table("cluster", "size", "cosine", "most central")
    for column in table.columns[:3]:
        column.justify, column.no_wrap = "right", True
    for number, cluster in enumerate(result.clusters.clusters[:show], 1):
        central = result.texts[result.rows[cluster.central]]
        table.add_row(str(number), f"{len(cluster.rows):,}", f"{cluster.mean:.3f}", Text(_one_line(central)))
    if clusters:
        make_console().print(table)
    if len(clusters) > show:
        rest = sum(len(cluster.rows) for cluster in result.clusters.clusters[show:])
        print(f"... and {len(clusters) - show:,} more with {rest:,} texts (--show {len(clusters)})")
    if not clusters:
        print("no two texts are that similar; try a smaller --min-similarity, or --clusters N for a fixed number")
    if result.unclustered:
        print(f"{result.unclustered:,} texts belong to no cluster")


def _one_line(text: str) -> str:
    """Return a text on one line, cut if it is long."""
    words = " ".join(text.split())
    return words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"


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


def _register_group(app: typer.Typer) -> None:
    """Add the verbs of `embeddings` to the application."""
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
