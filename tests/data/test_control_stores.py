"""Control codes from the data: a folder, a file, a column; the same bytes after any interruption."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from bertree.batch import PretrainingLabels
from bertree.data import store_builder
from bertree.data.held_out import split_held_out
from bertree.data.prepare import prepare
from bertree.data.store import Store, verify_store
from bertree.data.store_files import HEADER
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus, CorpusOptions
from bertree.text.framing import control_prefix
from bertree.text.tokenizer import Tokenizer

BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokenizer") / "bpe"
    documents = list(Corpus([str(BOOKS)]).documents())[::10]
    tokenizer_training.save(tokenizer_training.train(lambda: documents, "bpe", 500), out)
    return out


def write(folder: Path, **files: str) -> Path:
    """Write files; two underscores in a name stand for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def codes(store: Store) -> list[str]:
    """The code of each document."""
    return [store.controls[number].code for number in store.document_codes]


RECORDS = (
    {"text": "The captain went down to the sea.", "url": "https://www.cnn.com/2014/style", "date": "2014-05-03"},
    {"text": "The ship was lost.", "url": "http://bbc.co.uk:80/news?x=1", "date": "3 May 2018"},
    {"text": "No word came from her.", "url": "cnn.com/2018/politics", "date": 2014},
)


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        ("url", ["https://www.cnn.com/2014/style", "http://bbc.co.uk:80/news?x=1", "cnn.com/2018/politics"]),
        ("url:host", ["cnn.com", "bbc.co.uk", "cnn.com"]),
        ("date:year", ["2014", "2018", "2014"]),
        ("file", ["pages"] * 3),
        ("folder", ["links"] * 3),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_the_code_of_a_record(tmp_path: Path, tokenizer: Path, control: str, expected: list[str], suffix: str) -> None:
    path = tmp_path / "links" / f"pages.{suffix}"
    path.parent.mkdir()
    if suffix == "jsonl":
        path.write_text(lines(*RECORDS))
    elif suffix == "csv":
        rows = [[f'"{record[name]}"' for name in RECORDS[0]] for record in RECORDS]
        path.write_text("\n".join(map(",".join, [list(RECORDS[0]), *rows])) + "\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist([r | {"date": str(r["date"])} for r in RECORDS]), path)
    store = prepare(path, tokenizer, tmp_path / "store", workers=1, control=control).store
    assert codes(store) == expected
    assert [code.code for code in store.controls] == list(dict.fromkeys(expected))
    loaded = Tokenizer.load(tokenizer)
    assert all(list(code.prefix) == control_prefix(loaded, code.code) for code in store.controls)


def test_folders_are_codes_and_their_texts_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    corpus = write(
        tmp_path / "sources",
        Books__a_txt="One story.\n\nAnother story, a longer one.",
        Reviews__b_txt="A bad film.\n\n\u200b\n\nA good film.",
        Books__more__c_txt="A third story.",
    )
    for path in list(corpus.rglob("*_txt")):
        path.rename(path.with_name(path.name.replace("_txt", ".txt")))
    store = prepare(corpus, tokenizer, tmp_path / "store", workers=1, control="folder").store
    assert codes(store) == ["Books", "Books", "more", "Reviews", "Reviews"]
    assert [code.documents for code in store.controls] == [2, 1, 2]
    lengths = np.concatenate([np.diff(shard.sentence_starts[shard.document_starts]) for shard in store.shards])
    for number, code in enumerate(store.controls):
        assert code.tokens == lengths[store.document_codes == number].sum()
    assert verify_store(tmp_path / "store").fingerprint == store.fingerprint


@pytest.mark.slow
def test_an_interrupted_preparation_ends_in_the_same_bytes(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_builder, "CHUNK_CHARACTERS", 5000)
    texts = BOOKS.read_text().split("\n\n")[:60]
    records = ({"text": t, "kind": f"kind {n // 7}", "url": f"a.org/{n}"} for n, t in enumerate(texts))
    corpus = write(tmp_path, books_jsonl=lines(*records))
    options, loaded = CorpusOptions(format="jsonl", control="kind", given="url"), Tokenizer.load(tokenizer)

    def run(name: str, stop_after: int = 0) -> None:
        calls = 0

        def advance(consumed: int, tokens: int) -> None:
            nonlocal calls
            calls += 1
            if calls == stop_after:
                raise KeyboardInterrupt

        source = Corpus([str(corpus / "books_jsonl")], options)
        store_builder.build_store(source, loaded, tmp_path / name, shard_tokens=6000, advance=advance)

    run("whole")
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir() if path.is_file()}
    assert {"controls-00000.bin", "given-00000.bin", "given-lengths-00000.bin"} <= expected.keys()
    for stop in (3, 7, 11):
        with pytest.raises(KeyboardInterrupt):
            run(f"stopped {stop}", stop)
        run(f"stopped {stop}")
        folder = tmp_path / f"stopped {stop}"
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == expected
    assert codes(Store.open(tmp_path / "whole")) == [f"kind {n // 7}" for n in range(60)]


