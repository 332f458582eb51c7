"""The verb `mcp`."""

from typing import Annotated

import typer

from bertree.cli.command import verb
from bertree.cli.options import DeviceOption, PrecisionOption
from bertree.cli.search.options import DatabaseTableOption, ModelOption, SchemaOption, load_encoder


def register(app: typer.Typer) -> None:
    """Add the verb to the application."""
    verb(app)(mcp)


def mcp(
    indexes: Annotated[
        list[str],
        typer.Argument(metavar="INDEX ...", help="Folders of indexes, or a postgresql:// address.", show_default=False),
    ],
    model: ModelOption = None,
    schema: SchemaOption = "public",
    table: DatabaseTableOption = "bertree",
    precision: PrecisionOption = "float32",
    device: DeviceOption = "auto",
) -> None:
    """Offer search in indexes to an assistant: a server of the Model Context Protocol on standard input and output.

    Tools: search (a question -> passages) and read (a document, or the text around a passage). An assistant starts it
    itself, from its settings: the command is bertree, the arguments are mcp and the folder of the index.

    [dim]bertree mcp my-index
    bertree mcp my-index other-index
    bertree mcp postgresql://user@host/database[/dim]
    """
    from bertree.serve.mcp_tools import serve_indexes

    serve_indexes(indexes, lambda path: load_encoder(path, device, precision), model, schema=schema, table=table)
