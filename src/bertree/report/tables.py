"""Pictures of predictions: bars and a heat map as tables, which wrap and scroll on small screens, a scatter as SVG.

Everything that comes from data goes through `safe`: texts and labels are other people's.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from bertree.report.formats import percent
from bertree.report.history import Floats
from bertree.report.html import html_table
from bertree.report.scales import Axis, scale
from bertree.report.svg import Series, curve_svg

STYLE = """
.sub,.sample{overflow-wrap:anywhere}
a{color:var(--accent)}
.cap{font-size:14px;font-weight:600;padding:2px 4px 6px}
.cap small{display:block;font-weight:400;color:var(--soft);font-size:12.5px}
.card .scroll{border:0;margin:0}
.tile dd{overflow:hidden;text-overflow:ellipsis}
.bars td{padding:3px 8px;vertical-align:middle;font-size:13.5px}
.bars td:first-child{min-width:112px;overflow-wrap:break-word}
.seeds table{width:auto}
.seeds td,.seeds th{white-space:nowrap}
.seeds td:last-child:not(.number){white-space:normal;min-width:180px}
.bars td.number{color:var(--soft)}
.bars td:nth-child(2){width:48%}
.bar{min-width:110px}
.bar div{display:flex;height:9px;margin:2px 0;background:var(--ground);border-radius:2px;overflow:hidden}
.bar i{display:block;background:var(--accent)}
.bar .b1{background:#d9822b}.bar .b2{background:var(--good)}.bar .right{background:var(--good)}
.bar .wrong{background:var(--bad)}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin:0 4px 0 10px;background:var(--accent)}
.key .b1{background:#d9822b}.key .b2,.key .right{background:var(--good)}.key .wrong{background:var(--bad)}
.heat table{width:auto}
.heat td,.heat th{border:1px solid var(--paper);padding:5px 8px;text-align:center;line-height:1.2;font-size:13.5px}
.heat th{font-weight:600;color:var(--soft)}
.heat tbody th{text-align:right;white-space:nowrap;position:sticky;left:0;background:var(--paper)}
.heat thead th.up{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;white-space:nowrap}
.heat td small{display:block;opacity:.75;font-size:11.5px}
.heat.dense td,.heat.dense th{padding:2px 4px;font-size:12px}
.cases td{font-size:14px}
.cases td:first-child{min-width:230px;overflow-wrap:anywhere}
.cases td:not(:first-child){overflow-wrap:break-word}
.cases mark{background:none;color:inherit;border-bottom:2px solid var(--accent)}
.cases mark.gold{border-color:var(--good)}.cases mark.wrong{border-color:var(--bad)}
.dots circle{fill:currentColor;opacity:.45}
.chart .ideal{stroke:currentColor;stroke-dasharray:5 4;opacity:.7}
@media (max-width:640px){.bar{min-width:50px}.bars td:first-child{min-width:84px}.bars td,.bars th{padding:3px 5px}
.bars td:nth-child(2){width:30%}
.cases thead{display:none}.cases tbody,.cases table{display:block}
.cases tr{display:grid;grid-template-columns:1fr 1fr auto;border-top:1px solid var(--edge);padding:4px 0}
.cases tr:first-child,.cases td{border:0}.cases td{padding:3px 10px;min-width:0}
.cases td:first-child{grid-column:1/-1}.cases td.number{text-align:left}
.cases td:not(:first-child)::before{color:var(--soft);font-size:12px;display:block}
.cases td:nth-child(2)::before{content:"gold"}.cases td:nth-child(3)::before{content:"predicted"}
.cases td:nth-child(4)::before{content:"sure"}.cases.off td:nth-child(4)::before{content:"off by"}}
"""
ALPHA = 0.62  # of the strongest colour of a heat map: the count on it stays readable
POINTS = 2000  # of a scatter
NAME = 40  # characters of a label in a table
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # no place in a page


class Bar(NamedTuple):
    """One row of bars: its name, shares from 0 to 1, and figures for beside it."""

    name: str
    shares: Sequence[float]
    beside: Sequence[str]


def safe(text: object) -> str:
    """A text of the data as HTML that says just this."""
    return escape(_CONTROL.sub("\ufffd", str(text)))


def clipped(text: object, room: int = NAME) -> str:
    """A name that is not too long, whole under the pointer."""
    whole = str(text)
    if len(whole) <= room:
        return safe(whole)
    return f'<span title="{safe(whole[:1000])}">{safe(whole[: room - 1])}…</span>'


def caption(title: str, under: str = "", keys: Mapping[str, str] | None = None) -> str:
    """The title of a picture, a few words more, and what its colours (a class: a name) stand for."""
    signs = "".join(f'<i class="{kind}"></i>{safe(name)}' for kind, name in (keys or {}).items())
    key = f'<span class="key small">{signs}</span>' if signs else ""
    return f'<figcaption class="cap">{safe(title)}{key}<small>{safe(under)}</small></figcaption>'


def bars(title: str, rows: Sequence[Bar], under: str = "", names: Sequence[str] = (), head: Sequence[str] = ()) -> str:
    """Shares as bars, one below the other where a row has several."""
    keys = {f"b{number}": name for number, name in enumerate(names)}
    cells = []
    for row in rows:
        drawn = (
            f'<div><i class="b{number}" style="width:{100 * share:.1f}%"></i></div>'
            for number, share in enumerate(row.shares)
        )
        cells.append([clipped(row.name, 2 * NAME), *_row("".join(drawn), row.beside)])
    return caption(title, under, keys) + _bar_table(cells, head)


def stacked(title: str, rows: Sequence[tuple[str, int, int]], under: str = "") -> str:
    """Right and wrong ones (a name, how many of each), as parts of one bar."""
    most = max((right + wrong for _, right, wrong in rows), default=0) or 1
    cells = []
    for name, right, wrong in rows:
        parts = f'<i class="right" style="width:{100 * right / most:.1f}%"></i>'
        parts += f'<i class="wrong" style="width:{100 * wrong / most:.1f}%"></i>'
        share = percent(right / (right + wrong)) if right + wrong else ""
        cells.append([safe(name), *_row(f"<div>{parts}</div>", (f"{right + wrong:,}", share))])
    table = _bar_table(cells, ("", "examples", "right"))
    return caption(title, under, {"right": "right", "wrong": "wrong"}) + table


def _row(drawn: str, beside: Sequence[str]) -> list[str]:
    return [f'<div class="bar">{drawn}</div>', *map(safe, beside)]


def _bar_table(cells: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    numbers = range(2, max(map(len, cells), default=2))
    top = ["", *map(safe, head)] if head else []
    return html_table(top, cells, numbers, "bars")


def heat(labels: Sequence[str], counts: Mapping[tuple[str, str], int]) -> str:
    """Gold labels down, predicted ones across; the larger its share of its row, the stronger a cell."""
    dense = len(labels) > 8
    upright = dense or sum(min(len(label), NAME) for label in labels) > 70
    kind = ' class="up"' if upright else ""
    head = "".join(f"<th{kind}>{clipped(label, 24)}</th>" for label in labels)
    lines = []
    for gold in labels:
        row = [counts.get((gold, said), 0) for said in labels]
        total = sum(row)
        cells = "".join(_cell(gold, said, count, total, dense) for said, count in zip(labels, row, strict=True))
        lines.append(f"<tr><th>{clipped(gold, 24)}</th>{cells}<td>{total:,}</td></tr>")
    above = f"<thead><tr><th>gold ↓ predicted →</th>{head}<th{kind}>all</th></tr></thead>"
    table = f"<table>{above}<tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll heat{" dense" if dense else ""}">{table}</div>'


def _cell(gold: str, said: str, count: int, total: int, dense: bool) -> str:
    share = count / total if total else 0.0
    # Mistakes are mostly small shares: their root, so that they are seen.
    tone, strength = ("10,143,106", share) if gold == said else ("213,60,60", share**0.5)
    shade = f' style="background:rgba({tone},{ALPHA * strength:.3f})"' if count else ""
    hint = f"{gold[:80]} → {said[:80]}: {count:,}, {percent(share, 1)} of {total:,}"
    inside = f"{count:,}" if count else "·"
    if not dense and count:
        inside += f"<small>{percent(share)}</small>"
    return f'<td{shade} title="{safe(hint)}">{inside}</td>'


def scatter_svg(title: str, gold: Floats, predicted: Floats, width: int = 580, height: int = 440) -> str:
    """Gold against predicted on one scale, with the line on which they agree."""
    known = np.isfinite(gold) & np.isfinite(predicted)
    gold, predicted = gold[known], predicted[known]
    step = max(1, -(-len(gold) // POINTS))
    gold, predicted = gold[::step], predicted[::step]
    both = scale(Axis(), np.concatenate([gold, predicted]))
    left, right, top, bottom = 54, width - 14, 34, height - 44
    ticks = zip(both(np.array(both.ticks)).tolist(), both.labels, strict=True)
    parts = [f'<text class="title" x="8" y="18">{safe(title)}</text>']
    for share, text in ticks:
        x, y = left + share * (right - left), bottom - share * (bottom - top)
        parts.append(f'<path class="grid" d="M{left},{y:.1f} {right},{y:.1f}M{x:.1f},{top} {x:.1f},{bottom}"/>')
        parts.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle:g}" y="{bottom + 36}" text-anchor="middle">gold (across), predicted (up)</text>')
    parts.append(f'<g class="s1"><path class="ideal" d="M{left},{bottom} {right},{top}"/></g><g class="s0 dots">')
    across, up = left + both(gold) * (right - left), bottom - both(predicted) * (bottom - top)
    places = zip(across.tolist(), up.tolist(), strict=True)
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" role="img"'
    return f'{head} aria-label="{safe(title)}">{"".join(parts)}</g></svg>'


def deciles(scores: Floats) -> np.ndarray:
    """Which tenth of 0 to 1 each score lies in."""
    return np.clip((scores * 10).astype(np.int64), 0, 9)


def reliability(scores: Floats, right: Floats) -> list[str]:
    """How often answers are right that the model is so and so sure of, and how many there are of them."""
    known = np.isfinite(scores)
    scores, right = scores[known], right[known]
    if not len(scores):
        return []
    place = deciles(scores)
    count = np.bincount(place, minlength=10)
    some = count > 0
    sure = np.bincount(place, scores, 10)[some] / count[some]
    hits = np.bincount(place, right, 10)
    share = hits[some] / count[some]
    gap = float((np.abs(sure - share) * count[some]).sum() / count.sum())
    tenths = Axis(text=percent, zero=True)
    ends = np.array([0.0, 1.0])
    curve = curve_svg(
        f"Is it as good as it thinks? Mean gap {percent(gap, 1)}",
        [Series("as sure as right", ends, ends, "line", 7), Series("right answers", sure, share, "dots", 0)],
        x=tenths,
        y=tenths,
        x_label="how sure the model is",
    )
    return [curve, by_tenth("Answers by how sure the model is", scores, right)]


def by_tenth(title: str, scores: Floats, right: Floats, under: str = "") -> str:
    """Right and wrong answers in each tenth of a score that has some."""
    place = deciles(scores)
    hits, count = np.bincount(place, right, 10), np.bincount(place, minlength=10)
    rows = [
        (f"{10 * tenth} to {10 * tenth + 10} %", int(hits[tenth]), int(count[tenth] - hits[tenth]))
        for tenth in range(int(place.min(initial=9)), int(place.max(initial=0)) + 1)
    ]
    return stacked(title, rows, under)


def floats(values: Iterable[object]) -> Floats:
    """Numbers; NaN where there is none."""
    return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)
