"""Whatever a tokenizer's file holds, loading it is one line that names the file; nothing crashes or hangs."""

import base64
import copy
import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertree.errors import UserError
from bertree.text import tokenizer_checks, tokenizer_training
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import JSON, Tokenizer
from bertree.text.tokenizer_checks import check_charsmap

Content = dict[str, Any]
# Of a trie of 256 units that leads nowhere, and one replacement.
CHARSMAP = struct.pack("<I", 1024) + bytes(1024) + b"x\0"


@pytest.fixture(scope="module")
def contents() -> dict[str, Content]:
    """A good tokenizer.json of each kind."""
    return {
        kind: json.loads(tokenizer_training.train(lambda: ["a river ran to the sea"] * 9, kind, 300).backend.to_str())
        for kind in ("wordpiece", "bpe", "unigram")
    }


def load(content: Content, folder: Path) -> Tokenizer:
    (folder / JSON).write_text(json.dumps(content))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def normalizer(part: Content) -> Callable[[Content], object]:
    return lambda content: content.update(normalizer=part)


def replace(pattern: str, content: str) -> Content:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def charsmap(data: bytes) -> Content:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def template(name: str, pieces: list[Content]) -> Callable[[Content], object]:
    return lambda content: content["post_processor"].update({name: pieces})


A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
CASES: dict[str, tuple[str, Callable[[Content], object], str]] = {
    "no unknown token": ("wordpiece", lambda c: c["model"]["vocab"].pop("[UNK]"), r"unknown token '\[UNK\]'"),
    "no vocabulary": ("wordpiece", lambda c: c["model"].update(vocab={}), r"unknown token '\[UNK\]'"),
    "word level": (
        "wordpiece",
        lambda c: c.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
        r"unknown token '\[UNK\]'",
    ),
    "no unknown piece": ("unigram", lambda c: c["model"].update(unk_id=None), "unk_id"),
    "no pieces": ("unigram", lambda c: c["model"].update(vocab=[], unk_id=None), "vocabulary is empty"),
    "huge id": ("wordpiece", lambda c: c["model"]["vocab"].update(a=2**31), "token id 2147483648"),
    "one id twice": ("wordpiece", lambda c: c["model"]["vocab"].update(a=0), "same id"),
    "a merge into no token": (
        "bpe",
        lambda c: c.update(model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}),
        "needs 'ab', not in the vocabulary",
    ),
    "a merge of three": ("bpe", lambda c: c["model"].update(merges=[["a", "b", "c"]]), "not a pair"),
    "long insertion": ("unigram", normalizer({"type": "Prepend", "prepend": "▁" * 1000}), "prepend"),
    "empty added token": ("wordpiece", lambda c: c["added_tokens"][4].update(content=""), "added_tokens"),
    "two texts in one": ("wordpiece", template("single", [B]), "single must have the sequence A"),
    "one text in a pair": ("wordpiece", template("pair", [A, A]), "pair must have the sequence A and B"),
    "unknown special": (
        "wordpiece",
        template("single", [{"SpecialToken": {"id": "../etc/passwd", "type_id": 0}}, A]),
        "'../etc/passwd', which is not in special_tokens",
    ),
    "special id": (
        "wordpiece",
        lambda c: c["post_processor"]["special_tokens"]["[CLS]"].update(ids=[99999]),
        "token id 99999",
    ),
    "processor id": (
        "wordpiece",
        lambda c: c.update(post_processor={"type": "BertProcessing", "sep": ["[SEP]", 99999], "cls": ["[CLS]", 2]}),
        "token id 99999",
    ),
    "charsmap of nothing": ("unigram", normalizer(charsmap(b"")), "precompiled_charsmap"),
    "charsmap of junk": ("unigram", normalizer(charsmap(b"\xff\xff\xff\x7f" + b"x" * 99)), "precompiled_charsmap"),
    "charsmap that leads out": (
        "unigram",
        normalizer({"type": "Sequence", "normalizers": [charsmap(CHARSMAP[:4] + b"\0\xfc\xff\0" + CHARSMAP[8:])]}),
        "leads outside",
    ),
    "charsmap that is no base64": (
        "unigram",
        normalizer({"type": "Precompiled", "precompiled_charsmap": "é"}),
        "precompiled_charsmap",
    ),
    "expression that never ends": (
        "wordpiece",
        lambda c: c.update(
            pre_tokenizer={
                "type": "Split",
                "pattern": {"Regex": "(x+x+)+y"},
                "behavior": "Isolated",
                "invert": False,
            }
        ),
        "cannot be encoded|does not end",
    ),
    "text that grows": (
        "wordpiece",
        normalizer({"type": "Sequence", "normalizers": [replace("(?=.)|x", "xxxxxxxxxxxxxxxx")] * 12}),
        "cannot be encoded|does not end",
    ),
    "deep": ("wordpiece", lambda c: c.update(model=json.loads("[" * 400 + "]" * 400)), "cannot be read"),
    "other types": ("wordpiece", lambda c: c.update(model=7, added_tokens={"a": 1}), "cannot be read"),
    "another model": ("wordpiece", lambda c: c["model"].update(type="Unigram"), "unk_id"),
}


