"""The report of a run: whole, well-formed, honest about what was measured, and safe to open."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from bertree.errors import UserError
from bertree.report.curves import Mark, Series, curve_svg
from bertree.report.formats import digits, duration, format_metric, format_score, quantity, run_labels
from bertree.report.history import read_history
from bertree.report.run_page import run_page, write_run_report
from bertree.report.scales import Axis, scale, smooth, thin
from bertree.report.svg import standalone_picture
from bertree.run_folder import RECIPE
from tests.support.browser import Tab, chromium
from tests.support.pages import Page

NASTY = """</style><script>alert("x")</script> & 'quoted' """


def train(step: int, **more: Any) -> dict[str, Any]:
    row = {"kind": "train", "step": step, "loss": 8 / step, "mlm": 7 / step, "nsp": 1 / step, "lr": 1e-4, "norm": 1.3}
    row |= {"tokens": 8192 * step, "tokens_per_s": 20111.0, "seconds": 0.4 * step, "waited": 0.01, "epoch": 0.02}
    return row | {"skipped": 0, "phase": 0, "mfu": 0.48, "batch_tokens": 8192} | more


def evaluation(step: int, **more: Any) -> dict[str, Any]:
    row = {"kind": "eval", "step": step, "seconds": 0.4 * step, "tokens": 8192 * step, "loss": 5.7, "mlm": 5.1}
    return row | {"perplexity": 164.0, "accuracy": 0.21, "nsp": 0.6, "nsp_accuracy": 0.63} | more


def sample(step: int, text: str, *words: str) -> dict[str, Any]:
    masks = [{"gold": word, "predicted": word if step > 15 else "house", "probability": 0.5} for word in words]
    return {"kind": "sample", "step": step, "text": text, "masks": masks}


def write(folder: Path, lines: Iterable[dict[str, Any]], end: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end, encoding="utf-8")
    return folder


def test_a_whole_run(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    for step in range(10, 60, 10):
        texts = sample(step, f"the [MASK] of {NASTY} and a [MASK] .", "ship", "<b>"), sample(step, "no gap", "x")
        lines += [train(step), evaluation(step, accuracy=step / 100), *texts]
    lines += [
        {"kind": "event", "step": 20, "text": "step skipped: gradient not finite"},
        {"kind": "event", "step": 30, "text": f"resumed from step 20 {NASTY}"},
        {"kind": "event", "step": 40, "text": "phase 2: length 512"},
        {"kind": "end", "step": 50, "seconds": 20.0, "tokens": 409600, "parameters": 4385920},
    ]
    folder = write(tmp_path / "run", lines)
    (folder / "recipe.toml").write_text(f'name = "tiny"\n# {NASTY}\n[model]\npreset = "bert-tiny"\n')
    (folder / "environment.json").write_text(json.dumps({"torch": "2.11", "command": NASTY, "threads": 2}))
    write_run_report(folder)
    assert sorted(file.name for file in folder.iterdir()) == [
        *("environment.json", "metrics.jsonl", "recipe.toml", "report.html")
    ]
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert page.seen.count("script") == 1
    assert page.text.count('<script>alert("x")') == 10, "sample, recipe, environment, event, a mark a chart"
    assert page.titles() == [
        *("Loss", "Terms of the loss", "Held-out scores"),
        *("Learning rate and batch size", "Throughput", "Gradient norm"),
    ]
    for part in (
        *("tiny", "bert-tiny", "finished at step 50", "5.100", "164", "50.0 %", "63.0 %", "410k", "4.39M", "48.0 %"),
    ):
        assert part in page.text, part
    assert page.seen.count("table") == 4, "two samples, environment, events"
    assert page.source.count('<span class="good">✓ ship') == 4
    assert page.source.count('<span class="bad">✗ house') == 3
    assert "<b>ship</b>" in page.source
    assert "<b>&lt;b&gt;</b>" in page.source
    marks = page.svgs[0].findall(".//{*}text[@class='word']")
    assert [mark.text for mark in marks] == ["resumed", "phase 2"]
    assert len(page.svgs[5].findall(".//{*}g[@class='bad']")) == 1


@pytest.mark.parametrize(
    ("lines", "charts"),
    [
        ([], 0),
        ([train(1)], 5),
        ([train(1, loss=math.nan, mlm=None, nsp=math.inf, norm=0.0)], 3),
        ([evaluation(1, loss=None, mlm=math.nan)], 1),
        ([{"kind": "train", "step": 1}, {"kind": "new", "step": 2}, {"kind": "sample", "step": 1, "masks": [1]}], 0),
        ([{"kind": "train", "step": 1, "loss": "bad", "extra": {"a": 1}, "note": "<"}, evaluation(2, f1=88.5)], 4),
        ([{"kind": "train", "step": step, "loss": 1.0, "distill": 0.5} for step in (1, 2)], 2),
    ],
)
def test_little_and_odd_data(lines: list[dict[str, Any]], charts: int, tmp_path: Path) -> None:
    page = Page(run_page(write(tmp_path / "run", lines)))
    assert len(page.svgs) == charts, page.titles()
    assert "nan" not in "".join(re.findall(r' (?:d|x|y|cx|cy|x1|data-\w+)="([^"]*)"', page.source))


def test_ranks_have_a_table(tmp_path: Path) -> None:
    ranks = [{"memory": 3 * 2**30, "tokens_per_s": 100.0}, {"memory": 2**31, "tokens_per_s": 300.0}]
    odd: list[Any] = [[], "none", [3, {"memory": None}], [{"memory": "x", "tokens_per_s": None}]]
    write(tmp_path, [*(train(step, ranks=text) for step, text in enumerate(odd, 1)), train(9, ranks=ranks)])
    page = Page(run_page(tmp_path))
    assert ["0", "3 GiB", "100"] in page.rows
    assert ["1", "2 GiB", "300"] in page.rows
    write(tmp_path, [train(1), train(2, ranks=odd[2])])
    run_page(tmp_path)


def test_lines_that_do_not_count(tmp_path: Path) -> None:
    again = [
        train(1),
        train(2, loss=1.0),
        evaluation(2, loss=1.0),
        train(3),
        train(2, loss=9.0),
        evaluation(2, loss=9.0),
    ]
    folder = write(tmp_path / "run", again, '[1]\nnull\n{"kind":["train"],"step":4}\n{"kind":"train","step":5,"lo')
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write("é".encode()[:1])
    read = read_history(folder / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in read.train] == [(1, 8.0), (2, 9.0)], (
        "a resumed run writes steps again"
    )
    assert [row["loss"] for row in read.evaluations] == [9.0]
    assert read.end is None
    assert (read.terms, read.scores) == (["mlm", "nsp"], ["accuracy", "nsp_accuracy"])
    with pytest.raises(UserError, match=r"metrics\.jsonl: cannot be read"):
        run_page(tmp_path)


def test_thinning_is_honest() -> None:
    x, y = np.arange(200_000.0), np.sin(np.arange(200_000) / 3e4) + 5
    y[[77_777, 123_456]] = 40.0, -3.0
    y[5000:5999] = np.nan
    thinned = thin(x, y)
    assert len(thinned.x) == 1000
    assert (thinned.x[0], thinned.y[0], thinned.x[-1], thinned.y[-1]) == (x[0], y[0], x[-1], y[-1])
    assert (np.nanmax(thinned.high), np.nanmin(thinned.low)) == (40.0, -3.0)
    assert (np.diff(thinned.x) > 0).all()
    assert np.isnan(thinned.y).any(), "a gap stays a gap"
    finite = np.isfinite(thinned.y)
    assert (thinned.low[finite] <= thinned.y[finite] + 1e-9).all()
    assert (thinned.y[finite] <= thinned.high[finite] + 1e-9).all()
    inner = thin(x, x)
    assert inner.y == pytest.approx(inner.x), "the mean of a stretch, at the mean of its places"
    few = thin(x[:7], y[:7])
    assert few.complete
    assert np.array_equal(few.y, y[:7])
    assert smooth(np.full(100, 3.0)) == pytest.approx(3.0)
    assert smooth(y[:100])[0] == y[0]


def test_many_lines_make_a_small_page(tmp_path: Path) -> None:
    page = Page(run_page(write(tmp_path / "run", (train(step) for step in range(1, 5_001)))))
    assert len(page.source) < 600_000
    for path in (path for svg in page.svgs for path in svg.iterfind(".//{*}path[@class='line']")):
        assert len(str(path.get("d")).split()) <= 1000


@pytest.mark.parametrize("log", [False, True, None])
@pytest.mark.parametrize("values", [[0.0], [5.0], [1e-9, 1e9], [2.0, 11.0], [1e-5, 9.7e-5], [0.999, 1.0], [1e6, 1.7e6]])
def test_axes_hold_their_values(values: list[float], log: bool | None) -> None:
    scaled = scale(Axis(log=log), np.array(values))
    places = scaled(np.array(values))
    assert (places[np.isfinite(places)] >= -1e-9).all()
    assert (places[np.isfinite(places)] <= 1 + 1e-9).all()
    assert 2 <= len(scaled.ticks) <= 9
    assert len(set(scaled.labels)) == len(scaled.labels)


def test_a_picture_stands_alone() -> None:
    x = np.arange(5.0)
    curves = [Series(name=f"run {NASTY}{number}", x=x, y=x + number, style="dots") for number in range(10)]
    svg = curve_svg(NASTY, curves, marks=[Mark(2, NASTY, "a"), Mark(2.1, "b", "b")])
    assert len(ElementTree.fromstring(svg).findall(".//{*}circle")) == 10 + 50
    root = ElementTree.fromstring(alone := standalone_picture(NASTY, 100, [svg]))
    assert root.find("{*}style") is not None
    assert "url(" not in alone


def test_numbers_are_written_with_their_units_and_digits() -> None:
    assert [duration(value) for value in (0.0, 8.24, 61, 3599.7, 86_399, 200_000)] == [
        *("0 s", "8.2 s", "1 min 1 s", "1 h", "1 d", "2 d 8 h")
    ]
    assert [quantity(v) for v in (0, 8192, 20_111, 4_385_920, 1.2e9)] == ["0", "8,192", "20.1k", "4.39M", "1.2B"]
    assert [digits(value) for value in (1e-4, 0.0123, 1.25e-5, 999.9)] == ["1e-4", "0.0123", "1.25e-5", "1,000"]
    assert format_metric("nsp_accuracy", 0.631) == "63.1 %"
    assert format_metric("mlm", math.nan) == "not finite"
    scores = {"f1": 0.5, "mlm": 2.34567, "best_f1_threshold": 0.1234, "perplexity": 17.25, "recall": None}
    assert [format_score(*pair) for pair in scores.items()] == ["50.00", "2.346", "0.123", "17.25", "–"]


def test_the_loss_is_named_after_what_is_predicted(tmp_path: Path) -> None:
    for masking, name in (("token", "MLM"), ("next", "LM"), ("permutation+static", "PLM")):
        out = write(tmp_path / masking, [evaluation(step, mlm=4 / step) for step in (1, 2)])
        (out / RECIPE).write_text(f'[data]\nmasking = "{masking}"\n')
        assert f"held-out {name} loss" in run_page(out)
    assert run_labels("not [ toml")["mlm"] == "MLM loss"


@pytest.mark.process
def test_a_browser_runs_the_page_and_nothing_that_was_added_to_it(tmp_path: Path) -> None:
    """The policy allows the script, the style and the charts of the page; what someone adds does not run or load."""
    folder = write(tmp_path / "run", [line for step in range(10, 60, 10) for line in (train(step), evaluation(step))])
    write_run_report(folder)
    page = folder / "report.html"
    with chromium(tmp_path / "home") as browser:
        tab = Tab(browser, page.as_uri())
        tab.page.goto(page.as_uri())
        assert tab.page.evaluate("getComputedStyle(document.querySelector('main')).maxWidth") != "none"
        tab.page.locator("svg.chart").first.hover()
        assert "step" in tab.page.locator("#readout").inner_text()
        assert tab.close() == []
        added = "<script>document.title = 'x'</script><img src='http://127.0.0.1:9/'><style>p {top: 0}</style>"
        page.write_text(page.read_text().replace("</body>", f"{added}</body>"))
        tab = Tab(browser, page.as_uri())
        tab.page.goto(page.as_uri())
        assert tab.page.title() != "x"
        assert sum("Content Security Policy" in line for line in tab.close()) == 3
