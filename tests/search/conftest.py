"""An index of four documents, shared by the tests of search."""

from pathlib import Path

import pytest

from bertree.search.index import Index
from tests.support.search_samples import SHIPS
from tests.support.standin import Words


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build(Words(), SHIPS, tmp_path / "index")
