"""The verbs that use sentence vectors: `embed`, `similar`, `pairs`, `cluster`."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.finetune import DeviceOption, JsonOption, TokenizerOption

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model folder (bertree's, sentence-transformers', Hugging Face's), or: default."
    ),
]
FileArgument = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A text a line (.txt), or .jsonl, .csv, .tsv, .parquet; also .gz .xz .zst; -"),
]
TextOption = Annotated[str | None, typer.Option("--text", help="The column with the text.")]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="text, jsonl, csv, tsv, parquet, where the name does not say it.")
]
PromptOption = Annotated[
    str | None, typer.Option(help="A prompt of the model by its name (query), or a text to put first ('query: ').")
]
LengthOption = Annotated[int, typer.Option(min=0, help="Tokens a text; 0: as many as the model reads.")]
TokensOption = Annotated[int, typer.Option(min=0, help="Tokens computed at once; 0: what suits the device.")]
PrecisionOption = Annotated[
    str, typer.Option(help="Computed in float32, bfloat16 or, on a CPU, int8: several times faster where it has AMX.")
]
NormaliseOption = Annotated[bool, typer.Option("--normalise", help="Vectors of length 1.")]
VectorsOption = Annotated[
    Path | None, typer.Option(help="Vectors of FILE's rows that embed has written; the model is then not asked.")
]
LinesOption = Annotated[Path | None, typer.Option("--out", help="File to write: .jsonl, .csv or .tsv.")]


def embed(
    model: ModelArgument,
    file: FileArgument,
    out: Annotated[Path, typer.Option("--out", help="The .npy file to write: rows x numbers.")],
    text: TextOption = None,
    format: FormatOption = None,
    dtype: Annotated[str, typer.Option(help="Of the file: float32, or float16: half the size.")] = "float32",
    normalise: NormaliseOption = False,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: TokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
) -> None:
    """Write the vector of every text of a file, of any size, as one .npy file.

    Row n is line n: an empty line has the vector of the empty text. Run again after a stop of any kind, it goes on
    where it was and ends in the same bytes; until then the rows are in OUT.part.

    [dim]bertree embed my-model mail.txt --out vectors.npy
    bertree embed my-model corpus.jsonl.zst --text body --dtype float16 --out vectors.npy
    zcat lines.gz | bertree embed my-model - --out vectors.npy[/dim]
    """
    from bertree.embeddings.embed import Given, How
    from bertree.embeddings.embed import embed as work

    how = How(device, tokenizer, prompt, max_length, batch_tokens, normalise, precision)
    work(model, Given(file, text, format), out, how, dtype)


def similar(
    model: ModelArgument,
    a: Annotated[str, typer.Argument(metavar="A", help="A text, or a file of texts.")],
    b: Annotated[str, typer.Argument(metavar="B", help="A text, or a file of texts.")],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Of a file B, the best for each of A.")] = 5,
    text: TextOption = None,
    format: FormatOption = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: TokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how alike two texts are (cosine), or find the best matches of a file for each text of another.

    [dim]bertree similar my-model "A dog runs." "The hound is running."
    bertree similar my-model questions.txt answers.txt -k 3
    bertree similar my-model "How do I return it?" answers.txt --json[/dim]
    """
    from bertree.embeddings.embed import Given, How
    from bertree.embeddings.mine_files import similar as work

    how = How(device, tokenizer, prompt, max_length, batch_tokens, precision=precision)
    work(model, a, b, k, how, Given("", text, format), as_json)


def pairs(
    model: ModelArgument,
    file: FileArgument,
    k: Annotated[int, typer.Option("-k", "--top", min=1, max=10_000_000, help="Pairs to find.")] = 100,
    least: Annotated[float, typer.Option(help="The least cosine of a pair.")] = 0.7,
    out: LinesOption = None,
    duplicates: Annotated[bool, typer.Option("--duplicates", help="List texts that are there several times.")] = False,
    vectors: VectorsOption = None,
    text: TextOption = None,
    format: FormatOption = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: TokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the most similar pairs of texts in a file: paraphrases, near copies.

    Every text is compared with every other, in blocks that fit into memory. Texts that are the same word for word
    are not compared with each other but counted, and listed with --duplicates.

    [dim]bertree pairs my-model questions.txt
    bertree pairs my-model tickets.csv --text subject --least 0.85 -k 1000 --out pairs.csv
    bertree pairs my-model lines.txt --vectors vectors.npy[/dim]
    """
    from bertree.embeddings.embed import Given, How
    from bertree.embeddings.mine_files import pairs as work

    how = How(device, tokenizer, prompt, max_length, batch_tokens, precision=precision)
    work(
        model,
        Given(file, text, format),
        how,
        k=k,
        least=least,
        out=out,
        vectors=vectors,
        duplicates=duplicates,
        as_json=as_json,
    )


def cluster(
    model: ModelArgument,
    file: FileArgument,
    clusters: Annotated[
        int | None, typer.Option(min=1, help="How many; without it, groups of texts that are alike enough.")
    ] = None,
    least: Annotated[float, typer.Option(help="Without --clusters: cosine with the middle of a group.")] = 0.75,
    smallest: Annotated[int, typer.Option(min=2, help="Without --clusters: the fewest texts of a group.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of --clusters: where it starts from.")] = 0,
    out: LinesOption = None,
    show: Annotated[int, typer.Option(min=1, help="Clusters to print.")] = 20,
    vectors: VectorsOption = None,
    text: TextOption = None,
    format: FormatOption = None,
    prompt: PromptOption = None,
    max_length: LengthOption = 0,
    batch_tokens: TokensOption = 0,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    tokenizer: TokenizerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group the texts of a file: into so many clusters (k-means), or by how alike they must be.

    OUT receives row, cluster and text of every row, clusters numbered by size; a text of none has no number.

    [dim]bertree cluster my-model questions.txt
    bertree cluster my-model tickets.csv --text subject --clusters 20 --out clusters.csv
    bertree cluster my-model lines.txt --least 0.9 --json[/dim]
    """
    from bertree.embeddings.embed import Given, How
    from bertree.embeddings.mine_files import cluster as work

    how = How(device, tokenizer, prompt, max_length, batch_tokens, precision=precision)
    work(
        model,
        Given(file, text, format),
        how,
        clusters=clusters,
        least=least,
        smallest=smallest,
        seed=seed,
        out=out,
        vectors=vectors,
        show=show,
        as_json=as_json,
    )
