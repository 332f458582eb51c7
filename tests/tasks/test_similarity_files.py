"""Files of sentences in their releases and one's own, and what is made of them for each loss."""

import json
from pathlib import Path

import pytest

from bertree.errors import BertreeWarning, UserError
from bertree.objectives.embedding_losses import LOSSES
from bertree.tasks import similarity as examples
from bertree.tasks import similarity_files as read_sentences
from bertree.tasks.similarity_files import ColumnNames, SentenceExample
from tests.support.learnable import write

STS = """main-captions\tMSRvid\t2012test\t0001\t5.000\tA bird sings.\tA bird is singing.
main-captions\tMSRvid\t2012test\t0004\t3.800\tA boy eats "a pear.\tA child eats fruit.\tsource\tsource
"""
GLUE = """index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore
0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA bird sings.\tA bird is singing.\t5.000
"""
SNLI = """gold_label\tsentence1\tsentence2\tpairID
neutral\tA boy eats.\tHe is hungry.\t1
-\tA boy eats.\tHe is tall.\t2
entailment\tA boy eats.\tSomeone eats.\t3
contradiction\tA boy eats.\tNobody eats.\t4
"""


def read(path: Path, text: str, named: ColumnNames | None = None) -> list[SentenceExample]:
    path.write_text(text)
    return read_sentences.read([path], named or ColumnNames())


