"""Tokenizers that are trained here are read the same by us and by transformers."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bertree.errors import UserError
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus
from bertree.text.identity import tokenizer_hash, word_starts
from bertree.text.tokenizer import Tokenizer
from tests.support.shared import suite_has

BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"
SPECIAL = {
    "wordpiece": {
        "pad": ("[PAD]", 0),
        "unk": ("[UNK]", 1),
        "cls": ("[CLS]", 2),
        "sep": ("[SEP]", 3),
        "mask": ("[MASK]", 4),
    },
    "bpe": {
        "cls": ("<s>", 0),
        "pad": ("<pad>", 1),
        "sep": ("</s>", 2),
        "unk": ("<unk>", 3),
        "mask": ("<mask>", 4),
    },
    "unigram": {
        "pad": ("<pad>", 0),
        "unk": ("<unk>", 1),
        "cls": ("[CLS]", 2),
        "sep": ("[SEP]", 3),
        "mask": ("[MASK]", 4),
    },
    "xlnet": {
        "unk": ("<unk>", 0),
        "cls": ("<cls>", 3),
        "sep": ("<sep>", 4),
        "pad": ("<pad>", 5),
        "mask": ("<mask>", 6),
    },
}


KINDS = suite_has(list(SPECIAL)[:-1], SPECIAL)  # the last is trained like the one before


def documents() -> Iterator[str]:
    for number, document in enumerate(Corpus([str(BOOKS)]).documents()):
        if number % 40 == 0:
            yield document


@pytest.fixture(scope="module", params=list(SPECIAL))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizer") / request.param
    tokenizer_training.save(tokenizer_training.train(documents, request.param, 2000), folder)
    return request.param, folder


def load(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def test_size_and_special_tokens(trained: tuple[str, Path]) -> None:
    kind, folder = trained
    tokenizer = load(folder)
    assert tokenizer.size == 2000
    assert sorted(path.name for path in folder.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    special = {name: (tokenizer.special[name], tokenizer.id_of(name)) for name in SPECIAL[kind]}
    assert special == SPECIAL[kind]


def test_transformers_reads_the_same_ids(trained: tuple[str, Path], hard_lines: Callable[[int], list[str]]) -> None:
    _, folder = trained
    tokenizer = load(folder)
    lines = [*hard_lines(500), "A plain sentence, with <mask> and [MASK] in it.", ""]
    ours = [encoded.ids for encoded in tokenizer.encode(lines)]
    for peer in (AutoTokenizer.from_pretrained(folder), PreTrainedTokenizerFast.from_pretrained(folder)):
        assert peer(lines)["input_ids"] == ours
        assert (peer.mask_token, peer.pad_token) == (tokenizer.special["mask"], tokenizer.special["pad"])
    pair = tokenizer.encode([("First text.", "Second one.")])[0]
    theirs = AutoTokenizer.from_pretrained(folder)("First text.", "Second one.")
    assert theirs["input_ids"] == pair.ids
    assert theirs.get("token_type_ids", pair.segments) == pair.segments


def test_the_family_frames_and_normalises(trained: tuple[str, Path]) -> None:
    kind, folder = trained
    tokenizer = load(folder)
    first, mask, last = (SPECIAL[kind][name][0] for name in ("cls", "mask", "sep"))
    encoding = tokenizer.backend.encode(f"The Café {mask}.")
    if kind == "xlnet":
        assert encoding.tokens[-2:] == [last, first]
        assert encoding.type_ids[-2:] == [0, 2]
    else:
        assert (encoding.tokens[0], encoding.tokens[-1]) == (first, last)
    assert tokenizer.cls_last == (kind == "xlnet")
    assert encoding.ids.count(SPECIAL[kind]["mask"][1]) == 1
    assert len(tokenizer.backend.encode(f"the {mask}").ids) == 4  # no piece for the space before the mask
    text = tokenizer.backend.decode(encoding.ids, skip_special_tokens=True).replace(" ", "")
    assert text == {"bpe": "TheCafé.", "xlnet": "TheCafe."}.get(kind, "thecafe.")


def test_bytes_make_every_text_known(trained: tuple[str, Path], hard_lines: Callable[[int], list[str]]) -> None:
    kind, folder = trained
    tokenizer = load(folder)
    report = tokenizer_training.evaluate(tokenizer, hard_lines(200))
    assert (report.unknown == 0) == (kind == "bpe")
    if kind == "bpe":
        line = "Ünïcode 東京 😀 \t two  spaces"
        assert tokenizer.backend.decode(tokenizer.encode([line])[0].ids) == line


def test_word_starts(trained: tuple[str, Path]) -> None:
    kind, folder = trained
    tokenizer = load(folder)
    starts = word_starts(tokenizer)
    assert starts.dtype == np.bool_
    assert starts.shape == (2000,)
    assert starts[:5].all()
    table = tokenizer.backend.get_vocab()
    yes = {"wordpiece": ["the", ",", "a"], "bpe": ["Ġthe", "Ġ"]}.get(kind, ["▁the", "▁"])
    no = {"wordpiece": ["##s", "##e"], "bpe": ["the", ",", "s"]}.get(kind, ["ing", ",", "s"])
    assert [bool(starts[table[token]]) for token in yes] == [True] * len(yes)
    assert [bool(starts[table[token]]) for token in no] == [False] * len(no)


def test_the_hash_names_what_a_tokenizer_does(trained: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = trained
    tokenizer = load(folder)
    digest = tokenizer_hash(tokenizer)
    spelled = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spelled))  # other bytes, same tokenizer
    assert tokenizer_hash(load(tmp_path)) == digest
    if kind == "wordpiece":
        spelled["normalizer"]["lowercase"] = False
        (tmp_path / "tokenizer.json").write_text(json.dumps(spelled))
        assert tokenizer_hash(load(tmp_path)) != digest
    assert tokenizer_hash(tokenizer_training.train(lambda: islice(documents(), 10), kind, 600)) != digest
    size = tokenizer.size
    tokenizer.backend.add_tokens(["a new one"])  # the hash and the size that are kept of it are not taken
    assert tokenizer_hash(tokenizer) != digest
    assert tokenizer.size == size + 1


def test_the_same_text_gives_the_same_tokenizer(trained: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = trained
    tokenizer_training.save(tokenizer_training.train(documents, kind, 2000), tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_wordpiece_alphabet() -> None:
    alphabet, inner = tokenizer_training.wordpiece_alphabet(["ab, ba", "a-a b\u00b7c cc $d"], 5)
    assert alphabet == [",", "-", "a", "b", "c"] or alphabet == ["$", ",", "a", "b", "c"]
    assert inner == ["a", "b", "c"]


def test_report_by_hand() -> None:
    tokenizer = tokenizer_training.train(lambda: ["a b ab ab ab aé"] * 5, "wordpiece", 30)
    report = tokenizer_training.evaluate(tokenizer, ["ab zz", "ab é"])
    assert (report.documents, report.words, report.tokens, report.unknown, report.size) == (2, 4, 4, 1, 10)
    assert (report.fertility, report.unknown_rate, report.compression) == (1.0, 0.25, 2.5)


def test_every_twentieth_document_is_held_out() -> None:
    split = tokenizer_training.HeldOutSplit()
    passed = list(split.training(str(number) for number in range(100)))
    assert split.held == ["19", "39", "59", "79", "99"]
    assert len(passed) == split.passed == 95


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("wordpeice", 2000, "did you mean 'wordpiece'"),
        ("bpe", 100, "must be between 261"),
        ("unigram", 0, "must be between"),
        ("wordpiece", 10**7, "must be between"),
    ],
)
def test_wrong_requests(kind: str, size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tokenizer_training.train(lambda: ["text"], kind, size)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_nothing_to_train_on(kind: str) -> None:
    with pytest.raises(UserError, match=r"^my\.txt: ") as caught:
        tokenizer_training.train(list, kind, 2000, name="my.txt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_cutting_a_long_line_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = " ".join(BOOKS.read_text(encoding="utf-8").split()[:5000])

    def train() -> str:
        return tokenizer_training.train(lambda: [line], kind, 500).backend.to_str()

    assert max(map(len, tokenizer_training._lines(lambda: [line]))) <= tokenizer_training.LONG_LINE < len(line)
    cut = train()
    monkeypatch.setattr(tokenizer_training, "LONG_LINE", len(line))
    assert train() == cut


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", ["x", "word ", "a.", " "])
def test_a_very_long_line_takes_linear_time(kind: str, unit: str) -> None:
    """One word of 100,000 letters would take minutes."""
    tokenizer = tokenizer_training.train(lambda: [unit * (100_000 // len(unit)), "some other words"], kind, 300)
    assert tokenizer.size > 10


@pytest.mark.parametrize("kind", list(SPECIAL))
def test_an_error_in_the_corpus_stays_that_error(kind: str) -> None:
    def broken() -> Iterator[str]:
        yield "some text here"
        raise UserError("file: is broken")

    with pytest.raises(UserError, match=r"^file: is broken$"):
        tokenizer_training.train(broken, kind, 2000)
