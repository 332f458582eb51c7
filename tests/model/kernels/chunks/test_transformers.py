"""Attention over chunks against Reformer of transformers, with the same rotations."""

import math

import pytest
import torch
from torch import Tensor

from bertree.model.kernels.chunks.attend import attend_chunks
from bertree.model.kernels.chunks.order import ChunkSettings
from tests.support.chunks import as_written, hashed, unit_keys
from tests.support.shared import suite_has

reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
HEADS, WIDTH, CHUNK = 4, 8, 16


def _config(**changes: object) -> object:
    from transformers import ReformerConfig

    settings = {
        "hidden_size": HEADS * WIDTH,
        "attention_head_size": WIDTH,
        "num_attention_heads": HEADS,
        "lsh_attn_chunk_length": CHUNK,
        "local_attn_chunk_length": CHUNK,
        "max_position_embeddings": 512,
        "lsh_attention_probs_dropout_prob": 0.0,
        "local_attention_probs_dropout_prob": 0.0,
        "hash_seed": 3,
    }
    return ReformerConfig(**settings | changes)


def _heads(x_bth: Tensor) -> Tensor:
    return x_bth[0].unflatten(-1, (HEADS, WIDTH))


@pytest.mark.parametrize("buckets", [(8,), (4, 6)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rounds", suite_has([1, 2], [1, 2, 4]))
@pytest.mark.parametrize(("length", "window"), [(128, (1, 0)), (128, (1, 1)), (16, (1, 0)), (11, (1, 0))])
def test_lsh_equals_transformers(
    length: int, window: tuple[int, int], rounds: int, causal: bool, buckets: tuple[int, ...]
) -> None:
    """In float64: in float32 the scores of tokens that see themselves alone are inexact there."""
    config = _config(
        is_decoder=causal,
        num_hashes=rounds,
        num_buckets=list(buckets) if len(buckets) > 1 else buckets[0],
        lsh_num_chunks_before=window[0],
        lsh_num_chunks_after=window[1],
    )
    torch.manual_seed(1)
    theirs = reformer.LSHSelfAttention(config, layer_idx=0).eval().double()
    x = torch.randn(1, length, HEADS * WIDTH, dtype=torch.float64)
    torch.manual_seed(3)  # as transformers does, before it draws
    drawn = torch.randn(HEADS, WIDTH, rounds, sum(buckets) // 2, dtype=torch.float64)
    settings = ChunkSettings(CHUNK, *window, causal, hides_self=True, counts_once=False)
    grads = []
    for ours in (True, False):
        leaf = x.clone().requires_grad_()
        if ours:
            qk, v = _heads(theirs.query_key(leaf)), _heads(theirs.value(leaf))
            rotations = drawn.split([count // 2 for count in buckets], -1)
            order, output = hashed(qk, [length], settings, rounds, buckets, rotations)
            mixed = attend_chunks(qk, unit_keys(qk), v, order, settings)
        else:
            result = theirs(leaf)
            mixed = _heads(result.hidden_states)
            if length > CHUNK:
                offsets = torch.arange(rounds)[:, None] * math.prod(buckets)
                assert torch.equal(output, result.buckets[0] - offsets)
        (mixed * torch.linspace(1, 2, mixed.numel()).view_as(mixed)).sum().backward()
        grads += [mixed.detach(), leaf.grad]
    torch.testing.assert_close(grads[0], grads[2], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grads[1], grads[3], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_padded_lsh_equals_transformers(rounds: int) -> None:
    """transformers pads to whole chunks, and its padding is in a bucket of its own."""
    config = _config(num_hashes=rounds, num_buckets=8, lsh_num_chunks_before=1, lsh_num_chunks_after=0)
    torch.manual_seed(1)
    theirs = reformer.LSHSelfAttention(config, layer_idx=0).eval().double()
    x = torch.randn(1, 112, HEADS * WIDTH, dtype=torch.float64)
    mask = (torch.arange(112) < 101)[None]
    with torch.no_grad():
        expected = _heads(theirs(x, attention_mask=mask).hidden_states)[:101]
        torch.manual_seed(3)
        drawn = torch.randn(HEADS, WIDTH, rounds, 4, dtype=torch.float64)
        settings = ChunkSettings(CHUNK, 1, 0, hides_self=True, counts_once=False)
        qk, v = _heads(theirs.query_key(x))[:101], _heads(theirs.value(x))[:101]
        order, _ = hashed(qk, [101], settings, rounds, (8,), (drawn,))
        output = attend_chunks(qk, unit_keys(qk), v, order, settings)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [(1, 0), (0, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize(("length", "padded"), [(128, 128), (101, 112), (16, 16), (9, 9)])
def test_chunked_equals_transformers(length: int, padded: int, window: tuple[int, int], causal: bool) -> None:
    before, after = window
    config = _config(is_decoder=causal, local_num_chunks_before=before, local_num_chunks_after=after)
    torch.manual_seed(1)
    theirs = reformer.LocalSelfAttention(config, layer_idx=0).eval()
    x = torch.randn(1, padded, HEADS * WIDTH)
    with torch.no_grad():
        mask = (torch.arange(padded) < length)[None] if padded > length else None
        expected = _heads(theirs(x, attention_mask=mask).hidden_states)[:length]
        q, k, v = (_heads(part(x))[:length] for part in (theirs.query, theirs.key, theirs.value))
        settings = ChunkSettings(CHUNK, before, after, causal)
        output = attend_chunks(q, k, v, as_written([length], settings)[0], settings)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
