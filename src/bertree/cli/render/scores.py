"""Tables of scores: of fine-tuning runs, of comparisons and GLUE, and the correlations of sentence vectors."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from bertree.cli.render import make_console, make_table
from bertree.comparison.glue import GlueSummary
from bertree.comparison.glue_scores import GlueProtocol
from bertree.embeddings.correlation import KINDS, MEASURES, EncoderScores, Figures, format_correlation, format_span
from bertree.embeddings.evaluate import EmbeddingScores
from bertree.embeddings.sts import PairSet
from bertree.finetuning.evaluate import Scores, teacher_line
from bertree.inference.load import Run
from bertree.report.comparison import Comparison, PublishedRow, read_comparison, verdict
from bertree.report.comparison_details import published_cells
from bertree.report.comparison_page import comparison_rows, method
from bertree.report.formats import end_of_path, format_interval
from bertree.run_folder import COMPARISON, MODEL, PREDICTIONS, REPORT, SCORES
from bertree.tasks.metrics import Interval

INTERVAL = "95 % interval"
TEXT_FIGURES = ("loss", "perplexity", "bits_per_byte")  # of a token store
OVER_SEEDS = ("mean", "std", "median", "best")  # of a run with several seeds


def score_text(key: str, value: Any) -> str:
    """Return a score times 100; a count, a threshold or a figure of text as it is."""
    if isinstance(value, float):
        plain = key.endswith("threshold") or key in TEXT_FIGURES
        return f"{value:.3f}" if plain else f"{100 * value:.2f}"
    return "-" if value is None else f"{value:,}"


def print_scores(scores: Scores) -> None:
    """Print the scores of a model on a task."""
    intervals = scores.metrics.get("intervals", {})
    table = make_table(scores.task, ", ".join(scores.splits), INTERVAL if intervals else "")
    for key, value in scores.metrics.items():
        if key not in ("task", "split", "model", "store", "intervals"):
            row = escape(key.replace("_", " ")), score_text(key, value), format_interval(key, intervals.get(key))
            table.add_row(*row)
    make_console().print(table)


def print_finetuning(run: Run) -> None:
    """Print the scores of a fine-tuning run, a column for each seed; of a student, those of its teacher too."""
    metrics = run.metrics
    results, metric = metrics["seeds"], metrics["metric"]
    keys = [key for key, value in max(results, key=len).items() if isinstance(value, float)]
    several = len(results) > 1 and metrics["mean"] is not None
    heads = [f"seed {result['seed']}" for result in results] + (["mean", "median"] if several else [])
    intervals = metrics.get("intervals") or {}
    if intervals:
        heads.append(f"{INTERVAL}, seed {metrics['best_seed']}" if len(results) > 1 else INTERVAL)
    table = make_table(f"{metrics['task']}, dev, times 100", *heads)
    for key in keys:
        cells = [score_text(key, result.get(key)) for result in results]
        if several and key == metric:
            spread = f" ± {100 * metrics['std']:.2f}" if metrics["std"] is not None else ""
            cells += [f"{100 * metrics['mean']:.2f}{spread}", f"{100 * metrics['median']:.2f}"]
        elif several:
            cells += ["", ""]
        cells.append(format_interval(key, intervals.get(key)))
        table.add_row(escape(key.replace("_", " ")), *cells)
    make_console().print(table)
    if "distillation" in metrics:
        print(teacher_line(metrics["distillation"], metric))
    written = (f"{MODEL}/", SCORES, PREDICTIONS) if (run.folder / MODEL).is_dir() else (SCORES,)
    print(f"{run.folder}: {', '.join(written)}, {REPORT}")
    if (run.folder / COMPARISON).is_file():
        print_comparison(read_comparison(run.folder / COMPARISON))


def print_glue(summary: GlueSummary) -> None:
    """Print the scores of GLUE tasks and their averages."""
    if summary.protocol is not None:
        print_protocol(summary.protocol)
    if summary.published:
        print_published(summary.published)
    if not summary.tasks:
        return
    table = make_table("task", "")
    for name, scores in summary.tasks.items():
        shown = {key: value for key, value in scores.items() if isinstance(value, float) and key not in OVER_SEEDS}
        intervals = scores.get("intervals") or {}
        figures = []
        for key, value in shown.items():
            figures.append(f"{key.replace('_', ' ')} {100 * value:.1f}{_in_brackets(intervals.get(key))}")
        table.add_row(escape(name), escape(", ".join(figures)))
    table.add_row("", "")
    for name, average in summary.averages.items():
        value, missing = average["value"], f"needs {', '.join(average['missing'])}"
        span = _in_brackets(average.get("interval"))
        table.add_row(name, f"{100 * value:.1f}{span}" if value is not None else missing)
        table.add_row("", f"[dim]{average['source']}[/dim]")
    make_console().print(table)


def print_protocol(protocol: GlueProtocol) -> None:
    """Print the scores of a model by the protocol, and how they were computed."""
    if not protocol.rows:
        return
    shown = protocol.table
    table = make_table(*map(escape, shown.heads))
    for cells in shown.rows:
        table.add_row(*map(escape, cells))
    console = make_console()
    console.print(Text(shown.title, "bold"))
    console.print(table)
    facts = protocol.settings | protocol.computed_with
    console.print(Text(", ".join(f"{name} {value}" for name, value in facts.items()), "dim"))


def _in_brackets(interval: Any) -> str:
    return f" ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else ""


def print_published(rows: Sequence[PublishedRow]) -> None:
    """Print published scores with their sources, numbered below the table."""
    (_, *names, _), cells, sources = published_cells(rows)
    table = make_table("published", *names, "")
    for row in cells:
        table.add_row(*map(escape, row))
    console = make_console()
    console.print(table)
    for number, source in enumerate(sources, 1):
        console.print(Text(f"({number}) {source}", "dim"))


def print_comparison(comparison: Comparison) -> None:
    """Print the table of a comparison, and one line that sums up each model."""
    console = make_console()
    table = make_table()
    table.add_column("")
    for index, model in enumerate(comparison.models):
        table.add_column(Text(model.name), justify="right", overflow="fold")
        if index:
            table.add_column("", overflow="fold")
    for row in comparison_rows(comparison):
        cells = [Text(row.name), Text(row.values[0])]
        for value, against in zip(row.values[1:], row.against, strict=True):
            cells += [Text(value), Text(against.text, {True: "red", False: "green", None: ""}[against.worse])]
        table.add_row(*cells)
    console.print(table)
    console.print(Text(method(comparison), "dim"))
    console.print()
    for index in range(1, len(comparison.models)):
        console.print(Text(f"{comparison.models[index].name}: {verdict(comparison, index)}", "bold"))
    if comparison.published:
        print_published(comparison.published)


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
