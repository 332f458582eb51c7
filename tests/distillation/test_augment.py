"""Rule-based augmentation: rates by counting, classes, pieces, pairs, and that it is a function of its arguments."""

import time
from collections import Counter

import numpy as np
import pytest

from bertree import keyed_random
from bertree.distillation import augment as augment_module
from bertree.distillation.augment import augment, word_class
from bertree.errors import UserError

NOUNS = [f"{a}{b}" for a in ("bar", "lem", "tok", "gul", "rov", "pim") for b in ("ak", "et", "op", "um", "ib", "az")]
DOING = [f"{noun}ing" for noun in NOUNS]
NEVER = {"masking": 0.0, "replacing": 0.0, "ngram": 0.0}
M = "[MASK]"


def numbered(count: int, length: int) -> list[tuple[str, ...]]:
    """Texts in which every word says where it stands, so that a piece can be found again."""
    return [(" ".join(f"w{text}x{word}" for word in range(length)),) for text in range(count)]


def test_each_word_is_masked_or_replaced_as_often_as_asked() -> None:
    texts = [(" ".join(NOUNS[(7 * text + word) % 36] for word in range(40)) + f" t{text}",) for text in range(300)]
    copies = augment(texts, 10, 0, mask=M, masking=0.15, replacing=0.3, ngram=0.0)
    assert len(copies) == 3000, "with forty words no two are the same"
    masked = changed = total = 0
    for number, (text,) in enumerate(copies):
        for before, after in zip(texts[number // 10][0].split()[:40], text.split()[:40], strict=True):
            total += 1
            masked += after == M
            changed += after not in (M, before)
    assert masked / total == pytest.approx(0.15, abs=0.005)
    # All nouns are equally frequent, and a word may be replaced by itself.
    assert changed / total == pytest.approx(0.3 * 35 / 36, abs=0.006)


def test_replacements_are_drawn_by_frequency_within_their_class() -> None:
    texts = [("tokum bought three gulab",), *[("rovet",)] * 30, *[("pimak",)] * 60, *[("lemop sang",)] * 60]
    copies = augment(texts, 2000, 1, mask=M, masking=0.0, replacing=1.0, ngram=0.0)
    assert copies, "something changes"
    vocabulary = augment_module._read(texts, M)[1]
    names = {word: number for number, word in enumerate(vocabulary.written[::2])}
    words = np.full(30_000, names["rovet"])
    drawn = vocabulary.replace(words, keyed_random.bits(keyed_random.key(5), np.arange(30_000)))
    shares = Counter(vocabulary.written[2 * drawn].tolist())
    # 30 rovet, 60 pimak, 60 lemop, 60 sang: alike in form and frequency. The rare ones are of another class.
    assert set(shares) == {"rovet", "pimak", "lemop", "sang"}
    assert shares["rovet"] / 30_000 == pytest.approx(30 / 210, abs=0.01)
    assert shares["pimak"] / 30_000 == pytest.approx(60 / 210, abs=0.01)


def test_a_word_is_replaced_within_its_class() -> None:
    texts = [
        (f"The {noun} was {doing} in a {other}, and {number} of them would not go quickly to Paris.",)
        for noun, doing, other, number in zip(NOUNS, DOING, NOUNS[5:] + NOUNS[:5], range(100, 136), strict=True)
    ]
    copies = augment(texts, 20, 3, mask=M, masking=0.0, replacing=0.5, ngram=0.0)
    assert len(copies) > 600
    shapes = {tuple(map(word_class, augment_module._WORD.sub(r" \2", text[0]).split())) for text in texts}
    assert len(shapes) == 1
    assert {tuple(map(word_class, augment_module._WORD.sub(r" \2", text[0]).split())) for text in copies} == shapes
    seen = {word for (text,) in copies for word in text.replace(",", " ,").replace(".", " .").split()}
    assert seen <= {word for (text,) in texts for word in text.replace(",", " ,").replace(".", " .").split()}


@pytest.mark.parametrize(
    ("alike", "other"),
    [
        (("of", "with"), "and"),
        (("The", "A"), "the"),
        (("quickly", "barely"), "quick"),
        (("running", "singing"), "runs"),
        (("king", "thing"), "singing"),
        (("walked", "talked"), "red"),
        (("tables", "boats"), "boat"),
        (("glass", "boat"), "boats"),
        (("Paris", "Boats"), "boats"),
        (("NATO", "USA"), "Nato"),
        (("1984", "2001"), "12"),
        ((",", "."), "a"),
        (("n't", "not"), "is"),
        (("’s", "'s"), "it"),
        (("’s", "is"), "not"),
    ],
)
def test_classes(alike: tuple[str, str], other: str) -> None:
    assert word_class(alike[0]) == word_class(alike[1]) != word_class(other)


def test_pieces_are_one_to_five_words_in_a_row() -> None:
    texts = numbered(2000, 12)
    copies = augment(texts, 4, 0, mask=M, masking=0.0, replacing=0.0, ngram=0.5)
    whole = {text for (text,) in texts}
    lengths: Counter[int] = Counter()
    for (piece,) in copies:
        text = piece.split("x")[0][1:]
        assert f" {piece} " in f" {texts[int(text)][0]} "
        assert piece not in whole
        lengths[piece.count(" ") + 1] += 1
    assert set(lengths) == {1, 2, 3, 4, 5}
    # What is no piece is as before, and dropped; so are pieces drawn twice, more of them among the short ones.
    assert 3500 < sum(lengths.values()) < 4000
    assert min(lengths.values()) > 600
    starts = Counter(piece.split(" ")[0].split("x")[1] for (piece,) in copies if piece.count(" ") == 4)
    assert set(starts) == {str(start) for start in range(8)}, "anywhere in the text"
    assert max(starts.values()) < 2 * min(starts.values())


def test_pairs_are_spoiled_on_one_side_the_other_and_both_in_turn() -> None:
    firsts, seconds = numbered(50, 30), [(text.replace("w", "v"),) for (text,) in numbered(50, 30)]
    pairs = [(left, right) for (left,), (right,) in zip(firsts, seconds, strict=True)]
    copies = augment(pairs, 6, 0, mask=M, masking=0.5, replacing=0.0, ngram=0.0)
    assert len(copies) == 300
    for number, (left, right) in enumerate(copies):
        before = pairs[number // 6]
        assert ((left != before[0]), (right != before[1])) == ((True, False), (False, True), (True, True))[number % 3]
    both = [pair for number, pair in enumerate(copies) if number % 3 == 2]
    places = [[[word == M for word in text.split()] for text in pair] for pair in both]
    assert all(left != right for left, right in places), "each side has draws of its own"


def test_it_is_a_function_of_seed_and_index(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(" ".join(NOUNS[(5 * text + word) % 36] for word in range(9)) + f" t{text}",) for text in range(200)]
    copies = augment(texts, 7, 5, mask=M)
    assert copies == augment(texts, 7, 5, mask=M)
    assert copies != augment(texts, 7, 6, mask=M)
    monkeypatch.setattr(augment_module, "TOGETHER", 100)
    assert copies == augment(texts, 7, 5, mask=M), "however much is done at once"
    fewer = set(augment(texts, 3, 5, mask=M))
    assert fewer < set(copies), "more copies leave the first ones as they were"
    # Without replacements other texts change nothing: what is made of the first ones stays.
    settings = {"mask": M, "replacing": 0.0}
    alone = augment(texts[:50], 7, 5, **settings)
    assert augment(texts, 7, 5, **settings)[: len(alone)] == alone


def test_nothing_is_there_twice() -> None:
    texts = [("a  boat\tcame .",), ("a boat came .",), ("boat",), ("boat",), ("a boat", "boat"), ("boat", "a boat")]
    copies = augment(texts, 200, 0, mask=M)
    assert len(copies) == len(set(copies))
    assert not set(copies) & set(texts)
    assert ("a boat came .",) not in copies
    assert augment(texts, 50, 0, mask=M, **NEVER) == []
    assert {len(item) for item in copies} == {1, 2}


def test_empty_texts_and_single_words() -> None:
    assert augment([], 5, 0, mask=M) == []
    assert augment([("",), ("  ",), ("", "")], 5, 0, mask=M, masking=1.0, replacing=0.0) == []
    assert augment([("boat",)], 50, 0, mask=M) == [(M,)]
    assert augment([("boat",)], 0, 0, mask=M) == []
    assert augment([("", "boat")], 30, 0, mask=M) == [("", M)]
    assert augment([("boat", "")], 30, 0, mask="<mask>") == [("<mask>", "")]


def test_spaces_stay_where_they_were() -> None:
    text = "“Well,” she said (twice), “it's 3.5 o'clock—isn't it?”"
    vocabulary = augment_module._read([(text,)], M)
    assert augment([(text,)], 20, 0, mask=M, **NEVER) == []
    (side,), words = vocabulary
    lengths = side.starts[1:] - side.starts[:-1]
    assert augment_module._join_words(side.words, side.spaced, lengths, words) == [text]
    (masked,) = augment([(text,)], 1, 0, mask=M, masking=1.0, replacing=0.0, ngram=0.0)
    assert masked[0].replace(M, "") == "   " + " " * (masked[0].count(" ") - 3)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"masking": 1.5}, "masking: must lie between 0 and 1"),
        ({"ngram": -0.1}, "ngram: must lie between 0 and 1"),
        ({"masking": 0.6, "replacing": 0.6}, "more than 1 together"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, float], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        augment([("a boat",)], 2, 0, mask=M, **wrong)
    with pytest.raises(UserError, match="copies: must not be negative"):
        augment([("a boat",)], -1, 0, mask=M)


def test_it_is_fast() -> None:
    """A hundred thousand texts twenty times over in about a minute is two million copies; this is a hundredth."""
    texts = [
        (" ".join(NOUNS[(11 * text + 3 * word) % 36] for word in range(20)) + f" t{text}",) for text in range(1000)
    ]
    began = time.process_time()
    copies = augment(texts, 20, 0, mask=M)
    assert len(copies) > 16_000
    assert time.process_time() - began < 6