def test_releases(tmp_path: Path) -> None:
    rows = read(tmp_path / "sts-train.csv", STS)
    assert [(row.texts, row.gold) for row in rows] == [
        (("A bird sings.", "A bird is singing."), 5.0),
        (('A boy eats "a pear.', "A child eats fruit."), 3.8),
    ]
    assert rows[1].where == f"{tmp_path / 'sts-train.csv'}: line 2"
    assert read(tmp_path / "dev.tsv", GLUE)[0].gold == 5.0
    with pytest.warns(BertreeWarning, match="1 of 4 rows"):
        rows = read(tmp_path / "train.tsv", SNLI)
    assert [row.gold for row in rows] == ["neutral", "entailment", "contradiction"]
    objects = [{"gold_label": "neutral", "sentence1": "One.", "sentence2": "Two.", "genre": "fiction"}]
    assert read(tmp_path / "x.jsonl", json.dumps(objects[0]))[0].gold == "neutral"
    numbered = read(tmp_path / "x.csv", "premise,hypothesis,label\nOne.,Two.,0\nOne.,Three.,2\n")
    assert [row.gold for row in numbered] == ["entailment", "contradiction"]
    headless = read(tmp_path / "x.txt", "one two\tthree\t1\nfour\tfive\t0\n")
    assert [row.gold for row in headless] == ["neutral", "entailment"]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_own_files(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine{ending}"
    rows: list[dict[str, object]] = [
        {"anchor": "a", "positive": "b", "negative": "c", "negative_2": "d"},
        {"anchor": "e", "positive": "f", "negative": "g", "negative_2": ""},
    ]
    (first, second) = read_sentences.read([write(path, rows)], ColumnNames())
    assert (first.texts, second.texts) == (("a", "b", "c", "d"), ("e", "f", "g"))
    assert first.kind == "triplet"
    write(path, [{"sentence1": "a", "sentence2": "b", "score": 0.25}, {"sentence1": "c", "sentence2": "d", "score": 1}])
    assert [row.gold for row in read_sentences.read([path], ColumnNames())] == [0.25, 1.0]
    write(path, [{"sentence1": "a", "sentence2": "b", "label": 1}, {"sentence1": "c", "sentence2": "d", "label": 0}])
    assert [row.gold for row in read_sentences.read([path], ColumnNames())] == ["1", "0"]
    assert [row.gold for row in read_sentences.read([path], ColumnNames(wants="score"))] == [1.0, 0.0]
    write(path, [{"title": "a", "body": "b", "bad": "c", "n": 3}, {"title": "d", "body": "e", "bad": "f", "n": 4}])
    assert read_sentences.read([path], ColumnNames("title", "body"))[0] == SentenceExample(
        ("a", "b"), None, str(path), 1 if ending in (".jsonl", ".parquet") else 2
    )
    assert read_sentences.read([path], ColumnNames("title", "body", None, ("bad",)))[1].texts == ("d", "e", "f")
    assert read_sentences.read([path], ColumnNames("title", "body", "n", ()))[1].gold == "4"
    assert read_sentences.read([path], ColumnNames("title", "body", "n", (), "score"))[1].gold == 4.0


def test_lists_of_negatives(tmp_path: Path) -> None:
    rows = [{"query": "a", "passage": "b", "negatives": ["c", "d"]}, {"query": "e", "passage": "f", "negatives": []}]
    path = write(tmp_path / "x.jsonl", rows)
    with pytest.warns(BertreeWarning, match="have no negative; they are pairs"):
        examples = read_sentences.read([path], ColumnNames())
    assert [row.texts for row in examples] == [("a", "b", "c", "d"), ("e", "f")]


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        ("anchor,negative\na,b\n", ColumnNames(), "x.csv: has no column 'sentence2'"),
        (
            "a,b\nc,d\n",
            ColumnNames("x", label="y"),
            "has no columns 'x', 'sentence2', 'y'; there are: a, b;",
        ),
        ("sentence1,sentence2\na,\n", ColumnNames(), "x.csv: line 2: the second text is empty"),
        (
            "title,body\na,b\n",
            ColumnNames("titel", "body"),
            "x.csv: has no column 'titel'",
        ),
        ("sentence1,sentence2,score\na,b,high\n", ColumnNames(), "x.csv: line 2: 'score' is 'high'"),
        ("sentence1,sentence2,score\na,b,nan\n", ColumnNames(), "x.csv: line 2: 'score' is 'nan'"),
        ("sentence1,sentence2,label\n", ColumnNames(), "no rows"),
        ("", ColumnNames(), "x.csv: is empty"),
        ("sentence1,sentence2\ra,b\n", ColumnNames(), "x.csv: line 1: is not valid CSV"),
    ],
)
def test_a_broken_file_is_reported_with_its_line(tmp_path: Path, text: str, named: ColumnNames, message: str) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path / "x.csv", text, named)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_kinds_do_not_mix(tmp_path: Path) -> None:
    file = write(tmp_path / "one.csv", [{"sentence1": "a", "sentence2": "b", "label": "x"}])
    other = write(tmp_path / "other.csv", [{"sentence1": "a", "sentence2": "b", "score": "0.5"}])
    with pytest.raises(UserError, match=r"other\.csv: .*scores.*one\.csv .*labels"):
        read_sentences.read([file, other], ColumnNames())


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "snli_1.0_train.jsonl").write_text("{}")
    (tmp_path / "snli_1.0_dev.jsonl").write_text("{}")
    assert {name: paths[0].name for name, paths in read_sentences.find(tmp_path).items()} == {
        "train": "snli_1.0_train.jsonl",
        "dev": "snli_1.0_dev.jsonl",
    }
    with pytest.raises(UserError, match="no such file or folder"):
        read_sentences.find(tmp_path / "nothing")


def labeled(*rows: tuple[str, str, str]) -> list[SentenceExample]:
    return [SentenceExample((first, second), gold) for first, second, gold in rows]


NLI = labeled(
    ("p", "follows", "entailment"),
    ("q", "alone", "entailment"),
    ("p", "open", "neutral"),
    ("p", "against", "contradiction"),
    ("p", "also", "entailment"),
    ("p", "against too", "contradiction"),
    ("p", "third", "entailment"),
    ("r", "only against", "contradiction"),
)


