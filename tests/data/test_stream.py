"""The batch stream: a pure function of seed and step, within its budget, every token once an epoch."""

import itertools
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertree.data import example_index
from bertree.data.sequences.shuffle_group import build_group
from bertree.data.store import Store
from bertree.data.stream import Stream
from tests.support.corpora import FIRST, FORMATS, corpus, long_store, same, sequences, shapes
from tests.support.processes import PROCESSES
from tests.support.quick import example_count
from tests.support.shared import suite_has

MASKS = ("token", "word+static2", "ngram", None)
any_setting = st.fixed_dictionaries(
    {
        "format": st.sampled_from(FORMATS),
        "masking": st.sampled_from(MASKS),
        "max_length": st.integers(8, 48),
        "fixed": st.booleans(),
        "seed": st.integers(0, 3),
    }
)


def stream(sample, budget: int = 4, **settings) -> Stream:
    """A stream over many small windows, with batches of some full examples."""
    with mock.patch.object(example_index, "CHUNK_TOKENS", 64), mock.patch("bertree.data.stream.GROUP_CHUNKS", 2):
        return Stream(sample.store, batch_tokens=budget * settings["max_length"], **settings)


@example_count(30)
@given(
    shapes,
    any_setting,
    st.integers(1, 6),
    st.integers(1, 3),
    st.lists(st.integers(0, 60), min_size=1, max_size=6),
)
def test_a_step_is_the_same_whatever_was_read_before(shape, setting, budget, shards, steps) -> None:
    sample = corpus(shape, shards)
    batches = stream(sample, budget, **setting)
    before = {step: batches[step] for step in sorted(set(steps))}
    other = stream(sample, budget, **setting)
    assert all(same(other[step], before[step]) for step in steps)
    assert all(same(batches[step], before[step]) for step in steps)


@pytest.mark.slow
@example_count(30)
@given(shapes, any_setting, st.integers(1, 4), st.integers(1, 3))
def test_an_epoch_reads_every_token_once(shape, setting, budget, epoch) -> None:
    sample = corpus(shape)
    setting["masking"] = None
    read = stream(sample, budget, **setting)
    ids = torch.cat([batch.ids for batch in read.one_epoch(epoch)])
    assert ids.numel() == read.epoch_tokens
    assert sorted(ids[ids >= FIRST].tolist()) == list(range(FIRST, FIRST + sample.store.tokens))
    # Steps go on from epoch to epoch: read up to the end of the third, nothing is missing or twice.
    total, size, tokens = 3 * read.epoch_tokens, 0, []
    while size < total:
        tokens.append(read[len(tokens)].ids)
        size += tokens[-1].numel()
    three = torch.cat(tokens)[:total]
    counts = Counter(three[three >= FIRST].tolist())
    assert set(counts) == set(range(FIRST, FIRST + sample.store.tokens))
    assert set(counts.values()) == {3}


@example_count(30)
@given(shapes, any_setting, st.integers(1, 8))
def test_batches_keep_within_their_budget(shape, setting, budget) -> None:
    sample = corpus(shape)
    read = stream(sample, budget, **setting, waste=0.02)
    for step in range(12):
        batch = read[step]
        size = batch.ids.numel()
        assert size <= read.batch_tokens
        assert size >= 0.98 * read.batch_tokens
        assert size == read.batch_tokens or not setting["fixed"]
        assert batch.max_seqlen == int(batch.lengths.max()) <= setting["max_length"]
        assert batch.cu_seqlens[-1] == size
        starts = batch.first.repeat_interleave(batch.lengths)
        assert torch.equal(batch.positions, torch.arange(size) - starts)


