"""The verbs of text and tokens: `tokenizer train`, `prepare`, `store info`, `store verify`, `store show`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertree.cli.command import print_json, verb
from bertree.cli.options import AddressOption, EngineOption, FormatOption, JsonOption

if TYPE_CHECKING:
    from bertree.data.store import Store

tokenizer_verbs = typer.Typer(no_args_is_help=True, help="Train tokenizers.")
store_verbs = typer.Typer(no_args_is_help=True, help="Look into token stores.")

CorpusArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS",
        help="Files, folders, globs (.txt .jsonl .csv .tsv .parquet, each also .gz .xz .zst) or - for standard input.",
        show_default=False,
    ),
]
StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a token store.", show_default=False)]
FieldOption = Annotated[str, typer.Option("--text", help="Field of JSON, CSV and parquet records with the text.")]
WholeFilesOption = Annotated[
    bool, typer.Option("--whole-files", help="A text file is one document (else an empty line ends one).")
]
WrappedOption = Annotated[
    bool,
    typer.Option("--wrapped", help="Lines are wrapped: a single line end is a space, not the end of a sentence."),
]
DeduplicateOption = Annotated[bool, typer.Option("--deduplicate", help="Leave out exact copies of documents.")]
MinCharactersOption = Annotated[int, typer.Option("--min-characters", min=1, help="Leave out shorter documents.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.add_typer(tokenizer_verbs, name="tokenizer")
    verb(app)(prepare)
    app.add_typer(store_verbs, name="store")


@verb(tokenizer_verbs, "train")
def train_tokenizer(
    corpus: CorpusArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder to write.", show_default=False)],
    kind: Annotated[
        str, typer.Option("--kind", help="wordpiece (BERT), bpe (RoBERTa), unigram (ALBERT), xlnet or bytes.")
    ] = "wordpiece",
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="Tokens in the vocabulary.")] = 30_000,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased",
            help="Keep capitals or not.",
            show_default="uncased for wordpiece and unigram, cased for the others",
        ),
    ] = None,
    text: FieldOption = "text",
    format: FormatOption = None,
    whole_files: WholeFilesOption = False,
    wrapped: WrappedOption = False,
    deduplicate: DeduplicateOption = False,
    min_characters: MinCharactersOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Train a tokenizer and evaluate it on every 20th document, which is held out.

    [dim]bertree tokenizer train corpus/books.txt --kind wordpiece --vocab-size 8000 --out my-tokenizer[/dim]
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from bertree.data import prepare as preparation

    found = preparation.train_tokenizer(
        corpus,
        out,
        kind=kind,
        vocab_size=vocab_size,
        cased=cased,
        text=text,
        format=format,
        whole_files=whole_files,
        wrapped=wrapped,
        deduplicate=deduplicate,
        min_characters=min_characters,
    )
    size, report = found.tokenizer.size, found.report
    if as_json:
        held_out = None if report is None else asdict(report)
        print_json(
            {"folder": str(out), "kind": kind, "tokens": size, "documents": found.documents, "held_out": held_out}
        )
        return
    print(f"{out}: {kind}, {size:,} tokens, from {found.documents:,} documents")
    if size < vocab_size and kind != "bytes":
        print(f"the corpus gives only {size:,} of the {vocab_size:,} tokens asked for")
    _print_lines(found.dropped)
    if report is None:
        print(f"fewer than {preparation.HELD_OUT_EVERY} documents: none held out, so there is nothing to evaluate on")
        return
    table = Table("on held-out text", "", box=None)
    table.add_row("documents", f"{report.documents:,}")
    table.add_row("fertility (tokens per word)", f"{report.fertility:.3f}")
    table.add_row("unknown tokens", f"{report.unknown_rate:.4%}")
    table.add_row("compression (bytes per token)", f"{report.compression:.2f}")
    Console().print(table)


def prepare(
    corpus: CorpusArgument,
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", help="Folder of a tokenizer or a model.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the store.", show_default=False)],
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes.", show_default="all cores")
    ] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    language: Annotated[str, typer.Option("--language", help="Code of the language, for splitting sentences.")] = "en",
    text: FieldOption = "text",
    format: FormatOption = None,
    whole_files: WholeFilesOption = False,
    wrapped: WrappedOption = False,
    deduplicate: DeduplicateOption = False,
    min_characters: MinCharactersOption = 1,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="WHERE",
            help="Give each document a control code, which stands before all its text: folder (name of its folder), "
            "file, or a column; url:host and date:year take a part of it.",
            show_default="no codes",
        ),
    ] = None,
    control_default: Annotated[
        str | None,
        typer.Option("--control-default", metavar="CODE", help="Code of documents without one.", show_default="refuse"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn text into a token store: documents, sentences, tokens. After a stop, run it again to go on.

    [dim]bertree prepare corpus/books.txt --tokenizer my-tokenizer --out my-store
    bertree prepare sources/ --control folder --tokenizer my-tokenizer --out my-store[/dim]
    """
    from bertree.data import prepare as preparation

    found = preparation.prepare(
        corpus,
        tokenizer,
        out,
        workers=workers,
        engine=engine,
        address=address,
        language=language,
        text=text,
        format=format,
        whole_files=whole_files,
        wrapped=wrapped,
        deduplicate=deduplicate,
        min_characters=min_characters,
        control=control or "",
        control_default=control_default or "",
    )
    store = found.store
    if as_json:
        print_json({"folder": str(out)} | _counts(store) | {"bytes": found.bytes, "seconds": found.seconds})
        return
    print(
        f"{out}: {_describe(store)}, {found.bytes / store.tokens:.2f} bytes per token "
        f"(and {found.tokenizer_bytes / 1e6:.1f} MB of tokenizer), in {found.seconds:.1f} s"
    )
    _print_lines(found.dropped)
    _print_lines(_describe_codes(store))


