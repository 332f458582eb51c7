"""Weights stored as int8: small, nearly the same, the same bytes again, and refused where they cannot be right."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import bertree
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.interop import folder, weights
from bertree.interop.contents import Contents
from bertree.interop.weights import dequantize, quantize
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.model.readout import Readout
from tests.support.command import Command
from tests.support.quick import example_count

SMALL = {"vocab_size": 60, "width": 32, "heads": 2, "layers": 3, "max_positions": 32}
WEIGHTS = "model.safetensors"
MATRIX = "encoder.embeddings.tokens.weight"


def tiny(**more: object) -> bertree.Model:
    return random_model(preset("bert-base").architecture.with_values(SMALL | more), {"mask": 0, "sequence": 3}, seed=1)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    tiny().save(tmp_path / "m", precision="int8")
    return tmp_path / "m"


def change(path: Path, edit: dict[str, Tensor | None]) -> None:
    tensors = load_file(path / WEIGHTS) | edit
    save_file({name: t for name, t in tensors.items() if t is not None}, path / WEIGHTS)


@example_count(60)
@given(st.integers(0, 10_000), st.floats(-45, 37), st.integers(1, 40))
def test_rounding_errs_by_half_a_step_and_never_twice(seed: int, power: float, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(7, width, generator=generator, dtype=torch.float64).mul(10.0**power).float()
    matrix[2] = 0
    whole, scale = quantize(matrix)
    again = dequantize(whole, scale)
    # Half a step, and what the scale's sixteen bits leave at the end of the grid.
    assert ((again - matrix).abs() <= 0.51 * scale[:, None]).all()
    assert not again[2].any()
    whole_again, scale_again = quantize(again)
    assert torch.equal(whole, whole_again)
    assert torch.equal(scale, scale_again)


def test_rounding_by_hand() -> None:
    whole, scale = quantize(torch.tensor([[127.0, -63.6, 1.4], [0.0, 0.0, 0.0], [-2.54, 0.02, 0.03]]))
    assert whole.tolist() == [[127, -64, 1], [0, 0, 0], [-127, 1, 2]]
    assert scale[0] == 1
    assert scale[2].item() == pytest.approx(0.02, rel=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_loaded_weights_do_not_change_with_their_file(tmp_path: Path, precision: str) -> None:
    tiny().save(tmp_path / "m", precision=precision)
    model = bertree.load(tmp_path / "m")
    before = {name: tensor.clone() for name, tensor in model.network.state_dict().items()}
    path = tmp_path / "m" / WEIGHTS
    with path.open("r+b") as file:  # in place: a new file would leave the mapped one as it is
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.network.state_dict().items())


def test_an_int8_matrix_is_loaded_without_a_second_copy(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []

    def kept(matrix: Tensor, scale: Tensor) -> Tensor:
        made.append(dequantize(matrix, scale))
        return made[-1]

    monkeypatch.setattr(weights, "dequantize", kept)
    places = {parameter.data_ptr() for parameter in bertree.load(stored).parameters()}
    assert made
    assert {matrix.data_ptr() for matrix in made} <= places


def test_a_saved_model_is_a_quarter_and_nearly_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(width=64, layers=6)
    model.save(tmp_path / "a")
    model.save(tmp_path / "b", precision="int8")
    large, small = ((tmp_path / name / WEIGHTS).stat().st_size for name in "ab")
    assert small < 0.36 * large  # names and vectors weigh more in so small a model
    again = bertree.load(tmp_path / "b")
    assert {tensor.dtype for tensor in again.network.state_dict().values()} == {torch.float32}
    left, right = (torch.cat(m.hidden([[5, 6, 7], [8, 9]])) for m in (model, again))
    assert torch.nn.functional.cosine_similarity(left, right).min() > 0.999
    assert not torch.equal(left, right)
    monkeypatch.setattr("bertree.inference.cpu_linear.has_native_bfloat16", lambda: True)  # on any CPU
    assert bertree.load(tmp_path / "b", precision="bfloat16").hidden([[5]])[0].dtype == torch.bfloat16


@pytest.mark.parametrize("changes", [{}, {"residual": "pre-norm", "embedding_width": 16, "segments": 0}])
def test_loaded_and_saved_again_it_is_the_same_bytes(changes: dict[str, object], tmp_path: Path) -> None:
    tiny(**changes).save(tmp_path / "a", precision="int8")
    bertree.load(tmp_path / "a").save(tmp_path / "b", precision="int8")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_what_the_folder_says(stored: Path) -> None:
    assert 'storage = "int8"' in (stored / "bertree.toml").read_text()
    assert json.loads((stored / "config.json").read_text())["model_type"] == "bertree"  # transformers keeps off
    tensors = load_file(stored / WEIGHTS)
    kinds = {t.dtype for name, t in tensors.items() if t.ndim == 2}
    assert kinds == {torch.int8}
    assert tensors[MATRIX + ".scale"].shape == tensors[MATRIX].shape[:1]
    assert {t.dtype for name, t in tensors.items() if t.ndim == 1 and not name.endswith(".scale")} == {torch.float16}


def test_a_model_with_a_parameter_called_scale(tmp_path: Path) -> None:
    a = preset("bert-base").architecture.with_values(SMALL)
    network = build(a, {"token": 4}, Readout(layers="sum-all", frozen=True))
    assert any(name.endswith(".scale") for name in network.state_dict())
    folder.write(Contents(a, network), tmp_path / "m", dtype=torch.int8)
    again = folder.read(tmp_path / "m").network.state_dict()
    assert again.keys() == network.state_dict().keys()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({MATRIX + ".scale": None}, f"'{MATRIX}' is int8, but its scales, '{MATRIX}.scale', are missing"),
        ({MATRIX + ".scale": torch.ones(59)}, "has shape 59, but .* 60 x 32, needs one scale for each row"),
        ({MATRIX + ".scale": torch.ones(60, 1)}, "has shape 60 x 1"),
        ({MATRIX + ".scale": torch.full((60,), torch.nan)}, "finite float32"),
        ({MATRIX + ".scale": torch.full((60,), torch.inf)}, "finite float32"),
        ({MATRIX + ".scale": torch.ones(60, dtype=torch.int8)}, "finite float32"),
        ({MATRIX: torch.ones(60, 32, dtype=torch.int16)}, "holds torch.int16"),
        (
            {"encoder.embeddings.norm.weight": torch.ones(32, dtype=torch.int8)}
            | {"encoder.embeddings.norm.weight.scale": torch.ones(32)},
            "each row of a matrix",
        ),
    ],
)
def test_damage_is_one_line(edit: dict[str, Tensor | None], message: str, stored: Path) -> None:
    change(stored, edit)
    with pytest.raises(UserError, match=message) as error:
        bertree.load(stored)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(stored / WEIGHTS))


def test_a_description_that_does_not_fit(stored: Path) -> None:
    text = (stored / "bertree.toml").read_text()
    for old, new, message in (
        ('storage = "int8"\n', "", "stored as int8, which only a bertree folder can be"),
        ('storage = "int8"', 'storage = "int4"', 'model.storage: must be "int8" or left out'),
        ('layout = "bertree"', 'layout = "huggingface"', "int8 needs layout"),
    ):
        assert old in text
        (stored / "bertree.toml").write_text(text.replace(old, new))
        with pytest.raises(UserError, match=message):
            bertree.load(stored)


def test_int8_in_a_folder_of_hugging_face_is_refused(tmp_path: Path) -> None:
    model = random_model(preset("bert-base").architecture.with_values(SMALL), {"mask": 0})
    folder.write(model._contents, tmp_path / "h", to="huggingface")
    name = "bert.embeddings.word_embeddings.weight"
    whole, scale = quantize(load_file(tmp_path / "h" / WEIGHTS)[name])
    change(tmp_path / "h", {name: whole, name + ".scale": scale})
    with (
        pytest.warns(match="not used"),
        pytest.raises(UserError, match=r"only a bertree folder can be.*bertree.toml"),
    ):
        bertree.load(tmp_path / "h")


def test_what_cannot_be_rounded_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.network.encoder.embeddings.tokens.weight[3, 3] = torch.nan
    with pytest.raises(UserError, match="not finite"):
        model.save(tmp_path / "m", precision="int8")
    assert not (tmp_path / "m").exists()
    model.save(tmp_path / "whole")
    with pytest.raises(UserError, match=r"whole: encoder\.embeddings\.tokens\.weight: holds"):
        bertree.convert(tmp_path / "whole", tmp_path / "m", to="bertree", precision="int8")
    assert not (tmp_path / "m").exists()


def test_vectors_beyond_half_precision_stay_whole(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.network.encoder.embeddings.norm.bias[0] = 1e6
    model.save(tmp_path / "m", precision="int8")
    assert bertree.load(tmp_path / "m").network.encoder.embeddings.norm.bias[0] == 1e6


def test_names_of_precisions(tmp_path: Path) -> None:
    tiny().save(tmp_path / "h", precision="bfloat16")
    assert {t.dtype for t in load_file(tmp_path / "h" / WEIGHTS).values()} == {torch.bfloat16}
    with pytest.raises(UserError, match="must be float32, bfloat16, float16 or int8"):
        tiny().save(tmp_path / "m", precision="int88")


def test_convert(tmp_path: Path, small_folder: Path, command: Command) -> None:
    quantized, back = tmp_path / "q", tmp_path / "f"
    assert command.well("convert", small_folder, quantized, "--to", "bertree", "--precision", "int8").err == ""
    assert (quantized / WEIGHTS).stat().st_size < 0.3 * (small_folder / WEIGHTS).stat().st_size
    assert command.well("convert", quantized, back, "--to", "huggingface").err == ""  # through float32, to anyone
    assert {t.dtype for t in load_file(back / WEIGHTS).values()} == {torch.float32}
    result = command("convert", small_folder, tmp_path / "x", "--to", "huggingface", "--precision", "int8")
    assert result.code == 2
    assert "float32" in result.err
    assert len(result.lines) == 1
    assert not (tmp_path / "x").exists()
