"""Memory and cache: reading a text piece by piece equals reading it whole."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch, Continuation
from bertree.model.architecture import Transformer
from bertree.model.memory import LENGTHS, MEMORY
from bertree.model.network import Network, build

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "width": 16,
    "layers": 3,
    "heads": 2,
    "ffn_width": 32,
    "embedding_width": 16,
    "max_positions": 64,
    "segments": 0,
    "attention": "causal",
    "attention_dropout": 0.0,
    "dropout": 0.0,
    "pooler": False,
    "init_std": 0.3,
}
KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "sinusoidal": {"positions": "sinusoidal", "residual": "pre-norm", "embedding_scale": True},
    "rotary": {"positions": "rotary", "residual": "pre-norm"},
    "relative": {"positions": "relative", "head_width": 6},
    "relative-memory": {"positions": "relative", "memory": 40, "clamp": 5, "residual": "pre-norm", "final_norm": False},
}


def network_of(kind: str, **changes: Any) -> Network:
    """Build a small causal network of a kind of positions."""
    torch.manual_seed(3)
    network = build(Transformer(**(SMALL | KINDS[kind] | changes)), {"mask": 0}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def texts(*lengths: int) -> list[list[int]]:
    """Draw texts of token ids."""
    torch.manual_seed(5)
    return [torch.randint(0, 40, (length,)).tolist() for length in lengths]


def whole(network: Network, rows: list[list[int]]) -> list[Tensor]:
    """Return the hidden states of each text, read whole."""
    batch = Batch.pack(rows)
    return list(batch.split(network(batch)))


def piece(rows: list[list[int]], lanes: list[int], starts: list[int], fresh: list[bool], count: int) -> Batch:
    """Pack pieces of texts that continue lanes, with the places that follow those before."""
    batch = Batch.pack(rows)
    places = torch.cat([start + torch.arange(len(row)) for row, start in zip(rows, starts, strict=True)])
    continuation = Continuation(torch.tensor(lanes), torch.tensor(fresh), count)
    return replace(batch, positions=places, continuation=continuation)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 1)])
@torch.no_grad()
def test_decoding_with_a_cache_equals_reading_the_whole_text(kind: str, sizes: tuple[int, int, int]) -> None:
    network, rows, prompts = network_of(kind), texts(11, 17, 14), (5, 2, 8)
    expected = whole(network, rows)
    state = network.encoder.start_cache(3, 20)
    decoded = [[] for _ in rows]
    batch = Batch.pack([row[:prompt] for row, prompt in zip(rows, prompts, strict=True)])
    hidden, state = network.encode(batch, state)
    for lane, states in enumerate(batch.split(hidden)):
        decoded[lane].append(states)
    at = list(prompts)
    while any(place < len(row) for place, row in zip(at, rows, strict=True)):
        lanes = [lane for lane, row in enumerate(rows) if at[lane] < len(row)]
        pieces = [rows[lane][at[lane] : at[lane] + sizes[lane]] for lane in lanes]
        batch = piece(pieces, lanes, [at[lane] for lane in lanes], [False] * len(lanes), 3)
        hidden, state = network.encode(batch, state)
        for lane, states in zip(lanes, batch.split(hidden), strict=True):
            decoded[lane].append(states)
            at[lane] += len(states)
    for lane, states in enumerate(expected):
        assert (torch.cat(decoded[lane]) - states).abs().max() < 1e-5


@torch.no_grad()
def test_a_full_cache_forgets_the_oldest_tokens() -> None:
    network, (row,) = network_of("relative"), texts(12)
    window = replace_mask(network_of("relative"), 5)
    state = network.encoder.start_cache(1, 6)
    for place, token in enumerate(row):
        hidden, state = network.encode(piece([[token]], [0], [place], [place == 0], 1), state)
    assert (hidden - whole(window, [row])[0][-1]).abs().max() < 1e-5


def replace_mask(network: Network, left: int) -> Network:
    """Let every attention of a network see so many tokens before each."""
    from bertree.model.masks import SlidingWindow

    for block in network.encoder.stack.attention:
        block.part.mask = SlidingWindow(left, 0)
    return network


@torch.no_grad()
def test_memory_that_holds_the_text_equals_reading_it_whole() -> None:
    network, rows = network_of("relative-memory"), texts(13, 13)
    state, pieces = None, []
    for low in range(0, 13, 4):
        batch = piece([row[low : low + 4] for row in rows], [0, 1], [0, 0], [low == 0] * 2, 2)
        hidden, state = network.encode(batch, state)
        pieces.append(batch.split(hidden))
    for lane, states in enumerate(whole(network, rows)):
        assert (torch.cat([part[lane] for part in pieces]) - states).abs().max() < 1e-5
    assert state is not None
    assert state[LENGTHS].tolist() == [13, 13]
    assert state[MEMORY].shape == (3, 2, 40, 16)


@torch.no_grad()
def test_memory_holds_the_last_tokens_and_is_emptied_where_a_sequence_is_fresh() -> None:
    network = network_of("relative-memory", memory=3)
    shorter, longer = texts(8, 9)
    first = piece([shorter[:4], longer[:2], longer[2:6]], [0, 1, 1], [0] * 3, [True] * 3, 2)
    _, state = network.encode(first)
    assert state is not None
    assert state[LENGTHS].tolist() == [3, 3]
    states = [layer for layer, _ in zip(network.encoder.states(first), range(3), strict=False)]
    for depth, layer_th in enumerate(states):
        assert torch.allclose(state[MEMORY][depth, 0], layer_th[1:4], atol=1e-5)
        assert torch.allclose(state[MEMORY][depth, 1], layer_th[7:10], atol=1e-5)
    second = piece([shorter[4:], longer[6:]], [0, 1], [0, 0], [True, False], 2)
    hidden, _ = network.encode(second, state)
    assert torch.allclose(hidden[:4], whole(network, [shorter[4:]])[0], atol=1e-6)  # fresh: the memory is not seen
    assert not torch.allclose(hidden[4:], whole(network, [longer[6:]])[0], atol=1e-2)


@torch.no_grad()
def test_another_memory_may_be_used_than_in_training() -> None:
    network, (row,) = network_of("relative-memory", memory=3), texts(12)
    state = network.encoder.start_memory(1, length=20)
    states = []
    for low in range(0, 12, 3):
        hidden, state = network.encode(piece([row[low : low + 3]], [0], [0], [low == 0], 1), state)
        states.append(hidden)
    assert (torch.cat(states) - whole(network, [row])[0]).abs().max() < 1e-5


def test_same_length_lets_every_token_see_as_many() -> None:
    network, (row,) = network_of("relative-memory", memory=4, same_length=True, layers=1), texts(9)
    expected = whole(replace_mask(network_of("relative-memory", layers=1), 3), [row])[0]
    state, states = None, []
    for low in range(0, 9, 2):
        hidden, state = network.encode(piece([row[low : low + 2]], [0], [0], [low == 0], 1), state)
        states.append(hidden)
    assert (torch.cat(states) - expected).abs().max() < 1e-5
    assert (whole(network, [row])[0] - expected).abs().max() < 1e-5


def test_gradients_reach_the_memory_through_keys_and_values_only() -> None:
    network, (row,) = network_of("relative-memory", memory=4), texts(8)
    _, state = network.encode(piece([row[:4]], [0], [0], [True], 1))
    assert state is not None
    assert not state[MEMORY].requires_grad
    hidden, _ = network.encode(piece([row[4:]], [0], [0], [False], 1), state)
    hidden.square().sum().backward()
    part = network.encoder.stack.attention[0].part
    with_memory = part.qkv.weight.grad.clone()
    network.zero_grad()
    network(Batch.pack([row[4:]])).square().sum().backward()
    assert (part.qkv.weight.grad - with_memory).abs().max() > 1e-3
