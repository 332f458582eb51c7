"""A server in this process, with real trained weights and a small classifier of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import bertree
from bertree.text.tokenizer import Tokenizer
from tests.support import asking, learnable
from tests.support.asking import Asker
from tests.support.language_models import language_model
from tests.support.learnable import Trained
from tests.support.shared import common_folder, make_once

PASSAGES = [
    {"id": "a", "text": "the boat on a river with Ada", "place": "river", "year": 1851},
    {"id": "b", "text": "a lamp in the green garden of Turin", "place": "garden", "year": 1902},
    {"id": "c", "text": "the blue table by a window", "place": "garden", "year": 1815, "huge": 10**30},
    {"id": "d", "text": "stone and tree and cloud", "place": "road", "year": 1815},
]


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained models with a head: `ranker` of one output, `classes` of three."""
    return make_once(common_folder(tmp_path_factory) / "classifiers", _make_classifiers)


def _make_classifiers(folder: Path) -> None:
    folder.mkdir()
    words = learnable.tokenizer()
    learnable.model(folder / "ranker", words, heads={"sequence": 1})
    learnable.model(folder / "classes", words, heads={"sequence": 3})


@pytest.fixture(scope="session")
def asker(minilm: Path, classifiers: Path) -> Iterator[Asker]:
    """MiniLM and two classifiers behind the routes."""
    sources = [("minilm", minilm), ("ranker", classifiers / "ranker"), ("classes", classifiers / "classes")]
    with asking.start(sources) as started:
        yield started


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory, trained: Trained, classifiers: Path) -> Iterator[Asker]:
    """Small models of every kind, and an index, behind bertree's own routes."""
    folders = make_once(common_folder(tmp_path_factory) / "own", lambda folder: _make_own(folder, trained.words))
    runs = {name: trained(name) / "model" for name in ("ner", "crf", "squad2", "pair")}
    untrained = [(path.name, path) for path in sorted(folders.iterdir())]
    sources = [*untrained, *runs.items(), ("ranker", classifiers / "ranker")]
    with asking.start(sources) as started:
        yield started


def _make_own(folder: Path, words: Tokenizer) -> None:
    folder.mkdir()
    model = bertree.load(learnable.model(folder / "words", words, max_positions=128))
    language_model("gpt2", tokenizer=words).save(folder / "gpt")
    language_model("ctrl", ("boat", "river"), tokenizer=words).save(folder / "ctrl")
    bertree.Index.build(model, PASSAGES, folder / "passages", name=str(folder / "words"), kind="flat")
