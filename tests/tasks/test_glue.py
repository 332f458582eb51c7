"""Every layout the releases of GLUE, SNLI, IMDb and AG News come in, in small files written for this test."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from bertree.errors import BertreeWarning, UserError
from bertree.tasks.columns import TextExample
from bertree.tasks.files import read_inputs
from bertree.tasks.glue import TEXT_TASKS, glue_task

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
SNLI = (
    "gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2"
    " captionID pairID label1 label2 label3 label4 label5"
)


def tsv(*rows: str) -> str:
    """Rows whose fields are separated by '|'."""
    return "".join(row.replace("|", "\t") + "\n" for row in rows)


def read(task: str, path: Path, text: str) -> list[tuple[Any, ...]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return [(e.id, e.text, e.pair, e.gold) for e in glue_task(task).read([path])]


def spaced(header: str) -> str:
    return header.replace(" ", "|")


LAYOUTS = {
    "cola without header": (
        "cola",
        tsv('a1|1||He said "go.', "a1|0|*|Him go. "),
        [('He said "go.', None, "1"), ("Him go.", None, "0")],
    ),
    "cola test": ("cola", tsv("index|sentence", "7|A car."), [("A car.", None, None)]),
    "sst-2": ("sst-2", tsv("sentence|label", "so good |1"), [("so good", None, "1")]),
    "sst-2 test": ("sst-2", tsv("index|sentence", "7|so good"), [("so good", None, None)]),
    "mrpc": (
        "mrpc",
        "\ufeff"
        + tsv("Quality|#1 ID|#2 ID|#1 String|#2 String", '1|2|3|" Open quote .|Closed " .').replace("\n", "\r\n"),
        [('" Open quote .', 'Closed " .', "1")],
    ),
    "mrpc test": ("mrpc", tsv("index|#1 ID|#2 ID|#1 String|#2 String", "7|2|3|A .|B ."), [("A .", "B .", None)]),
    "sts-b": (
        "sts-b",
        tsv(
            spaced("index genre filename year old_index source1 source2 sentence1 sentence2 score"),
            "7|g|f|y|1|n|n|A|B|3.8",
        ),
        [("A", "B", 3.8)],
    ),
    "sts-b without header": (
        "sts-b",
        tsv("g|f|y|1|2.5|A|B", "g|f|y|2|0|C|D|from|there"),
        [("A", "B", 2.5), ("C", "D", 0.0)],
    ),
    "qqp": (
        "qqp",
        tsv(spaced("id qid1 qid2 question1 question2 is_duplicate"), '7|1|2|What is ""x?|"What is ""y""?"|0'),
        [('What is ""x?', 'What is "y"?', "0")],
    ),
    "qqp test": ("qqp", tsv("id|question1|question2", "7|A?|B?"), [("A?", "B?", None)]),
    "mnli train": (
        "mnli",
        tsv(spaced(f"{MNLI} sentence1 sentence2 label1 gold_label"), "7|p|q|g|b|b|s|s|A|B|neutral|contradiction"),
        [("A", "B", "contradiction")],
    ),
    "mnli dev": (
        "mnli",
        tsv(
            spaced(f"{MNLI} sentence1 sentence2 label1 label2 label3 label4 label5 gold_label"),
            "7|p|q|g|b|b|s|s|A|B|neutral|neutral|neutral|neutral|entailment|neutral",
        ),
        [("A", "B", "neutral")],
    ),
    "mnli test": ("mnli", tsv(spaced(f"{MNLI} sentence1 sentence2"), "7|p|q|g|b|b|s|s|A|B"), [("A", "B", None)]),
    "mnli short": ("mnli", tsv("premise|hypothesis|label", "A|B|entailment"), [("A", "B", "entailment")]),
    "qnli": ("qnli", tsv("index|question|sentence|label", "7|A?|B.|not_entailment"), [("A?", "B.", "not_entailment")]),
    "rte": ("rte", tsv("index|sentence1|sentence2|label", "7|A|B|entailment"), [("A", "B", "entailment")]),
    "wnli": ("wnli", tsv("index|sentence1|sentence2|label", "7|A|B|1"), [("A", "B", "1")]),
    "ax": ("ax", tsv("index|sentence1|sentence2", "7|A|B"), [("A", "B", None)]),
    "ax with answers": (
        "ax",
        tsv(
            "Lexical Semantics|Predicate-Argument Structure|Logic|Knowledge|Domain|Premise|Hypothesis|Label",
            "||Negation||Artificial|A|B|neutral",
        ),
        [("A", "B", "neutral")],
    ),
    "snli short": (
        "snli",
        tsv("gold_label|sentence1|sentence2|pairID", "neutral|A|B|x#1", "entailment|C|D|x#2"),
        [("A", "B", "neutral"), ("C", "D", "entailment")],
    ),
    "snli official": (
        "snli",
        tsv(spaced(SNLI), "entailment|b|b|s|s|A|B|c|p|entailment||||", "neutral|b|b|s|s|C|D|c|p|neutral"),
        [("A", "B", "entailment"), ("C", "D", "neutral")],
    ),
    "snli without header": (
        "snli",
        tsv("a b|c d|2", "a|b|0"),
        [("a b", "c d", "contradiction"), ("a", "b", "entailment")],
    ),
    "imdb": (
        "imdb",
        tsv("label|rating_file|text", '1|1_9|"Good<br /><br />film" it is'),
        [('"Good  film" it is', None, "pos")],
    ),
    "ag-news": (
        "ag-news",
        tsv("label|text", '3|"A ""quoted"" one"', '0|An "open one'),
        [('A "quoted" one', None, "Sci/Tech"), ('An "open one', None, "World")],
    ),
    "ag-news with title": ("ag-news", tsv("label|text|title", "2|A|T"), [("A", None, "Business")]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tmp_path: Path, layout: str) -> None:
    task, text, expected = LAYOUTS[layout]
    rows = read(task, tmp_path / "file.tsv", text)
    assert [row[1:] for row in rows] == expected
    numbered = text.lstrip("\ufeff").startswith(("index", "id"))
    assert [row[0] for row in rows] == (["7"] if numbered else [str(n) for n in range(len(expected))])


def test_original_ag_news_counts_from_one(tmp_path: Path) -> None:
    row = '"3","Oil up","Prices, again, \\$5 ""up"""\n'
    expected = [("0", 'Oil up Prices, again, \\$5 "up"', None, "Business")]
    assert read("ag-news", tmp_path / "train.csv", row) == expected
    assert read("ag-news", tmp_path / "test.csv", "Class Index,Title,Description\n" + row) == expected


