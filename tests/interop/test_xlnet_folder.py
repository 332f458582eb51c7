"""Folders of Hugging Face's XLNet: defaults, other names of keys, refusals, and the verbs that read them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertree
from bertree.errors import UserError
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.interop.huggingface.config import architecture_from_config
from bertree.model.cost import parameters
from bertree.model.network import build
from bertree.model.presets import PRESETS
from tests.support.batches import axes_of
from tests.support.command import Command
from tests.support.xlnet_pieces import small_model

SMALL = {"layers": 2, "width": 16, "heads": 2, "ffn_width": 48, "vocab_size": 130}


def small(**changes: object) -> Contents:
    a = PRESETS["xlnet-base"].architecture.with_values({**SMALL, **changes})
    return Contents(a, build(a, {"mask": 0}))


@pytest.fixture
def written(tmp_path: Path) -> tuple[Contents, Path]:
    contents = small()
    folder.write(contents, tmp_path / "m", to="huggingface")
    return contents, tmp_path / "m"


def change_config(path: Path, **values: object) -> None:
    config = json.loads((path / "config.json").read_text())
    config = {key: value for key, value in (config | values).items() if value != "absent"}
    (path / "config.json").write_text(json.dumps(config))


def change_tensors(path: Path, change: Any) -> None:
    tensors = change(load_file(path / "model.safetensors"))
    save_file(tensors, path / "new.safetensors")
    (path / "new.safetensors").replace(path / "model.safetensors")


def assert_same(contents: Contents, path: Path) -> Contents:
    read = folder.read(path)
    state = contents.network.state_dict()
    for name, tensor in read.network.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    return read


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    bare = architecture_from_config({"model_type": "xlnet"}, "config.json")
    told = architecture_from_config(transformers.XLNetConfig().to_dict(), "config.json")
    assert bare == told == PRESETS["xlnet-large"].architecture.with_values({"memory": 512})


@pytest.mark.parametrize(("preset", "published"), [("xlnet-base", 116_750_336), ("xlnet-large", 360_300_800)])
def test_presets_have_as_many_parameters_as_transformers_models(preset: str, published: int) -> None:
    a = axes_of(PRESETS[preset])
    config = transformers.XLNetConfig(d_model=a.width, n_layer=a.layers, n_head=a.heads, d_inner=a.ffn_width)
    with torch.device("meta"):
        model, ours = transformers.XLNetLMHeadModel(config), build(a, {"mask": 0})
    count = sum(p.numel() for p in model.parameters())
    counted = parameters(a)
    assert published == count == sum(p.numel() for p in ours.parameters()) == counted.total + counted.mlm_head


@pytest.mark.filterwarnings("error")
def test_names_without_prefix_and_a_tied_copy_are_read(written: tuple[Contents, Path]) -> None:
    contents, path = written

    def older(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        return bare | {"lm_loss.weight": bare["word_embedding.weight"].clone()}

    change_tensors(path, older)
    change_config(path, architectures="absent")
    assert list(assert_same(contents, path).network.heads) == ["mask"]
    change_tensors(path, lambda tensors: tensors | {"lm_loss.weight": tensors["lm_loss.weight"] + 1})
    with pytest.raises(UserError, match=r"'lm_loss.weight' differs from 'word_embedding.weight'"):
        folder.read(path)


def test_other_names_of_keys_are_read(written: tuple[Contents, Path]) -> None:
    contents, path = written
    change_config(path, d_model="absent", hidden_size=16, n_layer="absent", num_hidden_layers=2, d_head="absent")
    change_config(path, n_head="absent", num_attention_heads=2, vocab_size="absent", n_token=130)
    assert_same(contents, path)


@pytest.mark.parametrize("key", ["reuse_len", "bi_data", "untie_r", "same_length", "use_mems_train"])
def test_keys_without_influence_on_stored_weights_are_not_read(written: tuple[Contents, Path], key: str) -> None:
    contents, path = written
    change_config(path, **{key: {"reuse_len": 8, "untie_r": False}.get(key, True)})
    assert assert_same(contents, path).architecture == contents.architecture


@pytest.mark.parametrize(
    ("axis", "value", "key", "stored"),
    [
        ("memory", 8, "mem_len", 8),
        ("memory", 0, "mem_len", None),
        ("clamp", 30, "clamp_len", 30),
        ("clamp", 0, "clamp_len", -1),
        ("summary", "first", "summary_type", "first"),
        ("activation", "gelu-tanh", "ff_activation", "gelu_new"),
        ("classifier_dropout", 0.3, "summary_last_dropout", 0.3),
        ("dropout", 0.25, "dropout", 0.25),
    ],
)
def test_axes_are_written_and_read(tmp_path: Path, axis: str, value: object, key: str, stored: object) -> None:
    changes = {axis: value} | ({"attention_dropout": value} if axis == "dropout" else {})
    contents = small(**changes)
    folder.write(contents, tmp_path / "m", to="huggingface")
    assert json.loads((tmp_path / "m" / "config.json").read_text())[key] == stored
    assert folder.read(tmp_path / "m").architecture == contents.architecture


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("attn_type", "uni", "'uni' has no equal here, only 'bi'"),
        ("summary_type", "mean", "'mean' has no equal here, only 'first' or 'last'"),
        ("summary_type", ["last"], r"\['last'\] has no equal here"),
        ("summary_use_proj", False, "False has no equal here, only True"),
        ("summary_activation", None, "None has no equal here, only 'tanh'"),
        ("summary_proj_to_labels", True, "True has no equal here, only False"),
        ("summary_first_dropout", 0.1, "0.1 has no equal here, only 0"),
        ("tie_word_embeddings", False, "False has no equal here, only True"),
        ("ff_activation", "mish", "'mish' is not supported; known: gelu, gelu_new"),
        ("d_head", 4, "must be d_model / n_head, not 4"),
        ("d_head", "wide", "must be a whole number, not 'wide'"),
        ("d_inner", "wide", "'wide' is not a valid value"),
        ("clamp_len", 2.5, "must be a whole number, not 2.5"),
    ],
)
def test_settings_without_an_equal_are_refused(
    written: tuple[Contents, Path], key: str, value: object, reason: str
) -> None:
    _, path = written
    change_config(path, **{key: value})
    with pytest.raises(UserError, match=f"config.json: {key}: {reason}") as caught:
        folder.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"shared_position_bias": True}, "XLNet cannot hold this architecture: shared_position_bias is True"),
        ({"query_stream": False}, "query_stream is False, there it is True"),
        ({"attention_bias": True}, "attention_bias is True, there it is False"),
        ({"segment_encoding": "absolute"}, "segment_encoding is absolute, there it is relative"),
        ({"sequence_head": "tanh"}, "sequence_head is tanh, there it is summary"),
        ({"embedding_norm": True}, "embedding_norm is True, there it is False"),
    ],
)
def test_what_hugging_face_cannot_hold_is_kept_in_bertrees_layout(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    contents = small(**change)
    with pytest.raises(UserError, match=reason):
        folder.write(contents, tmp_path / "hf", to="huggingface")
    folder.write(contents, tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bertree"
    assert folder.read(tmp_path / "m").architecture == contents.architecture


def test_a_matrix_of_another_shape_is_refused(written: tuple[Contents, Path]) -> None:
    _, path = written
    name = "transformer.layer.0.rel_attn.q"
    change_tensors(path, lambda tensors: tensors | {name: tensors[name].flatten(1)})
    with pytest.raises(UserError, match=rf"'{name}' has shape 16 x 16, but the configuration needs 16 x 2 x 8"):
        folder.read(path)


def test_verbs_work_on_a_folder_of_hugging_face(written: tuple[Contents, Path], command: Command) -> None:
    _, theirs = written
    ours, back = theirs.parent / "ours", theirs.parent / "back"
    (theirs / "spiece.model").write_bytes(small_model())
    shown = command("info", theirs)
    assert shown.code == 0
    assert "query_stream" in shown.out
    model = bertree.load(theirs)
    assert model.tokenizer is not None
    assert model.tokenizer.special["cls"] == "<cls>"
    for arguments in ((theirs, ours, "--to", "bertree"), (ours, back, "--to", "huggingface")):
        assert command("convert", *arguments).code == 0
    before, after = (load_file(path / "model.safetensors") for path in (theirs, back))
    assert before.keys() == after.keys()
    assert all(tensor.equal(after[name]) for name, tensor in before.items())
    assert (back / "spiece.model").read_bytes() == (theirs / "spiece.model").read_bytes()
    for path in (theirs, ours, back):
        assert command("verify", path).code == 0
    (theirs / "lines.txt").write_text("the river\nthe Sea\n")
    assert command("embed", back, theirs / "lines.txt", "--out", theirs / "v.npy").code == 0
    again = transformers.AutoTokenizer.from_pretrained(back)
    text = "the rivers, 12, (a) e-mail"
    assert again(text)["input_ids"] == model.tokenizer.encode([text])[0].ids
