"""What came out of a task as a page to look at: scores, seeds, where the model errs and how sure it is.

`report.html` lies beside the predictions it is made from and needs nothing else: no script, no network. It reads them
back from their files, because a run that was resumed has no others; the pages of the seeds are linked, not repeated.
"""

import gc
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from bertree.errors import UserError
from bertree.files import Json
from bertree.finetuning.page import entities, kinds
from bertree.report import comparison_page, html
from bertree.report.formats import label, percent
from bertree.report.history import History, column, number, read
from bertree.report.scales import Axis
from bertree.report.svg import Series, curve_svg
from bertree.report.tables import STYLE, Bar, bars, safe
from bertree.run_folder import METRICS, REPORT
from bertree.tasks.task import Task

CURVES = 16  # seeds drawn
SCORES = 14  # columns of the table of seeds
OTHERS = 2  # scores at the top, beside the one that counts
COUNTS = ("seed", "best_step", "best_seed", "mean", "std", "best", "examples", "cut", "cut_tokens")


def write(out: Path, task: Task[Any], found: Json, files: Mapping[str, Path], note: Callable[[str], None]) -> None:
    """Make OUT/report.html, if it can be: a run does not end for want of it.

    `found` is what metrics.json holds, of `finetune` or of `evaluate`; `files` has the predictions on each split.
    """
    collecting = gc.isenabled()
    gc.disable()  # it would walk over every prediction again and again while they are read: half of the time
    try:
        splits = {name: _lines(path) for name, path in files.items() if path.is_file()}
        html.place(out / REPORT, render(out, task, found, splits))
    except (UserError, OSError) as error:
        note(str(error))
    finally:
        if collecting:
            gc.enable()


def render(out: Path, task: Task[Any], found: Json, splits: Mapping[str, Sequence[Json]]) -> str:
    """The whole page."""
    seeds: list[Json] = found.get("seeds") or []
    model, taught = str(found.get("model", "")), found.get("distillation", {}).get("teacher_model")
    model += f", taught by {taught}" if taught else ""
    learned = not seeds or any(not result.get("diverged") for result in seeds)
    state = ("", "good") if learned else ("no seed has learned the task", "bad")
    body = [
        html.heading(f"{task.name}: {label(task.metric)} {score(task.metric, found.get(task.metric))}", model, *state),
        html.tiles(_tiles(task, found, splits)),
        *comparison_page.of_folder(out),
        *_scores(out, task, found, seeds),
        *_curves(out, task, seeds),
    ]
    for name, lines in splits.items():
        body += [f'<h1 style="margin-top:34px">{safe(name)}</h1>'] if len(splits) > 1 else []
        body += _split(task, lines, found)
    text = html.document(f"{task.name} · {out.resolve().name}", body, STYLE, script="")
    return text.encode("utf-8", "replace").decode("utf-8")  # a path need not be Unicode