@example_count(30)
@given(shapes, any_setting, st.sampled_from([2, 3, 4]), st.integers(0, 20))
def test_ranks_read_the_whole_batch_between_them(shape, setting, world, step) -> None:
    sample = corpus(shape)
    shared = {"shares": world} if setting["fixed"] else {}
    batch = stream(sample, 2 * world, **setting, **shared)[step]
    parts = [stream(sample, 2 * world, **setting, rank=rank, world=world)[step] for rank in range(world)]
    assert [s for part in parts for s in sequences(part)] == list(sequences(batch))
    for name in ("positions", "segments", "labels.targets", "labels.pairs"):
        read = attrgetter(name)
        if read(batch) is not None:
            assert torch.equal(torch.cat([read(part) for part in parts]), read(batch))
    if batch.labels.masked is not None:
        bases = itertools.accumulate((part.ids.numel() for part in parts), initial=0)
        masked = torch.cat([part.labels.masked + base for part, base in zip(parts, bases, strict=False)])
        assert torch.equal(masked, batch.labels.masked)
    if setting["fixed"]:
        assert {part.ids.numel() for part in parts} == {batch.ids.numel() // world}
    else:
        assert min(part.ids.numel() for part in parts) > 0


def test_ranks_have_even_parts() -> None:
    sample = corpus([[9, 17, 5] * 20] * 30)
    parts = [
        Stream(sample.store, batch_tokens=6400, max_length=64, rank=rank, world=8)[3].ids.numel() for rank in range(8)
    ]
    assert max(parts) - min(parts) <= 2 * 64


@example_count(30)
@given(shapes, any_setting, st.integers(2, 5))
def test_batches_of_a_few_examples_tear_none(shape, setting, budget) -> None:
    setting |= {"masking": None, "fixed": False}
    if setting["format"] == "stream":
        return
    read = stream(corpus(shape), budget, **setting)
    for step in range(12):
        assert read[step].ids.numel() <= read.batch_tokens
        assert all(s[0] == 2 and s[-1] == 3 for s in sequences(read[step]))


@pytest.mark.parametrize("examples", suite_has([20, 160], [20, 40, 80, 160]))
@pytest.mark.parametrize("name", ["full-sentences", "doc-sentences", "segment-pair+nsp", "segment-pair+sop"])
def test_usual_batches_are_full_and_whole(name: str, examples: int) -> None:
    draw = np.random.default_rng(examples)
    sample = corpus([draw.lognormal(2.9, 0.6, size=30).astype(int).clip(1, 200).tolist() for _ in range(100)])
    read = Stream(sample.store, format=name, masking=None, batch_tokens=examples * 64, max_length=64)
    for step in range(2 * read.steps_per_epoch):
        batch = read[step]
        assert 0.98 * read.batch_tokens - 1 <= batch.ids.numel() <= read.batch_tokens
        assert all(s[0] == 2 and s[-1] == 3 for s in sequences(batch))


def test_a_batch_of_one_example_of_many() -> None:
    sample = corpus([[9, 17, 5] * 20] * 200)
    for length in (32, 64, 128):
        read = Stream(sample.store, masking=None, batch_tokens=length, max_length=length)
        assert all(0 < read[step].ids.numel() <= length for step in range(40))


def test_large_batches_tear_nothing_and_small_ones_only_at_their_borders() -> None:
    sample = corpus([[9, 17, 5] * 20] * 30)
    common = {"format": "doc-sentences", "masking": None, "max_length": 64}
    large = Stream(sample.store, batch_tokens=6400, **common)
    assert all(s[0] == 2 and s[-1] == 3 for step in range(20) for s in sequences(large[step]))
    small = Stream(sample.store, batch_tokens=640, **common)
    loose = Stream(sample.store, batch_tokens=640, waste=0.2, **common)
    torn = 0
    for step in range(20):
        assert all(s[0] == 2 and s[-1] == 3 for s in sequences(loose[step])), "waste of 2 * max_length: none is torn"
        _, *middle, last = sequences(small[step])
        assert all(s[0] == 2 and s[-1] == 3 for s in middle)
        torn += last[-1] != 3
        if last[-1] != 3 and last != [2]:
            head, tail = last[-1], next(sequences(small[step + 1]))[0]
            assert tail in (head + 1, 3), "the next batch goes on where this one ended"
    assert torn > 0


def test_torn_pairs_keep_the_question_only_with_some_of_both_segments() -> None:
    sample = corpus([[9, 17, 5] * 20] * 30)
    asked = Counter()
    for step in range(120):
        batch = Stream(
            sample.store, format="segment-pair+sop", masking=None, batch_tokens=640, max_length=64, fixed=True
        )[step]
        labels = batch.labels.pairs.tolist()
        for ids, kinds, label in zip(sequences(batch), batch.split(batch.segments), labels, strict=True):
            complete = ids[0] == 2 and any(k == 1 and i >= FIRST for i, k in zip(ids, kinds.tolist(), strict=True))
            assert (label >= 0) == complete
            asked[label] += 1
    assert min(asked[0], asked[1]) > 200
    assert asked[-100] > 20


def test_order_changes_with_epoch_and_seed() -> None:
    sample = corpus([[9, 17, 5] * 20] * 30)
    orders = [
        torch.cat(
            [b.ids for b in Stream(sample.store, masking=None, batch_tokens=640, max_length=64, seed=s).one_epoch(e)]
        )
        for s, e in ((0, 0), (0, 1), (1, 0))
    ]
    for left, right in itertools.combinations(orders, 2):
        assert (left[:640] == right[:640]).float().mean() < 0.2


def test_threads_read_what_one_reader_reads() -> None:
    sample = corpus([[9, 17, 5] * 20] * 30, shards=3)
    read = Stream(sample.store, batch_tokens=640, max_length=64)
    alone = [read[step] for step in range(100)]
    with ThreadPoolExecutor(8) as pool:
        shared = list(pool.map(Stream(sample.store, batch_tokens=640, max_length=64).__getitem__, range(100)))
    assert all(map(same, alone, shared))


@pytest.mark.slow
def test_step_one_million_needs_no_step_before_it() -> None:
    store = long_store(2_000_000)
    for name in ("full-sentences", "segment-pair+nsp"):
        read = Stream(store, format=name, masking="word", batch_tokens=32768, max_length=128)
        with mock.patch("bertree.data.stream.build_group", wraps=build_group) as built:
            batch = read[1_000_000]
        assert built.call_count <= 2, "only the text around the step is read"
        assert 0.98 * 32768 <= batch.ids.numel() <= 32768
        assert read.epoch_at(1_000_000) > 10_000


def test_golden_batch() -> None:
    """The whole path in one batch, checked by hand; a change of any digit is a change of every run."""
    sample = corpus([[3, 2, 1], [2, 4], [1, 5]])  # tokens 5-10, 11-16, 17-22
    settings = {"format": "segment-pair+nsp", "masking": "word", "max_length": 12, "seed": 7}
    batch = Stream(sample.store, batch_tokens=40, waste=0.0, **settings)[1]
    assert list(sequences(batch)) == [
        [4, 9, 3, 10, 3],  # the tail of a pair that the batch before began
        [2, 11, 12, 3, 4, 14, 15, 16, 3],
        [2, 5, 4, 7, 8, 9, 3, 10, 3],
        [2, 17, 3, 4, 14, 15, 16, 3],  # A of the third document, B of the second
        [2, 11, 4, 3, 18, 19, 4, 21, 22],  # and the other way round; its separator starts the next batch
    ]
    assert [segments.tolist() for segments in batch.split(batch.segments)] == [
        [0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1, 1],
    ]
    assert batch.labels.pairs.tolist() == [-100, 0, 0, 1, 1]
    assert batch.labels.masked.tolist() == [0, 9, 16, 26, 33, 37]
    assert batch.labels.targets.tolist() == [8, 13, 6, 13, 12, 20]
    assert batch.max_seqlen == 9


def test_the_index_is_cached_and_made_again_where_broken(tmp_path: Path) -> None:
    sample = corpus([[9, 17, 5] * 20] * 30, shards=2)
    store = replace(sample.store, folder=tmp_path)
    settings = {"format": "segment-pair+sop", "batch_tokens": 640, "max_length": 64}
    expected = Stream(sample.store, **settings)[5]
    assert same(Stream(store, **settings)[5], expected)
    [path] = (tmp_path / "index").iterdir()
    whole = path.read_bytes()
    with mock.patch.object(example_index, "_build", side_effect=AssertionError("must come from the cache")):
        assert same(Stream(store, **settings)[5], expected)
        with pytest.raises(AssertionError, match="cache"):  # another limit, another index
            Stream(store, **settings | {"max_length": 63})
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    examples = example_index._read(path, store)
    longer = examples.contents.copy()
    longer[0] += 1
    example_index._write(path, replace(examples, contents=longer))
    forged = path.read_bytes()  # its checksum is right, but not its number of tokens
    for broken in (b"", forged, whole[:-10], whole[:20], flipped, b"\xff" * 100, b"\x02" + bytes(7) + b"[]"):
        path.write_bytes(broken)
        assert same(Stream(store, **settings)[5], expected)
        assert path.read_bytes() == whole
    assert [p.name for p in (tmp_path / "index").iterdir()] == [path.name], "no temporary files stay"


def test_a_store_that_cannot_be_written_to_is_used_all_the_same(tmp_path: Path) -> None:
    sample = corpus([[9, 17, 5]] * 9)
    (tmp_path / "index").write_text("a file where the folder should be")
    assert same(
        Stream(replace(sample.store, folder=tmp_path), batch_tokens=640, max_length=64)[0],
        Stream(sample.store, batch_tokens=640, max_length=64)[0],
    )


def test_a_stream_travels_to_another_process(tmp_path: Path) -> None:
    sample = corpus([[9, 17, 5] * 20] * 30)
    read = Stream(sample.store, format="segment-pair+nsp", batch_tokens=640, max_length=64, seed=3, fixed=True)
    with PROCESSES.Pool(1) as pool:
        assert same(pool.apply(read.__getitem__, (7,)), read[7])
    (tmp_path / "tokens-00000.bin").write_bytes(sample.store.shards[0].tokens.tobytes())
    moved = replace(sample.store, folder=tmp_path)
    with mock.patch.object(Store, "open", return_value=sample.store):
        data = pickle.dumps(Stream(moved, batch_tokens=640, max_length=64))
        assert len(data) < 1000, "a store on disk is not copied"
        assert same(pickle.loads(data)[3], Stream(sample.store, batch_tokens=640, max_length=64)[3])


@example_count(30)
@given(shapes, any_setting, st.integers(2, 4))
def test_ranks_evaluate_every_token_once(shape, setting, world) -> None:
    sample = corpus(shape)
    ranks = [stream(sample, 2 * world, **setting, rank=rank, world=world).one_epoch() for rank in range(world)]
    ids = [batch.ids for batches in zip(*ranks, strict=True) for batch in batches]
    assert sum(map(len, ids)) == stream(sample, **setting).epoch_tokens
    if setting["masking"] is None:
        tokens = torch.cat(ids)
        assert sorted(tokens[tokens >= FIRST].tolist()) == list(range(FIRST, FIRST + sample.store.tokens))


def test_steps_count_from_zero() -> None:
    read = Stream(corpus([[5] * 9] * 4).store, batch_tokens=64, max_length=16, waste=0.0)
    with pytest.raises(IndexError):
        _ = read[-1]
    assert same(next(iter(read)), read[0])
    assert read.steps_per_epoch == -(-read.epoch_tokens // 64)  # so small a batch has no token to spare
    assert np.isclose(read.epoch_at(10), 640 / read.epoch_tokens)
