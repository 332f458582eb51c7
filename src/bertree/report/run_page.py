"""The page of a pretraining or fine-tuning run; of an adaptation also its figures before and after.

It shows every metric of the run: terms of the loss and scores of evaluations have the names they have in the metrics.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from bertree.errors import UserError
from bertree.files.formats import Json, parse_toml, read_json, read_text
from bertree.report.comparison_page import comparison_of_run
from bertree.report.curves import Mark, Series, curve_svg
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
from bertree.report.scales import Axis
from bertree.report.tables import Cell, Lines, PageTable, Piece, Tile, one_line
from bertree.run_folder import ENVIRONMENT, METRICS, RECIPE, SCORES

MASK = re.compile(r"\[MASK\]|<mask>")
ROWS = 15  # of a sample's table
EVENTS = 500
RANKS = 512  # in the table of ranks


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
        tiles=[*_metric_tiles(history, labels), *_cost_tiles(history, environment)],
        comparison=comparison_of_run(out),
        before_after=before_after_table(out),
        charts=_charts(history, labels),
        samples=list(_samples(history.samples)),
        ranks=_rank_table(history.train),
        recipe=recipe,
        environment=PageTable([], facts, kind="facts"),
        events=PageTable(["step", ""], events, numbers=[0], kind="facts"),
        events_title=_events_title(len(history.events), len(events)),
    )


def write_run_report(out: Path) -> None:
    """Write report.html into a run's folder; a failure is only noted."""
    write_report(out, lambda: run_page(out))


def _environment(path: Path) -> Json:
    """Return a table of facts, or nothing: a report does not fail because of another file."""
    try:
        return read_json(path)
    except UserError:
        return {}


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


def _metric_tiles(history: History, labels: Mapping[str, str]) -> Iterator[Tile]:
    """Yield the newest held-out metrics, each with its best value where that differs."""
    rows = history.evaluations
    terms = [name for name in history.terms if any(name in row for row in rows)] or ["loss"]
    for name in (*terms, "perplexity", *history.scores):
        scored = [row for row in rows if name in row]
        if not scored:
            continue
        values, newest = column(scored, name), scored[-1]
        more = f"at step {newest['step']:,}"
        if np.isfinite(values).any():
            best = int((np.nanargmin if smaller_is_better(name) else np.nanargmax)(values))
            if values[best] != values[-1]:
                more = f"best {format_metric(name, values[best])} at step {scored[best]['step']:,}"
        yield f"held-out {label(name, labels)}", format_metric(name, number(newest[name])), more
    newest = next((row for row in reversed(history.train) if "loss" in row), {})
    loss = number(newest.get("loss"))
    if newest and (not rows or not math.isfinite(loss)):
        yield "training loss", format_metric("loss", loss), f"at step {newest['step']:,}"


def _cost_tiles(history: History, environment: Json) -> Iterator[Tile]:
    """Yield the costs of the run: text, time, throughput, and skipped steps."""
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
    mean = tokens / seconds if seconds > 0 else math.nan
    if math.isfinite(mean):
        more = f"best {quantity(float(np.nanmax(speeds)))}" if np.isfinite(speeds).any() else ""
        yield "tokens/s, mean", quantity(mean), more
    mfu = column(history.train, "mfu")
    if np.isfinite(mfu).any():
        yield "MFU, mean", percent(float(np.nanmean(mfu)), 1), f"best {percent(float(np.nanmax(mfu)), 1)}"
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

    def curve(logged: Sequence[Json], name: str, text: str, **look: Any) -> Series:
        lines = [row for row in logged if name in row]
        return Series(name=text, x=column(lines, "step"), y=column(lines, name), **look)

    trained, held_out = partial(curve, train), partial(curve, rows, style="dots")

    def chart(title: str, series: Sequence[Series], y: Axis, right: Axis = zero, more: Sequence[Mark] = ()) -> None:
        if any(np.isfinite(curve.y).any() for curve in series):
            charts.append(curve_svg(title, series, y=y, right=right, marks=[*marks, *more], span=span, clock=clock))

    charts: list[Markup] = []
    # Evaluation may have fewer terms than training (those of a teacher are missing): then the sums differ.
    comparable = not rows or all(name in rows[-1] for name in history.terms)
    loss = [trained("loss", "training", style="smooth", colour=0)]
    loss += [held_out("loss", "held-out", colour=1)] if comparable else []
    chart("Loss", loss, Axis(log=None))
    terms = []
    for colour, name in enumerate(history.terms):
        short = label(name, labels).removesuffix(" loss")
        terms.append(trained(name, short, style="smooth", colour=colour))
        terms.append(held_out(name, f"{short}, held-out", colour=colour))
    if len(terms) > 2 or (terms and not np.array_equal(terms[0].y, loss[0].y, equal_nan=True)):
        chart("Terms of the loss", terms, Axis(log=None))
    shares: list[Series] = []
    unbounded: list[Series] = []
    for colour, name in enumerate(history.scores):
        score = held_out(name, label(name, labels), colour=colour)
        (shares if np.nanmax(np.abs(score.y), initial=0) <= 1 else unbounded).append(score)
    chart("Held-out " + (shares[0].name if len(shares) == 1 else "scores"), shares, zero)
    for score in unbounded:
        chart(f"Held-out {score.name}", [score], Axis(log=None))
    batch = trained("batch_tokens", "tokens in a batch", right=True, colour=1)
    title = "Learning rate and batch size" if len(batch.x) else "Learning rate"
    chart(title, [trained("lr", "learning rate"), batch], zero)
    mfu = trained("mfu", "MFU", right=True, colour=1)
    chart("Throughput", [trained("tokens_per_s", "tokens/s"), mfu], zero, Axis(zero=True, text=percent))
    chart("Gradient norm", [trained("norm", "norm", style="smooth")], Axis(log=True), more=_skips(history))
    return charts


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


