"""The verbs of text and tokens: `tokenizer train`, `prepare`, `store info`, `store verify`, `store show`."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertree.cli.command import DATA, print_json, python_verb, verb
from bertree.cli.options import JsonOption, Option

if TYPE_CHECKING:
    from bertree.data.prepare import PreparedStore, TrainedTokenizer
    from bertree.data.preview import ExamplePreview
    from bertree.data.store import Store

STORE_HELP = Option(metavar="STORE", help="Folder of a token store.")
StoreArgument = Annotated[Path, STORE_HELP.argument()]
FIELD = Option(help="Field of JSON, CSV and parquet records with the text.")
SHOW_OPTIONS = {
    "store": STORE_HELP,
    "at": Option(min=0, help="Which example, in the order of the corpus."),
    "format": Option(
        help="segment-pair, sentence-pair (each also +nsp, +sop), full-sentences, doc-sentences, stream.",
        default="full-sentences; doc-sentences with control codes",
    ),
    "masking": Option(
        help="token, word, ngram (each also +static, +static4), next, permutation or none.", default="token"
    ),
    "objective": Option(
        help="What is learned, instead of --masking: mlm, next or permutation (tokens in a random order).",
        default="mlm",
    ),
    "partial": Option(help="permutation: one in this many tokens is predicted."),
    "spans": Option(help="permutation: longest span of targets, in words; 1: single tokens."),
    "max_length": Option(help="Most tokens of an example, with special ones."),
    "seed": Option(help="Seed of the run."),
    "epoch": Option(min=0, help="Epoch whose pairs and masks to show."),
}


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verbs = typer.Typer(no_args_is_help=True)
    own = {"text": FIELD, "out": Option(help="Folder to write.")}
    python_verb(verbs, "data.prepare.train_tokenizer", ("corpus",), name="train", own=own)(train_tokenizer)
    app.add_typer(verbs, name="tokenizer", help="Train tokenizers.", rich_help_panel=DATA)
    own = {
        "text": FIELD,
        "out": Option(help="Folder of the store."),
        "tokenizer": Option(help="Folder of a tokenizer or a model."),
    }
    python_verb(app, "data.prepare.prepare", ("corpus",), panel=DATA, own=own)(prepare)
    verbs = typer.Typer(no_args_is_help=True)
    verb(verbs, "info")(store_info)
    verb(verbs, "verify")(verify_store)
    python_verb(verbs, "data.preview.show_batch", ("store",), name="show", own=SHOW_OPTIONS, json=False)(show_batch)
    app.add_typer(verbs, name="store", help="Look into token stores.", rich_help_panel=DATA)


def train_tokenizer(trained: "TrainedTokenizer", options: SimpleNamespace) -> None:
    """Train a tokenizer and evaluate it on every 20th document, which is held out.

    [dim]bertree tokenizer train corpus/books.txt --kind wordpiece --vocab-size 8000 --out my-tokenizer[/dim]
    """
    from rich.table import Table

    from bertree.cli.render import make_console
    from bertree.data.prepare import HELD_OUT_EVERY

    out, kind, size, report = options.out, options.kind, trained.tokenizer.size, trained.report
    if options.as_json:
        held_out = None if report is None else asdict(report)
        counts = {"tokens": size, "documents": trained.documents, "held_out": held_out}
        print_json({"folder": str(out), "kind": kind} | counts)
        return
    print(f"{out}: {kind}, {size:,} tokens, from {trained.documents:,} documents")
    if size < options.vocab_size and kind != "bytes":
        print(f"the corpus gives only {size:,} of the {options.vocab_size:,} tokens asked for")
    _print_lines(trained.dropped)
    if report is None:
        print(f"fewer than {HELD_OUT_EVERY} documents: none held out, so there is nothing to evaluate on")
        return
    table = Table("on held-out text", "", box=None)
    table.add_row("documents", f"{report.documents:,}")
    table.add_row("fertility (tokens per word)", f"{report.fertility:.3f}")
    table.add_row("unknown tokens", f"{report.unknown_rate:.4%}")
    table.add_row("compression (bytes per token)", f"{report.compression:.2f}")
    make_console().print(table)


def prepare(prepared: "PreparedStore", options: SimpleNamespace) -> None:
    """Turn text into a token store: documents, sentences, tokens. After a stop, run it again to continue.

    [dim]bertree prepare corpus/books.txt --tokenizer my-tokenizer --out my-store
    bertree prepare sources/ --control folder --tokenizer my-tokenizer --out my-store[/dim]
    """
    store = prepared.store
    if options.as_json:
        cost = {"bytes": prepared.bytes, "seconds": prepared.seconds}
        print_json({"folder": str(options.out)} | _counts(store) | cost)
        return
    print(
        f"{options.out}: {_describe(store)}, {prepared.bytes / store.tokens:.2f} bytes per token "
        f"(and {prepared.tokenizer_bytes / 1e6:.1f} MB of tokenizer), in {prepared.seconds:.1f} s"
    )
    _print_lines(prepared.dropped)
    _print_lines(_describe_codes(store))


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


def verify_store(folder: StoreArgument, as_json: JsonOption = False) -> None:
    """Compare every byte of a store with its checksums; the first damaged file is named.

    [dim]bertree store verify my-store[/dim]
    """
    from bertree.data.store import verify_store as verify

    store = verify(folder)
    if as_json:
        print_json({"folder": str(folder)} | _counts(store) | {"fingerprint": store.fingerprint})
    else:
        print(f"{folder}: complete and undamaged; {_describe(store)}, content {store.fingerprint[:16]}")


def show_batch(example: "ExamplePreview", options: SimpleNamespace) -> None:
    """Print one example as the model reads it: text, segments, masks, label.

    [dim]bertree store show my-store --at 100 --format segment-pair+nsp --masking word
    bertree store show my-store --at 100 --objective permutation --max-length 48[/dim]
    """
    from bertree.cli.render.texts import print_example

    print_example(example)


def _counts(store: "Store") -> dict[str, Any]:
    counts = {"documents": store.documents, "sentences": store.sentences, "tokens": store.tokens}
    codes = [{"code": c.code, "documents": c.documents, "tokens": c.tokens} for c in store.controls]
    return counts | {"shards": len(store.shards)} | ({"controls": codes} if codes else {})


def _describe_codes(store: "Store", most: int | None = 20) -> list[str]:
    """Describe the control codes in one line each, the first `most` of them."""
    lines = [
        f"control code '{control.code}': {control.documents:,} documents, {control.tokens:,} tokens"
        for control in store.controls[:most]
    ]
    rest = len(store.controls) - len(lines)
    return [*lines, f"... and {rest:,} more codes"] if rest else lines


def _describe(store: "Store") -> str:
    shards = f"{len(store.shards)} shard{'s' if len(store.shards) != 1 else ''}"
    return f"{store.documents:,} documents, {store.sentences:,} sentences, {store.tokens:,} tokens in {shards}"


def _print_lines(lines: "list[str] | tuple[str, ...]") -> None:
    for line in lines:
        print(f"  {line}")
