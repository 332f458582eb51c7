"""Checksums of a model folder: damage is found when it is loaded, and a person can replace a file on purpose."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import bertree
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.interop import description, folder
from bertree.model.presets import preset
from tests.support.quick import example_count

SMALL = {"vocab_size": 60, "width": 32, "heads": 2, "layers": 2, "max_positions": 32}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checksums") / "m"
    random_model(preset("bert-base").architecture.with_values(SMALL), {"mask": 0}, seed=1).save(path)
    return path


@given(st.data())
@example_count(60)
def test_a_flipped_bit_anywhere_in_the_weights_is_found_when_they_are_loaded(saved: Path, data: st.DataObject) -> None:
    path = saved / WEIGHTS
    good = path.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    try:
        path.write_bytes(bad)
        with pytest.raises(UserError, match=re.escape(str(path))):
            bertree.load(saved)
    finally:
        path.write_bytes(good)


@given(st.binary(max_size=20_000), st.integers(0), st.integers(1, 255))
def test_the_fast_checksum_covers_every_byte(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, at: int, change: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "blocks"
    path.write_bytes(content)
    before = description.block_sums(path)
    path.write_bytes(content + b"\0")
    assert description.block_sums(path) != before
    if content:
        at %= len(content)
        path.write_bytes(content[:at] + bytes([content[at] ^ change]) + content[at + 1 :])
        assert description.block_sums(path) != before


def test_exchanged_blocks_are_found(tmp_path: Path) -> None:
    left, right = bytes(range(256)) * 16, bytes(reversed(range(256))) * 16
    (tmp_path / "a").write_bytes(left + right)
    (tmp_path / "b").write_bytes(right + left)
    assert description.block_sums(tmp_path / "a") != description.block_sums(tmp_path / "b")


def test_weights_replaced_on_purpose_load_as_the_message_says(saved: Path, tmp_path: Path) -> None:
    model = bertree.load(saved)
    model.save(tmp_path / "m")
    weights = load_file(tmp_path / "m" / WEIGHTS)
    save_file({name: tensor + 1 for name, tensor in weights.items()}, tmp_path / "m" / WEIGHTS)
    with pytest.raises(UserError, match=r"if you changed it yourself, remove the entry 'model.safetensors' under"):
        bertree.load(tmp_path / "m")
    path = tmp_path / "m" / folder.DESCRIPTION
    before, _, after = path.read_text().partition('[[files]]\nname = "model.safetensors"\n')
    path.write_text(before + "".join(f"[[{table}" for table in after.split("[[")[1:]))
    again = bertree.load(tmp_path / "m")
    assert torch.equal(next(again.parameters()), next(model.parameters()) + 1)


def test_a_folder_without_checksums_loads_and_only_the_description_differs(saved: Path, tmp_path: Path) -> None:
    model = bertree.load(saved)
    model.save(tmp_path / "m")
    path = tmp_path / "m" / folder.DESCRIPTION
    path.write_text(path.read_text().partition("[[files]]")[0])
    again = bertree.load(tmp_path / "m")
    assert all(torch.equal(left, right) for left, right in zip(again.parameters(), model.parameters(), strict=True))
    again.save(tmp_path / "n")
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == {
        file.name: file.read_bytes() for file in (tmp_path / "n").iterdir()
    }


def test_the_dense_layers_of_a_sentence_model_have_checksums_too(tmp_path: Path) -> None:
    from bertree.interop.contents import Contents
    from bertree.model.pooling import Dense, PoolingConfig, SentencePooling

    model = random_model(preset("bert-base").architecture.with_values(SMALL), {}, seed=1)
    contents: Contents = model._contents
    contents.network.vector = SentencePooling(32, PoolingConfig("mean", True, (Dense(16, "tanh", True),)))
    model.save(tmp_path / "m")
    (dense,) = (path for path in (tmp_path / "m").rglob("*.safetensors") if path.parent != tmp_path / "m")
    content = bytearray(dense.read_bytes())
    content[-3] ^= 1
    dense.write_bytes(content)
    with pytest.raises(UserError, match=rf"{dense.parent.name}/model.safetensors: is damaged or was changed"):
        bertree.load(tmp_path / "m")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "a/../../b", "a\\u0000b"])
def test_names_outside_the_folder_are_refused(name: str, saved: Path, tmp_path: Path) -> None:
    bertree.load(saved).save(tmp_path / "m")
    path = tmp_path / "m" / folder.DESCRIPTION
    path.write_text(path.read_text().replace('"model.safetensors"', f'"{name}"'))
    with pytest.raises(UserError, match="is not the name of a file in this folder"):
        bertree.load(tmp_path / "m")


def test_a_listed_file_that_is_missing_is_named(saved: Path, tmp_path: Path) -> None:
    bertree.load(saved).save(tmp_path / "m")
    path = tmp_path / "m" / folder.DESCRIPTION
    path.write_text(path.read_text().replace('"model.safetensors"', '"other.safetensors"'))
    with pytest.raises(UserError, match=r"other.safetensors: is missing, though bertree.toml lists it"):
        bertree.load(tmp_path / "m")
