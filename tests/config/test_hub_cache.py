"""Names of the Hugging Face hub are found in its local cache, and nowhere else."""

import json
from pathlib import Path

import numpy as np
import pytest

import bertree
from bertree.config.names import find_cached
from bertree.errors import UserError

HASH = "0123456789abcdef0123456789abcdef01234567"


def cached(cache: Path, source: Path, name: str, commit: str = HASH) -> Path:
    """A model folder as Hugging Face's tools keep it: files are links to blobs."""
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots" / commit).mkdir(parents=True)
    (place / "blobs").mkdir()
    for file in source.iterdir():
        (place / "blobs" / file.name).write_bytes(file.read_bytes())
        (place / "snapshots" / commit / file.name).symlink_to(Path("../../blobs") / file.name)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_models_of_the_hub_are_found_in_the_local_cache(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "c"))
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    cache = tmp_path / "c" / below
    (small_folder / "bertree.toml").unlink()
    for name in ("bert-small-uncased", "some-org/bert.v2"):
        cached(cache, small_folder, name)
        model = bertree.load(name)
        assert (model.name, model.trained) == (name, True)
        np.testing.assert_array_equal(model.embed(["A dog."]), bertree.load(small_folder).embed(["A dog."]))
    assert bertree.load("bert-tiny", tokenizer="some-org/bert.v2").architecture.vocab_size == 30522
    suggestions = {
        "bert-smal": "not in the local Hugging Face cache.*did you mean the preset 'bert-small', which has random",
        "bert-small-uncasd": "did you mean 'bert-small-uncased'?",
        "some-org/bert.v3": "did you mean 'some-org/bert.v2'?",
    }
    for name, suggestion in suggestions.items():
        with pytest.raises(UserError, match=f"{name}: no such folder or preset.*{suggestion}"):
            bertree.load(name)
    with pytest.raises(UserError) as refusal:
        bertree.load("bert-base-uncased")
    assert "did you mean" not in str(refusal.value), "the random weights of a preset could pass for trained ones"
    with pytest.raises(
        UserError, match=r"bertree downloads nothing: fetch the model \(hf download org/bert-base-uncased"
    ):
        bertree.load("org/bert-base-uncased")


def test_what_leads_out_of_the_cache_is_not_followed(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    place = cached(cache, small_folder, "org/name")
    assert find_cached("org/name") is not None
    for wrong in ("org/../name", "../hub/models--org--name", "org--name", "/etc", "org/name/x", "", ".", "a\0b"):
        assert find_cached(wrong) is None
    for commit in ("../../../small", "main", "", "x" * 5000):
        (place / "refs" / "main").write_text(commit)
        assert find_cached("org/name") is None
    other = "f" * 40
    (place / "refs" / "main").write_text(other)
    (place / "snapshots" / other).symlink_to(small_folder)
    assert find_cached("org/name") is None


def test_a_cached_name_is_not_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("x" * 300, "no-such/model"):
        with pytest.raises(UserError, match=r"no such folder|cannot be read"):
            bertree.load(name)
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(UserError, match="is a file"):
        bertree.load(tmp_path / "config.json")