def test_published_as_parquet_and_json(tmp_path: Path) -> None:
    """The hub's copies number the classes, and give -1 where the answer is kept back."""
    rows = {"sentence1": ["A", "C"], "sentence2": ["B", "D"], "label": [1, 0], "idx": [7, 8]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "train-00000-of-00001.parquet")
    task = glue_task("rte")
    examples = task.read(task.splits(tmp_path)["train"])
    assert [(e.id, e.gold) for e in examples] == [("7", "not_entailment"), ("8", "entailment")]
    hidden = json.dumps({"premise": "A", "hypothesis": "B", "label": -1, "idx": 3})
    assert read("mnli", tmp_path / "test.jsonl", hidden) == [("3", "A", "B", None)]
    assert read("sts-b", tmp_path / "a.jsonl", '{"sentence1": "A", "sentence2": "B", "label": 4}') == [
        ("0", "A", "B", 4.0)
    ]


def test_rows_without_gold_are_counted(tmp_path: Path) -> None:
    text = tsv("gold_label|sentence1|sentence2|pairID", "neutral|A|B|1", "-|A|B|2", "-|A|B|3")
    with pytest.warns(BertreeWarning, match="2 of 3 rows have no gold answer"):
        rows = read("snli", tmp_path / "train.tsv", text)
    assert [row[3] for row in rows] == ["neutral", None, None]


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path: Path) -> None:
    header = spaced("id qid1 qid2 question1 question2 is_duplicate")
    text = tsv(header, "1|1|2|A?|B?|0", "2|3|4|cut", "|off?|D?|1", "3|5|6||E?|0", "4|7|8|F?|G?|", "5|9|10|H?|I?|1")
    with pytest.warns(BertreeWarning, match=r"\.tsv: 3 broken rows"):
        rows = read("qqp", tmp_path / "train.tsv", text)
    assert rows == [("1", "A?", "B?", "0"), ("3", "", "E?", "0"), ("5", "H?", "I?", "1")]
    with pytest.raises(UserError, match=r"dev\.tsv: line 2: .*2 fields.* 4 "):
        read("rte", tmp_path / "dev.tsv", tsv("index|sentence1|sentence2|label", "1|A"))


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        (
            "rte",
            tsv("index|sentence1|sentence2|label", "1|A|B|entailment", "2|A|B|neutral"),
            "line 3: label 'neutral' is not among those of the training set (entailment, not_",
        ),
        ("sst-2", tsv("sentence|label", "A|2"), "line 2: label '2' is not among"),
        ("mnli", tsv("premise|hypothesis|label", "A|B|3"), "line 2: label '3' is not among"),
        ("sts-b", tsv("sentence1|sentence2|score", "A|B|nan"), "line 2: the score 'nan' is not a number from 0 to 5"),
        ("sts-b", tsv("sentence1|sentence2|score", "A|B|5.1"), "line 2: the score '5.1' is not a number from 0 to 5"),
        ("sts-b", tsv("sentence1|sentence2|score", "A|B|high"), "line 2: the score 'high' is not"),
        (
            "mrpc",
            tsv("Quality|#1 String", "1|A"),
            "has no column '#2 String' or 'sentence2'; there are: Quality, #1 String; did you",
        ),
    ],
)
def test_a_broken_file_is_reported_with_its_line(tmp_path: Path, task: str, text: str, message: str) -> None:
    path = tmp_path / "dev.tsv"
    with pytest.raises(UserError) as caught:
        read(task, path, text)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_imdb_as_folders(tmp_path: Path) -> None:
    for name, text in {
        "train/pos/1_9.txt": "Fine.<br />Really.",
        "train/neg/0_2.txt": "Bad.",
        "train/neg/10_1.txt": "Worse.\n",
        "train/unsup/0_0.txt": "Who knows.",
        "test/pos/0_9.txt": "Good.",
        "test/neg/0_1.txt": "No.",
    }.items():
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    task = glue_task("imdb")
    splits = task.splits(tmp_path)
    assert set(splits) == {"train", "test"}
    rows = [(e.id, e.text, e.gold) for e in task.read(splits["train"])]
    assert rows == [("neg/0_2", "Bad.", "neg"), ("neg/10_1", "Worse.", "neg"), ("pos/1_9", "Fine. Really.", "pos")]
    with pytest.raises(UserError, match="must hold the folders neg, pos"):
        task.read([tmp_path])


