"""XLNet: both streams, memory, backward lanes, relative segments and gradients against transformers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.memory import LENGTHS, MEMORY
from bertree.model.network import build
from tests.support.xlnet import VOCAB, architecture, draw_orders, in_lanes, masks_of, peer, tensors, twin, with_order

LENGTHS_OF_TEXTS = (13, 7, 20, 1)


def draw(lengths: tuple[int, ...], seed: int = 5) -> tuple[list[Tensor], list[Tensor]]:
    """Token ids and segments of some texts."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, VOCAB, (length,), generator=draw) for length in lengths]
    return ids, [torch.randint(0, 3, (length,), generator=draw).sort().values for length in lengths]


def packed(ids: list[Tensor], segments: list[Tensor]) -> Batch:
    """Pack texts and their segments."""
    return Batch.pack([x.tolist() for x in ids], [x.tolist() for x in segments])


@pytest.mark.parametrize("clamp", [0, 4])
@torch.no_grad()
def test_full_attention_equals_transformers(clamp: int) -> None:
    model = peer(clamp_len=clamp)
    network = twin(model, clamp=clamp)
    ids, segments = draw(LENGTHS_OF_TEXTS)
    batch = packed(ids, segments)
    for x, kinds, ours in zip(ids, segments, batch.split(network(batch)), strict=True):
        theirs = model(x[None], token_type_ids=kinds[None], use_mems=False).last_hidden_state[0]
        assert (ours - theirs).abs().max() < 1e-5


def both_streams(model: Any, x: Tensor, kinds: Tensor, rank: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The peer's last content and query states of one text."""
    masks = masks_of(rank, chosen)
    outputs = model(x[None], token_type_ids=kinds[None], use_mems=False, output_hidden_states=True, **masks)
    return outputs.hidden_states[-2][0], outputs.last_hidden_state[0]


def test_both_streams_and_their_gradients_equal_transformers() -> None:
    model = peer()
    network = twin(model)
    ids, segments = draw(LENGTHS_OF_TEXTS)
    ranks, chosen = draw_orders(LENGTHS_OF_TEXTS, seed=3)
    batch = with_order(packed(ids, segments), ranks, chosen)
    hidden = network(batch)
    assert len(hidden) == 41 + len(torch.cat(chosen))
    queries = hidden[41:].split([len(tokens) for tokens in chosen])
    loss = torch.zeros(())
    for i, row in enumerate(zip(ids, segments, ranks, chosen, strict=True)):
        content, query = both_streams(model, *row)
        assert (batch.split(hidden[:41])[i] - content).abs().max() < 1e-5
        # A token alone in its text is predicted from nothing: transformers lets it see itself with the same weight.
        if len(row[0]) > 1:
            assert (queries[i] - query).abs().max() < 1e-5
            loss = loss + weighted(query)
    loss.backward()
    sum(weighted(query) for query in queries[:-1]).backward()
    parameters = dict(network.named_parameters())
    for name, expected in tensors(model, lambda parameter: parameter.grad).items():
        grad = parameters[name].grad
        assert grad is not None, name
        assert (grad - expected).abs().max() < 1e-4 * max(1.0, float(expected.abs().max())), name
        assert expected.abs().max() > 1e-4, name


def weighted(states: Tensor) -> Tensor:
    """A number that depends on every state."""
    return (states * torch.linspace(-1, 1, states.numel()).view(states.shape)).sum()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("memory", "kept"), [(9, None), (5, None), (9, 4)])
