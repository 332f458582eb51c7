"""For what is small: one thread."""

from collections.abc import Iterator

import pytest

from tests.tasks.learnable import one_thread


@pytest.fixture
def alone() -> Iterator[None]:
    """For what is small: one thread."""
    with one_thread():
        yield
