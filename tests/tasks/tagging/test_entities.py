"""Entities and their scores against seqeval; schemes recognised and converted."""

import random

import pytest

from bertree.tasks.tagging.entities import entities, scheme_of, score_entities, to_iob2

TRICKY = [
    "",
    "O",
    "B-X",
    "I-X",
    "O I-X I-X O",
    "B-X B-X I-X",
    "I-X B-X I-X I-Y",
    "B-X I-Y I-X O I-Y",
    "B-X O I-X",
    "I-X I-Y I-X",
    "E-X",
    "B-X E-X E-X I-X",
    "S-X S-X I-X S-Y E-Y",
    "B-X I-X E-Y S-Y",
    "I-X S-X E-X B-X",
    "B-X-Y I-X-Y I-X",
    "B I I O I",
    "B I-X I",
    "O O B-X",
    "S-X O E-X O",
    "B-X S-Y I-Y E-X",
]


def split(lines: list[str]) -> list[list[str]]:
    return [line.split() for line in lines]


def random_tags(source: random.Random, places: str = "BIES", kinds: tuple[str, ...] = ("X", "Y", "X-Y")) -> list[str]:
    tags = ["O", "O", *(f"{place}-{kind}" for place in places for kind in kinds)]
    return [source.choice(tags) for _ in range(source.randrange(1, 12))]


def agree(gold: list[list[str]], predicted: list[list[str]]) -> None:
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    for tags in (*gold, *predicted):
        peer = [(kind, start, end + 1) for kind, start, end in get_entities(list(tags))]
        assert entities(tags) == peer, tags
    total, kinds = score_entities(gold, predicted)
    assert total.f1 == f1_score(gold, predicted, zero_division=0)
    assert total.precision == precision_score(gold, predicted, zero_division=0)
    assert total.recall == recall_score(gold, predicted, zero_division=0)
    each = precision_recall_fscore_support(gold, predicted, average=None, zero_division=0)
    assert [tuple(entities) for entities in kinds.values()] == list(
        zip(*(part.tolist() for part in each[:3]), strict=True)
    )


@pytest.mark.filterwarnings("ignore")
def test_tricky_sequences_as_seqeval() -> None:
    pytest.importorskip("seqeval")
    lines = split([line for line in TRICKY if line])
    agree(lines, lines)
    for tags in lines:
        for other in lines:
            if len(tags) == len(other):
                agree([tags], [other])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("places", ["BI", "BIES", "I"])
def test_random_sequences_as_seqeval(places: str) -> None:
    pytest.importorskip("seqeval")
    source = random.Random(places)
    for _ in range(150):
        gold = [random_tags(source, places) for _ in range(source.randrange(1, 6))]
        predicted = [[tag if source.random() < 0.7 else source.choice(tags) for tag in tags] for tags in gold]
        agree(gold, predicted)
        agree(gold, [[source.choice(random_tags(source, places)) for _ in tags] for tags in gold])


def test_nothing_to_count_is_zero() -> None:
    total, kinds = score_entities([["O", "O"]], [["O", "O"]])
    assert total == (0, 0, 0)
    assert kinds == {}
    total, kinds = score_entities([["B-X"]], [["O"]])
    assert total == (0, 0, 0)
    assert kinds == {"X": (0, 0, 0)}


def write(spans: list[tuple[str, int, int]], size: int, scheme: str) -> list[str]:
    """The textbook's tags for entities, one way for each scheme."""
    tags = ["O"] * size
    previous: tuple[str, int, int] | None = None
    for kind, start, end in spans:
        if scheme == "iob1":
            touches = previous is not None and previous[0] == kind and previous[2] == start
            places = ("B" if touches else "I") + "I" * (end - start - 1)
        elif scheme == "iob2":
            places = "B" + "I" * (end - start - 1)
        else:
            single, last = ("S", "E") if scheme == "iobes" else ("U", "L")
            places = single if end - start == 1 else "B" + "I" * (end - start - 2) + last
        tags[start:end] = [f"{place}-{kind}" for place in places]
        previous = (kind, start, end)
    return tags


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "iobes", "bilou"])
def test_schemes_are_recognised_and_converted(scheme: str) -> None:
    source = random.Random(scheme)
    written, plain = [], []
    for _ in range(100):
        spans, at, size = [], 0, 14
        while at < size:
            end = min(size, at + source.randrange(1, 4))
            if source.random() < 0.6:
                spans.append((source.choice("XY"), at, end))
            at = end
        written.append(write(spans, size, scheme))
        plain.append(write(spans, size, "iob2"))
        assert to_iob2(written[-1], scheme) == plain[-1]
        assert entities(plain[-1]) == spans
    assert scheme_of(written) == scheme


def test_schemes_of_little_or_broken_data() -> None:
    assert scheme_of(split(["O O O"])) == "iob2"
    assert scheme_of(split(["O I-X", "B-X I-X", "B-Y I-Y O B-X"])) == "iob2"  # one slip in well-formed IOB2
    assert scheme_of(split(["I-X B-X", "O I-Y"])) == "iob1"
    assert scheme_of(split(["B I O"])) == "iob2"
    assert scheme_of(split(["DET NOUN O"])) == "plain"
    assert scheme_of(split(["B-X E-X", "U-X"])) == "plain"  # of no one scheme
    assert to_iob2(["I", "I", "O", "I"]) == ["B", "I", "O", "B"]
    assert to_iob2(["I-X", "I-Y", "I-Y", "B-Y", "O"]) == ["B-X", "B-Y", "I-Y", "B-Y", "O"]
