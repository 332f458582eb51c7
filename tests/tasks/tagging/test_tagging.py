"""Tagged sentences: read, laid out for the encoder, predicted and scored."""

import gzip
import json
import lzma
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

from bertree.errors import BertreeWarning, UserError
from bertree.tasks.tagging.sentences import Sentence, windows, words
from bertree.tasks.tagging.task import TaggingTask
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Tokenizer

IOB2 = """-DOCSTART- -X- -X- O

Ada NNP B-NP B-PER
Lovelace NNP I-NP I-PER
saw VBD B-VP O
Turin NNP B-NP B-LOC
Turin NNP B-NP B-LOC

Nothing NN B-NP O
here RB B-ADVP O
"""
IOB1 = IOB2.replace("Ada NNP B-NP B-PER", "Ada NNP B-NP I-PER").replace(
    "saw VBD B-VP O\nTurin NNP B-NP B-LOC", "saw VBD B-VP O\nTurin NNP B-NP I-LOC"
)
GOLD = ("B-PER", "I-PER", "O", "B-LOC", "B-LOC")
LABELS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TAGGING = {name: TaggingTask(name) for name in ("ner", "tagging")}
NER = TAGGING["ner"].with_labels(LABELS)


def put(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    data = text.encode()
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
    return path


def perfect(task: TaggingTask, units: list[Unit]) -> list[np.ndarray]:
    return [3 * np.eye(task.classes, dtype=np.float32)[unit.answer] for unit in units]


@pytest.mark.parametrize("name", ["a.txt", "a.conll", "a.iob", "a.txt.gz", "a.conll.xz", "eng.train", "a.tsv"])
def test_columns_are_read(tmp_path: Path, name: str) -> None:
    text = IOB2.replace(" ", "\t") if name == "a.tsv" else IOB2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        examples = TAGGING["ner"].read([put(tmp_path, name, text.replace("\n", "\r\n") if name == "a.iob" else text)])
    assert [len(sentence.words) for sentence in examples] == [5, 2]
    assert examples[0] == Sentence(("Ada", "Lovelace", "saw", "Turin", "Turin"), GOLD)


def test_iob1_is_converted_and_said_once(tmp_path: Path) -> None:
    paths = [put(tmp_path, "train.txt", IOB1), put(tmp_path, "more.txt", IOB1)]
    with pytest.warns(BertreeWarning, match="IOB1") as caught:
        examples = TAGGING["ner"].read(paths)
    assert len(caught) == 1
    assert examples[0].tags == examples[2].tags == GOLD


def test_other_schemes_become_iob2(tmp_path: Path) -> None:
    for single, last in (("S", "E"), ("U", "L")):
        text = f"Ada B-PER\nLovelace {last}-PER\nsaw O\nTurin {single}-LOC\nTurin {single}-LOC\n"
        with pytest.warns(BertreeWarning, match="read as IOB2"):
            assert TAGGING["tagging"].read([put(tmp_path, "a.txt", text)])[0].tags == GOLD


def test_a_stray_inside_tag_is_repaired_and_said(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", "Ada B-PER\n\nTurin I-LOC\n\nRome B-LOC\n")
    with pytest.warns(BertreeWarning, match="1 I- tags"):
        assert TAGGING["ner"].read([path])[1].tags == ("B-LOC",)


def test_tables_are_read(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"w": ["Ada", "\ud800"], "t": ["B-PER", "O"]}, {"w": [], "t": []}]
    task = TaggingTask("tagging", text="w", label="t")
    examples = task.read([put(tmp_path, "train.jsonl", "\n".join(map(json.dumps, rows)))])
    assert examples == [Sentence(("Ada", "\ufffd"), ("B-PER", "O")), Sentence((), ())]
    rows[0]["w"] = ["Ada", "x"]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "dev.parquet")
    assert task.read([tmp_path / "dev.parquet"])[0] == Sentence(("Ada", "x"), ("B-PER", "O"))
    untagged = put(tmp_path, "test.jsonl", '{"words": ["Ada"]}')
    assert TAGGING["ner"].read([untagged]) == [Sentence(("Ada",))]
    assert TAGGING["ner"].read([put(tmp_path, "test.txt", "Ada\nsaw\n\nRome\n")])[1] == Sentence(("Rome",))


