"""`verify`: every kind of folder, whole and damaged."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertree
from bertree.config import names
from bertree.errors import UserError
from bertree.train.checkpoint import CheckpointFolder
from tests.support.command import Command

WEIGHTS = "model.safetensors"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at % len(content)] ^= 0x10
    path.write_bytes(content)


def test_the_bundled_model_is_undamaged(command: Command) -> None:
    report = command.well("verify", "default", "--json").json
    assert report["kind"] == "model"
    assert report["unchecked"] == []
    others = {"README.md", "bertree.toml"}  # its card, and the list of checksums itself
    count = sum(path.name not in others for path in names.FOLDER.iterdir())
    assert report["checked"][0] == f"{count} files by checksum"


@pytest.mark.slow
@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_any_damaged_file_of_a_model_is_named(name: str, small_folder: Path, command: Command) -> None:
    assert "undamaged" in command.well("verify", small_folder).out
    flip(small_folder / name, -9)
    result = command("verify", small_folder)
    assert result.code == 2
    (line,) = result.lines
    assert f"{small_folder / name}: is damaged or was changed" in line
    assert f"remove the entry '{name}'" in line


def test_a_folder_of_others_says_what_could_not_be_checked(minilm: Path, tmp_path: Path, command: Command) -> None:
    report = bertree.verify(minilm)
    assert any("no checksums" in line for line in report.unchecked)
    assert any("weights by name, shape" in line for line in report.checked)
    assert "  not checked: changed values" in command.well("verify", minilm).out
    shutil.copytree(minilm, tmp_path / "m")
    weights = load_file(tmp_path / "m" / WEIGHTS)
    name = next(name for name in weights if name.endswith("LayerNorm.bias"))
    weights[name] = torch.full_like(weights[name], float("nan"))
    save_file(weights, tmp_path / "m" / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"the weight '\S+' holds numbers that are not finite"):
        bertree.verify(tmp_path / "m")


def test_a_file_added_by_hand_is_reported_as_unchecked(small_folder: Path) -> None:
    shutil.copy(small_folder / WEIGHTS, small_folder / "extra.safetensors")
    (small_folder / "README.md").write_text("a card")
    assert bertree.verify(small_folder).unchecked == ("extra.safetensors: has no checksum",)


def test_a_store_and_an_index(token_store: Path, tmp_path: Path) -> None:
    assert bertree.verify(token_store).kind == "store"
    shutil.copytree(token_store, tmp_path / "store")
    flip(tmp_path / "store" / "tokens-00000.bin", 1000)
    with pytest.raises(UserError, match=r"tokens-00000.bin"):
        bertree.verify(tmp_path / "store")
    with bertree.Index.build(bertree.load("default"), [{"text": "Ships need harbours."}], tmp_path / "index"):
        pass
    assert bertree.verify(tmp_path / "index").kind == "index"
    (vectors,) = (tmp_path / "index").glob("vectors-*")
    flip(vectors, -5)
    with pytest.raises(UserError, match=r"vectors-\S+: is damaged"):
        bertree.verify(tmp_path / "index")


def test_a_run_is_its_checkpoints_and_its_model(small_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(network.parameters())
    for place in (run, run / "seed-1"):
        (place / "checkpoints").mkdir(parents=True)
        CheckpointFolder(place / "checkpoints").save(4, network, optimizer)
    shutil.copytree(small_folder, run / "model")
    report = bertree.verify(run)
    assert report.kind == "run"
    assert report.checked[:2] == (
        "checkpoints/step-00000004 by checksum",
        "seed-1/checkpoints/step-00000004 by checksum",
    )
    assert any(line.startswith("model: ") for line in report.checked)
    flip(run / "seed-1" / "checkpoints" / "step-00000004" / "state.safetensors", -2)
    with pytest.raises(UserError, match=r"seed-1\S+: is damaged"):
        bertree.verify(run)


def test_what_is_none_of_these_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is neither a model folder nor"):
        bertree.verify(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        bertree.verify(tmp_path / "nowhere")
