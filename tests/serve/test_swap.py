"""A changed folder is loaded beside what is served, and takes its place."""

import asyncio
import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.serve.loading import ServedSource, Swapper, load_sources
from bertree.serve.served import Registry
from tests.support import learnable

TEXT = "the boat is fine"


class Served:
    """A small model of its own, served, with what was noted of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = learnable.model(folder / "words", learnable.tokenizer())
        self.source = ServedSource(path=str(self.folder), name="words", device="cpu")
        self.registry: Registry = load_sources([self.source])
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.swapper = Swapper(self.registry, [self.source], lambda event, **values: self.notes.append((event, values)))

    def vector(self) -> np.ndarray:
        served = self.registry.model("words")
        return served.job_kind("embed").compute(served.tokenize([TEXT]))[0]

    def change(self) -> None:
        """Write other weights into the folder."""
        model = bertree.load(self.folder)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        model.save(self.folder.with_name("other"))
        shutil.rmtree(self.folder)
        self.folder.with_name("other").rename(self.folder)

    def check(self, settled: bool = False) -> None:
        asyncio.run(self.swapper.check(settled))


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_a_changed_folder_is_served_once_it_has_settled(served: Served) -> None:
    before, old = served.vector(), weakref.ref(served.registry.model("words"))
    served.check()
    assert served.notes == [], "nothing has changed"
    served.change()
    served.check()
    assert (served.vector() == before).all(), "it may still be being written"
    served.check()
    assert np.abs(served.vector() - before).max() > 0.01
    assert served.notes == [("swapped", {"name": "words"})]
    expected = bertree.load(served.folder).embed(TEXT)[0]
    assert np.abs(served.vector() - expected).max() < 1e-6
    gc.collect()
    assert old() is None, "the old model is freed"
    served.check()
    assert len(served.notes) == 1


def test_a_folder_that_cannot_be_read_changes_nothing(served: Served) -> None:
    before = served.vector()
    (served.folder / "bertree.toml").write_text("[")
    served.check(settled=True)
    assert [event for event, _ in served.notes] == ["swap failed"]
    assert (served.vector() == before).all()
    shutil.rmtree(served.folder)
    served.check(settled=True)
    assert (served.vector() == before).all()


def test_when_asked_everything_is_loaded_again(served: Served) -> None:
    old = served.registry.model("words")
    served.swapper.request()
    served.check(settled=True)
    assert served.registry.model("words") is not old


def _damage(folder: Path) -> None:
    """Give a model finite weights that are so large that its vectors are not finite."""
    model = bertree.load(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3e38)
    model.save(folder.with_name("damaged"))
    shutil.rmtree(folder)
    folder.with_name("damaged").rename(folder)


def test_a_model_whose_vectors_are_not_finite_is_refused_at_loading(tmp_path: Path) -> None:
    folder = learnable.model(tmp_path / "words", learnable.tokenizer())
    _damage(folder)
    with pytest.raises(UserError, match="words: computes numbers that are not finite"):
        load_sources([ServedSource(path=str(folder), name="words", device="cpu")])


def test_a_model_whose_vectors_are_not_finite_does_not_replace_the_one_served(served: Served) -> None:
    before = served.vector()
    _damage(served.folder)
    served.check(settled=True)
    assert [event for event, _ in served.notes] == ["swap failed"]
    assert "not finite" in served.notes[0][1]["reason"]
    assert np.array_equal(served.vector(), before)
