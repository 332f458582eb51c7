"""`bertree info`: what long sequences cost with each of the options for them."""

from collections.abc import Callable
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from bertree.model import cost
from bertree.model.architecture import Architecture


def long_costs(a: Architecture, card: float) -> Group | None:
    """Return a table of memory, batches and operations; None if the architecture has no option for long sequences."""
    variants, lengths = cost.option_variants(a), cost.long_lengths(a)
    if not variants or not lengths:
        return None
    table = Table("training on long sequences", *(f"{length:,}" for length in lengths), box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"

    def add(title: str, names: list[str], cell: Callable[[Architecture, int], str]) -> None:
        table.add_row(f"[bold]{title}[/]")
        for name in names:
            table.add_row(f"  {name}", *(cell(variants[name], length) for length in lengths))

    add("GiB for one sequence", list(variants), lambda v, n: f"{cost.training_bytes(v, 1, n) / cost.GIB:.1f}")
    add(f"largest batch, {card:g} GB card", list(variants), lambda v, n: f"{cost.largest_batch(v, n, card):,}")
    add("forward GFLOP a token", list(variants)[:2], lambda v, n: f"{cost.forward_flops(v, n) / 1e9:.2f}")
    meaning = (
        "one option alone, none or all; without chunks, attention is computed by a flash kernel, see docs/memory.md"
    )
    return Group(table, Text(meaning, style="dim"))


def long_json(a: Architecture) -> dict[str, Any]:
    """Return the same for machines, without batches: option -> length -> bytes of a step with one sequence."""
    lengths = cost.long_lengths(a)
    return {
        name: {str(length): cost.training_bytes(variant, 1, length) for length in lengths}
        for name, variant in cost.option_variants(a).items()
    }
