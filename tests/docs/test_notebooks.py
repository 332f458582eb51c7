"""The notebooks in examples/ are valid, their cells run in order, and their outputs were written by such a run."""

import json
import shutil
from pathlib import Path

import pytest

from tests.docs.test_examples import shorten_calls
from tests.support.documentation import ROOT, Library
from tests.support.notebooks import run_cell
from tests.support.shared import common_folder

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "execution_count", "id", "metadata", "outputs", "source"},
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_outputs_of_the_same_kind(
    path: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    library = Library(common_folder(tmp_path_factory) / "library")
    library.provide(["corpus"], tmp_path)
    shutil.copytree(library.path("my-small-bert"), tmp_path / "examples" / "default")  # in place of the bundled model
    monkeypatch.chdir(tmp_path / "examples")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shorten_calls(monkeypatch)
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in notebook["cells"]:
        assert set(cell) == KEYS[cell["cell_type"]]
        if cell["cell_type"] == "code":
            kinds = [output["output_type"] for output in run_cell("".join(cell["source"]), names)]
            assert kinds == [output["output_type"] for output in cell["outputs"]]
