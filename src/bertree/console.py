"""TODO."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(total: int, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, where that is a terminal."""
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty() and not quiet
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)


def note(line: str) -> None:
    """Something to know, on standard error."""
    print(f"bertree: note: {line}", file=sys.stderr)