def test_names_however_they_are_written() -> None:
    for name, task in {
        "sst2": "sst-2", "SST-2": "sst-2", "stsb": "sts-b", "STS-B": "sts-b", "CoLA": "cola", "ag_news": "ag-news",
        "AGNews": "ag-news", "diagnostic": "ax", "aclImdb": "imdb",
    }.items():  # fmt: skip
        assert glue_task(name) is TEXT_TASKS[task]
    with pytest.raises(UserError, match=r"task 'sst-3'.*'sst-2'"):
        glue_task("sst-3")


def test_the_diagnostics_are_found(tmp_path: Path) -> None:
    (tmp_path / "diagnostic").mkdir()
    for name in ("diagnostic.tsv", "diagnostic-full.tsv"):
        (tmp_path / "diagnostic" / name).write_text("x")
    names = {split: path.name for split, (path,) in glue_task("ax").splits(tmp_path).items()}
    assert names == {"dev": "diagnostic-full.tsv", "test": "diagnostic.tsv"}


def test_classes_are_in_the_order_of_the_glue_dataset() -> None:
    assert glue_task("mnli").labels == glue_task("ax").labels == ("entailment", "neutral", "contradiction")
    assert glue_task("rte").labels == glue_task("qnli").labels == ("entailment", "not_entailment")
    assert all(glue_task(name).labels == ("0", "1") for name in ("cola", "sst-2", "mrpc", "qqp", "wnli"))
    assert (glue_task("sts-b").labels, glue_task("sts-b").classes) == ((), 1)
    assert all(task.metric in task.figures for task in TEXT_TASKS.values())


