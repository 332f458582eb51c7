"""Batches of the plain formats in which tokens are predicted in a random order."""

import pytest
import torch
from hypothesis import given

from bertree.data.masking import Masking
from bertree.data.stream import Stream
from bertree.train.feed import FixedShape
from tests.support.corpora import CLS, FIRST, FORMATS, SEP, corpus, same, shapes
from tests.support.quick import example_count
from tests.support.shared import suite_has

PERMUTED = Masking("permutation", partial=4)


@pytest.mark.parametrize("format", suite_has(("segment-pair+nsp", "doc-sentences", "stream"), FORMATS))
@example_count(15)
@given(shape=shapes)
def test_every_format_can_be_permuted(format: str, shape: list[list[int]]) -> None:
    store = corpus([*shape, [3, 3], [4, 2]]).store
    stream = Stream(store, format=format, masking=PERMUTED, batch_tokens=128, max_length=32)
    plain = Stream(store, format=format, masking=None, batch_tokens=128, max_length=32)
    for batch, unmasked in zip(stream.one_epoch(), plain.one_epoch(), strict=True):
        order, labels = batch.permutation, batch.labels
        assert torch.equal(batch.ids, unmasked.ids), "nothing is masked"
        tokens, queries = batch.ids.numel(), order.queries
        assert labels.masked.tolist() == list(range(tokens, tokens + len(queries)))
        real = labels.targets >= 0
        assert torch.equal(labels.targets[real], batch.ids[queries][real])
        assert (labels.targets[real] >= FIRST).all()
        assert order.cu_queries.diff().tolist() == [max(1, n // 4) for n in batch.lengths.tolist()]
        starts = batch.cu_seqlens.tolist()
        bounds = order.cu_queries.tolist()
        for number, ranks in enumerate(batch.split(order.ranks)):
            places = queries[bounds[number] : bounds[number + 1]] - starts[number]
            functional = torch.isin(batch.split(batch.ids)[number], torch.tensor([CLS, SEP]))
            ordered = functional.clone()
            ordered[places] = True
            assert torch.equal(ranks > 0, ordered)
            assert sorted(ranks[ordered].tolist()) == list(range(1, int(ordered.sum()) + 1))


def test_orders_do_not_depend_on_how_the_line_is_divided() -> None:
    store = corpus([[9, 12, 7], [20, 4], [5, 5, 5, 5]] * 8).store
    orders: list[dict[tuple[int, ...], list[int]]] = []
    for tokens in (64, 256):
        stream = Stream(store, format="doc-sentences", masking=PERMUTED, batch_tokens=tokens, max_length=32)
        orders.append({})
        for batch in stream.one_epoch():
            for ids, ranks in zip(batch.split(batch.ids), batch.split(batch.permutation.ranks), strict=True):
                orders[-1][tuple(ids.tolist())] = ranks.tolist()
    both = orders[0].keys() & orders[1].keys()
    assert len(both) > 20
    assert all(orders[0][ids] == orders[1][ids] for ids in both)


def test_orders_repeat_for_the_same_seed_and_step_alone() -> None:
    store = corpus([[9, 12, 7], [20, 4], [5, 5, 5, 5]] * 8).store

    def make(seed: int = 0, masking: str = "permutation") -> Stream:
        return Stream(store, format="full-sentences", masking=masking, batch_tokens=128, max_length=32, seed=seed)

    stream, again = make(), make()
    assert all(same(stream[step], again[step]) for step in (7, 0, 3))
    assert not same(stream[0], make(seed=1)[0])

    def by_text(masking: str, epoch: int) -> dict[tuple[int, ...], list[int]]:
        batches = list(make(masking=masking).one_epoch(epoch))
        return {
            tuple(ids.tolist()): ranks.tolist()
            for batch in batches
            for ids, ranks in zip(batch.split(batch.ids), batch.split(batch.permutation.ranks), strict=True)
        }

    for masking, repeats in (("permutation", False), ("permutation+static1", True)):
        first, later = by_text(masking, 0), by_text(masking, 1)
        shared = [text for text in first.keys() & later.keys() if len(text) > 20]
        assert len(shared) > 3
        assert all((first[text] == later[text]) == repeats for text in shared)


def test_fixed_batches_have_one_shape() -> None:
    store = corpus([[9, 12, 7], [20, 4], [1], [5, 5, 5, 5]] * 12).store
    stream = Stream(store, format="segment-pair+nsp", masking=PERMUTED, batch_tokens=130, max_length=32, fixed=True)
    pad, shapes_seen = FixedShape(stream, 130), set()
    for step in range(2 * stream.steps_per_epoch):
        batch = stream[step]
        assert batch.permutation.queries.numel() == 130 // 4
        padded = pad(batch)
        order = padded.permutation
        assert order.cu_queries.numel() == padded.cu_seqlens.numel()
        assert int(order.cu_queries.diff().max()) <= order.max_queries == 8
        assert torch.equal(padded.labels.targets, batch.labels.targets)
        shapes_seen.add(tuple(getattr(leaf, "shape", leaf) for leaf in padded.leaves()))
    assert len(shapes_seen) == 1
