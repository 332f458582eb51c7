"""Preparing a store: exact content, the same bytes for any workers and after any interruption."""

import errno
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import bertree
from bertree.batch import PretrainingLabels
from bertree.data import store_builder
from bertree.data.store import Store, verify_store
from bertree.data.store_builder import build_store
from bertree.data.store_writer import ShardWriter
from bertree.data.stream import Stream
from bertree.engines.local import choose_engine
from bertree.errors import UserError
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus, CorpusOptions
from bertree.text.identity import tokenizer_hash
from bertree.text.sentence_splitter import split_sentences
from bertree.text.tokenizer import Tokenizer
from tests.support.shared import suite_has

ROOT = Path(__file__).parents[2]
BOOKS = ROOT / "corpus" / "books.txt"
SHARD = 10_000
CHUNK = 7_000  # characters


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    documents = list(Corpus([str(BOOKS)]).documents())[::30]
    for kind in ("wordpiece", "bpe", "unigram"):
        tokenizer_training.save(tokenizer_training.train(lambda: documents, kind, 1000), folder / kind)
    return {kind: folder / kind for kind in ("wordpiece", "bpe", "unigram")}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred kilobytes in three files, with copies, empty documents and bytes that are not text."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = BOOKS.read_text().split("\n\n")[:60]
    (folder / "a.txt").write_bytes(b"\n\n".join(d.encode() for d in documents[:30]) + b"\n\n\xff\xff\n\n\x07\n\n")
    records = [{"text": text} for text in [*documents[30:45], documents[3], "\u200b"]]
    (folder / "b.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "c.txt").write_text("\n\n".join(documents[45:]))
    return folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_builder, "CHUNK_CHARACTERS", CHUNK)


