"""Every later version reads what a released one wrote (docs/formats.md): tests/golden/release-VERSION."""

import json
import re
import shutil
from pathlib import Path

import pytest

import bertree
from tests.support.documentation import ROOT

RELEASES = sorted((ROOT / "tests" / "golden").glob("release-*"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def written(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what a release wrote, as the current folder."""
    shutil.copytree(request.param, tmp_path / "written")
    monkeypatch.chdir(tmp_path / "written")
    return tmp_path / "written"


def test_models_stores_indexes_and_runs_of_released_versions_are_read(written: Path) -> None:
    for folder in ("finished", "finished/model", "store", "index"):
        assert bertree.verify(folder).checked
    model = bertree.load("finished")
    assert model.embed("The ship sails.")[0] == pytest.approx(json.loads(Path("vector.json").read_text()), abs=1e-4)
    assert [each.token for each in model.fill_mask("The [MASK] sails.", k=2)]
    with_model = bertree.Index.open("index", "finished/model")
    assert with_model.search("ship", k=1, mode="words")[0].document == "ship"
    with_model.add({"id": "raft", "text": "The raft sails."})
    assert with_model.info["documents"] == 3
    with_model.close()
    assert bertree.show_batch("store", max_length=16).tokens


def test_a_run_that_a_released_version_began_is_resumed(written: Path) -> None:
    recipe = written / "stopped" / "recipe.toml"  # it has the absolute path of the store
    recipe.write_text(re.sub(r'"/tmp/.*/store"', f'"{written}/store"', recipe.read_text()))
    run = bertree.pretrain(recipe, out="stopped", resume=True)
    assert run.complete
    assert run.history[-1]["step"] == 4
