"""The page of a fine-tuned or evaluated model: scores, seeds, mistakes, and confidence of its answers.

report.html is in the folder of the predictions it is made from and needs no script and no network. Predictions are read
from their files, because a resumed run does not have them in memory; the pages of the seeds are linked. The sections
that depend on the kind of task are in page_kinds.py and page_entities.py.
"""

import gc
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from bertree.files.formats import Json, read_json_lines
from bertree.finetuning import page_entities as entities
from bertree.finetuning import page_kinds as kinds
from bertree.report.comparison_page import comparison_of_run
from bertree.report.curves import Series, curve_svg
from bertree.report.formats import format_interval, format_score, label, percent
from bertree.report.history import History, column, number, read_history
from bertree.report.html import render, write_report
from bertree.report.scales import Axis
from bertree.report.tables import BarRow, BarTable, Block, Cell, PageTable, Piece, Section, Tile, one_line
from bertree.report.temperature import temperature_sections
from bertree.run_folder import METRICS, REPORT
from bertree.tasks.metrics import FEW, few_line
from bertree.tasks.task import Task

MAX_CURVES = 16  # seeds drawn
MAX_COLUMNS = 14  # scores in the table of seeds
MORE_TILES = 2  # scores at the top, in addition to the main one
NOT_SCORES = ("seed", "best_step", "best_seed", "mean", "std", "best", "examples", "cut", "cut_tokens")


def write_page(out: Path, task: Task[Any], metrics: Json, files: Mapping[str, Path]) -> None:
    """Write OUT/report.html; `files` holds the predictions on each split. A page that cannot be written is noted."""
    collecting = gc.isenabled()
    gc.disable()  # it would walk over every prediction again and again while they are read: half of the time
    try:
        write_report(out, lambda: finetuning_page(out, task, metrics, _predictions(files)))
    finally:
        if collecting:
            gc.enable()


def finetuning_page(out: Path, task: Task[Any], metrics: Json, splits: Mapping[str, Sequence[Json]]) -> str:
    """Return the page. `metrics` is the content of metrics.json, as `finetune` or `evaluate` writes it."""
    seeds: list[Json] = metrics.get("seeds") or []
    model, teacher = str(metrics.get("model", "")), metrics.get("distillation", {}).get("teacher_model")
    learned = not seeds or any(not result.get("diverged") for result in seeds)
    return render(
        "finetuning",
        title=f"{task.name} · {out.resolve().name}",
        heading=f"{task.name}: {label(task.metric)} {format_score(task.metric, metrics.get(task.metric))}",
        under=f"{model}, distilled from {teacher}" if teacher else model,
        state=None if learned else ("no seed has learned the task", "bad"),
        tiles=_tiles(task, metrics, splits),
        comparison=comparison_of_run(out),
        sections=[
            *_scores(out, task, metrics, seeds),
            *_curves(out, task, seeds),
            *_solved_head(metrics),
            *temperature_sections(out, metrics.get("distillation", {})),
        ],
        splits=[(name, _split(task, lines, metrics)) for name, lines in splits.items()],
    )


def _predictions(files: Mapping[str, Path]) -> dict[str, list[Json]]:
    return {name: list(read_json_lines(path)) for name, path in files.items() if path.is_file()}


