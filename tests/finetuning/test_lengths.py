"""A model has one maximum length: what it was trained on, in every verb, unless told otherwise."""

from pathlib import Path

import pytest

import bertree
from bertree.errors import BertreeWarning, UserError
from bertree.inference.load import make_model, random_model
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.presets import preset


def limited(limit: int | None, task: int = 0) -> bertree.Model:
    a = preset("bert-tiny").architecture.with_values({"vocab_size": 50, "width": 16, "max_positions": 64})
    about = {"name": "sst-2", "max_length": task} if task else {}
    return make_model(Contents(a, random_model(a, {}).network, max_length=limit, task=about))


@pytest.mark.parametrize(
    ("limit", "task", "expected"), [(None, 0, 64), (8, 0, 8), (8, 16, 16), (None, 16, 64), (10**30, 0, 64)]
)
def test_the_maximum(limit: int | None, task: int, expected: int, tmp_path: Path) -> None:
    model = limited(limit, task)
    assert model.max_length == expected
    assert model.sequence_length(usual=128) == expected
    assert model.sequence_length(usual=4) == 4
    if limit != 10**30:  # as tokenizers of Hugging Face write it, not as bertree does
        model.save(tmp_path / "model")
        assert folder.read_max_length(tmp_path / "model") == expected


def test_more_on_request() -> None:
    with pytest.warns(BertreeWarning, match=r"max_length 32: the maximum length of bert\w* is 8 tokens"):
        assert limited(8).sequence_length(32, usual=128) == 32
    with pytest.raises(UserError, match="max_length 65: the model has only 64 positions"):
        limited(8).sequence_length(65)


def test_a_new_model_has_learned_the_positions_of_its_task(tmp_path: Path) -> None:
    rows = [f"{label},the word is {word}" for label, word in (("a", "up"), ("b", "down")) * 12]
    (tmp_path / "data.csv").write_text("label,text\n" + "\n".join(rows) + "\n")
    bertree.train_tokenizer(tmp_path / "data.csv", tmp_path / "tokenizer", vocab_size=60)
    run = bertree.finetune(
        "bert-tiny", task="classification", data=tmp_path / "data.csv", out=tmp_path / "out",
        tokenizer=tmp_path / "tokenizer", epochs=1, max_length=16, device="cpu",
    )  # fmt: skip
    assert run.model.max_length == 16
    assert folder.read_max_length(run.folder / "model") == 16
