"""One server with a model for every view, and one browser, for all tests of the page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bertree
from tests.support import asking
from tests.support.asking import Asker
from tests.support.browser import Tab, chromium, listening
from tests.support.language_models import language_model
from tests.support.learnable import Trained, one_thread
from tests.support.shared import common_folder, make_once

PASSAGES = (
    ("harbour", "The lighthouse 🌊 burned twice. The same family rebuilt it both times.", "coast", 1898),
    ("garden", "Roses need water in June. The gardener waters them before the sun is high.", "inland", 1910),
    ("market", "On Saturdays the market sells fish, bread and old books.", "coast", 1911),
    ("mill", "The mill stands still when there is no wind.", "inland", 1921),
)


def _make_served(folder: Path) -> None:
    folder.mkdir()
    rows = [{"id": name, "text": text, "place": place, "year": year} for name, text, place, year in PASSAGES]
    (folder / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bertree.Index.build(bertree.load("default"), [folder / "notes.jsonl"], folder / "notes", name="default")
    language_model("gpt2").save(folder / "gpt")


def write_runs(folder: Path) -> None:
    """Write a run of 40 steps that goes on, one that has ended, and a study of which one of two steps is done."""
    for name, steps in (("going", 40), ("ended", 20)):
        (folder / name).mkdir(parents=True)
        lines: list[dict[str, Any]] = [{"kind": "event", "step": 0, "text": "started"}]
        lines += [{"kind": "train", "step": step, "loss": 9 - step / 10, "lr": 1e-4} for step in range(1, steps + 1)]
        lines.append({"kind": "eval", "step": 20, "loss": 7.25, "accuracy": 0.5})
        lines += [{"kind": "end", "step": steps}] if name == "ended" else []
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / name / "recipe.toml").write_text("[[phases]]\nsteps = 100\n")
        (folder / name / "environment.json").write_text(json.dumps({"command": f"bertree pretrain {name}"}))
    study = folder / "study"
    steps = [
        {"cell": cell, "seed": 0, "step": "pretrain", "do": "pretrain", "folder": f"steps/{cell}"} for cell in "ab"
    ]
    (study / "steps" / "a").mkdir(parents=True)
    (study / "steps" / "a" / "result.json").write_text("{}")
    (study / "plan.json").write_text(json.dumps({"study": "own", "size": "tiny", "steps": steps}))
    (study / "table.md").write_text(
        "# Own study\n\n| cell | score |\n| --- | --: |\n| a | 53.0 ± 1.8 |\n\n- A `remark`.\n"
    )


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs that a test may write to."""
    folder = tmp_path_factory.mktemp("served") / "runs"
    write_runs(folder)
    return folder


@pytest.fixture(scope="session")
def server(trained: Trained, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A server of the bundled model, an index, a tagger, a reader, a writer, two classifiers and a folder of runs."""
    path = make_once(common_folder(tmp_path_factory) / "playground", _make_served)
    sources = [
        ("default", Path("default")),
        ("notes", path / "notes"),
        ("tagger", trained("ner") / "model"),
        ("reader", trained("squad") / "model"),
        ("writer", path / "gpt"),
        ("sentiment", trained("classification") / "model"),
        ("pairs", trained("pair") / "model"),
        ("runs", runs),
    ]
    with one_thread(), asking.start(sources, threads=1) as started:
        yield started


@pytest.fixture(scope="session")
def address(server: Asker) -> Iterator[str]:
    """Its address."""
    with listening(server.app) as url:
        yield url


@pytest.fixture(scope="package")  # its event loop runs in this thread until it is closed, where asyncio.run would fail
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The system's Chromium."""
    with chromium(tmp_path_factory.mktemp("chromium")) as process:
        yield process


@pytest.fixture
def tab(browser: Any, address: str) -> Iterator[Tab]:
    """A fresh page; nothing may go wrong on it."""
    page = Tab(browser, address)
    yield page
    assert page.close() == []
