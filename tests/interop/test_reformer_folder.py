"""Folders of Hugging Face's Reformer: defaults, refusals, the head's bias, bytes, and the verbs that read them."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bertree
from bertree.errors import BertreeWarning, UserError
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import PRESETS
from tests.support.command import Command

SMALL = {
    "layers": 3, "width": 16, "heads": 2, "head_width": 8, "ffn_width": 40, "vocab_size": 70, "chunk_length": 4,
    "lsh_chunk_length": 8, "axial_shape": "4,8", "axial_widths": "6,10", "hashes": 2, "duplicates": "each",
    "buckets": "4", "classifier_dropout": 0.2, "attention": "chunked,chunked,lsh",
}  # fmt: skip


def small(heads: dict[str, int] | None = None, **changes: object) -> Contents:
    a = PRESETS["reformer-enwik8"].architecture.with_values({**SMALL, **changes})
    torch.manual_seed(0)
    contents = Contents(a, build(a, {"mask": 0} if heads is None else heads))
    for parameter in contents.network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return contents


def write(contents: Contents, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BertreeWarning)
        folder.write(contents, path, to="huggingface")
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(small(), tmp_path / "m")


def change_config(path: Path, **values: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | values))


def change_tensors(path: Path, change: Any) -> None:
    tensors = change(load_file(path / "model.safetensors"))
    save_file(tensors, path / "new.safetensors")
    (path / "new.safetensors").replace(path / "model.safetensors")


def test_chunks_of_the_feed_forward_part_that_do_not_fit_transformers_padding_are_left_out(tmp_path: Path) -> None:
    write(small({}, ffn_chunk=64), tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["chunk_size_feed_forward"] == 0
    model = transformers.ReformerModel.from_pretrained(tmp_path / "m").eval()
    assert model(torch.ones(1, 10, dtype=torch.long)).last_hidden_state.shape == (1, 10, 32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": "chunked,causal"}, "attention is chunked,causal, there it is chunked or lsh"),
        ({"positions": "sinusoidal"}, "positions is sinusoidal, there it is axial or learned"),
        ({"lsh_chunks_after": 1}, "lsh_chunks_after is 1, there it is 0"),
        ({"attention_bias": True}, "attention_bias is True, there it is False"),
        ({"norm": "rms"}, "norm is rms, there it is layer"),
        ({"residual": "pre-norm"}, "cannot hold this architecture"),
    ],
)
def test_what_hugging_face_cannot_hold_is_kept_in_bertrees_layout(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    contents = small(**changes)
    with pytest.raises(UserError, match=reason):
        folder.write(contents, tmp_path / "hf", to="huggingface")
    folder.write(contents, tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "bertree"
    assert folder.read(tmp_path / "m").architecture == contents.architecture


def test_a_classifier_that_reads_left_to_right_has_no_equal(tmp_path: Path) -> None:
    reason = "ReformerForSequenceClassification reads the first token of a text, which sees no other with is_decoder"
    with pytest.raises(UserError, match=f"Hugging Face's {reason}"):
        folder.write(small({"sequence": 2}), tmp_path / "left", to="huggingface")
    write(small({"sequence": 2}, look_ahead=True), tmp_path / "both")
    assert list(folder.read(tmp_path / "both").network.heads) == ["sequence"]
    change_config(tmp_path / "both", is_decoder=True)
    with pytest.raises(UserError, match=f"config.json: {reason}"):
        folder.read(tmp_path / "both")


def test_the_heads_bias_is_read_applied_and_kept_with_a_note(tmp_path: Path, written: Path) -> None:
    note = r"its lm_head.bias is not zero; bertree adds it to the logits, transformers 5 does not"
    with pytest.warns(BertreeWarning, match=note):
        contents = folder.read(written)
    stored = load_file(written / "model.safetensors")["lm_head.bias"]
    head = contents.network.heads["mask"]
    assert stored.any()
    assert torch.equal(head.bias, stored)
    with pytest.warns(BertreeWarning, match="transformers 5 does not apply lm_head.bias, which is not zero"):
        folder.write(contents, tmp_path / "again", to="huggingface")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (written / "model.safetensors").read_bytes()


@pytest.mark.filterwarnings("error")
def test_a_bias_of_zeros_needs_no_note(tmp_path: Path) -> None:
    contents = small()
    torch.nn.init.zeros_(contents.network.heads["mask"].bias)
    folder.write(contents, tmp_path / "m", to="huggingface")
    folder.read(tmp_path / "m")


@pytest.mark.filterwarnings("ignore:.*lm_head.bias")
def test_the_bias_of_older_folders_is_read(written: Path) -> None:
    stored = load_file(written / "model.safetensors")["lm_head.bias"]
    change_tensors(written, lambda tensors: tensors | {"lm_head.decoder.bias": stored.clone()})
    assert torch.equal(folder.read(written).network.heads["mask"].bias, stored)
    change_tensors(written, lambda tensors: {n: t for n, t in tensors.items() if n != "lm_head.bias"})
    assert torch.equal(folder.read(written).network.heads["mask"].bias, stored)
    change_tensors(written, lambda tensors: tensors | {"lm_head.bias": stored + 1})
    with pytest.raises(UserError, match=r"'lm_head.decoder.bias' differs from 'lm_head.bias'"):
        folder.read(written)


def test_what_transformers_does_otherwise_is_said_on_writing(tmp_path: Path) -> None:
    with pytest.warns(BertreeWarning) as noted:
        folder.write(small({}, duplicates="once", eval_hashes=4), tmp_path / "m", to="huggingface")
    lines = [str(warning.message) for warning in noted]
    assert any("counts a token once for every hash that finds it" in line for line in lines)
    assert any("hashes 2 times; give it num_hashes=4 outside of training" in line for line in lines)
    assert len(lines) == 2


def test_the_class_follows_from_what_tokens_see(tmp_path: Path) -> None:
    for look_ahead, name in ((False, "ReformerModelWithLMHead"), (True, "ReformerForMaskedLM")):
        path = write(small(look_ahead=look_ahead), tmp_path / name)
        assert json.loads((path / "config.json").read_text())["architectures"] == [name]
        model = getattr(transformers, name).from_pretrained(path)
        assert model.lm_head.decoder.weight.shape == (70, 32)


def test_a_matrix_of_another_shape_is_refused(written: Path) -> None:
    name = "reformer.embeddings.position_embeddings.weights.1"
    change_tensors(written, lambda tensors: tensors | {name: tensors[name].flatten(0, 1)})
    with pytest.raises(UserError, match=rf"'{name}' has shape 8 x 10, but the configuration needs 1 x 8 x 10"):
        folder.read(written)


def test_a_folder_with_as_many_ids_as_bytes_reads_bytes(tmp_path: Path) -> None:
    path = write(small(vocab_size=258), tmp_path / "m")
    (path / "tokenizer_config.json").write_text("{}")  # as google/reformer-enwik8 has it
    with pytest.warns(BertreeWarning, match=r"with 258 ids it is assumed to read bytes \(id = byte \+ 2\)"):
        model = bertree.load(path)
    assert model.tokenizer is not None
    text = "In 1965, Brooks – 東"
    assert model.tokenizer.encode([text])[0].ids == [byte + 2 for byte in text.encode()]
    assert folder.read(write(small(), tmp_path / "other")).tokenizer is None


def test_verbs_work_on_a_folder_of_hugging_face(tmp_path: Path, command: Command) -> None:
    theirs, ours, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    write(small(vocab_size=258, axial_shape="8,16"), theirs)
    (tmp_path / "lines.txt").write_text("the river is wide\nthe Sea – höher\n")
    shown = command("info", theirs)
    assert shown.code == 0
    assert "reversible" in shown.out
    for arguments in ((theirs, ours, "--to", "bertree"), (ours, back, "--to", "huggingface")):
        result = command("convert", *arguments)
        assert result.code == 0
        assert "lm_head.bias" in result.err
    assert (back / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    before, after = (json.loads((path / "config.json").read_text()) for path in (theirs, back))
    assert {key for key in after if after[key] != before.get(key)} == {
        "bos_token_id",
        "eos_token_id",
    }  # the tokenizer's
    assert transformers.AutoTokenizer.from_pretrained(back)("aé")["input_ids"] == [99, 197, 171]
    for path in (theirs, ours, back):
        assert command("verify", path).code == 0
    assert command("embed", back, tmp_path / "lines.txt", "--out", tmp_path / "v.npy").code == 0
    assert command("perplexity", ours, tmp_path / "lines.txt").code == 0
    assert command("generate", ours, "the ", "--tokens", "5").code == 0