def test_a_store_without_codes_has_no_trace_of_them(tmp_path: Path, tokenizer: Path) -> None:
    corpus = write(tmp_path, books_jsonl=lines(*RECORDS))
    store = prepare(corpus / "books_jsonl", tokenizer, tmp_path / "store", workers=1, format="jsonl").store
    assert store.controls == ()
    assert not list((tmp_path / "store").glob("controls*"))
    header = json.loads((tmp_path / "store" / HEADER).read_text())
    assert "controls" not in header
    assert list(header["shards"][0]) == ["tokens", "sentences", "documents"]


@pytest.mark.parametrize(
    ("records", "control", "message"),
    [
        ([{"text": "a"}, {"text": "b"}], "kind", "x.jsonl: line 1: has no 'kind', so it has no control code"),
        ([{"text": "a", "kind": "k"}, {"text": "b", "kind": " "}], "kind", "line 2: has no 'kind'"),
        ([{"text": "a", "kind": "k"}, {"text": "b", "kind": None}], "kind", "line 2: has no 'kind'"),
        ([{"text": "a", "kind": [1]}], "kind", "line 1: 'kind' is list, not a text or a whole number"),
        ([{"text": "a", "date": "today"}], "date:year", "line 1: has no year in 'date'"),
        ([{"text": "a", "url": "http://["}], "url:host", "line 1: has no host in 'url'"),
        ([{"text": "a", "kind": "k" * 300}], "kind", "its control code has 300 characters; the most is 200"),
        ([{"text": "a"}], ":host", "control ':host': is no column; give folder, file, or a column such as url:host"),
    ],
)
def test_a_document_without_a_code_is_refused(
    tmp_path: Path, tokenizer: Path, records: list[dict[str, object]], control: str, message: str
) -> None:
    (tmp_path / "x.jsonl").write_text(lines(*records))
    with pytest.raises(UserError) as refused:
        prepare(tmp_path / "x.jsonl", tokenizer, tmp_path / "store", workers=1, control=control)
    assert message in str(refused.value)
    assert not (tmp_path / "store").exists()


def test_a_default_code_is_for_documents_without_one(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "x.jsonl").write_text(lines({"text": "a", "kind": "k"}, {"text": "b"}, {"text": "c", "kind": ""}))
    store = prepare(
        tmp_path / "x.jsonl", tokenizer, tmp_path / "store", workers=1, control="kind", control_default="other"
    )
    assert codes(store.store) == ["k", "other", "other"]
    with pytest.raises(UserError, match="control_default: needs control"):
        prepare(tmp_path / "x.jsonl", tokenizer, tmp_path / "other", control_default="other")


def test_codes_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    documents = list(Corpus([str(BOOKS)]).documents())[::10]
    tokenizer_training.save(tokenizer_training.train(lambda: documents, "wordpiece", 500), tmp_path / "lower")
    (tmp_path / "x.jsonl").write_text(lines({"text": "a", "kind": "Books"}, {"text": "b", "kind": "books"}))
    with pytest.raises(UserError, match="control codes 'Books' and 'books': have the same tokens; rename one"):
        prepare(tmp_path / "x.jsonl", tmp_path / "lower", tmp_path / "store", workers=1, control="kind")