def test_triplets_of_nli() -> None:
    texts = [row.texts for row in examples.examples_for_loss(NLI, LOSSES["triplet"])]
    assert texts == [("p", "follows", "against"), ("p", "also", "against too"), ("p", "third", "against")]
    texts = [row.texts for row in examples.examples_for_loss(NLI, LOSSES["ranking"])]
    assert texts[:3] == [("p", "follows", "against"), ("p", "also", "against too"), ("p", "third", "against")]
    assert texts[3:] == [("q", "alone")]
    assert all(row.gold is None for row in examples.examples_for_loss(NLI, LOSSES["ranking"]))
    assert examples.examples_for_loss(NLI, LOSSES["softmax"]) == NLI
    binary = labeled(("a", "b", "1"), ("a", "c", "0"))
    assert [row.texts for row in examples.examples_for_loss(binary, LOSSES["triplet"])] == [("a", "b", "c")]


def test_single_texts_are_their_own_positives_once(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"text": "b"}\n{"text": "a"}\n')
    rows = read_sentences.read([path], ColumnNames(wants="text"))
    assert [(row.texts, row.kind) for row in rows] == [(("a",), "text"), (("b",), "text"), (("a",), "text")]
    doubled = examples.examples_for_loss(rows, LOSSES["simcse"])
    assert [(row.texts, row.kind) for row in doubled] == [(("a", "a"), "pair"), (("b", "b"), "pair")]
    with pytest.raises(UserError, match=r"single texts, but the loss 'ranking' needs two texts .*`loss=simcse`"):
        examples.examples_for_loss(rows, LOSSES["ranking"])


def test_numbers_that_do_not_say_what_belongs_together() -> None:
    rows = [
        SentenceExample(("a man", text), label) for text, label in (("a person", "0"), ("tall", "1"), ("a cat", "2"))
    ]
    with pytest.raises(UserError, match="labels are numbers"):
        examples.examples_for_loss(rows, LOSSES["ranking"])


@pytest.mark.parametrize(
    ("rows", "loss", "message"),
    [
        (
            [SentenceExample(("a", "b"), 0.5, "x.csv")],
            "softmax",
            "x.csv: .*scores",
        ),
        ([SentenceExample(("a", "b"), None, "x.csv")], "triplet", "try `loss=ranking`"),
        (
            [SentenceExample(("a", "b"), "blue", "x.csv")],
            "ranking",
            r"x.csv: the labels \(blue\)",
        ),
        ([SentenceExample(("a", "b"), "entailment", "x.csv")], "triplet", "x.csv: .*same first text"),
        ([SentenceExample(("a", "b", "c"), None, "x.csv")], "cosine", "try `loss=triplet`"),
    ],
)
def test_a_loss_that_does_not_fit(rows: list[SentenceExample], loss: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        examples.examples_for_loss(rows, LOSSES[loss])


@pytest.mark.parametrize(
    ("scores", "span"),
    [([0.2, 1], (0, 1)), ([0, 4.8], (0, 5)), ([1, 7], (0, 10)), ([-0.5, 0.2], (-1, 1)), ([-3, 2], (-5, 5))],
)
def test_scales_are_found(scores: list[float], span: tuple[float, float]) -> None:
    assert examples.score_range([SentenceExample(("a", "b"), float(score)) for score in scores]) == span


def test_cross_encoder_examples_are_labeled_pairs() -> None:
    task, pairs = examples.cross_encoder_examples(
        [SentenceExample((f"a{n}", f"b{n}")) for n in range(20)] + [SentenceExample(("a0", "b9"))]
    )
    assert not task.regression
    right = [row for row in pairs if row.gold == "1"]
    wrong = [row for row in pairs if row.gold == "0"]
    assert len(right) == 21
    assert 18 <= len(wrong) <= 21
    assert not {(row.text, row.pair) for row in right} & {(row.text, row.pair) for row in wrong}
    assert all(row.pair != row.text for row in pairs)
    _, pairs = examples.cross_encoder_examples([SentenceExample(("a", "b", "c", "d"))])
    assert [(row.text, row.pair, row.gold) for row in pairs] == [("a", "b", "1"), ("a", "c", "0"), ("a", "d", "0")]
    task, pairs = examples.cross_encoder_examples([SentenceExample(("a", "b"), 3.5)])
    assert task.regression
    assert pairs[0].gold == 3.5