def _tiles(task: Task[Any], metrics: Json, splits: Mapping[str, Sequence[Json]]) -> list[Tile]:
    kind = "one number" if task.regression else f"{len(task.labels)} labels" if task.labels else f"{task.head} head"
    seeds = metrics.get("seeds") or []
    more = f"; seed {metrics['best_seed']}" if "best_seed" in metrics else ""
    more = _under(task.metric, metrics) + more
    tiles = [("task", task.name, kind), (label(task.metric), format_score(task.metric, metrics.get(task.metric)), more)]
    if len(seeds) > 1 and metrics.get("mean") is not None:
        spread = f" ± {100 * metrics['std']:.2f}" if metrics.get("std") is not None else ""
        learned = sum(not result.get("diverged") for result in seeds)
        left = f", {len(seeds) - learned} left out" if learned < len(seeds) else ""
        of = f"of {learned} seed{'s' if learned != 1 else ''}{left}"
        tiles.append(("mean ± deviation", format_score(task.metric, metrics["mean"]) + spread, of))
        if metrics.get("median") is not None:  # metrics of earlier versions have none
            tiles.append(("median", format_score(task.metric, metrics["median"]), of))
    distillation = metrics.get("distillation")
    if distillation and distillation["kept"] is not None:
        score = format_score(task.metric, distillation["teacher"].get(task.metric))
        kept = percent(distillation["kept"], 1)
        tiles.append(("kept of the teacher", kept, f"whose {label(task.metric)} is {score}"))
    more_scores = [key for key in _score_names([metrics]) if key != task.metric and not key.endswith("threshold")]
    tiles += [(label(key), format_score(key, metrics[key]), _under(key, metrics)) for key in more_scores[:MORE_TILES]]
    for name, lines in splits.items():
        gold, overlap = sum("gold" in line for line in lines), (metrics.get("overlap") or {}).get(name, 0)
        more = "" if gold == len(lines) else f"{gold:,} of them with a gold answer; "
        more += f"{overlap:,} are trained on too; " if overlap else ""
        more += f"few: {few_line('', len(lines)).partition(', so ')[2]}" if gold and len(lines) < FEW else ""
        tiles.append((f"examples, {name}", f"{len(lines):,}", more.removesuffix("; ")))
    if head := metrics.get("head"):
        how = "chosen by cross-validation" if head["trials"] else "set"
        value, how = (head["kind"], "no penalty") if head["C"] is None else (f"C = {head['C']:.3g}", how)
        tiles.append(("head, solved", value, f"{how}; {head['width']:,} numbers a text"))
    counts = metrics.get("examples")
    if isinstance(counts, dict) and "train" in counts:
        tiles.append(("examples, train", f"{counts['train']:,}", ""))
    return [*tiles, _truncated(metrics)]


def _under(key: str, metrics: Json) -> str:
    """Return what is written under a score: its interval, if it is known."""
    interval = format_interval(key, (metrics.get("intervals") or {}).get(key))
    return f"95 %: {interval}" if interval else "times 100"


def _truncated(metrics: Json) -> Tile:
    """Return how many texts were truncated, in the split where most were."""
    cut = metrics.get("cut") or {}
    if not isinstance(cut, dict):
        cut = {"": {"examples": cut, "tokens": metrics.get("cut_tokens", 0)}}
    if not cut:
        return "truncated", "nothing", "every text fits"
    name = max(cut, key=lambda name: cut[name]["examples"])
    where = f" of {name}" if name else ""
    return "truncated", f"{cut[name]['examples']:,}", f"examples{where} lose {cut[name]['tokens']:,} tokens"


def _score_names(results: Sequence[Json]) -> list[str]:
    names = dict.fromkeys(key for result in results for key, value in result.items() if isinstance(value, float))
    return [key for key in names if key not in NOT_SCORES]


def _scores(out: Path, task: Task[Any], metrics: Json, seeds: Sequence[Json]) -> list[Section]:
    """Return every score of every seed, the best seed marked, with links to the pages of their training."""
    results = seeds or [metrics]
    keys = sorted(_score_names(results), key=lambda key: key != task.metric)[:MAX_COLUMNS]
    if len(keys) <= 1 + MORE_TILES and not seeds:
        return []  # they stand at the top
    rows: list[list[Cell]] = []
    for result in results:
        cells: list[Cell] = [format_score(key, result.get(key)) for key in keys]
        if seeds:
            best = len(seeds) > 1 and result.get("seed") == metrics.get("best_seed")
            cells = [one_line(Piece(str(cell), "strong")) if best else cell for cell in cells]
            step = f"{result['best_step']:,}" if isinstance(result.get("best_step"), int) else "–"
            cells = [_link(out, result.get("seed")), *cells, step, _remark(result, best)]
        rows.append(cells)
    names = [label(key) for key in keys]
    head = ["seed", *names, "best step", ""] if seeds else names
    numbers = range(1, len(keys) + 2) if seeds else range(len(keys))
    title = "Seeds" if len(seeds) > 1 else "Scores"
    return [Section(f"{title}, times 100", blocks=[PageTable(head, rows, numbers=numbers, kind="seeds")])]