def test_plain_tags_are_recognised(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", IOB2)
    task = TaggingTask("tagging", label="1")
    examples = task.read([path])
    assert examples[1].tags == ("NN", "RB")
    task = task.with_labels(task.labels_in(examples))
    assert task.labels == ("NN", "NNP", "RB", "VBD")
    assert task.metric == "accuracy"
    assert task.settings() == {"crf": False, "scheme": "plain", "label": "1"}
    assert TaggingTask("tagging").settings() == {"crf": False, "scheme": "auto"}
    predictions = [{"predicted": ["NNP"] * 5}, {"predicted": ["NN", "NN"]}]
    assert task.score(examples, predictions) == {"accuracy": pytest.approx(5 / 7)}
    as_plain = TaggingTask("tagging", scheme="plain")
    assert as_plain.labels_in(as_plain.read([path])) == ("B-LOC", "B-PER", "I-PER", "O")


def test_remarks_and_odd_spaces(tmp_path: Path) -> None:
    text = "# id 7 source=x\nAda _ B-PER\n# _ O\n\n# _ O\n1\u00a0000  _\tO\n"
    examples = TAGGING["ner"].read([put(tmp_path, "a.txt", text)])
    assert [sentence.words for sentence in examples] == [("Ada", "#"), ("#", "1\u00a0000")]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "#ada O\nsaw O\n\n#Rome O\n", [("#ada", "saw"), ("#Rome",)]),
        ("a.txt", "# O\n1 O\n", [("#", "1")]),
        ("a.txt", "# O\n", [("#",)]),
        ("a.tsv", "#\tO\n#1\tO\n", [("#", "#1")]),
        ("a.tsv", "# two words\tO\nb\tO\n", [("# two words", "b")]),
        ("a.txt", "#ada\nsaw\n", [("#ada", "saw")]),
        ("a.txt", "# a remark here\n\n# one more of it\nAda O\n", [("Ada",)]),
        ("a.tsv", "# sent_id = 1\nAda\tO\n\n# sent_id = 2\nRome\tO\n", [("Ada",), ("Rome",)]),
        ("a.conll", "#begin document (x); part 0\nAda O\n\n#end document x\n", [("Ada",)]),
    ],
)
def test_a_word_may_begin_with_the_sign_of_a_remark(
    tmp_path: Path, name: str, text: str, words: list[tuple[str, ...]]
) -> None:
    assert [sentence.words for sentence in TAGGING["tagging"].read([put(tmp_path, name, text)])] == words


