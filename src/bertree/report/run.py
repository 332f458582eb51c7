"""The page of a pretraining or fine-tuning run, and one of several runs side by side.

Both show what the metrics hold: terms of the loss and scores of evaluations go by the names they have there.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from bertree.errors import UserError
from bertree.files.formats import Json, parse_toml, read_json, read_text
from bertree.objectives.pretraining import TERMS
from bertree.report.comparison_page import comparison_of_run
from bertree.report.formats import (
    digits,
    duration,
    format_metric,
    label,
    percent,
    quantity,
    run_labels,
    smaller_is_better,
)
from bertree.report.history import History, column, number, read_history
from bertree.report.html import render, write_report
from bertree.report.ranks import rank_table
from bertree.report.scales import Axis
from bertree.report.svg.curves import Mark, Series, Style, curve_svg
from bertree.report.tables import Cell, Lines, PageTable, Piece, Tile, one_line
from bertree.run_folder import ENVIRONMENT, METRICS, RECIPE

MASK = re.compile(r"\[MASK\]|<mask>")
ROWS = 15  # of a sample's table
EVENTS = 500
OVER = {"step": "step", "tokens": "tokens read", "seconds": "training time"}


def run_page(out: Path) -> str:
    """Return the page of the run in a folder."""
    history = read_history(out / METRICS)
    recipe = read_text(out / RECIPE) if (out / RECIPE).is_file() else ""
    environment, labels = _environment(out / ENVIRONMENT), run_labels(recipe)
    title, under = _title(recipe, out.resolve().name)
    facts = [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in environment.items()]
    events = [[f"{event['step']:,}", str(event.get("text", ""))] for event in history.events[-EVENTS:]]
    return render(
        "run",
        title=title,
        under=under,
        state=_state(history),
        tiles=[*_reached(history, labels), *_spent(history, environment)],
        comparison=comparison_of_run(out),
        charts=_charts(history, labels),
        samples=list(_samples(history.samples)),
        ranks=rank_table(history.train),
        recipe=recipe,
        environment=PageTable([], facts, kind="facts"),
        events=PageTable(["step", ""], events, [0], "facts"),
        events_title=_events_title(len(history.events), len(events)),
    )


def write_run_report(out: Path) -> None:
    """Write report.html into a run's folder; a failure is only noted."""
    write_report(out, lambda: run_page(out))


def runs_page(runs: Mapping[str, Path], field: str | None = None) -> str:
    """Return a page that shows the held-out loss of runs (name: folder) by time and by tokens.

    `field` says which loss; the default is the first objective that every run has, else the sum of all terms.
    """
    histories = {name: read_history(folder / METRICS) for name, folder in runs.items()}
    field = field or _common_loss(histories)
    rows = []
    for name, history in histories.items():
        values = column(history.evaluations, field)
        values = values[np.isfinite(values)]
        last, best = (float(values[-1]), float(values.min())) if len(values) else (math.nan, math.nan)
        tokens, seconds = history.last("tokens"), history.last("seconds")
        rows.append(
            [
                name,
                *("–" if math.isnan(value) else format_metric(field, value) for value in (last, best)),
                *(_or_dash(quantity, tokens), _or_dash(duration, seconds), _or_dash(quantity, _ratio(tokens, seconds))),
            ]
        )
    named = _common_label(runs, field)
    head = ["run", f"held-out {named}", "best", "tokens read", "training time", "tokens/s"]
    return render(
        "runs",
        title=f"Held-out {named} of {len(runs)} runs",
        charts=[
            _held_out(histories, over, field, f"Held-out {named} over {OVER[over]}") for over in ("seconds", "tokens")
        ],
        table=PageTable(head, rows, range(1, 6)),
    )


def held_out_svg(runs: Mapping[str, Path], over: str = "tokens", field: str | None = None, title: str = "") -> str:
    """Return the held-out loss of runs over "tokens", "seconds" or "step" as a picture that stands alone."""
    histories = {name: read_history(folder / METRICS) for name, folder in runs.items()}
    field = field or _common_loss(histories)
    title = title or f"Held-out {_common_label(runs, field)} over {OVER[over]}"
    return _held_out(histories, over, field, title, standalone=True) + "\n"


