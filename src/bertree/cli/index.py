"""The verbs of an index: `index build`, `add`, `remove`, `query`, `info`, `export`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.cli.command import SEARCH, print_json, verb
from bertree.cli.options import (
    AddressOption,
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    SchemaOption,
    TableOption,
)
from bertree.console import bar, note
from bertree.errors import UserError, counted

if TYPE_CHECKING:
    from bertree.inference.model import Model
    from bertree.search.faiss_index import Watch

AGAIN = "interrupted; run the same command again to go on from the last commit"


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verbs = typer.Typer(no_args_is_help=True)
    for function in (build, add, remove, query, info, export):
        verb(verbs)(function)
    description = "Search documents by meaning: build an index and query it."
    app.add_typer(verbs, name="index", help=description, rich_help_panel=SEARCH)


def _folder(path: str) -> Path:
    """Return a folder; an address, which may have a password in it, is not shown in an error about a missing folder."""
    from bertree.search.postgres.location import is_address

    if is_address(path):
        raise typer.BadParameter(
            "a database is read with index query and info, and written with index export; change the index on disk "
            "and export it again."
        )
    return Path(path)


IndexArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of the index.", show_default=False, parser=_folder)
]
FolderOrAddressArgument = Annotated[
    str, typer.Argument(metavar="INDEX", help="Folder of the index, or postgresql:// address.", show_default=False)
]
DocsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DOCS",
        help="Files, folders, globs: .txt .md .jsonl .csv .tsv .parquet, each also .gz .xz .zst.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="The model's folder.", show_default="the model it was built with")
]
ColumnOption = Annotated[str, typer.Option("--text", help="Column with the text; every other column is metadata.")]
IdOption = Annotated[
    str | None, typer.Option("--id", help="Column with the id.", show_default="id, or file#line where there is none")
]
BlocksOption = Annotated[
    bool, typer.Option("--blocks", help="An empty line ends a document of a text file (else a file is one).")
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Only documents with this metadata; may be repeated."),
]


def filters(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Parse `key=value` options; a key that is given several times matches any of its values."""
    values: dict[str, list[str]] = {}
    for item in pairs:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--where {item}: must be key=value, such as book=Emma")
        values.setdefault(key, []).append(value)
    return values


def load_encoder(name: str, device: str, precision: str) -> "Model":
    from bertree.inference.load import choose_device, load

    model = load(name, device=choose_device(device), precision=precision)
    if not model.trained:
        note(f"{name}: has random weights, so the results mean nothing")
    return model


def build(
    model: ModelArgument,
    docs: DocsArgument,
    out: Annotated[Path, typer.Option("--out", help="Folder of the index.", show_default=False)],
    text: ColumnOption = "text",
    id: IdOption = None,
    blocks: BlocksOption = False,
    kind: Annotated[str, typer.Option(help="flat, hnsw or ivfpq; auto: by the number of vectors.")] = "auto",
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a passage.", show_default="256, or what the model reads")
    ] = None,
    overlap: Annotated[
        int | None, typer.Option(min=0, help="Tokens repeated from the passage before.", show_default="a fifth")
    ] = None,
    language: Annotated[str, typer.Option(help="Code of the language, for splitting sentences.")] = "en",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an index of documents. After a stop, run it again to go on.

    Documents are cut into passages at the ends of sentences; a passage knows where in its document it stands.

    [dim]bertree index build default corpus/books.txt --blocks --out my-index
    bertree index build my-model mail.jsonl --text body --id message --out my-mail[/dim]
    """
    from bertree.cli.render.index import describe_contents, print_added
    from bertree.config.model_names import remembered_name
    from bertree.search.documents import total_size
    from bertree.search.index import Index

    total = total_size(docs)  # raises for a wrong path before a model is loaded
    encoder = load_encoder(model, device, precision)
    try:
        with _progress("embedding", total) as watch:
            index = Index.build(
                encoder,
                docs,
                out,
                name=remembered_name(model),
                watch=watch,
                text=text,
                id=id,
                blocks=blocks,
                kind=kind,
                chunk=chunk,
                overlap=overlap,
                language=language,
                engine=engine,
                address=address,
            )
    except KeyboardInterrupt:
        raise UserError(f"{out}: {AGAIN}") from None
    with index:
        info = index.info
    if not info["documents"]:
        note(f"{out}: is empty: no file that was given has text in it; add documents with `bertree index add`")
    if as_json:
        print_json(info)
        return
    print_added(index)
    print(f"{out}: {describe_contents(info)}, {info['bytes']['all'] / 1e6:,.1f} MB")
    print(f"{info['kind']}: {info['why']}")


def add(
    folder: IndexArgument,
    docs: DocsArgument,
    model: ModelOption = None,
    text: ColumnOption = "text",
    id: IdOption = None,
    blocks: BlocksOption = False,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add documents. A document replaces the one with its id; one that is there unchanged costs nothing.

    Killed at any moment, the index stays as it was after its last commit; the same command goes on.

    [dim]bertree index add my-index more/*.txt[/dim]
    """
    from bertree.cli.render.index import describe_contents, print_added
    from bertree.search.documents import total_size
    from bertree.search.index import Index

    total = total_size(docs)
    if model is None:
        with Index.open(folder) as unloaded:
            model = unloaded.model_path
    with Index.open(folder, load_encoder(model, device, precision)) as index:
        try:
            with _progress("embedding", total) as watch:
                index.add(docs, text=text, id=id, blocks=blocks, engine=engine, address=address, watch=watch)
        except KeyboardInterrupt:
            raise UserError(f"{folder}: {AGAIN}") from None
        if as_json:
            print_json(index.info)
            return
        print_added(index)
        print(f"{folder}: {describe_contents(index.info)}")


