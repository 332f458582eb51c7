"""XLNet's tokenizer from spiece.model gives the ids of SentencePiece with the authors' own steps around it.

BERTREE_TEST_VOCABULARIES names a folder with the real file: xlnet/spiece.model.
"""

import json
import os
from pathlib import Path

import pytest
import sentencepiece
import transformers

from bertree.text.framing import Frame, special_ids
from bertree.text.identity import word_starts
from bertree.text.tokenizer import Tokenizer
from tests.support.xlnet_pieces import WORDS, author_ids, small_model

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "naïve Ça e-mail (3.14) – £5 or €6",
    "9,500 people in 2010, 12, and 3, of 1,000,000.",
    "``quoted'' and \"so\"",
    "",
    "  two   spaces and a tab\tand\u00a0more ",
    "東京 🙂 ﬁne ½ x²",
    "İI ı HELLO World",
    "the rivers run to the Sea, 2010, 500, 9, 12",
    " ".join(WORDS),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("xlnet")
    (folder / "spiece.model").write_bytes(small_model())
    return folder


def loaded(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def test_ids_are_those_of_sentencepiece_with_the_authors_steps(vocabulary: Path) -> None:
    ours = loaded(vocabulary)
    truth = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary / "spiece.model"))
    assert ours.size == truth.get_piece_size()
    divided = 0
    for text, encoded in zip(TEXTS, ours.encode_plain(TEXTS), strict=True):
        assert encoded.ids == author_ids(truth, text), text
        divided += encoded.ids != truth.encode(text)
    assert divided > 2, "the texts must need the steps"


def test_case_is_kept_unless_the_folder_says_otherwise(vocabulary: Path, tmp_path: Path) -> None:
    cased = loaded(vocabulary)
    assert cased.encode(["Sea"])[0].ids != cased.encode(["sea"])[0].ids
    (tmp_path / "spiece.model").write_bytes((vocabulary / "spiece.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    told = loaded(tmp_path)
    assert told.encode(["Sea"])[0].ids == told.encode(["sea"])[0].ids


def test_special_tokens_stand_at_the_end_in_a_segment_of_their_own(vocabulary: Path) -> None:
    ours = loaded(vocabulary)
    sep, cls = ours.id_of("sep"), ours.id_of("cls")
    left, right = (encoded.ids for encoded in ours.encode_plain(["the river", "the Sea"]))
    (single,), (pair,) = ours.encode(["the river"]), ours.encode([("the river", "the Sea")])
    assert single.ids == [*left, sep, cls]
    assert single.segments == [0] * (len(left) + 1) + [2]
    assert not single.is_pair
    assert pair.ids == [*left, sep, *right, sep, cls]
    assert pair.segments == [0] * (len(left) + 1) + [1] * (len(right) + 1) + [2]
    assert pair.is_pair
    assert pair.second == 0, "the segments tell"
    for frame, texts, wanted in (
        (Frame(ours, pair=False), (left,), single),
        (Frame(ours, pair=True), (left, right), pair),
    ):
        assert frame.wrap(*texts) == wanted
    (cut,) = ours.encode(["the river the river"], max_length=4)
    assert (len(cut.ids), cut.ids[-2:], cut.segments) == (4, [sep, cls], [0, 0, 0, 2])


def test_special_tokens_have_the_roles_of_xlnet(vocabulary: Path) -> None:
    ours = loaded(vocabulary)
    assert ours.special == {"mask": "<mask>", "pad": "<pad>", "cls": "<cls>", "sep": "<sep>", "unk": "<unk>"}
    ids = {ours.backend.token_to_id(t) for t in ("<s>", "</s>", "<eod>", "<eop>", *ours.special.values())}
    assert special_ids(ours) == ids
    assert ours.encode_plain(["the<mask> <sep>x"])[0].ids[1:3] == [ours.id_of("mask"), ours.id_of("sep")]
    starts = word_starts(ours)
    assert starts[ours.backend.token_to_id("▁the")]
    assert not starts[ours.backend.token_to_id("s")]


def test_a_saved_tokenizer_gives_the_same_ids_here_and_in_transformers(vocabulary: Path, tmp_path: Path) -> None:
    ours = loaded(vocabulary)
    ours.save(tmp_path)
    assert (tmp_path / "spiece.model").read_bytes() == (vocabulary / "spiece.model").read_bytes()
    assert_same_ids_after_saving(ours, tmp_path, [*TEXTS, "the <mask> Sea<sep>"])


def assert_same_ids_after_saving(ours: Tokenizer, folder: Path, texts: list[str]) -> None:
    again, theirs = loaded(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert theirs.padding_side == "left"
    assert (theirs.cls_token_id, theirs.sep_token_id) == (ours.id_of("cls"), ours.id_of("sep"))
    for text in texts:
        for pair in (text, (text, "the Sea")):
            (wanted,) = ours.encode([pair])
            assert again.encode([pair]) == [wanted]
            expected = theirs(*pair) if isinstance(pair, tuple) else theirs(pair)
            assert (wanted.ids, wanted.segments) == (expected["input_ids"], expected["token_type_ids"]), text


def test_the_real_vocabulary_gives_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    root = os.environ.get("BERTREE_TEST_VOCABULARIES")
    if not root:
        pytest.skip("BERTREE_TEST_VOCABULARIES names no folder with the real vocabularies")
    file = Path(root) / "xlnet" / "spiece.model"
    (tmp_path / "spiece.model").write_bytes(file.read_bytes())
    ours, truth = loaded(tmp_path), sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert ours.size == 32_000
    assert [ours.id_of(kind) for kind in ("unk", "cls", "sep", "pad", "mask")] == [0, 3, 4, 5, 6]
    for text, encoded in zip(TEXTS, ours.encode_plain(TEXTS), strict=True):
        assert encoded.ids == author_ids(truth, text), text
    ours.save(tmp_path)
    assert_same_ids_after_saving(ours, tmp_path, TEXTS)


def test_what_transformers_writes_gives_its_ids(vocabulary: Path, tmp_path: Path) -> None:
    theirs = transformers.XLNetTokenizer.from_pretrained(vocabulary)
    theirs.save_pretrained(tmp_path)
    ours = loaded(tmp_path)
    assert (ours.id_of("cls"), ours.id_of("sep")) == (theirs.cls_token_id, theirs.sep_token_id)
    for text in [*TEXTS, "the <mask> Sea<sep>"]:
        for pair in (text, (text, "the Sea")):
            (mine,) = ours.encode([pair])
            expected = theirs(*([pair] if isinstance(pair, str) else pair), return_token_type_ids=True)
            assert (mine.ids, mine.segments) == (expected["input_ids"], expected["token_type_ids"]), text
    (tmp_path / "again").mkdir()
    ours.save(tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()