def score(key: str, value: Any) -> str:
    """A score times 100, as on the terminal; a threshold as it is."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if key.endswith("threshold") else f"{100 * value:.2f}"


def _lines(path: Path) -> list[Json]:
    try:
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except ValueError as error:
        raise UserError(f"{path}: is not valid JSONL ({error})") from None


def _tiles(task: Task[Any], found: Json, splits: Mapping[str, Sequence[Json]]) -> list[tuple[str, str, str]]:
    kind = "one number" if task.regression else f"{len(task.labels)} labels" if task.labels else f"{task.head} head"
    seeds = found.get("seeds") or []
    more = f"times 100; seed {found['best_seed']}" if "best_seed" in found else "times 100"
    made = [("task", task.name, kind), (label(task.metric), score(task.metric, found.get(task.metric)), more)]
    if len(seeds) > 1 and found.get("mean") is not None:
        spread = f" ± {100 * found['std']:.2f}" if found.get("std") is not None else ""
        learned = sum(not result.get("diverged") for result in seeds)
        left = f", {len(seeds) - learned} left out" if learned < len(seeds) else ""
        of = f"of {learned} seed{'s' if learned != 1 else ''}{left}"
        made.append(("mean ± deviation", score("", found["mean"]) + spread, of))
    told = found.get("distillation")
    if told and told["kept"] is not None:
        its = score(task.metric, told["teacher"].get(task.metric))
        made.append(("kept of the teacher", percent(told["kept"], 1), f"whose {label(task.metric)} is {its}"))
    others = [key for key in _keys([found]) if key != task.metric and not key.endswith("threshold")]
    made += [(label(key), score(key, found[key]), "times 100") for key in others[:OTHERS]]
    for name, lines in splits.items():
        made.append((f"examples, {name}", f"{len(lines):,}", _right(lines)))
    counts = found.get("examples")
    if isinstance(counts, dict) and "train" in counts:
        made.append(("examples, train", f"{counts['train']:,}", ""))
    return [*made, _cut(found)]


def _right(lines: Sequence[Json]) -> str:
    known = [line for line in lines if "gold" in line]
    return "" if len(known) == len(lines) else f"{len(known):,} of them with a gold answer"


def _cut(found: Json) -> tuple[str, str, str]:
    """What did not fit, in the split where most did not."""
    cut = found.get("cut") or {}
    if not isinstance(cut, dict):
        cut = {"": {"examples": cut, "tokens": found.get("cut_tokens", 0)}}
    if not cut:
        return "cut", "nothing", "every text fits"
    name = max(cut, key=lambda name: cut[name]["examples"])
    where = f" of {name}" if name else ""
    return "cut", f"{cut[name]['examples']:,}", f"examples{where} lose {cut[name]['tokens']:,} tokens"


def _keys(results: Sequence[Json]) -> list[str]:
    """Names of the scores in results."""
    names = dict.fromkeys(key for result in results for key, value in result.items() if isinstance(value, float))
    return [key for key in names if key not in COUNTS]


def _scores(out: Path, task: Task[Any], found: Json, seeds: Sequence[Json]) -> list[str]:
    """Every score of every seed, the best one marked; the pages of their training."""
    rows, results = [], seeds or [found]
    keys = sorted(_keys(results), key=lambda key: key != task.metric)[:SCORES]
    if len(keys) <= 1 + OTHERS and not seeds:
        return []  # they stand at the top
    for result in results:
        cells = [score(key, result.get(key)) for key in keys]
        if seeds:
            best = len(seeds) > 1 and result.get("seed") == found.get("best_seed")
            cells = [f"<b>{cell}</b>" if best else cell for cell in cells]
            step = f"{result['best_step']:,}" if isinstance(result.get("best_step"), int) else "–"
            cells = [_link(out, result.get("seed")), *cells, step, _why(result, best)]
        rows.append(cells)
    head = [safe(label(key)) for key in keys]
    head = ["seed", *head, "best step", ""] if seeds else head
    numbers = range(1, len(keys) + 2) if seeds else range(len(keys))
    title = "Seeds" if len(seeds) > 1 else "Scores"
    return [f"<h2>{title}, times 100</h2>", html.html_table(head, rows, numbers, "seeds")]


def _link(out: Path, seed: Any) -> str:
    place = f"seed-{seed}/{REPORT}"
    return f'<a href="{safe(quote(place))}">{safe(seed)}: its training</a>' if (out / place).is_file() else safe(seed)


def _why(result: Json, best: bool) -> str:
    if why := result.get("diverged"):
        return f'<span class="bad">diverged: {safe(why)}</span>'
    return '<span class="good">the best, kept</span>' if best else ""


def _curves(out: Path, task: Task[Any], seeds: Sequence[Json]) -> list[str]:
    """The dev metric and the loss of every seed over the steps."""
    histories: dict[str, History] = {}
    for result in seeds[:CURVES]:
        path = out / f"seed-{result.get('seed')}" / METRICS
        if path.is_file():
            histories[f"seed {result.get('seed')}"] = read(path)
    held, loss = [], []
    for place, (name, history) in enumerate(histories.items()):
        rows = [row for row in history.evaluations if math.isfinite(number(row.get(task.metric)))]
        held.append(Series(name, column(rows, "step"), 100 * column(rows, task.metric), "dots", place))
        some = [row for row in history.train if "loss" in row]
        loss.append(Series(name, column(some, "step"), column(some, "loss"), "smooth", place))
    drawn = []
    if any(len(series.x) > 1 for series in held):  # one evaluation is no curve
        steps = np.concatenate([series.x for series in (*held, *loss)])
        span = (0.0, float(steps.max()))
        drawn.append(curve_svg(f"{label(task.metric)} on the dev split, times 100", held, span=span))
        if any(np.isfinite(series.y).any() for series in loss):
            drawn.append(curve_svg("Training loss", loss, y=Axis(log=None), span=span))
    left = f'<p class="small">the first {CURVES} of {len(seeds)} seeds drawn</p>' if len(seeds) > CURVES else ""
    return ["<h2>Learning</h2>", html.cards(drawn), left] if drawn else []


def _split(task: Task[Any], lines: Sequence[Json], found: Json) -> list[str]:
    """The part of the page that depends on what is asked."""
    known = [line for line in lines if line.get("gold") is not None]
    if not known:
        return _unjudged(lines)
    if task.head == "vector":
        return kinds.vectors(known, task.labels)
    if task.head == "sequence":
        return kinds.regression(known) if task.regression else kinds.classes(known, task.labels)
    if task.head == "token":
        of_entities = all("entities" in line for line in known)
        return entities.parts(known) if of_entities else kinds.tags(known, task.labels)
    return kinds.spans(known) if task.head == "span" else kinds.choices(known, found)


def _unjudged(lines: Sequence[Json]) -> list[str]:
    """Without gold answers: what was said, where that can be counted."""
    parts = ['<p class="sub">These examples have no gold answers, so nothing can be said about mistakes.</p>']
    said = Counter(line["predicted"] for line in lines if isinstance(line.get("predicted"), str))
    if said and len(said) <= kinds.LABELS:
        total = said.total()
        rows = [Bar(name, [n / total], [f"{n:,}", percent(n / total, 1)]) for name, n in said.most_common()]
        parts.append(html.cards([bars("What was predicted", rows)]))
    return parts if lines else ['<p class="sub">There are no predictions.</p>']