def remove(
    folder: IndexArgument,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID ...]", help="Documents.")] = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove documents by their ids, or all that match a filter.

    [dim]bertree index remove my-index corpus/books.txt#12
    bertree index remove my-index --where book=Emma[/dim]
    """
    from bertree.cli.render.index import describe_contents
    from bertree.search.index import Index

    ids, where = ids or [], where or []
    if not ids and not where:
        raise UserError("remove: name the documents, by ids or by --where key=value")
    with Index.open(folder) as index:
        with _progress("removing", None) as watch:
            removed = index.remove(ids, filters(where) if where else None, watch)
        info = index.info
    if not removed:
        wanted = ", ".join(ids) or ", ".join(where)
        raise UserError(f"{folder}: no document to remove ({wanted}); nothing was changed")
    if not where and removed < len(set(ids)):
        note(f"{folder}: {len(set(ids)) - removed:,} of these ids were not there")
    if as_json:
        print_json({"removed": removed} | info)
    else:
        print(f"{folder}: {counted(removed, 'document')} removed; {describe_contents(info)}")


def query(
    index: FolderOrAddressArgument,
    question: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="Passages to show.")] = 5,
    where: WhereOption = None,
    model: ModelOption = None,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="A model fine-tuned on pairs, to score the best passages again.")
    ] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="Passages it scores. [default: 50]")] = None,
    label: Annotated[
        str | None, typer.Option(help="Its class that means a match, where the name does not say it.")
    ] = None,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Query an index: the passages nearest to a question.

    [dim]bertree index query my-index "Who hunts the white whale?" -k 3
    bertree index query my-index "a proposal of marriage" --where book=Emma --json
    bertree index query my-index "Is it raining?" --rerank my-cross-encoder/model
    bertree index query postgresql://user@host/database "Is it raining?"[/dim]
    """
    from bertree.cli.render.index import print_hits
    from bertree.inference.load import choose_device, load
    from bertree.search.index import open_index
    from bertree.search.searcher import CANDIDATES

    for option, value in (("--label", label), ("--candidates", candidates)):
        if value is not None and rerank is None:
            raise UserError(f"{option}: is for a second model, which --rerank names")
    with open_index(index, None, schema, table) as closed:
        name, passages, state = closed.name, len(closed), closed.state
        chosen = model or closed.model_path
    if not getattr(state, "complete", True):
        note(f"{name}: is not finished; what is there is searched (run `bertree index build` again to go on)")
    encoder = load_encoder(chosen, device, precision)
    with open_index(index, encoder, schema, table) as opened:
        second = load(rerank, device=choose_device(device)) if rerank else None
        hits = opened.search(
            question, k, where=filters(where or []), rerank=second, candidates=candidates or CANDIDATES, label=label
        )
    if rerank and hits:
        note(f"the scores are those of {rerank}, not cosines")
    if as_json:
        print_json([hit.json() for hit in hits])
        return
    if not hits:
        note("nothing was found" if passages else f"{name}: is empty")
    print_hits(hits)


def info(
    index: FolderOrAddressArgument,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare it with its checksum.")] = False,
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    as_json: JsonOption = False,
) -> None:
    """Describe an index: kind and why, documents, model, size, sources.

    [dim]bertree index info my-index --json[/dim]
    """
    from bertree.cli.render.index import print_exported_info, print_index_info
    from bertree.search.index import Index, open_index

    with open_index(index, None, schema, table) as opened:
        if isinstance(opened, Index):
            if check:
                opened.verify()
        elif check:
            raise UserError("--check: is for an index on disk; a database checks its own pages")
        contents = opened.info
    if as_json:
        print_json(contents)
    elif isinstance(opened, Index):
        print_index_info(contents, check)
    else:
        print_exported_info(contents)


def export(
    folder: IndexArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="ADDRESS",
            help="postgresql://user@host/database; the password from ~/.pgpass or PGPASSWORD.",
            show_default=False,
        ),
    ],
    schema: SchemaOption = "public",
    table: TableOption = "bertree",
    replace: Annotated[
        bool, typer.Option("--replace", help="Write all of it anew, also over an index of another model.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an index into a PostgreSQL database with pgvector; the next export writes only what has changed.

    One transaction: whoever queries the database sees the old index or the new one. Needs the
    extra 'postgres'.

    [dim]bertree index export my-index --to postgresql://user@host/database
    bertree index query postgresql://user@host/database "Who hunts the white whale?"[/dim]
    """
    from bertree.cli.render.index import print_exported
    from bertree.search.index import Index

    with Index.open(folder) as index:
        if not index.state.complete:
            note(f"{folder}: is not finished; what is there is exported (run `bertree index build` again to go on)")
        try:
            with bar("connecting") as progress:

                def watch(doing: str, count: int, of: int | None) -> None:
                    progress.relabel(doing, of)
                    progress.move_to(count)

                done = index.export(to, schema=schema, table=table, replace=replace, watch=watch)
        except KeyboardInterrupt:
            raise UserError(f"{folder}: interrupted; the database is as it was") from None
    if not done.graph:
        note("these vectors have too many numbers for an HNSW index of pgvector, so queries compare all of them")
    print_json(vars(done)) if as_json else print_exported(done)


@contextmanager
def _progress(what: str, total: int | None) -> "Iterator[Watch]":
    """Show a progress bar that follows the steps of building an index."""
    with bar(what, total, in_bytes=True) as progress:

        def watch(doing: str, count: int, of: int | None) -> None:
            if doing == "reading":  # characters, which for most text are about as many as bytes
                progress.advance(count)
            else:
                progress.relabel(doing, of)
                progress.move_to(count)

        yield watch
