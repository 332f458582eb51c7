"""The verbs that write an index: `index build`, `add`, `remove`, `upgrade`; those that read it: index_query.py."""

from pathlib import Path
from typing import Annotated

import typer

from bertree.cli.command import SEARCH, print_json, verb
from bertree.cli.index_options import (
    BlocksOption,
    ColumnOption,
    DocsArgument,
    IdOption,
    IndexArgument,
    ModelOption,
    WhereOption,
    filters,
    load_encoder,
    show_progress,
)
from bertree.cli.index_query import evaluate, export, info, mine, query
from bertree.cli.options import AddressOption, DeviceOption, EngineOption, JsonOption, ModelArgument, PrecisionOption
from bertree.console import note
from bertree.errors import Interrupted, UserError, counted

AGAIN = "interrupted; run the same command again to go on from the last commit"


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verbs = typer.Typer(no_args_is_help=True)
    for function in (build, add, remove, upgrade, query, evaluate, mine, info, export):
        verb(verbs)(function)
    description = "Search documents by words and by meaning: build an index and query it."
    app.add_typer(verbs, name="index", help=description, rich_help_panel=SEARCH)


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
    language: Annotated[str, typer.Option(help="ISO 639-1 code of the language, such as en or pt-BR.")] = "en",
    words: Annotated[bool, typer.Option("--words/--no-words", help="Keep a word index beside the vectors.")] = True,
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    engine: EngineOption = "local",
    address: AddressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build an index of documents. After a stop, run it again to continue.

    Documents are cut into passages at the ends of sentences; a passage keeps its position in the document.

    [dim]bertree index build default corpus/books.txt --blocks --out my-index
    bertree index build my-model mail.jsonl --text body --id message --out my-mail[/dim]
    """
    from bertree.cli.render.index import describe_contents, print_added
    from bertree.config.names import remembered_name
    from bertree.search.documents import total_size
    from bertree.search.index import Index

    total = total_size(docs)  # raises for a wrong path before a model is loaded
    encoder = load_encoder(model, device, precision)
    try:
        with show_progress("embedding", total) as watch:
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
                words=words,
                engine=engine,
                address=address,
            )
    except KeyboardInterrupt:
        raise Interrupted(f"{out}: {AGAIN}") from None
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
    """Add documents. A document replaces the one with the same id; an unchanged document costs nothing.

    Killed at any moment, the index stays as it was after its last commit; the same command continues.

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
            with show_progress("embedding", total) as watch:
                index.add(docs, text=text, id=id, blocks=blocks, engine=engine, address=address, watch=watch)
        except KeyboardInterrupt:
            raise Interrupted(f"{folder}: {AGAIN}") from None
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
        with show_progress("removing", None) as watch:
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


def upgrade(folder: IndexArgument, as_json: JsonOption = False) -> None:
    """Rebuild the word index: of an index that has none, or whose parts disagree.

    Killed at any moment, the index stays as it was.

    [dim]bertree index upgrade my-index[/dim]
    """
    from bertree.search.index import Index

    with Index.open(folder) as index:
        with show_progress("counting words", None) as watch:
            index.upgrade(watch)
        info = index.info
    if as_json:
        print_json(info)
    else:
        print(
            f"{folder}: the words of {counted(info['passages'], 'passage')} take {info['bytes']['words'] / 1e6:,.1f} MB"
        )
