"""`index export`."""

from typing import Annotated

import typer

from bertree.cli.command import print_json, verb
from bertree.cli.options import JsonOption
from bertree.cli.search.options import DatabaseTableOption, IndexArgument, SchemaOption
from bertree.console import bar, note
from bertree.errors import UserError


def register(verbs: typer.Typer) -> None:
    """Add the verb to those of an index."""
    verb(verbs)(export)


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
    table: DatabaseTableOption = "bertree",
    replace: Annotated[
        bool, typer.Option("--replace", help="Write all of it anew, also over an index of another model.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an index into a PostgreSQL database with pgvector; the next export writes only what has changed.

    One transaction: whoever queries the database sees the old index or the new one. Needs pip install
    'bertree\\[postgres]'.

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
