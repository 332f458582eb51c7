"""The store on disk: what goes in comes out, and whatever is damaged is named in one line."""

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertree.data.preview import show_batch
from bertree.data.store import Store, verify_store
from bertree.data.store_files import HEADER, decode_lengths, encode_lengths, shard_file_name
from bertree.data.store_writer import ShardWriter, write_header
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.pretraining.build import open_stores
from bertree.pretraining.sections import DataSettings
from tests.support.memory_store import memory_store

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
Documents = list[list[list[int]]]


def train_on(folder: Path) -> None:
    open_stores(DataSettings(store=str(folder)))[0].load_tokenizer()


def change_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"the"', '"thé"'))


def rotate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[2:200] + data[:2] + data[200:])


def write(folder: Path, shards: list[Documents], vocab_size: int = 1000) -> None:
    parts = []
    for number, documents in enumerate(shards):
        writer = ShardWriter(folder, number, vocab_size)
        for document in documents:
            flat = np.array([token for sentence in document for token in sentence])
            writer.add(flat, np.array([len(s) for s in document]), np.array([len(document)]))
        parts.append(writer.close())
    words = np.arange(vocab_size) % 2 == 0
    write_header(
        folder,
        parts,
        vocab_size=vocab_size,
        special=SPECIAL,
        word_start=words,
        tokenizer_hash="",
        summary={},
    )


def read(store: Store) -> Documents:
    read_documents: Documents = []
    for shard in store.shards:
        for first, last in zip(shard.document_starts[:-1], shard.document_starts[1:], strict=True):
            bounds = shard.sentence_starts[first : last + 1]
            read_documents.append([shard.tokens[a:b].tolist() for a, b in itertools.pairwise(bounds)])
    return read_documents


@given(st.lists(st.integers(0, 2**62)))
def test_lengths_come_back(values: list[int]) -> None:
    assert decode_lengths(encode_lengths(np.array(values, dtype=np.int64))).tolist() == values


def test_lengths_cost_one_byte_below_128() -> None:
    assert len(encode_lengths(np.array([1, 127, 128, 16_383, 16_384]))) == 1 + 1 + 2 + 2 + 3


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\x80" * 12 + b"\x01"])
def test_broken_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_lengths(data)


def test_disk_and_memory_hold_the_same(tmp_path: Path) -> None:
    shards: list[Documents] = [[[[5, 6], [7]], [[8] * 300]], [[[999], [5], [6, 7]]]]
    write(tmp_path, shards)
    store = Store.open(tmp_path)
    assert read(store) == [document for shard in shards for document in shard]
    assert (store.tokens, store.sentences, store.documents) == (307, 6, 3)
    assert store.shards[0].tokens.dtype == np.uint16
    assert store.special == SPECIAL
    assert store.word_start[:3].tolist() == [True, False, True]
    memory = memory_store([*shards[0], [], [[]]], vocab_size=1000, special=SPECIAL)
    assert read(memory) == shards[0]
    (tmp_path / "one").mkdir()
    write(tmp_path / "one", [shards[0]])
    assert Store.open(tmp_path / "one").fingerprint == memory.fingerprint != store.fingerprint


@pytest.mark.parametrize(("size", "width"), [(65_535, 2), (65_536, 2), (65_537, 4)])
def test_ids_are_as_wide_as_the_vocabulary_asks(tmp_path: Path, size: int, width: int) -> None:
    write(tmp_path, [[[[size - 1, 0]]]], size)
    assert (tmp_path / shard_file_name("tokens", 0)).stat().st_size == 2 * width
    assert read(verify_store(tmp_path)) == [[[size - 1, 0]]]


@pytest.mark.parametrize("name", [shard_file_name(p, 1) for p in ("tokens", "sentences", "documents")] + ["words.bin"])
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, [[[[5, 6], [7]]], [[[8, 9]], [[9]]]])
    verify_store(tmp_path)
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=f"{name}: is cut off"):
        Store.open(tmp_path)
    path.write_bytes(whole + b"\1")
    with pytest.raises(UserError, match=f"{name}: is too long"):
        Store.open(tmp_path)
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(UserError, match=f"{name}: is altered"):
        verify_store(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match=name):
        Store.open(tmp_path)


