"""Verbs on Hugging Face's left-to-right folders: info, convert both ways, verify, embed, generate."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import PRESETS
from tests.support.command import Command

SMALL = {"layers": 2, "width": 16, "heads": 2, "ffn_width": 64, "max_positions": 20, "vocab_size": 12}
MERGES = "#version: 0.2\nt h\nth e</w>\n"
TOKENIZERS = {
    "gpt1": {
        "vocab.json": json.dumps({"<unk>": 0, "t": 1, "h": 2, "e</w>": 3, "th": 4, "the</w>": 5}),
        "merges.txt": MERGES,
    },
    "gpt2": {
        "vocab.json": json.dumps({"<|endoftext|>": 0, "t": 1, "h": 2, "e": 3, "th": 4, "the": 5, "Ġ": 6}),
        "merges.txt": "#version: 0.2\nt h\nth e\n",
    },
    "ctrl": {
        "vocab.json": json.dumps({"<unk>": 0, "t@@": 1, "h@@": 2, "e": 3, "th@@": 4, "the": 5, "\n": 6}),
        "merges.txt": MERGES,
    },
    "transformer-xl-base": {"vocab.txt": "<eos>\n<unk>\nthe\nsea\n"},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*memory of zeros")
@pytest.mark.parametrize("preset", TOKENIZERS)
def test_verbs_work_on_a_folder_of_hugging_face(preset: str, command: Command, tmp_path: Path) -> None:
    more = {"cutoffs": "4,8", "memory": 4, "embedding_divisor": 2} if "xl" in preset else {}
    a = PRESETS[preset].architecture.with_values(SMALL | more)
    theirs, ours, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    folder.write(Contents(a, build(a, {"mask": 0})), theirs, to="huggingface")
    for name, text in TOKENIZERS[preset].items():
        (theirs / name).write_text(text, encoding="utf-8")
    assert command("info", theirs).code == 0
    for arguments in ((theirs, ours, "--to", "bertree"), (ours, back, "--to", "huggingface")):
        assert command("convert", *arguments).code == 0
    before, after = (load_file(path / "model.safetensors") for path in (theirs, back))
    assert before.keys() == after.keys()
    assert all(tensor.equal(after[name]) for name, tensor in before.items())
    for name, text in TOKENIZERS[preset].items():
        assert (back / name).read_text(encoding="utf-8") == text
    for path in (theirs, ours, back):
        assert command("verify", path).code == 0
    (tmp_path / "lines.txt").write_text("the the\nthe\n")
    assert command("embed", back, tmp_path / "lines.txt", "--out", tmp_path / "v.npy").code == 0
    result = command("generate", back, "the", "--tokens", 3, "--seed", 1)
    assert result.code == 0
    assert result.out.startswith("the")
