"""What users decide by, below the table of a comparison: score against costs, the significance of differences,
calibration, examples on which two models disagree, published scores."""

from collections.abc import Callable, Iterator, Sequence

from bertree.report.calibration import BINS, reliability_svg
from bertree.report.comparison import Comparison, PublishedRow, ScoreDifference, device_name
from bertree.report.formats import byte_size, digits, end_of_path, format_score, label, percent, smaller_is_better
from bertree.report.scales import Axis
from bertree.report.svg import ScorePoint, scatter_svg
from bertree.report.tables import Block, CaptionedChart, Cell, PageTable, Piece, Section, one_line

NAME = 28  # letters of a model's name


def detail_sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the sections of what the comparison has."""
    names = [end_of_path(model.name, NAME) for model in comparison.models]
    if comparison.scores:
        yield Section("Score against cost", list(_scatters(comparison, names)))
    if comparison.differences:
        yield Section("Differences of the score", blocks=[_differences(comparison, names)])
    if any(comparison.calibration):
        yield Section("Calibration", _calibration(comparison, names))
    for other, disagreement in zip(names[1:], comparison.disagreements, strict=False):
        total = sum(disagreement.counts.values())
        counts: list[list[Cell]] = [
            [kind.replace("the first", names[0]).replace("the second", other), f"{count:,}", percent(count / total, 1)]
            for kind, count in disagreement.counts.items()
        ]
        blocks: list[Block] = [PageTable(["", "examples", ""], counts, numbers=(1, 2), kind="facts")]
        rows: list[list[Cell]] = []
        for example in disagreement.examples:
            answers: list[Cell] = []
            for model, (answer, sure) in enumerate(zip(example.answers, example.confidence, strict=True)):
                share = [Piece(f"\u00a0{percent(sure)}".replace(" ", "\u00a0"), "small")] if sure is not None else []
                answers.append(one_line(Piece(answer, "good" if model == example.better else "bad"), *share))
            rows.append([[[Piece(text)] for text in example.texts], example.gold, *answers])
        if rows:
            blocks.append(PageTable(["text", "gold", names[0], other], rows, kind="cases"))
        yield Section(f"Where {names[0]} and {other} disagree", blocks=blocks)
    if comparison.published:
        head, cells, sources = published_cells(comparison.published)
        table = PageTable(head, cells, numbers=range(2, len(head)))
        lines: Cell = [[Piece(f"({number}) {source}", "small")] for number, source in enumerate(sources, 1)]
        yield Section("Published scores", blocks=[table, PageTable([], [[lines]], kind="facts")])


def _scatters(comparison: Comparison, names: Sequence[str]) -> Iterator[Block]:
    """Yield the first score of each model against each cost."""
    score, values = next(iter(comparison.scores.items()))
    shares = all(abs(value) <= 1 for value in values if value is not None) and not smaller_is_better(score)
    factor, spans = 100 if shares else 1, comparison.intervals.get(score) or (None,) * len(values)
    for cost_name, cost in comparison.costs().items():
        of_bytes = cost_name == "weight_bytes"
        write: Callable[[float], str] = byte_size if of_bytes else digits
        on = "" if of_bytes else device_name(comparison.teacher.speed(cost_name.removeprefix("latency_ms_")))
        across = "MB of the weights" if of_bytes else f"milliseconds for a text, {on}"
        frontier = comparison.frontier(cost)
        points = [
            ScorePoint(
                name,
                cost(model),
                factor * value,
                (factor * span[0], factor * span[1]) if span else None,
                best,
                f"{model.name}: {format_score(score, value)}, {write(cost(model))}{'' if of_bytes else ' ms'}",
            )
            for name, model, value, span, best in zip(names, comparison.models, values, spans, frontier, strict=True)
            if value is not None
        ]
        under = "on the frontier (filled): " + ", ".join(
            name for name, best in zip(names, frontier, strict=True) if best
        )
        under += "; no other model scores higher for at most 5 % more" + (
            "; lines: 95 % intervals" if any(spans) else ""
        )
        x = Axis(log=None, zero=True, text=lambda count: digits(count / 1e6)) if of_bytes else Axis(log=None, zero=True)
        chart = scatter_svg(f"{label(score)} against {across}", points, x, f"{across} (across), {label(score)} (up)")
        yield CaptionedChart(chart, under)


def _differences(comparison: Comparison, names: Sequence[str]) -> PageTable:
    rows: list[list[Cell]] = []
    for name, difference in zip(names[1:], comparison.differences, strict=True):
        value, span, p = difference_texts(difference)
        kind = {"higher": "good", "lower": "bad"}.get(difference.verdict, "")
        rows.append([name, one_line(Piece(value, kind)), span, p, one_line(Piece(difference.verdict, kind))])
    score = label(comparison.differences[0].score)
    return PageTable(
        ["model", "difference", "95 %", "p", ""],
        rows,
        numbers=(1, 2, 3),
        title=one_line(Piece(f"{score} over {names[0]}, in points")),
        under="paired bootstrap: both models scored on the same samples of the examples; of one seed each",
    )


def difference_texts(difference: ScoreDifference) -> tuple[str, str, str]:
    """Write a difference in points, its interval, and p."""
    low, high = difference.interval
    p = "< 0.01" if difference.p < 0.01 else f"{difference.p:.2f}"
    return f"{100 * difference.value:+.2f}", f"{100 * low:+.2f} to {100 * high:+.2f}", p


def _calibration(comparison: Comparison, names: Sequence[str]) -> list[Block]:
    under = f"{BINS} bins of equal width by the probability of the predicted class; below the line: too confident"
    rows: list[list[Cell]] = [
        [name, percent(calibration.error, 1), percent(calibration.confidence, 1), percent(calibration.right, 1)]
        for name, calibration in zip(names, comparison.calibration, strict=True)
        if calibration is not None
    ]
    table = PageTable(
        ["model", "error", "confidence", "right"],
        rows,
        numbers=(1, 2, 3),
        title=one_line(Piece("Expected calibration error")),
        under="the distance of mean confidence and share of right answers in a bin, averaged over the answers",
    )
    plot = reliability_svg("Reliability", dict(zip(names, comparison.calibration, strict=True)))
    return [CaptionedChart(plot, under), table]


def published_cells(rows: Sequence[PublishedRow]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return head and rows of a table of published scores, and the sources that the last column numbers."""
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    cited = [f"{row.source}; {row.note}" if row.note else row.source for row in rows]
    sources = list(dict.fromkeys(cited))
    cells = [
        [
            row.system,
            row.split,
            *(f"{row.scores[name]:.2f}".removesuffix("0") if name in row.scores else "" for name in names),
            f"({sources.index(source) + 1})",
        ]
        for row, source in zip(rows, cited, strict=True)
    ]
    return ["system", "", *names, "source"], cells, sources
