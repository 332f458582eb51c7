"""A server in this process, with real trained weights and a small classifier of each kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import asking, learnable
from tests.support.asking import Asker
from tests.support.shared import common_folder, make_once


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
    made = asking.start(sources)
    yield made
    asking.stop(made)