@verb(store_verbs, "info")
def store_info(folder: StoreArgument, as_json: JsonOption = False) -> None:
    """Print what a store has: documents, sentences, tokens, and its control codes.

    [dim]bertree store info my-store[/dim]
    """
    from bertree.data.store import Store

    store = Store.open(folder)
    if as_json:
        print_json({"folder": str(folder)} | _counts(store) | {"fingerprint": store.fingerprint})
        return
    print(f"{folder}: {_describe(store)}, {store.vocab_size:,} tokens in the vocabulary")
    _print_lines(_describe_codes(store, None))


@verb(store_verbs, "verify")
def verify_store(folder: StoreArgument, as_json: JsonOption = False) -> None:
    """Compare every byte of a store with its checksums; the first damaged file is named.

    [dim]bertree store verify my-store[/dim]
    """
    from bertree.data import store as token_store

    store = token_store.verify_store(folder)
    if as_json:
        print_json({"folder": str(folder)} | _counts(store) | {"fingerprint": store.fingerprint})
    else:
        print(f"{folder}: complete and undamaged; {_describe(store)}, content {store.fingerprint[:16]}")


def _counts(store: "Store") -> dict[str, Any]:
    counts = {"documents": store.documents, "sentences": store.sentences, "tokens": store.tokens}
    codes = [{"code": c.code, "documents": c.documents, "tokens": c.tokens} for c in store.controls]
    return counts | {"shards": len(store.shards)} | ({"controls": codes} if codes else {})


def _describe_codes(store: "Store", most: int | None = 20) -> list[str]:
    """Describe the control codes in one line each, the first `most` of them."""
    lines = [
        f"control code '{known.code}': {known.documents:,} documents, {known.tokens:,} tokens"
        for known in store.controls[:most]
    ]
    rest = len(store.controls) - len(lines)
    return [*lines, f"... and {rest:,} more codes"] if rest else lines


def _describe(store: "Store") -> str:
    shards = f"{len(store.shards)} shard{'s' if len(store.shards) != 1 else ''}"
    return f"{store.documents:,} documents, {store.sentences:,} sentences, {store.tokens:,} tokens in {shards}"


def _print_lines(lines: "list[str] | tuple[str, ...]") -> None:
    for line in lines:
        print(f"  {line}")


@verb(store_verbs, "show")
def show_example(
    folder: StoreArgument,
    at: Annotated[int, typer.Option("--at", min=0, help="Which example, in the order of the corpus.")] = 0,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="segment-pair, sentence-pair (each also +nsp, +sop), full-sentences, doc-sentences, stream.",
            show_default="full-sentences; doc-sentences with control codes",
        ),
    ] = None,
    masking: Annotated[
        str | None,
        typer.Option(
            "--masking",
            help="token, word, ngram (each also +static, +static4), next, permutation or none.",
            show_default="token",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="What is learned, instead of --masking: mlm, next or permutation (tokens in a random order).",
            show_default="mlm",
        ),
    ] = None,
    partial: Annotated[int, typer.Option("--partial", help="permutation: one token in so many is predicted.")] = 6,
    spans: Annotated[
        int, typer.Option("--spans", help="permutation: longest span of targets, in words; 1: single tokens.")
    ] = 5,
    max_length: Annotated[
        int, typer.Option("--max-length", help="Tokens in an example at most, special ones counted.")
    ] = 512,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the run.")] = 0,
    epoch: Annotated[int, typer.Option("--epoch", min=0, help="Epoch whose pairs and masks to show.")] = 0,
) -> None:
    """Print one example as the model reads it: text, segments, masks, label.

    [dim]bertree store show my-store --at 100 --format segment-pair+nsp --masking word
    bertree store show my-store --at 100 --objective permutation --max-length 48[/dim]
    """
    from bertree.cli.render.example import print_example
    from bertree.data.preview import preview_example, preview_masking
    from bertree.data.store import Store

    chosen = preview_masking(masking, objective, partial, spans)
    store = Store.open(folder)
    format = format or ("doc-sentences" if store.controls else "full-sentences")
    print_example(
        preview_example(store, at, format=format, masking=chosen, max_length=max_length, seed=seed, epoch=epoch)
    )
