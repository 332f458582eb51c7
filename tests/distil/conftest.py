"""Tiny teachers of small tasks, and the command line in this process."""

from collections.abc import Iterator

import pytest

from tests.tasks.learnable import Command, Trained, one_thread


@pytest.fixture
def alone() -> Iterator[None]:
    """For what is small: one thread."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Models that were fine-tuned on tasks that can be learned, each when it is first asked for."""
    return Trained(tmp_path_factory.mktemp("teachers"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process."""
    return Command(monkeypatch, capsys)