def test_places_without_codes_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "x.txt").write_text("A text.")
    (tmp_path / "x.csv").write_text("text,kind\na,b\n")
    with pytest.raises(UserError, match=r"x.txt: a text file has no column 'kind'; use `control=folder` \(or file\)"):
        prepare(tmp_path / "x.txt", tokenizer, tmp_path / "store", workers=1, control="kind")
    with pytest.raises(UserError, match=r"has no field 'sort'; there are: text, kind \(choose one with `control`\)"):
        prepare(tmp_path / "x.csv", tokenizer, tmp_path / "store", workers=1, control="sort")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prefix": [10**6]}, "is damaged .a control code outside the vocabulary"),
        ({"prefix": []}, "is damaged .a control code without tokens"),
        ({"code": 3}, "is damaged .a control code without tokens"),
        ({"documents": "1"}, "is damaged .counts of a control code"),
        ({"more": 1}, "is damaged"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, tokenizer: Path, change: dict[str, object], message: str) -> None:
    (tmp_path / "x.jsonl").write_text(lines({"text": "a", "kind": "k"}))
    prepare(tmp_path / "x.jsonl", tokenizer, tmp_path / "store", workers=1, control="kind")
    path = tmp_path / "store" / HEADER
    header = json.loads(path.read_text())
    header["controls"][0] |= change
    path.write_text(json.dumps(header))
    with pytest.raises(UserError, match=message):
        Store.open(tmp_path / "store")


GIVEN = ("links/2014/a", "links/2018/b/c", "", None)


def given_records() -> list[dict[str, object]]:
    texts = BOOKS.read_text().split("\n\n")[:40]
    return [{"text": text[:900], "url": GIVEN[n % 4], "kind": f"kind {n % 2}"} for n, text in enumerate(texts)]


def test_given_texts_stand_before_every_sequence_and_are_not_predicted(tmp_path: Path, tokenizer: Path) -> None:
    corpus = write(tmp_path, links_jsonl=lines(*given_records()))
    options = {"workers": 1, "control": "kind", "given": "url", "format": "jsonl"}
    store = prepare(corpus / "links_jsonl", tokenizer, tmp_path / "store", **options).store
    loaded = Tokenizer.load(tokenizer)
    assert loaded is not None
    wanted = [control_prefix(loaded, str(r["kind"]), str(r["url"] or "")) for r in given_records()]
    bounds = store.prefixes.bounds
    assert [store.prefixes.ids[low:high].tolist() for low, high in pairwise(bounds)] == wanted
    assert verify_store(tmp_path / "store").has_given
    for part in split_held_out(store, 0.3):
        stream = Stream(part, format="stream", masking="next", batch_tokens=512, max_length=64, seed=3)
        distinct = {tuple(prefix) for prefix in wanted}
        seen = set()
        for step in range(stream.steps_per_epoch):
            batch = stream[step]
            masked, targets = PretrainingLabels.of(batch).predicted
            assert torch.equal(batch.ids[masked + 1], targets)
            predicted = torch.zeros(len(batch.ids), dtype=torch.bool)
            predicted[masked + 1] = True
            for ids, chosen in zip(batch.split(batch.ids), batch.split(predicted), strict=True):
                prefix = max((p for p in distinct if tuple(ids[: len(p)].tolist()) == p), key=len)
                assert not chosen[: len(prefix)].any()
                assert chosen[len(prefix) :].all()
                seen.add(prefix)
        assert seen == distinct


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"given": "url"}, "give `control` too"),
        ({"given": "address", "control": "kind"}, "has no field 'address'.*choose one with `given`"),
        ({"given": "count", "control": "kind"}, "line 1: 'count' is list, not a text"),
        ({"given": "long", "control": "kind"}, "line 1: its given text has 4,000 characters; the most is 2,000"),
    ],
)
def test_given_texts_that_are_refused(tmp_path: Path, tokenizer: Path, options: dict[str, str], line: str) -> None:
    record: dict[str, object] = {"text": "A ship.", "kind": "x", "url": "a", "count": [1], "long": "ab" * 2000}
    corpus = write(tmp_path, a_jsonl=lines(record))
    with pytest.raises(UserError, match=line):
        prepare(corpus / "a_jsonl", tokenizer, tmp_path / "store", workers=1, format="jsonl", **options)


def test_a_given_text_longer_than_half_a_sequence_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    record: dict[str, object] = {"text": "A ship went down.", "kind": "x", "url": "https://a.org/" + "long-name/" * 9}
    corpus = write(tmp_path, a_jsonl=lines(record))
    options = {"workers": 1, "control": "kind", "given": "url", "format": "jsonl"}
    store = prepare(corpus / "a_jsonl", tokenizer, tmp_path / "store", **options).store
    with pytest.raises(UserError, match="more than half of a sequence; give"):
        Stream(store, format="stream", masking="next", batch_tokens=512, max_length=64)
