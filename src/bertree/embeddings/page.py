"""What came out of judging vectors as a page to look at: the table, gold against cosine, the pairs judged most unlike
people do. One self-contained file, as every report here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertree.embeddings.correlation import MEASURES, Floats, Judged
from bertree.embeddings.sts import PairSet
from bertree.report import html
from bertree.report.cases import head
from bertree.report.scales import Axis, scale
from bertree.report.tables import STYLE, Bar, bars, caption, safe
from bertree.tasks.metrics import ranks

POINTS = 2500  # of a picture
STEPS = 20  # of the line through the middle
FEWEST = 5  # pairs of a step that has a middle
CASES = 12
WIDTH, HEIGHT = 580, 420
NAME = 60  # characters of a title
MORE = (
    ".chart .middle{stroke:currentColor;stroke-width:2.4;stroke-linejoin:round}"
    ".cloud circle{fill:currentColor;opacity:.3}"
)


@dataclass(frozen=True)
class Row:
    """One line of the table: an encoder and what it scores on every set."""

    name: str
    dimension: int
    judged: tuple[Judged, ...]
    average: float | None


def short(name: str, most: int = NAME) -> str:
    """A path by its end."""
    return name if len(name) <= most else "…" + name[1 - most :]


def figure(value: float | None) -> str:
    """A correlation x 100, for people."""
    return "–" if value is None else f"{value:.2f}"


def write(path: Path, sets: Sequence[PairSet], rows: Sequence[Row]) -> None:
    """The page."""
    html.place(path, document(path.parent.resolve().name, sets, rows))


def document(title: str, sets: Sequence[PairSet], rows: Sequence[Row]) -> str:
    """The whole page."""
    best = _best([row.average for row in rows])
    name = rows[best].name if best is not None else rows[0].name
    value = rows[best].average if best is not None else None
    pairs = sum(one.pairs for one in sets)
    of = f"{len(sets)} sets" if len(sets) > 1 else sets[0].name
    left = sum(one.skipped for one in sets)
    tiles = [
        ("best", figure(value), name),
        ("pairs", f"{pairs:,}", f"{left:,} without gold left out" if left else "all of them have gold"),
        ("sets", f"{len(sets)}", ", ".join(one.name for one in sets)),
        ("encoders", f"{len(rows)}", "in one table"),
    ]
    body = [
        html.heading(f"Sentence similarity: {figure(value)} on {of}", f"{name}; Spearman of the cosine x 100"),
        html.tiles(tiles),
        "<h2>Spearman of the cosine, times 100</h2>",
        _table(sets, rows),
        html.cards([_bars(rows)]) if len(rows) > 1 else "",
    ]
    for number, one in enumerate(sets):
        body += _set(one, [(row.name, row.judged[number]) for row in rows])
    return (
        html.document(f"{title} · sentence similarity", body, STYLE + MORE, script="")
        .encode("utf-8", "replace")
        .decode()
    )


def _best(values: Sequence[float | None]) -> int | None:
    known = [(value, -number) for number, value in enumerate(values) if value is not None]
    return -max(known)[1] if known else None


def _table(sets: Sequence[PairSet], rows: Sequence[Row]) -> str:
    columns = [[row.judged[n].whole["spearman"]["cosine"] for row in rows] for n in range(len(sets))]
    heads = [one.name for one in sets]
    if len(sets) > 1:
        columns.append([row.average for row in rows])
        heads.append("average")
    top = [_best(column) for column in columns]
    cells = []
    for number, row in enumerate(rows):
        shown = [figure(column[number]) for column in columns]
        bold = [f"<b>{text}</b>" if top[n] == number and len(rows) > 1 else text for n, text in enumerate(shown)]
        cells.append([safe(row.name), str(row.dimension), *bold])
    numbers = range(1, len(heads) + 2)
    return html.html_table(["", "width", *(safe(name) for name in heads)], cells, numbers, "seeds")


def _bars(rows: Sequence[Row]) -> str:
    drawn = [Bar(row.name, [max(0.0, row.average or 0.0) / 100], [figure(row.average)]) for row in rows]
    return bars("Encoders", drawn, "mean over the sets; the full width is 100", head=("", "Spearman"))


def _set(pairs: PairSet, found: Sequence[tuple[str, Judged]]) -> list[str]:
    gold = np.concatenate([part.gold for part in pairs.parts])
    cosines = [np.concatenate([scores["cosine"] for scores in judged.scores]) for _, judged in found]
    pictures = []
    for (name, judged), values in zip(found, cosines, strict=True):
        figures = judged.whole
        under = f"Spearman {figure(figures['spearman']['cosine'])}, Pearson {figure(figures['pearson']['cosine'])}"
        under += "; the line: the median of each step of gold"
        pictures.append(cloud_svg(short(name), gold, values) + caption("", under))
    best = _best([judged.whole["spearman"]["cosine"] for _, judged in found])
    drawn = [f"<h2>{safe(pairs.name)}: {pairs.pairs:,} pairs</h2>", html.cards(pictures), _measures(found)]
    if best is not None:
        drawn.append(_cases(pairs, gold, cosines[best], found[best][0]))
    return drawn


def _measures(found: Sequence[tuple[str, Judged]]) -> str:
    """Every figure of a set, folded away."""
    cells = [
        [name, part, *(figure(figures[kind][measure]) for kind in ("spearman", "pearson") for measure in MEASURES)]
        for name, judged in found
        for part, figures in judged.rows
    ]
    names = [f"{kind}, {measure}" for kind in ("Spearman", "Pearson") for measure in MEASURES]
    numbers = range(2, 2 + len(names))
    return html.folded("Every measure and part", html.table(["", "pairs of", *names], cells, numbers, "seeds"))


def cloud_svg(title: str, gold: Floats, cosine: Floats) -> str:
    """Gold across, cosine up, a dot a pair, and over them the middle half of each step of gold."""
    step = max(1, -(-len(gold) // POINTS))
    across, up = scale(Axis(), gold), scale(Axis(), cosine)
    left, right, top, bottom = 54, WIDTH - 14, 34, HEIGHT - 44

    def x(values: Floats) -> Floats:
        return left + across(values) * (right - left)

    def y(values: Floats) -> Floats:
        return bottom - up(values) * (bottom - top)

    parts = [f'<text class="title" x="8" y="18">{safe(title)}</text>']
    for value, text in zip(x(np.array(across.ticks)).tolist(), across.labels, strict=True):
        parts.append(f'<path class="grid" d="M{value:.1f},{top} {value:.1f},{bottom}"/>')
        parts.append(f'<text x="{value:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>')
    for value, text in zip(y(np.array(up.ticks)).tolist(), up.labels, strict=True):
        parts.append(f'<path class="grid" d="M{left},{value:.1f} {right},{value:.1f}"/>')
        parts.append(f'<text x="{left - 7}" y="{value + 4:.1f}" text-anchor="end">{text}</text>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle:g}" y="{bottom + 36}" text-anchor="middle">gold (across), cosine (up)</text>')
    places = zip(x(gold[::step]).tolist(), y(cosine[::step]).tolist(), strict=True)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.3"/>' for a, b in places)
    parts.append(f'<g class="s0 cloud">{dots}</g>')
    at, quarters = quarters_of(gold, cosine)
    if len(at) > 1:
        low, middles, high = (list(zip(x(at).tolist(), y(each).tolist(), strict=True)) for each in quarters)
        band, line = (" ".join(f"{a:.1f},{b:.1f}" for a, b in some) for some in (low + high[::-1], middles))
        parts.append(f'<g class="s1"><path class="band" d="M{band}Z"/><path class="middle" d="M{line}"/></g>')
    first = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return f'{first} aria-label="{safe(title)}">{"".join(parts)}</svg>'


def quarters_of(gold: Floats, cosine: Floats) -> tuple[Floats, Floats]:
    """Quartiles (3 x steps) of the cosine in each of some equal steps of gold that holds pairs enough, at the mean
    gold of the step."""
    span = float(np.ptp(gold))
    if not span:
        return np.empty(0), np.empty((3, 0))
    place = np.minimum(((gold - gold.min()) / span * STEPS).astype(np.int64), STEPS - 1)
    steps = [step for step in range(STEPS) if (place == step).sum() >= FEWEST]
    at = np.array([gold[place == step].mean() for step in steps])
    return at, np.array([np.quantile(cosine[place == step], (0.25, 0.5, 0.75)) for step in steps]).reshape(-1, 3).T


def _cases(pairs: PairSet, gold: Floats, cosine: Floats, name: str) -> str:
    """The pairs whose place among all is most unlike the one people gave them."""
    people, model = ranks(gold) / len(gold), ranks(cosine) / len(gold)
    texts = [both for part in pairs.parts for both in zip(part.first, part.second, strict=True)]
    rows = []
    for number in np.argsort(-np.abs(people - model), kind="stable")[:CASES].tolist():
        first, second = (head(text, 200) for text in texts[number])
        said = "too alike" if model[number] > people[number] else "too unlike"
        places = f"{100 * people[number]:.0f} %", f"{100 * model[number]:.0f} %"
        rows.append([f"{first}<br>{second}", f"{gold[number]:g}", f"{cosine[number]:.3f}", *places, said])
    heads = ["pair", "gold", "cosine", "more alike than, by gold", "by cosine", ""]
    above = caption(f"Judged most unlike people do, by {name}")
    return html.html_table(heads, rows, [1, 2, 3, 4], "off", above)
