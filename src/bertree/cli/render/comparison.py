"""A comparison of models."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.report.comparison import Comparison, verdict
from bertree.report.comparison_page import comparison_rows, method


def print_comparison(found: Comparison) -> None:
    """Print the table of a comparison, and one line that sums up each model."""
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for place, model in enumerate(found.models):
        table.add_column(Text(model.name), justify="right", overflow="fold")
        if place:
            table.add_column("", overflow="fold")
    for row in comparison_rows(found):
        cells = [Text(row.name), Text(row.values[0])]
        for value, against in zip(row.values[1:], row.against, strict=True):
            worse = against.endswith(("larger", "slower", "fewer"))
            cells += [Text(value), Text(against, "red" if worse else "green")]
        table.add_row(*cells)
    console.print(table)
    console.print(Text(method(found), "dim"))
    console.print()
    for place in range(1, len(found.models)):
        console.print(Text(f"{found.models[place].name}: {verdict(found, place)}", "bold"))