def test_altered_lengths_are_noticed_when_read(tmp_path: Path) -> None:
    write(tmp_path, [[[[5, 6], [7]]]])
    (tmp_path / shard_file_name("sentences", 0)).write_bytes(b"\2\2")
    with pytest.raises(UserError, match=r"sentences-00000.bin: is altered"):
        _ = Store.open(tmp_path).shards[0].sentence_starts


def test_exchanged_lengths_are_noticed_when_read(tmp_path: Path) -> None:
    """They still add up, but another division of the corpus would not fit the cached index."""
    write(tmp_path, [[[[5, 6], [7]], [[8]]]])
    for name in ("sentences", "documents"):
        path = tmp_path / shard_file_name(name, 0)
        before = path.read_bytes()
        path.write_bytes(bytes([before[1], before[0], *before[2:]]))
        with pytest.raises(UserError, match=f"{path.name}: is altered.*prepare the store again"):
            Stream(tmp_path, batch_tokens=64, max_length=16)
        path.write_bytes(before)


def test_ids_outside_the_vocabulary_are_noticed_when_read(tmp_path: Path) -> None:
    write(tmp_path, [[[[5, 6], [7]]], [[[8, 9]]]])
    path = tmp_path / shard_file_name("tokens", 1)
    path.write_bytes(b"\xff" * path.stat().st_size)
    stream = Stream(tmp_path, batch_tokens=64, max_length=16)
    with pytest.raises(UserError, match=r"tokens-00001.bin: has ids outside the vocabulary"):
        _ = stream[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is not the header"),
        ({"version": 2}, "has version 2"),
        ({"vocab_size": "many"}, "is damaged"),
        ({"dtype": "uint8"}, "is damaged"),
        ({"summary": {"empty": "many"}}, "is damaged"),
        ({"summary": {"empty": 7}}, "is altered"),
        ({"special": {"cls": 3}}, "is altered"),
        ({"special": {"cls": 5000}}, "outside the vocabulary"),
        ({"shards": [{"tokens": {"count": 3, "size": 3, "sha256": "0" * 64}}]}, "is damaged"),
        ({"shards": [7]}, "is damaged"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write(tmp_path, [[[[5, 6], [7]]]])
    header = json.loads((tmp_path / HEADER).read_text())
    (tmp_path / HEADER).write_text(json.dumps(header | change))
    with pytest.raises(UserError, match=message) as caught:
        Store.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_header_is_no_store(tmp_path: Path) -> None:
    write(tmp_path, [[[[5]]]])
    (tmp_path / HEADER).unlink()
    with pytest.raises(UserError, match="is not a token store"):
        Store.open(tmp_path)
    (tmp_path / "journal.json").write_text("{}")
    with pytest.raises(UserError, match="is not finished"):
        Store.open(tmp_path)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [[[[5]]]])
    store = Store.open(tmp_path)
    store.require_tokenizer("", "mine")
    with pytest.raises(UserError, match="another tokenizer than mine"):
        store.require_tokenizer("u", "mine")


@given(st.data())
def test_any_altered_byte_is_one_line(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, [[[[5, 6], [7]], [[9]]], [[[8] * 200, [9]]]])
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        whole = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] ^= data.draw(st.integers(1, 255))
        before = path.read_bytes()
        path.write_bytes(whole)
        message = problem(folder)
        if message is None:  # another blank in the header
            assert path.name == HEADER
            assert json.loads(whole) == json.loads(before)
        assert message is None or ("\n" not in message and str(folder) in message)


def problem(folder: Path) -> str | None:
    try:
        verify_store(folder)
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("use", [verify_store, show_batch, train_on])
def test_a_store_guards_its_tokenizer_and_its_ids(
    use: Callable[[Path], object], token_store: Path, tmp_path: Path
) -> None:
    """Whatever trains on a store or shows it refuses another tokenizer, none, or other ids of the vocabulary."""
    for harm, name, message in (
        (shutil.rmtree, "tokenizer", "is missing; restore"),
        (change_tokenizer, "tokenizer", "is not the tokenizer that the store was made with"),
        (rotate, "tokens-00000.bin", "is altered"),
    ):
        folder = shutil.copytree(token_store, tmp_path / harm.__name__)
        harm(folder / name)
        with pytest.raises(UserError, match=f"{folder / name}: {message}"):
            use(folder)
