"""Folders of Hugging Face's left-to-right models: older names, buffers, refusals, control codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertree.errors import UserError
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import PRESETS

SMALL = {"layers": 2, "width": 16, "heads": 2, "ffn_width": 64, "max_positions": 20, "vocab_size": 60}
FAMILIES = {"gpt1": "openai-gpt", "gpt2": "gpt2", "ctrl": "ctrl"}


def small(preset: str, **changes: object) -> Contents:
    a = PRESETS[preset].architecture.with_values({**SMALL, **changes})
    return Contents(a, build(a, {"mask": 0}))


@pytest.fixture(params=FAMILIES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Contents, Path]:
    contents = small(request.param)
    folder.write(contents, tmp_path / "m", to="huggingface")
    return contents, tmp_path / "m"


def change_tensors(path: Path, change: Any) -> None:
    tensors = change(load_file(path / "model.safetensors"))
    save_file(tensors, path / "new.safetensors")
    (path / "new.safetensors").replace(path / "model.safetensors")


def change_config(path: Path, **values: object) -> None:
    config = json.loads((path / "config.json").read_text())
    config = {key: value for key, value in (config | values).items() if value != "absent"}
    (path / "config.json").write_text(json.dumps(config))


def assert_same(contents: Contents, path: Path) -> None:
    state = contents.network.state_dict()
    for name, tensor in folder.read(path).network.state_dict().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.filterwarnings("error")
def test_names_without_prefix_buffers_and_a_tied_copy_are_read(written: tuple[Contents, Path]) -> None:
    contents, path = written

    def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        words = next(name for name in ("wte.weight", "tokens_embed.weight", "w.weight") if name in bare)
        masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 20, 20) for i in range(2)} if words != "w.weight" else {}
        return bare | masks | {"lm_head.weight": bare[words].clone()}

    change_tensors(path, older)
    assert_same(contents, path)
    change_tensors(path, lambda tensors: tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1})
    with pytest.raises(UserError, match=r"'lm_head.weight' differs from '\w+.weight'"):
        folder.read(path)


def test_a_folder_that_names_no_class_has_a_language_model(written: tuple[Contents, Path]) -> None:
    contents, path = written
    change_config(path, architectures="absent")
    assert "mask" in folder.read(path).network.heads
    assert_same(contents, path)


def test_other_names_of_keys_are_read(written: tuple[Contents, Path]) -> None:
    contents, path = written
    change_config(path, n_embd="absent", hidden_size=16, n_layer="absent", num_hidden_layers=2)
    change_config(path, n_head="absent", num_attention_heads=2, n_positions="absent", max_position_embeddings=20)
    assert_same(contents, path)


def test_the_second_head_of_a_double_heads_model_is_left(tmp_path: Path) -> None:
    contents = small("gpt2")
    folder.write(contents, tmp_path / "m", to="huggingface")
    change_config(tmp_path / "m", architectures=["GPT2DoubleHeadsModel"])
    change_tensors(tmp_path / "m", lambda t: t | {"multiple_choice_head.summary.bias": torch.zeros(1)})
    with pytest.warns(UserWarning, match="not used: tensor 'multiple_choice_head.summary.bias'"):
        assert_same(contents, tmp_path / "m")


@pytest.mark.parametrize(
    ("preset", "key", "value", "reason"),
    [
        ("gpt2", "scale_attn_by_inverse_layer_idx", True, "True has no equal here, only False"),
        ("gpt2", "reorder_and_upcast_attn", True, "True has no equal here, only False"),
        ("gpt2", "scale_attn_weights", False, "False has no equal here, only True"),
        ("gpt2", "add_cross_attention", True, "True has no equal here, only False"),
        ("gpt2", "activation_function", "mish", "'mish' is not supported; known: gelu, gelu_new"),
        ("gpt1", "afn", "gelu_new", "'gelu_new' is not supported; known: gelu, relu"),
        ("ctrl", "layer_norm_epsilon", 1e-5, "1e-05 has no equal here, only 1e-06"),
        ("gpt2", "n_embd", "wide", "'wide' is not a valid value"),
        ("ctrl", "dff", "wide", "'wide' is not a valid value"),
        ("gpt2", "activation_function", ["relu"], r"\['relu'\] is not supported"),
    ],
)
def test_settings_without_an_equal_are_refused(
    tmp_path: Path, preset: str, key: str, value: object, reason: str
) -> None:
    folder.write(small(preset), tmp_path / "m", to="huggingface")
    change_config(tmp_path / "m", **{key: value})
    with pytest.raises(UserError, match=f"config.json: {key}: ({reason})") as caught:
        folder.read(tmp_path / "m")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "change", "reason"),
    [
        ("gpt1", {"ffn_width": 48}, "OpenAIGPT cannot hold this architecture: ffn_width is 48, there it is 64"),
        ("gpt1", {"activation": "gelu"}, "activation is gelu, there it is gelu-tanh or relu"),
        ("gpt2", {"segments": 2}, "GPT2 cannot hold this architecture: segments is 2, there it is 0"),
        ("gpt2", {"head_width": 4}, "head_width is 4, there it is 0"),
        ("gpt2", {"mask_bias": True}, "mask_bias is True, there it is False"),
        ("ctrl", {"activation": "gelu"}, "CTRL cannot hold this architecture: activation is gelu, there it is relu"),
        ("transformer-xl-enwik8-12", {"attention_bias": True}, "attention_bias is True, there it is False"),
    ],
)
def test_what_hugging_face_cannot_hold_is_kept_in_bertrees_layout(
    tmp_path: Path, preset: str, change: dict[str, object], reason: str
) -> None:
    contents = small(preset, **change)
    with pytest.raises(UserError, match=reason):
        folder.write(contents, tmp_path / "hf", to="huggingface")
    folder.write(contents, tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bertree"
    assert folder.read(tmp_path / "m").architecture == contents.architecture


def write_ctrl_vocabulary(path: Path, words: list[str]) -> None:
    letters = sorted({letter for word in words for letter in word})
    tokens = ["<unk>", *words, *(f"{letter}@@" for letter in letters), *letters]
    merges = []
    for word in words:
        for end in range(2, len(word)):
            tokens.append(f"{word[:end]}@@")
            merges.append(f"{word[: end - 1]} {word[end - 1]}")
        merges.append(f"{word[:-1]} {word[-1]}</w>")
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    (path / "vocab.json").write_text(json.dumps(vocab))
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *dict.fromkeys(merges), ""]))


def test_control_codes_of_ctrl_are_those_in_its_vocabulary(tmp_path: Path) -> None:
    contents = small("ctrl", vocab_size=200)
    folder.write(contents, tmp_path / "m", to="huggingface")
    write_ctrl_vocabulary(tmp_path / "m", ["Books", "Horror", "Reviews", "the", "sea"])
    read = folder.read(tmp_path / "m")
    assert set(read.controls) == {"Books", "Horror", "Reviews"}
    folder.write(read, tmp_path / "both")
    assert folder.read(tmp_path / "both").controls == read.controls


@pytest.mark.parametrize("to", ["bertree", "huggingface"])
def test_a_models_own_control_codes_are_kept(tmp_path: Path, to: str) -> None:
    contents = small("gpt2")
    contents.controls = ("books", "news about sport")
    folder.write(contents, tmp_path / "m", to=to)
    assert folder.read(tmp_path / "m").controls == contents.controls


def test_control_codes_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    folder.write(small("gpt2"), tmp_path / "m")
    path = tmp_path / "m" / "bertree.toml"
    path.write_text(path.read_text() + '\n[control]\ncodes = ["books", 3]\n')
    with pytest.raises(UserError, match=r"control.codes: must be a list of texts"):
        folder.read(tmp_path / "m")
    folder.write(small("gpt2"), tmp_path / "hf", to="huggingface")
    change_config(tmp_path / "hf", control_codes="books")
    with pytest.raises(UserError, match=r"control_codes: must be a list of texts"):
        folder.read(tmp_path / "hf")