def test_a_word_without_its_tag_is_no_remark(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt: line 3: .*1 columns.* 2$"):
        NER.read([put(tmp_path, "a.txt", "Ada O\n\n#Rome\n")])


def test_tables_of_text(tmp_path: Path) -> None:
    """Words and tags in cells, separated by spaces: always so in .csv, in .tsv where the columns have names."""
    task = TaggingTask("tagging", text="sentence", label="kinds")
    expected = [Sentence(("Ada,", "1\u00a0000"), ("B-PER", "O")), Sentence(("Rome",), ("B-LOC",))]
    rows = [("id", "kinds", "sentence"), ("1", "B-PER O", "Ada,  1\u00a0000 "), ("2", "B-LOC", "Rome")]
    for name, sign in (("train.csv", ","), ("dev.tsv", "\t")):
        text = "\n".join(sign.join(f'"{cell}"' if sign in cell else cell for cell in row) for row in rows)
        assert task.read([put(tmp_path, name, text)]) == expected
    assert {split: paths[0].name for split, paths in task.splits(tmp_path).items()} == {
        "train": "train.csv",
        "dev": "dev.tsv",
    }
    assert task.parse({"id": "1", "sentence": "Ada,  1\u00a0000 "}) == Sentence(expected[0].words)
    settings = task.settings()
    assert (settings["text"], settings["label"]) == ("sentence", "kinds")
    unnamed = put(tmp_path, "a.csv", "words,tags\nAda saw,B-PER O\n")
    assert TAGGING["tagging"].read([unnamed]) == [Sentence(("Ada", "saw"), ("B-PER", "O"))]
    columns = put(tmp_path, "b.tsv", "words\ttags\nAda saw\tB-PER\n")  # without names, columns as ever
    assert TaggingTask("tagging", scheme="plain").read([columns])[0].words == ("words", "Ada saw")
    with pytest.raises(UserError, match=r"c\.csv: line 3: has 2 words and 1 tags"):
        task.read([put(tmp_path, "c.csv", "sentence,kinds\nAda,O\nAda saw,O\n")])
    with pytest.raises(UserError, match=r"d\.csv: line 2: has no field 'kinds'"):
        task.read([put(tmp_path, "d.csv", "sentence,tags\nAda,O\n")])
    with pytest.raises(UserError, match=r"e\.tsv: line 2: has no field 'kinds'"):
        TaggingTask("tagging", text="0", label="kinds").read([put(tmp_path, "e.tsv", "0\ttags\nAda\tO\n")])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "Ada B-PER\nsaw O x\n", "a.txt: line 2: has 3 columns"),
        ("a.txt", "\n\n", "a.txt: holds no sentence"),
        ("a.txt", "-DOCSTART- O\n\n", "a.txt: holds no sentence"),
        ("a.txt", "Ada B-PER\n\nRome B-GPE\n", "a.txt: line 3: tag 'B-GPE'"),
        ("a.txt", "Ada S-GPE\n", "line 1: tag 'S-GPE'"),
        ("a.txt", "Ada B-PER\nsaw VBD\n", "line 2: tag 'VBD'"),
        ("a.txt", "Ada S-PER\nsaw L-PER\n", "mixed"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O", "O"]}', "line 1: has 1 words and 2 tags"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O"]}\n{"words": ["a"]}', "line 2: has no field 'tags'"),
        ("a.jsonl", '{"words": ["a"]}\n{"words": ["a"], "tags": ["O"]}', "line 2: has 'tags' where"),
        ("a.jsonl", '{"word": ["a"]}', "line 1: has no field 'words'"),
        ("a.jsonl", '{"words": ["a"], "tags": [1]}', "line 1: 'tags' must be a list of texts"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O"]}\n{"words', "line 2: is not valid JSON"),
        ("a.jsonl", "[]", "line 1: must hold a JSON object"),
    ],
)  # fmt: skip
def test_a_broken_file_is_reported_with_its_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        NER.read([put(tmp_path, name, text)])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_more_mistakes(tmp_path: Path) -> None:
    path = put(tmp_path, "a.txt", IOB2)
    with pytest.raises(UserError, match="use the task 'tagging'"):
        TaggingTask("ner", label="1").read([path])
    with pytest.raises(UserError, match="no column 4"):
        TaggingTask("ner", label="4").read([path])
    with pytest.raises(UserError, match="no names"):
        TaggingTask("ner", label="tags").read([path])
    with pytest.raises(UserError, match="unknown"):
        TaggingTask("ner", scheme="iob3")
    (tmp_path / "b.txt").write_bytes(b"Ada O\n\xe9t\xe9 O\n")
    with pytest.raises(UserError, match=r"b\.txt: line 2: is not UTF-8"):
        NER.read([tmp_path / "b.txt"])
    (tmp_path / "c.txt.xz").write_bytes(lzma.compress(IOB2.encode())[:-20])
    with pytest.raises(UserError, match="damaged or cut off"):
        NER.read([tmp_path / "c.txt.xz"])
    with pytest.raises(UserError, match="no tags"):
        TAGGING["ner"].labels_in([Sentence(("a",))])
    with pytest.raises(UserError, match="needs 'words'"):
        NER.parse({"sentence": "x"})


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "test.txt"),
        ("eng.train", "eng.testa", "eng.testb"),
        ("train.jsonl.xz", "val.jsonl", "testb.conll.gz"),
        ("train-00000-of-00001.parquet", "validation.parquet", "test.parquet"),
    ],
)
def test_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in (*names, "README.md", "notes.txt", ".train.txt"):
        (tmp_path / name).touch()
    splits = TAGGING["ner"].splits(tmp_path)
    assert {split: [path.name for path in paths] for split, paths in splits.items()} == {
        split: [name] for split, name in zip(("train", "dev", "test"), names, strict=True)
    }
    (tmp_path / "train.iob").touch()
    with pytest.raises(UserError, match="several files could be train"):
        TAGGING["ner"].splits(tmp_path)


