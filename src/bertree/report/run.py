"""A run as a page: what it reached, how it went, what it guessed on the way, with which settings.

`write` makes `report.html` of a run's folder, `comparison` one page of several runs. Both take what the
metrics hold: terms of the loss and scores of evaluations go by the names they have there.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from bertree.errors import UserError
from bertree.files import Json, read_json, read_text
from bertree.objectives.pretraining import TERMS
from bertree.report import comparison_page, html
from bertree.report.formats import digits, duration, figure, label, percent, quantity, smaller_is_better
from bertree.report.history import History, column, number, read
from bertree.report.scales import Axis
from bertree.report.svg import Mark, Series, Style, curve_svg
from bertree.run_folder import ENVIRONMENT, METRICS, RECIPE, REPORT

MASK = re.compile(r"\[MASK\]|<mask>")
ROWS = 15  # of a sample's table
EVENTS = 500
OVER = {"step": "step", "tokens": "tokens read", "seconds": "training time"}


def write(out: Path) -> Path:
    """Render the report of the run in folder `out`."""
    history = read(out / METRICS)
    recipe, environment = _text(out / RECIPE), _table(out / ENVIRONMENT)
    title, under = _title(recipe, out.resolve().name)
    body = [
        html.heading(title, under, *_state(history)),
        html.tiles([*_reached(history), *_spent(history, environment)]),
        *comparison_page.of_folder(out),
        *_section("Curves", html.cards(charts) if (charts := _charts(history)) else ""),
        *_section("Guesses through training", "".join(_samples(history.samples))),
        *_section("Settings", _settings(recipe, environment)),
        *_section("Events", _events(history.events)),
    ]
    return html.place(out / REPORT, html.document(title, body))


def comparison(runs: Mapping[str, Path], out: Path, field: str | None = None) -> Path:
    """Write a page that lays the held-out loss of runs (name: folder) over each other, by time and by tokens.

    `field` says which loss; without it the first objective that every run has, else the whole loss.
    """
    histories = {name: read(folder / METRICS) for name, folder in runs.items()}
    field = field or _common(histories)
    charts = [_held_out(histories, over, field) for over in ("seconds", "tokens")]
    rows = []
    for name, history in histories.items():
        values = column(history.evaluations, field)
        values = values[np.isfinite(values)]
        tokens, seconds = history.last("tokens"), history.last("seconds")
        rows.append(
            [
                name,
                *(_or_dash(lambda found: figure(field, found), found) for found in _last_and_best(values)),
                *(_or_dash(quantity, tokens), _or_dash(duration, seconds), _or_dash(quantity, _ratio(tokens, seconds))),
            ]
        )
    head = ["run", f"held-out {label(field)}", "best", "tokens read", "training time", "tokens/s"]
    title = f"Held-out {label(field)} of {len(runs)} runs"
    body = [html.heading(title, "by training time and by tokens read"), html.cards(charts), "<h2>Where they stand</h2>"]
    return html.place(out, html.document(title, [*body, html.table(head, rows, range(1, 6))]))


def held_out_svg(runs: Mapping[str, Path], over: str = "tokens", field: str | None = None, title: str = "") -> str:
    """The held-out loss of runs over "tokens", "seconds" or "step" as a picture that stands alone."""
    histories = {name: read(folder / METRICS) for name, folder in runs.items()}
    return _held_out(histories, over, field or _common(histories), title, standalone=True)


def _held_out(
    histories: Mapping[str, History], over: str, field: str, title: str = "", standalone: bool = False
) -> str:
    series = []
    for number_, (name, history) in enumerate(histories.items()):
        rows = history.evaluations
        series.append(Series(name, column(rows, over), column(rows, field), "dots", number_))
    axis = Axis(time=True, text=duration) if over == "seconds" else Axis()
    title = title or f"Held-out {label(field)} over {OVER[over]}"
    return curve_svg(title, series, x=axis, y=Axis(log=None), x_label=OVER[over], standalone=standalone)


def _common(histories: Mapping[str, History]) -> str:
    """The first objective that every run has a loss of, or the whole loss."""
    for term in TERMS:
        if all(np.isfinite(column(history.evaluations, term)).any() for history in histories.values()):
            return term
    return "loss"


# The top of the page


def _title(recipe: str, folder: str) -> tuple[str, str]:
    """Name of the recipe and of the model; the folder's name where there is no recipe."""
    try:
        tree = tomllib.loads(recipe)
    except tomllib.TOMLDecodeError:
        tree = {}
    model = tree.get("model")
    if isinstance(model, dict):
        model = next((model[key] for key in ("preset", "start", "name") if model.get(key)), None)
    words = [str(word) for word in (model, tree.get("note")) if word]
    return str(tree.get("name") or folder), " · ".join([*(words or ["a run of bertree"]), f"folder {folder}"])


