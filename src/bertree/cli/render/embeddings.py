"""The correlations of sentence vectors with gold scores."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from bertree.cli.render import make_console, make_table
from bertree.embeddings.correlation import KINDS, MEASURES, EncoderScores, Figures, format_correlation, format_span
from bertree.embeddings.evaluate import EmbeddingScores
from bertree.embeddings.sts import PairSet
from bertree.report.formats import end_of_path
from bertree.tasks.metrics import Interval

SHORT = ("cosine", "dot", "eucl", "manh")  # of MEASURES, in a table of 80 columns
NAME = 28  # characters of a name there


def print_embedding_scores(scores: EmbeddingScores) -> None:
    """Print the correlations of every encoder on every set."""
    sets, rows = scores.sets, [result.row for result in scores.results]
    console = make_console()
    for number, pairs in enumerate(sets):
        console.print(Text(f"{pairs.name}: {pairs.pairs:,} pairs", style="bold"))
        table = make_table(padding=(0, 1))
        table.add_column("", no_wrap=True)
        for kind in KINDS:
            for measure, label in zip(MEASURES, SHORT, strict=True):
                head = f"{kind.capitalize()}\n{label}" if measure == "cosine" else f"\n{label}"
                table.add_column(head, justify="right", no_wrap=True)
        for row in rows:
            for part, figures in row.sets[number].rows:
                several = bool(row.sets[number].parts)
                name = (
                    f"  {part}" if part != "all" else end_of_path(row.name, NAME) + (", all pairs" if several else "")
                )
                table.add_row(Text(name), *_cells(figures))
        console.print(table)
        for row in rows:
            console.print(_intervals(row, row.sets[number].intervals))
    if len(sets) > 1:
        _summary(console, sets, rows)


def _cells(figures: Figures) -> list[str]:
    return [format_correlation(figures[kind][measure]) for kind in KINDS for measure in MEASURES]


def _intervals(row: EncoderScores, intervals: Mapping[str, Interval]) -> Text:
    spans = ", ".join(f"{kind.capitalize()} {format_span(span)}" for kind, span in intervals.items())
    return Text(f"95 % interval of the cosine, {end_of_path(row.name, NAME)}: {spans or 'none'}", "dim")


def _summary(console: Console, sets: Sequence[PairSet], rows: Sequence[EncoderScores]) -> None:
    console.print(Text("Spearman of the cosine, all pairs of each set", style="bold"))
    table = make_table("", *(escape(pairs.name) for pairs in sets), "average", padding=(0, 1), numbers=1)
    for row in rows:
        values = [scored.overall["spearman"]["cosine"] for scored in row.sets]
        cells = [*map(format_correlation, values), format_correlation(row.average)]
        table.add_row(Text(end_of_path(row.name, NAME)), *cells)
    console.print(table)
    for row in rows:
        console.print(_intervals(row, {"average": row.interval} if row.interval else {}))