def _rank_table(train: Sequence[Json]) -> PageTable:
    """Return a row for each rank: its peak memory and its mean throughput; no rows without ranks."""
    lines = [row["ranks"] for row in train if isinstance(row.get("ranks"), list)]
    ranks = [rank for rank in lines[-1] if isinstance(rank, dict)] if lines else []
    rows = []
    for rank_number, rank in enumerate(ranks[:RANKS]):
        measured = [line[rank_number] for line in lines if rank_number < len(line)]
        speeds = [
            speed
            for entry in measured
            if isinstance(entry, dict) and math.isfinite(speed := number(entry.get("tokens_per_s")))
        ]
        mean = quantity(sum(speeds) / len(speeds)) if speeds else "–"
        memory = number(rank.get("memory"))
        rows.append([str(rank_number), f"{digits(memory / 2**30)} GiB" if math.isfinite(memory) else "–", mean])
    return PageTable(["rank", "peak memory", "tokens/s, mean"], rows, numbers=range(3))


def _samples(samples: Sequence[Json]) -> Iterator[PageTable]:
    """Yield a table for each text: what the model predicted for each mask, from evaluation to evaluation."""
    texts: dict[tuple[str, ...], list[Json]] = {}
    for row in samples:
        masks = row.get("masks")
        if isinstance(masks, list) and all(isinstance(mask, dict) for mask in masks):
            texts.setdefault((str(row.get("text", "")), *(str(mask.get("gold")) for mask in masks)), []).append(row)
    for (text, *golds), rows in texts.items():
        kept = rows if len(rows) <= ROWS else [rows[round(i * (len(rows) - 1) / (ROWS - 1))] for i in range(ROWS)]
        words = [one_line(Piece(str(n), "number"), Piece(f" {gold}")) for n, gold in enumerate(golds, 1)]
        cells: list[list[Cell]] = [[f"{row['step']:,}", *map(_prediction, row["masks"])] for row in kept]
        under = f"{len(kept)} of {len(rows)} evaluations shown" if len(kept) < len(rows) else ""
        yield PageTable(
            head=["step", *words], rows=cells, numbers=[0], kind="words", title=_filled(text, golds), under=under
        )


def _filled(text: str, golds: Sequence[str]) -> Lines:
    """Return the text with its masks filled by the right words, numbered."""
    parts = MASK.split(text)
    if len(parts) != len(golds) + 1:
        return one_line(Piece(text))
    pieces = [Piece(parts[0])]
    for mask_number, (gold, part) in enumerate(zip(golds, parts[1:], strict=True), 1):
        pieces += [Piece(gold, "strong"), Piece(str(mask_number), "number"), Piece(part)]
    return [pieces]


def _prediction(mask: Json) -> Lines:
    right = mask.get("predicted") == mask.get("gold")
    sure = number(mask.get("probability"))
    kind, sign = ("good", "✓") if right else ("bad", "✗")
    share = [Piece(" "), Piece(percent(sure), "small")] if math.isfinite(sure) else []
    return one_line(Piece(f"{sign} {mask.get('predicted', '')}", kind), *share)


def _events_title(count: int, shown: int) -> str:
    title = f"{count:,} event{'s' if count != 1 else ''}"
    return title + (f", the first {count - shown:,} left out" if shown < count else "")


BEFORE_AFTER = ("", "before", "after", "change")


def before_after_rows(metrics: Json) -> list[tuple[str, str, str, str]]:
    """Return name, before, after and change of every figure in the metrics of an adaptation."""
    before, after = metrics.get("before"), metrics.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return []
    rows = [
        (f"held-out {name}", _shown(name, before[name]), _shown(name, after[name]), _change(name, before, after))
        for name in before
        if name in after
    ]
    task = metrics.get("task")
    if isinstance(task, dict) and task.get("difference") is not None:
        uncertainty = task["uncertainty"]
        spread = f" ± {100 * uncertainty:.2f}" if uncertainty is not None else ""
        seeds = len(task["before"]["seeds"])
        title = f"{task['name']} {task['metric']}, seeds {seeds}, examples {task['examples']:,}"
        means = [f"{100 * task[name]['mean']:.2f}" for name in ("before", "after")]
        rows.append((title, means[0], means[1], f"{100 * task['difference']:+.2f}{spread}"))
    return rows


def before_after_table(out: Path) -> PageTable:
    """Return the table of a run's page; no rows if the run is no adaptation."""
    try:
        metrics = read_json(out / SCORES) if (out / SCORES).is_file() else {}
        rows = [list(row) for row in before_after_rows(metrics)]
    except (UserError, KeyError, TypeError, ValueError):  # a report does not fail because of another file
        rows = []
    under = "± is half of the 95 % interval of the mean difference over seeds, each taken with both models"
    return PageTable(
        list(BEFORE_AFTER), rows, numbers=range(1, 4), under=under if any("±" in row[3] for row in rows) else ""
    )


def _shown(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss" else format_metric(name, value)


def _change(name: str, before: Json, after: Json) -> str:
    difference = after[name] - before[name]
    return f"{100 * difference:+.2f}" if name == "accuracy" else f"{difference:+.4g}"