def _state(history: History) -> tuple[str, str]:
    if history.end is not None:
        return f"finished at step {history.end['step']:,}", "good"
    steps = [row["step"] for row in (*history.train[-1:], *history.evaluations[-1:])]
    return (f"at step {max(steps):,}, not finished", "wait") if steps else ("no metrics yet", "wait")


def _reached(history: History) -> Iterator[tuple[str, str, str]]:
    """The newest held-out figures, each with its best where that is another."""
    rows = history.evaluations
    shown = [name for name in history.terms if any(name in row for row in rows)] or ["loss"]
    for name in (*shown, "perplexity", *history.scores):
        having = [row for row in rows if name in row]
        if not having:
            continue
        values, newest = column(having, name), having[-1]
        more = f"at step {newest['step']:,}"
        if np.isfinite(values).any():
            best = int((np.nanargmin if smaller_is_better(name) else np.nanargmax)(values))
            if values[best] != values[-1]:
                more = f"best {figure(name, values[best])} at step {having[best]['step']:,}"
        yield f"held-out {label(name)}", figure(name, number(newest[name])), more
    newest = next((row for row in reversed(history.train) if "loss" in row), {})
    loss = number(newest.get("loss"))
    if newest and (not rows or not math.isfinite(loss)):
        yield "training loss", figure("loss", loss), f"at step {newest['step']:,}"


def _spent(history: History, environment: Json) -> Iterator[tuple[str, str, str]]:
    """What the run took: text, time, speed, and what went wrong."""
    tokens, seconds, epochs = (history.last(name) for name in ("tokens", "seconds", "epoch"))
    if math.isfinite(tokens):
        yield "tokens read", quantity(tokens), f"{tokens:,.0f}"
    if math.isfinite(epochs):
        yield "epochs", digits(epochs), ""
    if math.isfinite(seconds):
        waited = history.last("waited")
        more = f"{duration(waited)} of it waiting for data" if math.isfinite(waited) else ""
        yield "training time", duration(seconds), more
    speeds = column(history.train, "tokens_per_s")
    mean = _ratio(tokens, seconds)
    if math.isfinite(mean):
        more = f"best {quantity(float(np.nanmax(speeds)))}" if np.isfinite(speeds).any() else ""
        yield "tokens/s, mean", quantity(mean), more
    used = column(history.train, "mfu")
    if np.isfinite(used).any():
        yield "MFU, mean", percent(float(np.nanmean(used)), 1), f"best {percent(float(np.nanmax(used)), 1)}"
    parameters = number((history.end or {}).get("parameters", environment.get("parameters")))
    if math.isfinite(parameters):
        yield "parameters", quantity(parameters), f"{parameters:,.0f}"
    skipped = history.last("skipped")
    if math.isfinite(skipped):
        yield "skipped steps", f"{skipped:,.0f}", "gradient not finite" if skipped else ""


# Curves


def _charts(history: History) -> list[str]:
    train, rows = history.train, history.evaluations
    steps, measured = column(train, "step"), column(rows, "step")
    timed = sorted((*train, *rows), key=lambda row: row["step"])
    clock = (column(timed, "step"), column(timed, "seconds"))
    span = (0.0, timed[-1]["step"]) if timed else None
    marks, zero = _marks(history), Axis(zero=True)

    def trained(name: str, text: str, style: Style = "line", colour: int | None = None, right: bool = False) -> Series:
        some = np.array([name in row for row in train], dtype=bool)
        return Series(text, steps[some], column(train, name)[some], style, colour, right)

    def held(name: str, text: str, colour: int | None = None) -> Series:
        some = np.array([name in row for row in rows], dtype=bool)
        return Series(text, measured[some], column(rows, name)[some], "dots", colour)

    def chart(title: str, series: Sequence[Series], y: Axis, right: Axis = zero, more: Sequence[Mark] = ()) -> None:
        if any(np.isfinite(curve.y).any() for curve in series):
            made.append(curve_svg(title, series, y=y, right=right, marks=[*marks, *more], span=span, clock=clock))

    made: list[str] = []
    # Held-out text may be asked less than is learned (a student is not asked about its teacher): then the sums differ.
    alike = not rows or all(name in rows[-1] for name in history.terms)
    loss = [trained("loss", "training", "smooth", 0), *([held("loss", "held-out", 1)] if alike else [])]
    chart("Loss", loss, Axis(log=None))
    terms = []
    for place, name in enumerate(history.terms):
        short = label(name).removesuffix(" loss")
        terms += [trained(name, short, "smooth", place), held(name, f"{short}, held-out", place)]
    if len(terms) > 2 or (terms and not np.array_equal(terms[0].y, loss[0].y, equal_nan=True)):
        chart("Terms of the loss", terms, Axis(log=None))
    shares: list[Series] = []
    others: list[Series] = []
    for place, name in enumerate(history.scores):
        score = held(name, label(name), place)
        (shares if np.nanmax(np.abs(score.y), initial=0) <= 1 else others).append(score)
    chart("Held-out " + (shares[0].name if len(shares) == 1 else "scores"), shares, zero)
    for score in others:
        chart(f"Held-out {score.name}", [score], Axis(log=None))
    batch = trained("batch_tokens", "tokens in a batch", right=True, colour=1)
    chart(
        "Learning rate and batch size" if len(batch.x) else "Learning rate",
        [trained("lr", "learning rate"), batch],
        zero,
    )
    share = trained("mfu", "MFU", right=True, colour=1)
    chart("Throughput", [trained("tokens_per_s", "tokens/s"), share], zero, Axis(zero=True, text=percent))
    chart("Norm of the gradient", [trained("norm", "norm", "smooth")], Axis(log=True), more=_skips(history))
    return made


