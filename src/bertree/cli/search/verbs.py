"""The verbs of an index: `index build`, `add`, `remove`, `query`, `info`, `export`."""

import typer

from bertree.cli.search import change, export, query


def register(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    verbs = typer.Typer(no_args_is_help=True, help="Search documents by meaning: build an index and query it.")
    for part in (change, query, export):
        part.register(verbs)
    app.add_typer(verbs, name="index")
