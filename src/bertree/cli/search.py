"""The verbs of an index: `index build`, `add`, `remove`, `query`, `info`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.cli.command import print_json, verb
from bertree.cli.options import AddressOption, DeviceOption, EngineOption, JsonOption, ModelArgument, PrecisionOption
from bertree.console import bar, note
from bertree.errors import UserError

if TYPE_CHECKING:
    from bertree.inference.model import Model
    from bertree.search.faiss_index import Watch

AGAIN = "interrupted; run the same command again to go on from the last commit"

index_verbs = typer.Typer(no_args_is_help=True, help="Search documents by meaning: build an index and query it.")

IndexArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the index.", show_default=False)]
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


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.add_typer(index_verbs, name="index")


@verb(index_verbs)
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
    from bertree.config.default_model import remembered_name
    from bertree.search.documents import total_size
    from bertree.search.index import Index

    total = total_size(docs)  # raises for a wrong path before a model is loaded
    encoder = _load(model, device, precision)
    try:
        with _watch("embedding", total) as watch:
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


@verb(index_verbs)
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
    from bertree.search.database import DATABASE
    from bertree.search.documents import total_size
    from bertree.search.index import Index

    if not (folder / DATABASE).is_file() and (Path(docs[0]) / DATABASE).is_file():
        model, folder, docs = str(folder), Path(docs[0]), docs[1:]  # the old order: MODEL DIR DOCS
    total = total_size(docs)
    with Index.open(folder, _load(model or _model_of(folder), device, precision)) as index:
        try:
            with _watch("embedding", total) as watch:
                index.add(docs, text=text, id=id, blocks=blocks, engine=engine, address=address, watch=watch)
        except KeyboardInterrupt:
            raise UserError(f"{folder}: {AGAIN}") from None
        if as_json:
            print_json(index.info)
            return
        print_added(index)
        print(f"{folder}: {describe_contents(index.info)}")


@verb(index_verbs)
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
    from bertree.cli.render.index import count_of, describe_contents
    from bertree.search.index import Index

    ids, where = ids or [], where or []
    if not ids and not where:
        raise UserError("remove: name the documents, by ids or by --where key=value")
    with Index.open(folder) as index:
        with _watch("removing", None) as watch:
            removed = index.remove(ids, _filters(where) if where else None, watch)
        info = index.info
    if not removed:
        wanted = ", ".join(ids) or ", ".join(where)
        raise UserError(f"{folder}: no document to remove ({wanted}); nothing was changed")
    if not where and removed < len(set(ids)):
        note(f"{folder}: {len(set(ids)) - removed:,} of these ids were not there")
    if as_json:
        print_json({"removed": removed} | info)
    else:
        print(f"{folder}: {count_of(removed, 'document')} removed; {describe_contents(info)}")


@verb(index_verbs)
def query(
    folder: IndexArgument,
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
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Query an index: the passages nearest to a question.

    [dim]bertree index query my-index "Who hunts the white whale?" -k 3
    bertree index query my-index "a proposal of marriage" --where book=Emma --json
    bertree index query my-index "Is it raining?" --rerank my-cross-encoder/model[/dim]
    """
    from bertree.cli.render.index import print_hits
    from bertree.inference.load import choose_device, load
    from bertree.search.index import CANDIDATES, Index

    for option, given in (("--label", label), ("--candidates", candidates)):
        if given is not None and rerank is None:
            raise UserError(f"{option}: is for a second model, which --rerank names")
    with Index.open(folder) as unloaded:
        state = unloaded.state
    if not state.complete:
        note(f"{folder}: is not finished; what is there is searched (run `bertree index build` again to go on)")
    with Index.open(folder, _load(model or _model_of(folder), device, precision)) as index:
        second = load(rerank, device=choose_device(device)) if rerank else None
        hits = index.search(
            question, k, where=_filters(where or []), rerank=second, candidates=candidates or CANDIDATES, label=label
        )
    if rerank and hits:
        note(f"the scores are those of {rerank}, not cosines")
    if as_json:
        print_json([hit.json() for hit in hits])
        return
    if not hits:
        note("nothing was found" if state.vectors > state.dead else f"{folder}: is empty")
    print_hits(hits)


@verb(index_verbs)
def info(
    folder: IndexArgument,
    check: Annotated[bool, typer.Option("--check", help="Read every byte and compare it with its checksum.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Describe an index: kind and why, documents, model, size, sources.

    [dim]bertree index info my-index --json[/dim]
    """
    from bertree.cli.render.index import print_index_info
    from bertree.search.index import Index

    with Index.open(folder) as index:
        if check:
            index.verify()
        found = index.info
    print_json(found) if as_json else print_index_info(found, check)


def _filters(given: Sequence[str]) -> dict[str, list[str]]:
    """Parse `key=value` options; a key that is given several times matches any of its values."""
    found: dict[str, list[str]] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--where {item}: must be key=value, such as book=Emma")
        found.setdefault(key, []).append(value)
    return found


def _load(name: str, device: str, precision: str) -> "Model":
    from bertree.inference.load import choose_device, load

    model = load(name, device=choose_device(device), dtype=precision)
    if not model.trained:
        note(f"{name}: has random weights, so the results mean nothing")
    return model


def _model_of(folder: Path) -> str:
    from bertree.search.index_model import find_index_model

    return find_index_model(folder)


@contextmanager
def _watch(what: str, total: int | None) -> "Iterator[Watch]":
    """Show a progress bar that follows the steps of building an index."""
    with bar(what, total, in_bytes=True) as progress:

        def watch(doing: str, count: int, of: int | None) -> None:
            if doing == "reading":  # characters, which for most text are about as many as bytes
                progress.advance(count)
            else:
                progress.relabel(doing, of)
                progress.move_to(count)

        yield watch