def _held_out(histories: Mapping[str, History], over: str, field: str, title: str, standalone: bool = False) -> Markup:
    series = []
    for place, (name, history) in enumerate(histories.items()):
        rows = history.evaluations
        series.append(Series(name, column(rows, over), column(rows, field), "dots", place))
    axis = Axis(time=True, text=duration) if over == "seconds" else Axis()
    return curve_svg(title, series, x=axis, y=Axis(log=None), x_label=OVER[over], standalone=standalone)


def _common_loss(histories: Mapping[str, History]) -> str:
    """Return the first objective that every run has a loss of, else the sum of all terms."""
    for term in TERMS:
        if all(np.isfinite(column(history.evaluations, term)).any() for history in histories.values()):
            return term
    return "loss"


def _common_label(runs: Mapping[str, Path], field: str) -> str:
    """Return the name of a metric of several runs: each name that it has in one of them."""
    recipes = [read_text(out / RECIPE) if (out / RECIPE).is_file() else "" for out in runs.values()]
    return " or ".join(dict.fromkeys(label(field, run_labels(recipe)) for recipe in recipes)) or label(field)


def _environment(path: Path) -> Json:
    """Return a table of facts, or nothing: a report does not fail over a file beside it."""
    try:
        return read_json(path)
    except UserError:
        return {}


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.nan


def _or_dash(text: Callable[[float], str], value: float) -> str:
    return text(value) if math.isfinite(value) else "–"


# The top of the page


def _title(recipe: str, folder: str) -> tuple[str, str]:
    """Return the name of the recipe and of the model; the folder's name where there is no recipe."""
    try:
        tree = parse_toml(recipe, RECIPE)
    except UserError:
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


def _reached(history: History, labels: Mapping[str, str]) -> Iterator[Tile]:
    """Yield the newest held-out metrics, each with its best value where that is another."""
    rows = history.evaluations
    terms = [name for name in history.terms if any(name in row for row in rows)] or ["loss"]
    for name in (*terms, "perplexity", *history.scores):
        having = [row for row in rows if name in row]
        if not having:
            continue
        values, newest = column(having, name), having[-1]
        more = f"at step {newest['step']:,}"
        if np.isfinite(values).any():
            best = int((np.nanargmin if smaller_is_better(name) else np.nanargmax)(values))
            if values[best] != values[-1]:
                more = f"best {format_metric(name, values[best])} at step {having[best]['step']:,}"
        yield f"held-out {label(name, labels)}", format_metric(name, number(newest[name])), more
    newest = next((row for row in reversed(history.train) if "loss" in row), {})
    loss = number(newest.get("loss"))
    if newest and (not rows or not math.isfinite(loss)):
        yield "training loss", format_metric("loss", loss), f"at step {newest['step']:,}"


def _spent(history: History, environment: Json) -> Iterator[Tile]:
    """Yield what the run took: text, time, throughput, and what went wrong."""
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