def _link(out: Path, seed: object) -> Cell:
    page = f"seed-{seed}/{REPORT}"
    return one_line(Piece(f"{seed}: training", link=quote(page))) if (out / page).is_file() else str(seed)


def _remark(result: Json, best: bool) -> Cell:
    if why := result.get("diverged"):
        return one_line(Piece(f"learned nothing: {why}", "bad"))
    return one_line(Piece("the best, kept", "good")) if best else ""


def _curves(out: Path, task: Task[Any], seeds: Sequence[Json]) -> list[Section]:
    """Return the dev metric and the loss of every seed over the steps."""
    histories: dict[str, History] = {}
    for result in seeds[:MAX_CURVES]:
        path = out / f"seed-{result.get('seed')}" / METRICS
        if path.is_file():
            histories[f"seed {result.get('seed')}"] = read_history(path)
    metric, loss = [], []
    for index, (name, history) in enumerate(histories.items()):
        rows = [row for row in history.evaluations if math.isfinite(number(row.get(task.metric)))]
        metric.append(
            Series(name=name, x=column(rows, "step"), y=100 * column(rows, task.metric), style="dots", colour=index)
        )
        rows = [row for row in history.train if "loss" in row]
        loss.append(Series(name=name, x=column(rows, "step"), y=column(rows, "loss"), style="smooth", colour=index))
    if not any(len(series.x) > 1 for series in metric):  # one evaluation is no curve
        return []
    span = (0.0, float(np.concatenate([series.x for series in (*metric, *loss)]).max()))
    charts: list[Block] = [curve_svg(f"{label(task.metric)} on the dev split, times 100", metric, span=span)]
    if any(np.isfinite(series.y).any() for series in loss):
        charts.append(curve_svg("Training loss", loss, y=Axis(log=None), span=span))
    left = [f"the first {MAX_CURVES} of {len(seeds)} seeds drawn"] if len(seeds) > MAX_CURVES else []
    return [Section("Learning", charts, left)]


def _solved_head(metrics: Json) -> list[Section]:
    """Return how the head was solved: each strength that was tried, with its loss on held-out training examples."""
    head = metrics.get("head")
    if not head:
        return []
    seconds = f"{head['encoding_s']:.1f} s to encode the texts, {head['solving_s']:.1f} s to solve"
    text = f"{head['kind']} on {head['examples']:,} vectors of {head['width']:,} numbers; {seconds}."
    rows: list[list[Cell]] = [
        [one_line(Piece(f"{c:.3g}, chosen", "good")) if c == head["C"] else f"{c:.3g}", f"{loss:.4f}"]
        for c, loss in head["trials"]
    ]
    folds = f"{head['folds']} folds" if head["folds"] > 1 else "a fifth"
    table = PageTable(["C", f"loss on {folds} of the training examples"], rows, numbers=range(1, 2))
    return [Section("The head", blocks=[text, *([table] if rows else [])])]


def _split(task: Task[Any], lines: Sequence[Json], metrics: Json) -> list[Section]:
    """Return the part of the page that depends on the kind of task."""
    labeled = [line for line in lines if line.get("gold") is not None]
    if not labeled:
        return _without_gold(lines)
    if task.head == "vector":
        return kinds.vectors(labeled, task.labels)
    if task.head == "sequence":
        return kinds.regression(labeled) if task.regression else kinds.classes(labeled, task.labels)
    if task.head == "token":
        has_entities = all("entities" in line for line in labeled)
        return entities.entities_sections(labeled) if has_entities else kinds.tags(labeled, task.labels)
    return kinds.choices(labeled, metrics) if task.head == "choice" else kinds.spans(labeled)


def _without_gold(lines: Sequence[Json]) -> list[Section]:
    """Return how often each answer was predicted, where that can be counted."""
    if not lines:
        return [Section("", blocks=["There are no predictions."])]
    counts = Counter(line["predicted"] for line in lines if isinstance(line.get("predicted"), str))
    cards = []
    if counts and len(counts) <= kinds.LABELS:
        total = counts.total()
        rows = [BarRow(name, [n / total], [f"{n:,}", percent(n / total, 1)]) for name, n in counts.most_common()]
        cards = [BarTable("What was predicted", rows)]
    text = "These examples have no gold answers, so nothing can be said about mistakes."
    return [Section("", blocks=[text]), Section("", cards)]
