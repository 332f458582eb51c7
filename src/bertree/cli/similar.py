"""The verbs that use sentence vectors: `embed`, `similar`, `pairs`, `cluster`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.cli.command import print_json, verb
from bertree.cli.options import (
    AddressOption,
    BatchTokensOption,
    DeviceOption,
    EngineOption,
    FileArgument,
    FormatOption,
    JsonOption,
    LengthOption,
    ModelArgument,
    NormalizeOption,
    PrecisionOption,
    PromptOption,
    TableOption,
    TextOption,
    TokenizerOption,
    VectorsOption,
)

if TYPE_CHECKING:
    from bertree.embeddings.mine_files import Matches, SimilarPairs, TextClusters

SHOWN = 160  # characters of a text on the terminal


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    for function in (embed, similar, pairs, cluster):
        verb(app)(function)


def embed(
    model: ModelArgument,
    file: FileArgument,
    out: Annotated[Path, typer.Option("--out", help="The .npy file to write: rows x numbers.")],
    text: TextOption = None,
    format: FormatOption = None,
    dtype: Annotated[
        str, typer.Option(help="Number type of the file: float32, or float16 for half the size.")
    ] = "float32",
    normalize: NormalizeOption = False,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: BatchTokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the vector of every text of a file, of any size, as one .npy file.

    Row n is line n: an empty line has the vector of the empty text. Run again after a stop of any kind, it goes on
    where it was and ends in the same bytes; until then the rows are in OUT.part.

    [dim]bertree embed my-model mail.txt --out vectors.npy
    bertree embed my-model corpus.jsonl.zst --text body --dtype float16 --out vectors.npy
    zcat lines.gz | bertree embed my-model - --out vectors.npy[/dim]
    """
    from bertree.embeddings.embed import embed_file

    found = embed_file(
        model,
        file,
        out,
        text=text,
        format=format,
        dtype=dtype,
        normalize=normalize,
        prompt=prompt,
        max_length=max_length,
        batch_tokens=batch_tokens,
        precision=precision,
        device=device,
        tokenizer=tokenizer,
        engine=engine,
        address=address,
    )
    if as_json:
        shape = {"rows": found.rows, "dimension": found.dimension, "dtype": found.dtype}
        print_json({"file": str(out)} | shape | {"new_rows": found.new_rows, "seconds": found.seconds})
    elif not found.new_rows and found.rows:
        print(f"{out}: is complete already")
    else:
        speed = f"; {found.new_rows / max(found.seconds, 1e-9):,.0f} texts/s" if found.new_rows else ""
        print(f"{out}: {found.rows:,} vectors x {found.dimension}, {found.dtype}{speed}")


