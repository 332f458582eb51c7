"""Results as tables and lines on the terminal, a module for each kind."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 240  # columns where the output is not a terminal: nothing is cut for want of room


def make_console() -> "Console":
    """Return a console for standard output: as wide as the terminal, or wide if it is a pipe or a file."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=WIDE)
