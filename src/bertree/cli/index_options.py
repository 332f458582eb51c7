"""Arguments and options that the verbs of an index share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertree.console import bar, note
from bertree.errors import UserError

if TYPE_CHECKING:
    from bertree.inference.model import Model
    from bertree.search.faiss_index import Watch
    from bertree.search.index import AnyIndex


def _folder(path: str) -> Path:
    """Return a folder; refuse an address, which may contain a password, without showing it."""
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
CandidatesOption = Annotated[int | None, typer.Option(min=1, help="Passages it scores.", show_default="50")]
LabelOption = Annotated[
    str | None, typer.Option("--label", help="Its class that means a match, where the name does not say it.")
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


@contextmanager
def show_progress(what: str, total: int | None) -> "Iterator[Watch]":
    """Show a progress bar that follows the steps of building an index."""
    with bar(what, total, in_bytes=True) as progress:

        def watch(doing: str, count: int, of: int | None) -> None:
            if doing == "reading":  # characters, which for most text are about as many as bytes
                progress.advance(count)
            else:
                progress.relabel(doing, of)
                progress.move_to(count)

        yield watch


def open_at(index: str, model: "Model | None", schema: str, table: str) -> "AnyIndex":
    """Open the index in a folder, or at an address; a schema or table for a folder is refused."""
    from bertree.search.index import open_index
    from bertree.search.postgres.location import SCHEMA, TABLE, is_address

    if not is_address(index) and (schema, table) != (SCHEMA, TABLE):
        raise UserError(f"{index}: is no postgresql:// address; --schema and --table are for an index in PostgreSQL")
    return open_index(index, model, schema, table)
