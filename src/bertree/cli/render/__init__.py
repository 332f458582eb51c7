"""Results as tables and lines on the terminal, a module for each kind."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WIDE = 240  # columns where the output is not a terminal: nothing is cut for want of room


def make_console() -> "Console":
    """Return a console for standard output: as wide as the terminal, or wide if it is a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)


def make_table(
    *heads: str, rows: "Iterable[Sequence[RenderableType]]" = (), numbers: int | None = None, **options: Any
) -> "Table":
    """Return a table without lines; columns from `numbers` on are aligned to the right."""
    from rich.table import Table

    table = Table(*heads, box=None, pad_edge=False, **options)
    for column in table.columns[numbers:] if numbers is not None else ():
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table
