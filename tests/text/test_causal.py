"""Tokenizers of GPT-2, GPT-1 and CTRL from their vocabulary files give the ids of transformers; so do real ones.

BERTREE_TEST_VOCABULARIES names a folder with the real files: gpt2/, gpt1/ and ctrl/ with vocab.json and merges.txt.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertree.errors import UserError
from bertree.text.tokenizer import Tokenizer

Lines = Callable[[int], list[str]]
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "the tall river runs to the sea, and the river is long.\nThe sea is wide.\n\nA new line",
    "naïve Ça e-mail 3.14 <unk> and <|endoftext|> 65 km/h",
    "",
    " \n\t ",
    "  two   spaces and a tab\tand\u00a0more ",
    "東京 🙂 running runner's @ a </w>",
]
CORPUS = [
    *(t for t in TEXTS if "<" not in t),
    "running runs runner rivers seas longer longest naïve e-mail mails @ / km",
] * 3


def trained(ending: str | None) -> tuple[dict[str, int], list[str]]:
    """A small vocabulary and its merges: of bytes, or of words with a mark at their end."""
    backend = Backend(models.BPE(end_of_word_suffix=ending, unk_token="<unk>") if ending else models.BPE())
    if ending:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.BpeTrainer(vocab_size=260, end_of_word_suffix=ending, special_tokens=["<unk>"])
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    backend.train_from_iterator(CORPUS, trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    return backend.get_vocab(), [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]


def write(folder: Path, vocab: dict[str, int], merges: list[str]) -> Path:
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vocabularies")
    marked, merges = trained("</w>")
    pieces = {("<unk>" if t == "<unk>" else t[:-4] if t.endswith("</w>") else f"{t}@@"): i for t, i in marked.items()}
    return {
        "gpt2": write(root / "gpt2", *trained(None)),
        "gpt1": write(root / "gpt1", marked, merges),
        "ctrl": write(root / "ctrl", {**pieces, "\n": len(pieces)}, merges),
    }


PEERS = {
    "gpt2": transformers.GPT2Tokenizer,
    "gpt1": transformers.OpenAIGPTTokenizer,
    "ctrl": transformers.CTRLTokenizer,
}


def loaded(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize("name", PEERS)
def test_ids_equal_transformers(name: str, folders: dict[str, Path], hard_lines: Lines) -> None:
    ours, theirs = loaded(folders[name]), PEERS[name].from_pretrained(folders[name])
    lines = [*TEXTS, *CORPUS, *hard_lines(1000)]
    for line, mine in zip(lines, ours.encode(lines), strict=True):
        assert mine.ids == theirs(line)["input_ids"], ascii(line)
    ids = {i for mine in ours.encode(CORPUS) for i in mine.ids}
    assert len(ids) > 40


@pytest.mark.parametrize("name", PEERS)
def test_decoded_text_equals_transformers(name: str, folders: dict[str, Path]) -> None:
    ours, theirs = loaded(folders[name]), PEERS[name].from_pretrained(folders[name])
    for text in (t.lower() for t in TEXTS if "<" not in t and "東" not in t):
        (ids,) = ours.encode([text])
        expected = theirs.decode(ids.ids, clean_up_tokenization_spaces=False)
        assert ours.backend.decode(ids.ids).strip() == expected.strip()


@pytest.mark.parametrize("name", PEERS)
def test_a_saved_tokenizer_gives_the_same_ids_here_and_in_transformers(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    ours = loaded(folders[name])
    ours.save(tmp_path)
    assert (tmp_path / "merges.txt").read_bytes() == (folders[name] / "merges.txt").read_bytes()
    again = loaded(tmp_path)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert theirs.eos_token_id == ours.end_id
    for text in TEXTS:
        (wanted,) = ours.encode([text])
        assert again.encode([text])[0].ids == wanted.ids == theirs(text)["input_ids"]


def test_roles_are_missing_where_the_vocabulary_has_none(folders: dict[str, Path]) -> None:
    gpt2, gpt1 = loaded(folders["gpt2"]), loaded(folders["gpt1"])
    assert [gpt2.id_of(kind) for kind in ("mask", "pad", "cls", "sep")] == [None] * 4
    assert gpt2.end_id == gpt2.backend.token_to_id("<|endoftext|>")
    assert (gpt1.id_of("unk"), gpt1.end_id) == (0, None)


def test_a_merge_without_a_result_in_ctrls_vocabulary_leaves_its_parts(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "k@@": 1, "m": 2, "a": 3}
    tokenizer = loaded(write(tmp_path / "v", vocab, ["k m</w>", "\u00a0k m</w>"]))
    assert tokenizer.encode(["km a"])[0].ids == [1, 2, 3]


def test_a_word_vocabulary_is_read_with_its_counts(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("<eos> 9\nthe 7\n<unk> 3\nsea 1\n")
    tokenizer = loaded(tmp_path)
    assert tokenizer.encode(["the  sea\nThe <eos>"])[0].ids == [1, 3, 2, 0]
    assert (tokenizer.end_id, tokenizer.id_of("unk"), tokenizer.kind) == (0, 2, "WordLevel")
    assert tokenizer.backend.decode([1, 3]) == "the sea"


@pytest.mark.parametrize(
    ("text", "reason"), [("the\nsea\n", "no \\[UNK\\], <unk> or <UNK>"), ("<unk>\n\nsea\n", "line 2 is empty")]
)
def test_a_word_vocabulary_that_cannot_be_one_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "vocab.txt").write_text(text)
    with pytest.raises(UserError, match=reason):
        Tokenizer.load(tmp_path)


def test_a_pickled_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.pkl").write_bytes(b"\x80\x04N.")
    with pytest.raises(UserError, match="is a pickle"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", PEERS)
def test_real_vocabularies_give_the_ids_of_transformers(name: str, hard_lines: Lines) -> None:
    root = os.environ.get("BERTREE_TEST_VOCABULARIES")
    if not root:
        pytest.skip("BERTREE_TEST_VOCABULARIES names no folder with the real vocabularies")
    ours, theirs = loaded(Path(root) / name), PEERS[name].from_pretrained(Path(root) / name)
    lines = [*TEXTS[:-1], *hard_lines(1000)]
    for line, mine in zip(lines, ours.encode(lines), strict=True):
        expected = theirs(line)["input_ids"]
        has_unknown = name != "ctrl" or theirs.unk_token_id not in expected  # see build_ctrl
        assert not has_unknown or mine.ids == expected, ascii(line)