def test_every_row_of_a_test_file_is_submitted(tmp_path: Path) -> None:
    """An empty question is one to answer, with or without a label column; a broken row is not passed over."""
    rows = [f"{n}|What?|{'' if n % 10 == 3 else 'Why?'}" for n in range(40)]
    task, path = glue_task("qqp"), tmp_path / "test.tsv"
    for header, cells in (("id|question1|question2", rows), ("id|question1|question2|label", [f"{r}|" for r in rows])):
        path.write_text(tsv(header, *cells))
        examples = task.read([path])
        (sent,) = task.submission(examples, [{"predicted": "0"}] * len(examples)).values()
        assert [line.split("\t")[0] for line in sent.splitlines()[1:]] == [str(n) for n in range(40)]
    path.write_text(tsv("id|question1|question2", *rows, "40|cut"))
    with pytest.warns(BertreeWarning, match=r"test\.tsv: 1 broken rows"):
        examples = task.read([path])
    with pytest.raises(UserError, match=r"test\.tsv: 1 broken rows.*repair"):
        task.submission(examples, [{"predicted": "0"}] * len(examples))


def test_submissions() -> None:
    rows = [TextExample("4", "A", "B"), TextExample("9", "C", "D")]

    def sent(task: str, *answers: Any, file: str = "test.tsv") -> tuple[str, str]:
        examples = [row._replace(file=file) for row in rows]
        (submitted,) = glue_task(task).submission(examples, [{"predicted": answer} for answer in answers]).items()
        return submitted

    assert sent("rte", "entailment", "not_entailment") == (
        "RTE.tsv",
        "index\tprediction\n4\tentailment\n9\tnot_entailment\n",
    )
    assert sent("sts-b", 5.5, -0.25) == ("STS-B.tsv", "index\tprediction\n4\t5.000\n9\t0.000\n")
    assert sent("mnli", "neutral", "neutral")[0] == "MNLI-m.tsv"
    assert sent("mnli", "neutral", "neutral", file="x/test_mismatched.tsv")[0] == "MNLI-mm.tsv"
    names = {sent(task, "0", "1")[0] for task in ("cola", "sst-2", "mrpc", "qqp", "qnli", "wnli", "ax")}
    assert names == {"CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "QQP.tsv", "QNLI.tsv", "WNLI.tsv", "AX.tsv"}
    with pytest.raises(UserError, match="imdb: there is no submission format"):
        sent("imdb", "pos", "neg")


@pytest.mark.parametrize("name", LAYOUTS)
def test_released_files_are_read_alike_for_prediction(name: str, tmp_path: Path) -> None:
    task, text, _ = LAYOUTS[name]
    path = tmp_path / "file.tsv"
    read(task, path, text)
    wanted = [(example.text, example.pair, None) for example in glue_task(task).read([path])]
    examples = list(read_inputs(glue_task(task), path))
    assert [(example.text, example.pair, example.gold) for example in examples] == wanted


def test_other_files_are_read_by_line_for_prediction(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a fine film\n\nstale\n")
    with pytest.warns(BertreeWarning, match="1 empty lines"):
        examples = list(read_inputs(glue_task("sst-2"), tmp_path / "texts.txt"))
    assert [example.text for example in examples] == ["a fine film", "stale"]
    (tmp_path / "rows.csv").write_text("id,text\n7,a fine film\n")
    assert [example.text for example in read_inputs(glue_task("sst-2"), tmp_path / "rows.csv")] == ["a fine film"]
