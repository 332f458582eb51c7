"""The data verbs of the command line: `tokenizer train`, `prepare`, `store verify`, `store show`.

What is heavy is imported when a verb runs, so that `--help` answers at once.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

tokenizer = typer.Typer(no_args_is_help=True, help="Train tokenizers.")
store = typer.Typer(no_args_is_help=True, help="Look into token stores.")

CorpusPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS",
        help="Files, folders, globs (.txt .jsonl .csv .tsv .parquet, each also .gz .xz .zst) or - for stdin.",
        show_default=False,
    ),
]
Field = Annotated[str, typer.Option("--field", help="Field of JSON, CSV and parquet records that holds the text.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="text, jsonl, csv, tsv or parquet, where the suffix does not say.",
        show_default=False,
    ),
]
WholeFiles = Annotated[
    bool, typer.Option("--whole-files", help="A text file is one document (else an empty line ends one).")
]
Wrapped = Annotated[
    bool,
    typer.Option("--wrapped", help="Lines are wrapped: a single line end is a space, not the end of a sentence."),
]
Deduplicate = Annotated[bool, typer.Option("--deduplicate", help="Leave out exact copies of documents.")]
MinCharacters = Annotated[int, typer.Option("--min-characters", min=1, help="Leave out shorter documents.")]


@tokenizer.command("train")
def tokenizer_train(
    corpus: CorpusPaths,
    out: Annotated[Path, typer.Option("--out", help="Folder to write.", show_default=False)],
    kind: Annotated[
        str, typer.Option("--kind", help="wordpiece (BERT), bpe (RoBERTa) or unigram (ALBERT).")
    ] = "wordpiece",
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="Tokens in the vocabulary.")] = 30_000,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals (byte-level BPE always does).")] = False,
    field: Field = "text",
    format: Format = None,
    whole_files: WholeFiles = False,
    wrapped: Wrapped = False,
    deduplicate: Deduplicate = False,
    min_characters: MinCharacters = 1,
) -> None:
    """Train a tokenizer and report how it does on every 20th document, which it does not see.

    Example: bertree tokenizer train corpus/books.txt --kind wordpiece --vocab-size 8000 --out my-tokenizer
    """
    from bertree.data.build import train_tokenizer
    from bertree.text.corpus import CorpusOptions

    options = CorpusOptions(field, format, whole_files, wrapped, deduplicate, min_characters)
    train_tokenizer(corpus, out, kind, vocab_size, False if cased else None, options)


def prepare(
    corpus: CorpusPaths,
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", help="Folder of a tokenizer or a model.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the store.", show_default=False)],
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes.", show_default="all cores")
    ] = None,
    language: Annotated[str, typer.Option("--language", help="Code of the language, for splitting sentences.")] = "en",
    field: Field = "text",
    format: Format = None,
    whole_files: WholeFiles = False,
    wrapped: Wrapped = False,
    deduplicate: Deduplicate = False,
    min_characters: MinCharacters = 1,
) -> None:
    """Turn text into a token store: documents, sentences, tokens. Interrupted, run it again to go on.

    Example: bertree prepare corpus/books.txt --tokenizer my-tokenizer --out my-store
    """
    from bertree.data.build import prepare_store
    from bertree.text.corpus import CorpusOptions

    options = CorpusOptions(field, format, whole_files, wrapped, deduplicate, min_characters)
    prepare_store(corpus, tokenizer, out, workers or _cores(), language, options)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@store.command("verify")
def store_verify(folder: Annotated[Path, typer.Argument(metavar="STORE", show_default=False)]) -> None:
    """Compare every byte of a store with its checksums; the first damaged file is named.

    Example: bertree store verify my-store
    """
    from bertree.data.build import verify_store

    verify_store(folder)


@store.command("show")
def store_show(
    folder: Annotated[Path, typer.Argument(metavar="STORE", show_default=False)],
    at: Annotated[int, typer.Option("--at", min=0, help="Which example, in the order of the corpus.")] = 0,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            help="segment-pair, sentence-pair (each also +nsp, +sop), full-sentences, doc-sentences, stream.",
        ),
    ] = "full-sentences",
    masking: Annotated[
        str, typer.Option("--masking", help="token, word, ngram (each also +static, +static4), next or none.")
    ] = "token",
    max_length: Annotated[
        int, typer.Option("--max-length", help="Tokens in an example at most, special ones counted.")
    ] = 512,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the run.")] = 0,
    epoch: Annotated[int, typer.Option("--epoch", min=0, help="Epoch whose pairs and masks to show.")] = 0,
) -> None:
    """Print one example as the model reads it: text, segments, masks, label.

    Example: bertree store show my-store --at 100 --format segment-pair+nsp --masking word
    """
    from bertree.data.preview import show
    from bertree.data.store import Store

    show(
        Store.open(folder),
        at,
        format=format,
        masking=masking,
        max_length=max_length,
        seed=seed,
        epoch=epoch,
    )
