"""`bertree index` as people use it, with real weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.nn.functional import normalize

import bertree
from bertree.errors import UserError
from bertree.search.index import Index
from bertree.search.rerank import positive_label
from tests.support import learnable
from tests.support.command import Command
from tests.support.learnable import Trained
from tests.support.standin import Words

LETTERS = [
    {"key": "1", "body": "The train to the mountains leaves at six in the morning.", "from": "Ida"},
    {"key": "2", "body": "My cat has learned to open the kitchen door.", "from": "Otto"},
    {"key": "3", "body": "We have sold the old piano to the school.", "from": "Ida"},
]


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps(letter) + "\n" for letter in LETTERS))
    return tmp_path / "letters.jsonl"


def test_a_query_imports_no_pages_and_no_tasks(
    trained: Trained, letters: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "index"
    command.well("index", "build", trained.start, letters, "--text", "body", "--out", out)
    code = (
        "import sys; from bertree.cli.main import main; sys.argv[1:] = ['index', 'query', sys.argv[1], 'a cat']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler of torch takes seconds to import'\n"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('bertree.')}))\n"
        "import bertree.report.run_page\n"
        "assert 'jinja2' not in sys.modules, 'pages cost nothing until one is written'"
    )
    output = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=True).stdout
    rooms = set(output.splitlines()[-1].removeprefix("bertree.").split(" bertree."))
    assert rooms >= {"inference", "model", "search"}
    assert not rooms & {
        "report",
        "tasks",
        "finetuning",
        "pretraining",
        "distillation",
        "embeddings",
        "comparison",
        "data",
    }


def test_the_whole_way(minilm: Path, letters: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "index"
    result = command.well("index", "build", minilm, letters, "--text", "body", "--id", "key", "--out", out)
    assert "3 new; 3 passages embedded" in result.out
    assert "flat: 3 vectors of 384 numbers" in result.out
    report = json.loads(command.well("index", "query", out, "an animal in the house", "-k", 1, "--json").out)
    assert [(hit["document"], hit["metadata"]) for hit in report] == [("2", {"from": "Otto"})]
    report = json.loads(command.well("index", "query", out, "animal", "--where", "from=Ida", "--json").out)
    assert {hit["document"] for hit in report} == {"1", "3"}
    shown = command.well("index", "query", out, "a musical instrument", "-k", 1).out
    assert shown.startswith("1  0.")
    assert "  3  0-41  from=Ida\n   words: none shared, vectors: rank 1\n   We have sold the old piano" in shown
    shown = command.well("index", "query", out, "Who sold a piano?", "--mode", "words").out
    assert "   We have *sold* the old *piano* to the school." in shown
    (tmp_path / "more.txt").write_text("A violin was found in the attic.")
    result = command.well("index", "add", out, tmp_path / "more.txt")
    assert "1 new; 1 passage embedded" in result.out
    assert "1 unchanged; 0 passages" in command.well("index", "add", out, tmp_path / "more.txt").out
    result = command.well("index", "remove", out, "3")
    assert "1 document removed; 3 documents in 3 passages" in result.out
    report = json.loads(command.well("index", "query", out, "a musical instrument", "-k", 1, "--json").out)
    assert report[0]["document"] == str(tmp_path / "more.txt")
    info = command.well("index", "info", out, "--json", "--check").json
    assert info["documents"] == 3
    assert info["model"] == {"path": str(minilm.resolve()), "digest": bertree.load(minilm).digest}
    assert info["sources"] == {str(letters): 2, str(tmp_path / "more.txt"): 1}
    assert "every byte is what was written" in command.well("index", "info", out, "--check").out


def test_mistakes(trained: Trained, letters: Path, tmp_path: Path, command: Command) -> None:
    out, start = tmp_path / "index", trained.start
    build = ("index", "build", start, letters, "--text", "body", "--out")
    command.well(*build, out)
    for expected, arguments in (
        ("is already an index", (*build, out)),
        ("holds other files", (*build, tmp_path)),
        ("kind 'hsnw': unknown", (*build, tmp_path / "other", "--kind", "hsnw")),
        ("no such file or folder", ("index", "build", start, tmp_path / "none.txt", "--out", tmp_path / "other")),
        ("has no column 'text'", ("index", "build", start, letters, "--out", tmp_path / "other")),
        ("chunk 1000: the model reads", (*build, tmp_path / "third", "--chunk", "1000")),
        ("was made with", ("index", "query", out, "x", "--model", "default")),
        ("was made with", ("index", "add", out, letters, "--text", "body", "--model", "default")),
        ("must be key=value", ("index", "query", out, "x", "--where", "from")),
        (
            "where 'form': no document has this key; did you mean 'from'",
            ("index", "query", out, "x", "--where", "form=Ida"),
        ),
        ("question: is empty", ("index", "query", out, " ")),
        ("--schema and --table are for an index in PostgreSQL", ("index", "query", out, "x", "--schema", "library")),
        ("is not an index", ("index", "info", tmp_path)),
        ("--where key=value", ("index", "remove", out)),
        ("no document to remove", ("index", "remove", out, "nobody")),
        ("no such folder", ("index", "query", tmp_path / "nowhere", "x")),
    ):
        result = command(*arguments)
        assert result.code == 2, arguments
        assert len(result.lines) == 1, result.err
        assert expected in result.err
    assert command.well("index", "info", out, "--json").json["documents"] == 3


def test_the_model_has_moved(minilm: Path, letters: Path, tmp_path: Path, command: Command) -> None:
    moving = tmp_path / "model"
    bertree.load(minilm).save(moving)
    command.well("index", "build", moving, letters, "--text", "body", "--out", tmp_path / "index")
    moving.rename(tmp_path / "elsewhere")
    result = command("index", "query", tmp_path / "index", "a cat")
    assert f"its model was at {moving}, which is gone" in result.err
    ask = ("index", "query", tmp_path / "index", "a cat", "--model", tmp_path / "elsewhere", "-k", 1, "--json")
    assert "cat" in json.loads(command.well(*ask).out)[0]["text"]


def test_scores_are_the_models(minilm: Path, tmp_path: Path) -> None:
    model = bertree.load(minilm)
    texts = [letter["body"] for letter in LETTERS]
    index = Index.build(model, [{"id": text, "text": text} for text in texts], tmp_path / "index")
    expected = dict(zip(texts, model.similarity("a train", texts)[0], strict=True))
    for hit in index.search("a train", mode="vectors"):
        assert hit.score == pytest.approx(float(expected[hit.document]), abs=1e-5)


def test_rerank(trained: Trained, tmp_path: Path) -> None:
    rows = learnable.pairs(40, 5)
    judge = bertree.load(trained("pair") / "model")
    scores = judge.predict([("the is a", str(row["two"])) for row in rows])
    index = Index.build(Words(), [{"id": f"{n}", "text": row["two"]} for n, row in enumerate(rows)], tmp_path / "i")
    plain = index.search("the is a", k=40)
    hits = index.search("the is a", k=8, rerank=judge, candidates=40, label="good")
    expected = {f"{n}": line["probabilities"]["good"] for n, line in enumerate(scores)}
    assert [hit.score for hit in hits] == sorted(expected.values(), reverse=True)[:8]
    for hit in hits:
        assert hit.score == pytest.approx(expected[hit.document], abs=1e-5)
        assert hit.cosine == next(p.cosine for p in plain if p.document == hit.document)
    few = index.search("the is a", k=40, rerank=judge, candidates=5, label="good")
    assert {hit.document for hit in few[:5]} == {hit.document for hit in plain[:5]}
    assert few[5:] == plain[5:], "those it did not read stay as they were"
    with pytest.raises(UserError, match=r"label 'goood'.*did you mean 'good'"):
        index.search("the is a", rerank=judge, label="goood")
    with pytest.raises(UserError, match="no head for pairs"):
        index.search("the is a", rerank=bertree.load("bert-tiny"))


def test_a_model_without_a_head_for_pairs_compares_tokens(tmp_path: Path) -> None:
    model, question = bertree.load("default"), "Who repaired the piano?"
    bodies = [*(letter["body"] for letter in LETTERS), "A carpenter mended the piano.", "Who repaired it?"]
    index = Index.build(model, [{"id": body, "text": body} for body in bodies], tmp_path / "index")
    plain = index.search(question, k=5)
    hits = index.search(question, k=5, rerank=model, candidates=4)
    query = normalize(model.hidden(question), dim=1)[1:-1]  # without [CLS] and [SEP]
    expected = {
        hit.text: 0.85 * float((query @ normalize(model.hidden(hit.text), dim=1).T).amax(1).mean())
        + 0.15 * hit.score / plain[0].score
        for hit in plain[:4]
    }
    assert [hit.text for hit in hits[:4]] == sorted(expected, key=lambda text: -expected[text])
    assert [hit.score for hit in hits[:4]] == pytest.approx(sorted(expected.values(), reverse=True), abs=1e-5)
    assert hits[4] == plain[4], "the one it did not read stays as it was"
    with pytest.raises(UserError, match="has no classes"):
        index.search(question, rerank=model, label="good")


def test_which_class_says_yes() -> None:
    assert positive_label(["contradiction", "entailment", "neutral"]) == "entailment"
    assert positive_label(["0", "1"]) == "1"
    assert positive_label(["bad", "good"]) == "good"
    assert positive_label(["Not_Equivalent", "Equivalent"]) == "Equivalent"
    assert positive_label(["a", "b", "c"], "c") == "c"
    with pytest.raises(UserError, match="`label`: a, b, c"):
        positive_label(["a", "b", "c"])


def test_options_of_a_second_model_need_one(tmp_path: Path, command: Command) -> None:
    for option, value in (("--label", "yes"), ("--candidates", "9")):
        result = command("index", "query", tmp_path, "a question", option, value)
        assert (result.code, f"{option}: is for a second model" in result.err) == (2, True)