def _charts(history: History, labels: Mapping[str, str]) -> list[Markup]:
    train, rows = history.train, history.evaluations
    timed = sorted((*train, *rows), key=lambda row: row["step"])
    clock = (column(timed, "step"), column(timed, "seconds"))
    span = (0.0, timed[-1]["step"]) if timed else None
    marks, zero = _marks(history), Axis(zero=True)

    def trained(name: str, text: str, style: Style = "line", colour: int | None = None, right: bool = False) -> Series:
        some = [row for row in train if name in row]
        return Series(text, column(some, "step"), column(some, name), style, colour, right)

    def held_out(name: str, text: str, colour: int | None = None) -> Series:
        some = [row for row in rows if name in row]
        return Series(text, column(some, "step"), column(some, name), "dots", colour)

    def chart(title: str, series: Sequence[Series], y: Axis, right: Axis = zero, more: Sequence[Mark] = ()) -> None:
        if any(np.isfinite(curve.y).any() for curve in series):
            made.append(curve_svg(title, series, y=y, right=right, marks=[*marks, *more], span=span, clock=clock))

    made: list[Markup] = []
    # Evaluation may have fewer terms than training (those of a teacher are missing): then the sums differ.
    comparable = not rows or all(name in rows[-1] for name in history.terms)
    loss = [trained("loss", "training", "smooth", 0), *([held_out("loss", "held-out", 1)] if comparable else [])]
    chart("Loss", loss, Axis(log=None))
    terms = []
    for place, name in enumerate(history.terms):
        short = label(name, labels).removesuffix(" loss")
        terms += [trained(name, short, "smooth", place), held_out(name, f"{short}, held-out", place)]
    if len(terms) > 2 or (terms and not np.array_equal(terms[0].y, loss[0].y, equal_nan=True)):
        chart("Terms of the loss", terms, Axis(log=None))
    shares: list[Series] = []
    others: list[Series] = []
    for place, name in enumerate(history.scores):
        score = held_out(name, label(name, labels), place)
        (shares if np.nanmax(np.abs(score.y), initial=0) <= 1 else others).append(score)
    chart("Held-out " + (shares[0].name if len(shares) == 1 else "scores"), shares, zero)
    for score in others:
        chart(f"Held-out {score.name}", [score], Axis(log=None))
    batch = trained("batch_tokens", "tokens in a batch", right=True, colour=1)
    title = "Learning rate and batch size" if len(batch.x) else "Learning rate"
    chart(title, [trained("lr", "learning rate"), batch], zero)
    mfu = trained("mfu", "MFU", right=True, colour=1)
    chart("Throughput", [trained("tokens_per_s", "tokens/s"), mfu], zero, Axis(zero=True, text=percent))
    chart("Gradient norm", [trained("norm", "norm", "smooth")], Axis(log=True), more=_skips(history))
    return made


def _marks(history: History) -> list[Mark]:
    """Return where the run was resumed and where a phase begins."""
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
    events = ((event["step"], str(event.get("text", ""))) for event in history.events)
    return [Mark(step, f"step {step:,}: {text}", skip=True) for step, text in events if "skipped" in text]


# Below the curves


def _samples(samples: Sequence[Json]) -> Iterator[PageTable]:
    """Yield a table for each text: what the model predicted for each mask, from evaluation to evaluation."""
    texts: dict[tuple[str, ...], list[Json]] = {}
    for row in samples:
        masks = row.get("masks")
        if isinstance(masks, list) and all(isinstance(mask, dict) for mask in masks):
            texts.setdefault((str(row.get("text", "")), *(str(mask.get("gold")) for mask in masks)), []).append(row)
    for (text, *golds), rows in texts.items():
        kept = rows if len(rows) <= ROWS else [rows[round(i * (len(rows) - 1) / (ROWS - 1))] for i in range(ROWS)]
        words = [one_line(Piece(str(place), "number"), Piece(f" {gold}")) for place, gold in enumerate(golds, 1)]
        cells: list[list[Cell]] = [[f"{row['step']:,}", *map(_guess, row["masks"])] for row in kept]
        under = f"{len(kept)} of {len(rows)} evaluations shown" if len(kept) < len(rows) else ""
        yield PageTable(["step", *words], cells, [0], "words", _filled(text, golds), under)


def _filled(text: str, golds: Sequence[str]) -> Lines:
    """Return the text with its masks filled by the right words, numbered."""
    parts = MASK.split(text)
    if len(parts) != len(golds) + 1:
        return one_line(Piece(text))
    pieces = [Piece(parts[0])]
    for place, (gold, part) in enumerate(zip(golds, parts[1:], strict=True), 1):
        pieces += [Piece(gold, "strong"), Piece(str(place), "number"), Piece(part)]
    return [pieces]


def _guess(mask: Json) -> Lines:
    right = mask.get("predicted") == mask.get("gold")
    sure = number(mask.get("probability"))
    kind, sign = ("good", "✓") if right else ("bad", "✗")
    share = [Piece(" "), Piece(percent(sure), "small")] if math.isfinite(sure) else []
    return one_line(Piece(f"{sign} {mask.get('predicted', '')}", kind), *share)


def _events_title(count: int, shown: int) -> str:
    title = f"{count:,} event{'s' if count != 1 else ''}"
    return title + (f", the first {count - shown:,} left out" if shown < count else "")