def test_no_splits(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no train"):
        TAGGING["ner"].splits(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        TAGGING["ner"].splits(tmp_path / "x")


def test_labels() -> None:
    sentences = [Sentence(("a", "b"), ("B-PER", "O")), Sentence(("c",), ("B-LOC",)), Sentence(("d",))]
    assert TAGGING["ner"].labels_in(sentences) == LABELS
    assert NER.classes == 5
    assert NER.metric == "f1"
    assert NER.settings() == {"crf": False, "scheme": "entities"}


def test_first_sub_words_are_chosen(tokenizer: Tokenizer) -> None:
    text = "The extraordinary Alice wondered, unaccountably, about Wonderland."
    example = Sentence(tuple(text.split()), ("O", "O", "B-PER", *["O"] * 3, "B-LOC"))
    (unit,), cut = NER.units([example], tokenizer, 128)
    assert cut == (0, 0)
    # A byte-level BPE word is the one that follows a space.
    assert unit.sequences[0].ids == tokenizer.encode([f" {text}"])[0].ids
    assert unit.sequences[0].segments is None
    assert unit.answer == [0, 0, 3, 0, 0, 0, 1]
    encoding = tokenizer.backend.encode(f" {text}")
    starts = [start + (f" {text}"[start] == " ") for start, _ in encoding.offsets]
    begins = [f" {text}".index(f" {word}") + 1 for word in example.words]
    assert [starts[at] for at in unit.chosen or ()] == begins


def test_every_word_has_a_place(tokenizer: Tokenizer) -> None:
    example = Sentence(("a", "\x00", "", "\u200b\ufeff", "[MASK]", "New York", "b"), None)
    (unit,), _ = NER.units([example], tokenizer, 64)
    assert unit.answer is None
    assert unit.chosen is not None
    assert len(set(unit.chosen)) == len(example.words)
    (line,) = NER.predict([example], [unit], [np.zeros((7, 5), np.float32)])
    assert line["predicted"] == ["O"] * 7
    assert "gold" not in line


def test_long_sentences_lose_no_word(tokenizer: Tokenizer) -> None:
    source = random.Random(1)
    names = ["wonderful", "a", "Turin", "saw", "incomprehensibilities", "of"]
    examples = []
    for size in (0, 1, 5, 40, 200):
        tags = tuple(source.choice(LABELS) for _ in range(size))
        examples.append(Sentence(tuple(source.choice(names) for _ in range(size)), tags))
    units, cut = NER.units(examples, tokenizer, 48)
    assert cut == (0, 0)
    assert len(units) > len(examples)
    assert all(len(unit.sequences[0].ids) <= 48 for unit in units)
    first = tokenizer.encode([" a"])[0].ids
    assert all(unit.sequences[0].ids[0] == first[0] and unit.sequences[0].ids[-1] == first[-1] for unit in units)
    predictions = NER.predict(examples, units, perfect(NER, units))
    assert [line["predicted"] for line in predictions] == [list(example.tags or ()) for example in examples]
    assert NER.score(examples, predictions)["f1"] == 1
    for unit in units:  # what is chosen is that word's first piece
        words = examples[unit.example].words
        firsts = {tokenizer.backend.encode(f" {word}", add_special_tokens=False).ids[0] for word in words}
        assert {unit.sequences[0].ids[at] for at in unit.chosen or ()} <= firsts


def test_a_word_longer_than_the_room_is_cut_and_counted(tokenizer: Tokenizer) -> None:
    word = "".join(random.Random(2).choice("abcdefghij") for _ in range(90))
    pieces = len(tokenizer.backend.encode(f" {word}", add_special_tokens=False).ids)
    units, cut = NER.units([Sentence(("a", word, "b"), ("O", "B-LOC", "O"))], tokenizer, 10)
    assert pieces > 8 or tokenizer.id_of("unk") in units[1].sequences[0].ids
    assert cut == ((1, pieces - 8) if pieces > 8 else (0, 0))
    assert [answer for unit in units for answer in unit.answer] == [0, 1, 0]
    assert max(len(unit.sequences[0].ids) for unit in units) <= 10
    with pytest.raises(UserError, match="no room"):
        NER.units([Sentence(("a",))], tokenizer, 2)


def test_each_word_is_asked_where_it_has_most_context() -> None:
    source = random.Random(3)
    for _ in range(300):
        room = source.randrange(1, 40)
        lengths = np.array([source.randrange(1, min(room, 9) + 1) for _ in range(source.randrange(1, 90))])
        ends = np.concatenate([[0], lengths.cumsum()])
        slices = windows(lengths, room)
        assert [word for w in slices for word in range(w.first, w.last)] == list(range(len(lengths)))

        def context(start: int, end: int, word: int, ends: np.ndarray = ends) -> float:
            left = ends[word] - ends[start] if start else 1e9
            right = ends[end] - ends[word + 1] if end < len(ends) - 1 else 1e9
            return min(left, right)

        for window in slices:
            assert ends[window.end] - ends[window.start] <= room
            for word in range(window.first, window.last):
                others = [context(w.start, w.end, word) for w in slices if w.start <= word < w.end]
                assert context(window.start, window.end, word) == max(others)
    assert len(windows(np.ones(10_000, np.int64), 100)) <= 200  # read about twice, not more
    inner = windows(np.ones(10_000, np.int64), 100)[5]
    assert inner.first - inner.start >= 24
    assert inner.end - inner.last >= 24


def test_lines_of_predictions() -> None:
    text = "  Ada Lovelace's trip to Turin. "
    example = NER.parse(text)
    assert example.words == ("Ada", "Lovelace", "'s", "trip", "to", "Turin", ".")
    scores = np.zeros((7, 5), np.float32)
    for row, label in enumerate(("B-PER", "I-PER", "O", "O", "O", "I-LOC", "O")):
        scores[row, LABELS.index(label)] = row + 1
    unit = Unit(0, (), range(7))
    (line,) = NER.predict([example], [unit], [scores])
    assert line["text"] == text
    assert line["predicted"][-2:] == ["I-LOC", "O"]
    sure = [np.exp(n) / (np.exp(n) + 4) for n in range(1, 8)]
    person, city = line["entities"]
    assert (person["type"], person["text"], person["start"], person["end"]) == ("PER", "Ada Lovelace", 2, 14)
    assert person["score"] == pytest.approx((sure[0] + sure[1]) / 2)
    assert (city["type"], text[city["start"] : city["end"]]) == ("LOC", "Turin")
    assert line["score"] == pytest.approx(np.mean(sure))
    decoded = np.eye(5, dtype=np.float32)[scores.argmax(1)]
    (line,) = TaggingTask("ner", LABELS, crf=True).predict([NER.parse({"words": ["a", "bc"]})], [unit], [decoded[:2]])
    assert line["text"] == "a bc"
    assert line["entities"] == [{"type": "PER", "text": "a bc", "start": 0, "end": 4, "score": None}]
    assert NER.parse({"text": "a bc"}).with_offsets() == ("a bc", ((0, 1), (2, 4)))
    assert NER.predict([NER.parse("")], [], [])[0]["predicted"] == []


def test_entity_scores_leave_out_sentences_without_tags() -> None:
    examples = [Sentence(("a",) * 5, GOLD), Sentence(("b",))]
    predictions = [{"predicted": ["B-PER", "I-PER", "O", "B-LOC", "O"]}, {"predicted": ["O"]}]
    scores = NER.score(examples, predictions)
    assert scores == {
        "precision": 1,
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(0.8),
        "accuracy": 0.8,
        "f1-LOC": pytest.approx(2 / 3),
        "f1-PER": 1,
    }


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("Don't call-up O'Brien's men.", "Do n't call-up O'Brien 's men ."),
        ("It rose 3.14 to 1,000, at 2:29.34.", "It rose 3.14 to 1,000 , at 2:29.34 ."),
        ("U.S.-led, at 5 a.m. by Mr. J. Poe", "U.S.-led , at 5 a.m. by Mr. J. Poe"),
        ("US$5 (or $6) -- or +44... \"No!\"", 'US$ 5 ( or $ 6 ) -- or +44 ... " No ! "'),
        ("She’ll say ‘yes’ to S&P 1996/97", "She ’ll say ‘ yes ’ to S&P 1996/97"),
        ("1. Rome 2. cafe\u0301 नमस्ते ❤️", "1. Rome 2 . cafe\u0301 नमस्ते ❤️"),
        (" \t\n", ""),
    ],
)  # fmt: skip
def test_words_of_plain_text(text: str, cut: str) -> None:
    assert [text[start:end] for start, end in words(text)] == cut.split()


def test_no_character_of_plain_text_is_lost() -> None:
    source = random.Random(4)
    for _ in range(300):
        text = "".join(source.choice("ab1.,-'’ntsU$+ \u0301\u200d❤é:&/_\n") for _ in range(source.randrange(30)))
        places = words(text)
        kept = {at for start, end in places for at in range(start, end)}
        assert all(text[at].isspace() for at in range(len(text)) if at not in kept)
        assert all(before <= start < end for (_, before), (start, end) in zip([(0, 0), *places], places, strict=False))