@pytest.mark.process
@pytest.mark.parametrize("case", list(CASES))
def test_a_bad_tokenizer_is_one_line(
    case: str,
    contents: dict[str, Content],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, change, message = CASES[case]
    if "does not end" in message:
        monkeypatch.setattr(tokenizer_checks, "TRIAL_SECONDS", 1)
    content = copy.deepcopy(contents[kind])
    change(content)
    with pytest.raises(UserError, match=message) as caught:
        load(content, tmp_path)
    assert str(tmp_path / JSON) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", ""), "a panic prints its own lines"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_our_own_tokenizers_are_not_tried_in_a_child(
    kind: str, contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_checks, "_try_in_child", lambda data, name: pytest.fail("takes half a second"))
    load(contents[kind], tmp_path)


def test_unusual_parts_are_tried_once_and_used(
    contents: dict[str, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = copy.deepcopy(contents["wordpiece"])
    content["normalizer"] = {"type": "Sequence", "normalizers": [replace("[0-9]", "0"), content["normalizer"]]}
    tokenizer = load(content, tmp_path)
    assert tokenizer.encode(["12 9"]) == tokenizer.encode(["00 0"])
    assert len(tokenizer_hash(tokenizer)) == 64
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **more: pytest.fail("takes half a second"))
    load(content, tmp_path)
    content["normalizer"]["normalizers"][0]["content"] = "1"
    with pytest.raises(pytest.fail.Exception):
        load(content, tmp_path)


@pytest.mark.process
def test_a_panic_in_a_later_text_is_one_line(contents: dict[str, Content], tmp_path: Path) -> None:
    """An expression may be harmless on every text that was tried."""
    content = copy.deepcopy(contents["wordpiece"])
    content["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "(q+q+)+y"},
        "behavior": "Isolated",
        "invert": False,
    }
    tokenizer = load(content, tmp_path)
    for encode in (tokenizer.encode, tokenizer.encode_plain):
        with pytest.raises(UserError, match=r"tokenizer\.json: a text cannot be encoded"):
            encode(["q" * 200])


def test_character_maps() -> None:
    check_charsmap(CHARSMAP)
    for broken, reason in (
        (CHARSMAP[:500], "size"),
        (CHARSMAP[:-2] + b"\xff\0", "UTF-8"),
        (CHARSMAP[:4] + struct.pack("<I", 1 << 30) + CHARSMAP[8:], "leads outside"),
        # The root has a value, which is that of the first unit: itself.
        (CHARSMAP[:4] + struct.pack("<I", 1 << 8) + CHARSMAP[8:], "outside it"),
        (CHARSMAP[:4] + struct.pack("<I", 1 << 31 | 1 << 8 | 1) + CHARSMAP[8:-2] + "é".encode(), "."),
    ):
        with pytest.raises(ValueError, match=reason):
            check_charsmap(broken)