def similar(
    model: ModelArgument,
    a: Annotated[str, typer.Argument(metavar="A", help="A text, or a file of texts.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A text, or a file of texts.")],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Matches in file B for each text of A.")] = 5,
    text: TextOption = None,
    format: FormatOption = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: BatchTokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the cosine similarity of two texts, or the best matches in a file for each text of another.

    Models differ in scale, so it also says which percentage of random pairs of English sentences is less similar: 50 %
    is what any two sentences have, close paraphrases have 99 % or more.

    [dim]bertree similar my-model "A dog runs." "The hound is running."
    bertree similar my-model questions.txt answers.txt -k 3
    bertree similar my-model "How do I return it?" answers.txt --json[/dim]
    """
    from bertree.embeddings.mine_files import similar as find_similar

    _print_matches(
        find_similar(
            model,
            a,
            b,
            k=k,
            text=text,
            format=format,
            prompt=prompt,
            max_length=max_length,
            batch_tokens=batch_tokens,
            precision=precision,
            device=device,
            tokenizer=tokenizer,
        ),
        as_json,
    )


def pairs(
    model: ModelArgument,
    file: FileArgument,
    k: Annotated[int, typer.Option("-k", "--top", min=1, max=10_000_000, help="Pairs to find.")] = 100,
    min_similarity: Annotated[float, typer.Option("--min-similarity", help="The smallest cosine of a pair.")] = 0.7,
    out: TableOption = None,
    duplicates: Annotated[bool, typer.Option("--duplicates", help="List texts that occur several times.")] = False,
    vectors: VectorsOption = None,
    text: TextOption = None,
    format: FormatOption = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: BatchTokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the most similar pairs of texts in a file: paraphrases, near copies.

    Every text is compared with every other, in blocks that fit into memory. Texts that are the same word for word
    are not compared with each other but counted, and listed with --duplicates.

    [dim]bertree pairs my-model questions.txt
    bertree pairs my-model tickets.csv --text subject --min-similarity 0.85 -k 1000 --out pairs.csv
    bertree pairs my-model lines.txt --vectors vectors.npy[/dim]
    """
    from bertree.console import note
    from bertree.embeddings.mine_files import find_pairs

    found = find_pairs(
        model,
        file,
        k=k,
        min_similarity=min_similarity,
        text=text,
        format=format,
        vectors=vectors,
        prompt=prompt,
        max_length=max_length,
        batch_tokens=batch_tokens,
        precision=precision,
        device=device,
        tokenizer=tokenizer,
        out=out,
    )
    if found.duplicates:
        repeated = sum(len(group["rows"]) - 1 for group in found.duplicates)
        hint = "" if duplicates or as_json else "; --duplicates lists them"
        note(f"{file}: {repeated:,} rows repeat another word for word and are not compared again{hint}")
    if out is not None:
        print(f"{out}: {len(found.pairs):,} pairs")
    if as_json:
        print_json({"sentences": len(found.texts), "pairs": found.pairs, "duplicates": found.duplicates})
    elif out is None:
        _print_pairs(found, duplicates, min_similarity)


def cluster(
    model: ModelArgument,
    file: FileArgument,
    clusters: Annotated[
        int | None, typer.Option(min=1, help="Number of clusters; without it, all groups that are similar enough.")
    ] = None,
    min_similarity: Annotated[
        float, typer.Option("--min-similarity", help="Without --clusters: smallest cosine with the centre of a group.")
    ] = 0.75,
    min_size: Annotated[
        int, typer.Option("--min-size", min=2, help="Without --clusters: fewest texts of a group.")
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="With --clusters: seed of the starting points.")] = 0,
    out: TableOption = None,
    show: Annotated[int, typer.Option(min=1, help="Clusters to print.")] = 20,
    vectors: VectorsOption = None,
    text: TextOption = None,
    format: FormatOption = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: BatchTokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group the texts of a file: into a number of clusters (k-means), or by a smallest similarity.

    OUT receives row, cluster and text of every row, clusters numbered by size; a text of no cluster has no number.

    [dim]bertree cluster my-model questions.txt
    bertree cluster my-model tickets.csv --text subject --clusters 20 --out clusters.csv
    bertree cluster my-model lines.txt --min-similarity 0.9 --json[/dim]
    """
    from bertree.embeddings.mine_files import cluster_texts

    found = cluster_texts(
        model,
        file,
        clusters=clusters,
        min_similarity=min_similarity,
        min_size=min_size,
        seed=seed,
        text=text,
        format=format,
        vectors=vectors,
        prompt=prompt,
        max_length=max_length,
        batch_tokens=batch_tokens,
        precision=precision,
        device=device,
        tokenizer=tokenizer,
        out=out,
    )
    if as_json:
        groups = [
            {
                "cluster": number,
                "size": len(one.rows),
                "cosine": round(one.mean, 6),
                "central": {"row": found.rows[one.central] + 1, "text": found.texts[found.rows[one.central]]},
                "rows": [found.rows[row] + 1 for row in one.rows],
            }
            for number, one in enumerate(found.clusters.clusters, 1)
        ]
        print_json({"sentences": len(found.texts), "clusters": groups, "alone": found.unclustered})
        return
    _print_clusters(found, show)
    if out is not None:
        print(f"{out}: {len(found.texts):,} rows, {len(found.clusters.clusters):,} clusters")


def _print_matches(found: "Matches", as_json: bool) -> None:
    from bertree.files.formats import json_text

    def scores(cosine: float) -> dict[str, float]:
        return {"cosine": round(cosine, 6), "percentile": round(found.percentile(cosine), 2)}

    if not found.a.is_file and not found.b.is_file:
        cosine, texts = found.nearest[0][0][1], [found.a.texts[0], found.b.texts[0]]
        reading = f"more similar than {_percent(found.percentile(cosine))} of random pairs"
        print(json_text(scores(cosine) | {"texts": texts}) if as_json else f"{cosine:.4f}  {reading}")
        return
    for row, matches in enumerate(found.nearest):
        text = found.a.texts[row]
        if as_json:
            listed = [{"row": j + 1, **scores(cosine), "text": found.b.texts[j]} for j, cosine in matches]
            print(json_text({"row": row + 1, "text": text, "matches": listed}))
            continue
        print(f"{row + 1}  {_one_line(text)}" if found.a.is_file else _one_line(text))
        for j, cosine in matches:
            match = f"  {j + 1}  {_one_line(found.b.texts[j])}" if found.b.is_file else ""
            print(f"   {cosine:7.4f}  {_percent(found.percentile(cosine)):>7}{match}")


def _percent(value: float) -> str:
    """Write a percentage, rounded down: only what no random pair reaches is 100 %."""
    digits = 0 if value < 99 or value == 100 else 2
    return f"{math.floor(value * 10**digits) / 10**digits:.{digits}f} %"


def _print_pairs(found: "SimilarPairs", duplicates: bool, min_similarity: float) -> None:
    for pair in found.pairs:
        print(f"{pair['cosine']:.4f}  {pair['rows'][0]}  {_one_line(pair['texts'][0])}")
        print(f"        {pair['rows'][1]}  {_one_line(pair['texts'][1])}")
    if not found.pairs:
        print(f"no two texts have a cosine of {min_similarity:g} or more; try a smaller --min-similarity")
    for group in found.duplicates if duplicates else []:
        print(f"same    {', '.join(map(str, group['rows']))}  {_one_line(group['text'])}")


def _print_clusters(found: "TextClusters", show: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    clusters: Sequence[object] = found.clusters.clusters
    table = Table("cluster", "size", "cosine", "most central", box=None, pad_edge=False)
    for column in table.columns[:3]:
        column.justify, column.no_wrap = "right", True
    for number, one in enumerate(found.clusters.clusters[:show], 1):
        central = found.texts[found.rows[one.central]]
        table.add_row(str(number), f"{len(one.rows):,}", f"{one.mean:.3f}", Text(_one_line(central)))
    if clusters:
        Console().print(table)
    if len(clusters) > show:
        rest = sum(len(one.rows) for one in found.clusters.clusters[show:])
        print(f"... and {len(clusters) - show:,} more with {rest:,} texts (--show {len(clusters)})")
    if not clusters:
        print("no two texts are that similar; try a smaller --min-similarity, or --clusters N for a fixed number")
    if found.unclustered:
        print(f"{found.unclustered:,} texts belong to no cluster")


def _one_line(text: str) -> str:
    """Return a text on one line, cut if it is long."""
    words = " ".join(text.split())
    return words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"