@torch.no_grad()
def test_three_segments_with_memory_equal_transformers(memory: int, kept: int | None, ordered: bool) -> None:
    model = peer(mem_len=memory, reuse_len=kept)
    network = twin(model, memory=memory)
    lanes, length, state, theirs_state = 3, 6, None, None
    for step in range(3):
        ids, segments = draw((length,) * lanes, seed=step)
        ranks, chosen = draw_orders((length,) * lanes, seed=step, targets=2)
        counts = None if kept is None else torch.full((lanes,), kept)
        batch = in_lanes(packed(ids, segments), step == 0, kept=counts)
        masks: dict[str, Tensor] = {}
        if ordered:
            batch = with_order(batch, ranks, chosen)
            each = [masks_of(*pair) for pair in zip(ranks, chosen, strict=True)]
            masks = {name: torch.cat([mask[name] for mask in each]) for name in each[0]}
        hidden, state = network.encode(batch, state)
        outputs = model(
            torch.stack(ids), token_type_ids=torch.stack(segments), mems=theirs_state, use_mems=True, **masks
        )
        theirs_state = outputs.mems
        ours = hidden[lanes * length :] if ordered else hidden
        assert (ours.view(lanes, -1, ours.shape[-1]) - outputs.last_hidden_state).abs().max() < 1e-5
        assert state is not None
        expected = torch.stack(theirs_state).transpose(1, 2)  # layers x lanes x tokens x width
        assert state[LENGTHS].tolist() == [expected.shape[2]] * lanes
        assert (state[MEMORY][:, :, memory - expected.shape[2] :] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("kept", [None, 4])
@torch.no_grad()
def test_backward_lanes_equal_reversed_texts_with_negated_positions(kept: int | None) -> None:
    memory, lanes, length = 9, 4, 6
    model = peer(mem_len=memory, bi_data=True, reuse_len=kept)
    network = twin(model, memory=memory)
    backward = torch.tensor([False, False, True, True])  # the peer's: the second half of a batch
    state, theirs_state = None, None
    for step in range(3):
        ids, segments = draw((length,) * lanes, seed=step)
        ranks, chosen = draw_orders((length,) * lanes, seed=step, targets=2)
        counts = None if kept is None else torch.full((lanes,), kept)
        batch = in_lanes(packed(ids, segments), step == 0, backward=backward, kept=counts)
        hidden, state = network.encode(with_order(batch, ranks, chosen), state)

        def turned(x: Tensor, lane: int) -> Tensor:
            return x.flip(0) if backward[lane] else x

        masks = [
            masks_of(turned(rank, i), length - 1 - tokens if backward[i] else tokens)
            for i, (rank, tokens) in enumerate(zip(ranks, chosen, strict=True))
        ]
        outputs = model(
            torch.stack([turned(x, i) for i, x in enumerate(ids)]),
            token_type_ids=torch.stack([turned(x, i) for i, x in enumerate(segments)]),
            mems=theirs_state,
            use_mems=True,
            output_hidden_states=True,
            **{name: torch.cat([mask[name] for mask in masks]) for name in masks[0]},
        )
        theirs_state = outputs.mems
        queries = hidden[lanes * length :].view(lanes, 2, -1)
        assert (queries - outputs.last_hidden_state).abs().max() < 1e-5
        for i, ours in enumerate(hidden[: lanes * length].view(lanes, length, -1)):
            assert (turned(ours, i) - outputs.hidden_states[-2][i]).abs().max() < 1e-5
        assert state is not None
        expected = torch.stack(theirs_state).transpose(1, 2)
        assert (state[MEMORY][:, :, memory - expected.shape[2] :] - expected).abs().max() < 1e-5


@torch.no_grad()
def test_a_sequence_does_not_depend_on_those_of_other_lanes() -> None:
    network = twin(peer(), memory=5)
    backward, lengths = torch.tensor([False, True, False]), (8, 5, 11)
    others, states = [], [None, None]
    for step in range(3):
        ids, segments = draw(lengths, seed=step)
        batch = in_lanes(packed(ids, segments), step == 0, backward=backward)
        batch = with_order(batch, *draw_orders(lengths, seed=step, targets=2))
        changed = ids[1].flip(0), torch.randperm(VOCAB)[: len(ids[2])]
        other = replace(batch, ids=torch.cat([ids[0], *changed]))
        outputs = []
        for i, lanes in enumerate((batch, other)):
            hidden, states[i] = network.encode(lanes, states[i])
            outputs.append(torch.cat([hidden[:8], hidden[24:26]]))
            others.append(hidden[8:24])
        assert torch.allclose(*outputs, atol=1e-6)
        assert not torch.allclose(others[-1], others[-2], atol=1e-2)


@torch.no_grad()
def test_ranks_that_rise_with_the_place_are_causal_attention() -> None:
    weights, plain = tensors(peer()), {"segment_encoding": "absolute", "segments": 0}
    full = build(architecture(**plain)).eval()
    causal = build(architecture(**plain, attention="causal", query_stream=False)).eval()
    for network in (full, causal):
        network.load_state_dict(weights, strict=False)
    ids, segments = draw((9, 6))
    batch = packed(ids, segments)
    ordered = with_order(batch, [torch.arange(9), torch.arange(6)], [torch.tensor([3, 8]), torch.tensor([5])])
    hidden = full(ordered)
    assert (hidden[:15] - causal(batch)).abs().max() < 1e-5
    assert (hidden[:15] - full(batch)).abs().max() > 1e-2


def test_a_training_step_is_compiled_once_and_whole() -> None:
    """Shapes depend on the numbers of tokens, lanes and tokens to predict: whatever is fresh, backward or kept."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    network = twin(peer(n_layer=2), layers=2, memory=5).train()  # the time grows with the layers
    counter = CompileCounterWithBackend("aot_eager")

    def step(batch: Batch, state: dict[str, Tensor]) -> tuple[Tensor, Any]:
        hidden, state = network.encode(batch, state)
        return weighted(hidden[16:]), state

    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=counter)
    graphs = []
    for work in (step, compiled):
        state, losses, draws = network.start_state(2), [], torch.Generator().manual_seed(0)
        for number in range(4):
            backward, fresh = (torch.randint(0, 2, (2,), generator=draws) > 0 for _ in range(2))
            ids, segments = draw((8, 8), seed=number)
            batch = in_lanes(packed(ids, segments), True, backward=backward, kept=torch.tensor([8, 3 + number]))
            batch = replace(batch, continuation=replace(batch.continuation, fresh=fresh))
            loss, state = work(with_order(batch, *draw_orders((8, 8), seed=number, targets=2)), state)
            loss.backward()
            losses.append(float(loss.detach()))
        graphs.append([*losses, *(p.grad.clone() for p in network.parameters())])
        network.zero_grad()
    assert counter.frame_count == 1
    assert graphs[0][:4] == pytest.approx(graphs[1][:4], rel=1e-4)
    assert all((left - right).abs().max() < 1e-4 for left, right in zip(graphs[0][4:], graphs[1][4:], strict=True))


def test_the_token_that_represents_a_sequence() -> None:
    batch = Batch.pack([[1, 2, 3], [4], [5, 6]])
    for axes, expected in (({"summary": "first"}, [0, 3, 4]), ({}, [2, 3, 5])):
        encoder = build(architecture(**axes)).encoder
        assert encoder.summary_index(batch).tolist() == expected
        assert encoder.summary_index(replace(batch, summary=torch.tensor([1, 3, 4]))).tolist() == [1, 3, 4]


def test_new_weights_of_segments_and_query_stream_are_drawn() -> None:
    torch.manual_seed(0)
    network = build(architecture(width=128, embedding_width=128))
    drawn = [p for name, p in network.named_parameters() if "segment_" in name or name == "encoder.query_start"]
    assert len(drawn) == 1 + 2 * 3
    assert all(0.01 < float(p.detach().std()) < 0.03 for p in drawn)


@pytest.mark.parametrize("memory", [0, 5])
def test_recomputed_activations_give_the_same_gradients(memory: int) -> None:
    grads = []
    for recompute in (False, True):
        network = twin(peer(), memory=memory).train()
        network.encoder.recompute(recompute)
        state = None
        for step in range(2):
            ids, segments = draw((8, 8), seed=step)
            batch = in_lanes(packed(ids, segments), step == 0, backward=torch.tensor([False, True]))
            hidden, state = network.encode(with_order(batch, *draw_orders((8, 8), seed=step)), state)
        weighted(hidden).backward()
        grads.append([p.grad for p in network.parameters()])
    assert all(torch.equal(left, right) for left, right in zip(*grads, strict=True))