def load(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(corpus: Path, tokenizer: Path, out: Path, workers: int = 1, **more: Any) -> Store:
    source = Corpus([str(corpus)], CorpusOptions(deduplicate=True))
    return build_store(
        source, load(tokenizer), out, choose_engine("local", workers=workers), shard_tokens=SHARD, **more
    )


@pytest.fixture(scope="module")
def whole(corpus: Path, tokenizers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a store made in one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_builder, "CHUNK_CHARACTERS", CHUNK)
        out = tmp_path_factory.mktemp("whole") / "store"
        run(corpus, tokenizers["wordpiece"], out)
    return files(out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_content_is_that_of_the_text(corpus: Path, tokenizers: dict[str, Path], tmp_path: Path, kind: str) -> None:
    store = run(corpus, tokenizers[kind], tmp_path / "store")
    assert verify_store(tmp_path / "store").fingerprint == store.fingerprint
    tokenizer = load(tokenizers[kind])
    documents = list(Corpus([str(corpus)], CorpusOptions(deduplicate=True)).documents())
    expected = []
    for document in documents:
        sentences = split_sentences(document)
        if kind == "bpe":
            sentences[1:] = [" " + sentence for sentence in sentences[1:]]
        encodings = tokenizer.backend.encode_batch(sentences, add_special_tokens=False)
        expected.append([encoding.ids for encoding in encodings if encoding.ids])
    texts = []
    for shard in store.shards:
        for first, last in pairwise(shard.document_starts):
            bounds = pairwise(shard.sentence_starts[first : last + 1])
            texts.append([shard.tokens[start:end].tolist() for start, end in bounds])
    assert texts == [document for document in expected if document]
    assert store.documents == len(texts) == (60 if kind == "wordpiece" else 61)  # BERT drops U+FFFD
    assert len(store.shards) > 3
    assert store.special == {name: tokenizer.id_of(name) for name in ("cls", "sep", "mask", "pad", "unk")}
    assert store.tokenizer_hash == tokenizer_hash(load(tmp_path / "store" / "tokenizer"))
    size = sum(len(data) for name, data in files(tmp_path / "store").items() if name.endswith(".bin"))
    assert size / store.tokens < 2.2


def test_the_summary_says_what_was_dropped(whole: dict[str, bytes]) -> None:
    summary = json.loads(whole["store.json"])["summary"]
    assert {name: summary[name] for name in ("documents", "kept", "duplicate", "empty", "invalid_lines")} == {
        "documents": 64,
        "kept": 61,
        "duplicate": 1,
        "empty": 2,
        "invalid_lines": 1,
    }
    assert set(whole) == {
        "store.json",
        "words.bin",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        *(f"{part}-{n:05d}.bin" for part in ("tokens", "sentences", "documents") for n in range(len(whole) // 3 - 1)),
    }


@pytest.mark.process
def test_workers_change_no_byte(
    corpus: Path, tokenizers: dict[str, Path], whole: dict[str, bytes], tmp_path: Path
) -> None:
    run(corpus, tokenizers["wordpiece"], tmp_path / "store", workers=2)
    assert files(tmp_path / "store") == whole


class Stop(Exception):
    """Stands for whatever ends a run in the middle."""


@pytest.mark.slow
@pytest.mark.parametrize("after", suite_has([1, 14], [1, 4, 9, 14, 20]))
def test_going_on_changes_no_byte(
    corpus: Path, tokenizers: dict[str, Path], whole: dict[str, bytes], tmp_path: Path, after: int
) -> None:
    out = tmp_path / "store"
    calls = 0

    def stop(consumed: int, tokens: int) -> None:
        nonlocal calls
        calls += 1
        if calls % after == 0:
            raise Stop

    runs = 0
    while True:
        runs += 1
        try:
            run(corpus, tokenizers["wordpiece"], out, advance=stop if runs < 4 else lambda c, t: None)
            break
        except Stop:
            with pytest.raises(UserError, match=r"is not finished|is not a token store"):
                Store.open(out)
    assert runs > 1
    assert files(out) == whole


def test_killed_at_any_moment_it_goes_on(
    corpus: Path, tokenizers: dict[str, Path], whole: dict[str, bytes], tmp_path: Path
) -> None:
    """kill -9 as soon as so many shards are there; the workers must not outlive it."""
    out = tmp_path / "store"
    code = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from bertree.data import store_builder\n"
        "from bertree.engines.local import Processes\n"
        "from bertree.text.corpus import Corpus, CorpusOptions\n"
        "from bertree.text.tokenizer import Tokenizer\n"
        "if __name__ == '__main__':\n"
        f"    store_builder.CHUNK_CHARACTERS = {CHUNK}\n"
        "    store_builder.write_header = lambda *given, **named: signal.pause()\n"  # it ends only when it is killed
        "    corpus = Corpus([sys.argv[1]], CorpusOptions(deduplicate=True))\n"
        "    tokenizer = Tokenizer.load(Path(sys.argv[2]))\n"
        f"    store_builder.build_store(corpus, tokenizer, Path(sys.argv[3]), Processes(2), shard_tokens={SHARD})\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    command = [sys.executable, str(script), str(corpus), str(tokenizers["wordpiece"]), str(out)]
    for shards in (1, 3):
        process = subprocess.Popen(command, start_new_session=True)
        while process.poll() is None and len(list(out.glob("documents-*.bin"))) < shards:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with pytest.raises(UserError, match="is not finished"):
            Store.open(out)
        assert gone(process.pid), "workers outlived the run"
    run(corpus, tokenizers["wordpiece"], out)
    assert files(out) == whole


def gone(session: int) -> bool:
    """Are all processes of a session dead within a few minutes?"""
    for _ in range(3000):
        alive = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                alive.append(stat)
        if not alive:
            return True
        time.sleep(0.1)
    return False


def test_a_full_disk_keeps_the_finished_shards(
    corpus: Path,
    tokenizers: dict[str, Path],
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "store"
    original = ShardWriter.add

    def full(self: ShardWriter, *arrays: Any) -> None:
        if self.number == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, *arrays)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", full)
        with pytest.raises(UserError, match=r"store: the disk is full; finished shards are kept") as caught:
            run(corpus, tokenizers["wordpiece"], out)
    assert "\n" not in str(caught.value)
    assert len(list(out.glob("tokens-*.bin"))) == 2
    run(corpus, tokenizers["wordpiece"], out)
    assert files(out) == whole


def test_a_file_that_may_not_grow(corpus: Path, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    """The real thing: the system refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SHARD, before[1]))
    try:
        with pytest.raises(UserError, match="the disk is full"):
            run(corpus, tokenizers["wordpiece"], tmp_path / "store")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_only_the_same_job_goes_on(corpus: Path, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "store"

    def stop(consumed: int, tokens: int) -> None:
        if tokens > 3 * SHARD:
            raise Stop

    with pytest.raises(Stop):
        run(corpus, tokenizers["wordpiece"], out, advance=stop)
    with pytest.raises(UserError, match=r"other settings \(tokenizer\)"):
        run(corpus, tokenizers["unigram"], out)
    with pytest.raises(UserError, match=r"other settings \(corpus\)"):
        run(corpus / "a.txt", tokenizers["wordpiece"], out)
    with pytest.raises(UserError, match=r"other settings \(language\)"):
        run(corpus, tokenizers["wordpiece"], out, language="de")
    (out / "tokens-00001.bin").unlink()
    with pytest.raises(UserError, match=r"tokens-00001.bin: is missing"):
        run(corpus, tokenizers["wordpiece"], out)


def test_a_run_that_settled_nothing_does_not_stand_in_the_way(
    corpus: Path, tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "store"

    def stop(consumed: int, tokens: int) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(corpus, tokenizers["wordpiece"], out, advance=stop)
    assert not list(out.glob("tokens-*.bin"))
    store = run(corpus, tokenizers["unigram"], out)
    assert (out / "tokenizer" / "tokenizer.json").read_bytes() == (
        tokenizers["unigram"] / "tokenizer.json"
    ).read_bytes()
    assert store.tokens > 0


def test_folders_that_are_not_ours(corpus: Path, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("x")
    for name, message in (("file", "is a file"), ("full", "contains other files")):
        with pytest.raises(UserError, match=message):
            run(corpus, tokenizers["wordpiece"], tmp_path / name)
    assert files(tmp_path) == {"file": b"x", "full/thesis.doc": b"x"}
    run(corpus, tokenizers["wordpiece"], tmp_path / "store")
    with pytest.raises(UserError, match="already a finished store"):
        run(corpus, tokenizers["wordpiece"], tmp_path / "store")


def test_two_at_once_are_refused(corpus: Path, tokenizers: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "store"
    refused: list[str] = []

    def second(consumed: int, tokens: int) -> None:
        if not refused:
            with pytest.raises(UserError) as caught:
                run(corpus, tokenizers["wordpiece"], out)
            refused.append(str(caught.value))

    run(corpus, tokenizers["wordpiece"], out, advance=second)
    assert "another run is writing here" in refused[0]


def test_a_failure_before_the_first_shard_leaves_nothing(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    """Whatever went wrong: a new folder is removed, an empty one that was there stays empty."""
    (tmp_path / "a.jsonl").write_text('{"body": "no field called text"}\n')
    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "store", tmp_path / "mine"):
        with pytest.raises(UserError, match="has no field 'text'"):
            run(tmp_path / "a.jsonl", tokenizers["wordpiece"], out)
    assert not (tmp_path / "store").exists()
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("text", ["", "\n\n \n", "\x07\x00\n\n\u200b"])
def test_an_empty_corpus(tokenizers: dict[str, Path], tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=r"a.txt: no text to store in this corpus") as caught:
        run(tmp_path / "a.txt", tokenizers["wordpiece"], tmp_path / "store")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.process
def test_a_tokenizer_that_makes_no_token_of_the_text_is_named(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A boat.\n\nA lamp.\n")
    deaf = shutil.copytree(tokenizers["wordpiece"], tmp_path / "deaf")
    tree = json.loads((deaf / "tokenizer.json").read_text())
    tree["normalizer"] = {"type": "Replace", "pattern": {"Regex": ".*"}, "content": ""}
    (deaf / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match=r"a.txt: no text to store .*deaf does not fit this text"):
        bertree.prepare(tmp_path / "a.txt", deaf, tmp_path / "store", workers=1)


def test_special_tokens_in_the_text_are_text(tokenizers: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("[MASK] and [SEP] and <mask> and </s>")
    for kind, folder in tokenizers.items():
        store = run(tmp_path / "a.txt", folder, tmp_path / kind)
        special = {token for name, token in store.special.items() if name != "unk"}
        assert not special & set(np.concatenate([shard.tokens for shard in store.shards]).tolist())


def test_standard_input_goes_on_too(
    tokenizers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\n\n".join(document.encode() for document in BOOKS.read_text().split("\n\n")[:30])

    def attempt(out: Path, data: bytes, advance: Any = lambda c, t: None) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        build_store(Corpus(["-"]), load(tokenizers["bpe"]), out, shard_tokens=SHARD, advance=advance)

    def stop(consumed: int, tokens: int) -> None:
        if tokens > 2 * SHARD:
            raise Stop

    attempt(tmp_path / "whole", data)
    with pytest.raises(Stop):
        attempt(tmp_path / "store", data, stop)
    with pytest.raises(UserError, match="has changed since"):
        attempt(tmp_path / "store", data.replace(b"Holmes", b"Watson"))
    attempt(tmp_path / "store", data)
    assert files(tmp_path / "store") == files(tmp_path / "whole")


@pytest.mark.slow
def test_a_vocabulary_above_65536_takes_four_bytes(tmp_path: Path) -> None:
    table = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(70_000)), "hello"]
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(table) + "\n")
    (tmp_path / "a.txt").write_text("Hello w69999")
    store = run(tmp_path / "a.txt", tmp_path / "tokenizer", tmp_path / "store")
    assert store.shards[0].tokens.tolist() == [70_005, 70_004]
    assert store.shards[0].tokens.dtype == np.uint32
    reopened = load(tmp_path / "store" / "tokenizer")
    store.require_tokenizer(tokenizer_hash(reopened), "its own")


def test_a_token_that_ends_a_text_separates_documents(tmp_path: Path) -> None:
    """GPT-2 has no other special token."""
    vocabulary = {"<|endoftext|>": 0, "a": 1, "ship": 2, "film": 3}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "x.txt").write_text("a ship\n\na film\n\na ship a film")
    store = build_store(Corpus([str(tmp_path / "x.txt")]), Tokenizer(backend), tmp_path / "store")
    assert store.special["sep"] == 0
    (batch,) = Stream(store, format="stream", masking="next", batch_tokens=64, max_length=64).one_epoch()
    assert batch.ids.tolist() == [1, 2, 0, 1, 3, 0, 1, 2, 1, 3, 0]
    assert PretrainingLabels.of(batch).predicted[1].tolist() == batch.ids[1:].tolist()
