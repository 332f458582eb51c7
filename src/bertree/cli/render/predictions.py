"""Candidates for masks."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.inference.mask_filling import Candidate


def print_candidates(masks: Sequence[Sequence[Candidate]]) -> None:
    """Print the candidates of each mask."""
    console = Console()
    for number, candidates in enumerate(masks, 1):
        table = Table("token", "probability", "", box=None, pad_edge=False)
        for candidate in candidates:
            bar = "█" * round(candidate.probability * 30)
            table.add_row(Text(candidate.token, "bold"), f"{candidate.probability:.4f}", Text(bar, "green"))
        if len(masks) > 1:
            console.print(f"mask {number} of {len(masks)}")
        console.print(table)