def _marks(history: History) -> list[Mark]:
    """Where the run was resumed and where a phase begins."""
    marks = []
    for event in history.events:
        text = str(event.get("text", ""))
        if text.startswith("resum"):
            marks.append(Mark(event["step"], text, "resumed"))
        elif text.startswith("phase"):
            marks.append(Mark(event["step"], text, text.partition(":")[0]))
    if not any(mark.short.startswith("phase") for mark in marks):
        phases = column(history.train, "phase")
        for at in np.flatnonzero(np.diff(phases) > 0):
            text = f"phase {phases[at + 1] + 1:.0f}"
            marks.append(Mark(history.train[at + 1]["step"], text, text))
    return marks


def _skips(history: History) -> list[Mark]:
    told = ((event["step"], str(event.get("text", ""))) for event in history.events)
    return [Mark(step, f"step {step:,}: {text}", skip=True) for step, text in told if "skipped" in text]


# Below the curves


def _samples(samples: Sequence[Json]) -> Iterator[str]:
    """For each text a table: what the model put in each gap, from evaluation to evaluation."""
    texts: dict[tuple[str, ...], list[Json]] = {}
    for row in samples:
        masks = row.get("masks")
        if isinstance(masks, list) and all(isinstance(mask, dict) for mask in masks):
            texts.setdefault((str(row.get("text", "")), *(str(mask.get("gold")) for mask in masks)), []).append(row)
    for (text, *golds), rows in texts.items():
        kept = rows if len(rows) <= ROWS else [rows[round(i * (len(rows) - 1) / (ROWS - 1))] for i in range(ROWS)]
        head = ["step", *(f"<sup>{place}</sup> {escape(gold)}" for place, gold in enumerate(golds, 1))]
        cells = [[f"{row['step']:,}", *map(_guess, row["masks"])] for row in kept]
        shown = f'<p class="small">{len(kept)} of {len(rows)} evaluations shown</p>' if len(kept) < len(rows) else ""
        yield html.html_table(head, cells, [0], "words", f'<p class="sample">{_filled(text, golds)}</p>') + shown


def _filled(text: str, golds: Sequence[str]) -> str:
    """The text with the right words in its gaps, numbered."""
    parts = MASK.split(text)
    if len(parts) != len(golds) + 1:
        return escape(text)
    words = [f"<b>{escape(gold)}</b><sup>{place}</sup>" for place, gold in enumerate(golds, 1)]
    return escape(parts[0]) + "".join(word + escape(part) for word, part in zip(words, parts[1:], strict=True))


def _guess(mask: Json) -> str:
    right = mask.get("predicted") == mask.get("gold")
    sure = number(mask.get("probability"))
    share = f' <span class="small">{percent(sure)}</span>' if math.isfinite(sure) else ""
    kind, sign = ("good", "✓") if right else ("bad", "✗")
    return f'<span class="{kind}">{sign} {escape(str(mask.get("predicted", "")))}</span>{share}'


def _settings(recipe: str, environment: Json) -> str:
    parts = [html.folded("Recipe, every value", f"<pre>{escape(recipe)}</pre>")] if recipe else []
    if environment:
        rows = [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in environment.items()]
        parts.append(html.folded("Environment", html.table([], rows, kind="facts"), unfolded=True))
    return "".join(parts)


def _events(events: Sequence[Json]) -> str:
    if not events:
        return ""
    rows = [[f"{event['step']:,}", str(event.get("text", ""))] for event in events[-EVENTS:]]
    left = len(events) - len(rows)
    title = f"{len(events):,} event{'s' if len(events) != 1 else ''}" + (
        f", the first {left:,} left out" if left else ""
    )
    return html.folded(title, html.table(["step", ""], rows, [0], "facts"), unfolded=len(rows) <= 20)


def _section(title: str, inside: str) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", inside] if inside else []


def _text(path: Path) -> str:
    return read_text(path) if path.is_file() else ""


def _table(path: Path) -> Json:
    """A table of facts, or nothing: a report does not fail over a file beside it."""
    try:
        return read_json(path)
    except UserError:
        return {}


def _last_and_best(values: np.ndarray) -> tuple[float, float]:
    return (float(values[-1]), float(values.min())) if len(values) else (math.nan, math.nan)


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan


def _or_dash(text: Callable[[float], str], value: float) -> str:
    return text(value) if math.isfinite(value) else "–"
