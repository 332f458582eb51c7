"""Reformer's axes: what they answer, what follows from them, and what is refused with which advice."""

import pytest

from bertree.errors import UserError
from bertree.model.architecture import Architecture, Transformer

REFORMER = {
    "attention": "chunked,lsh",
    "positions": "axial",
    "axial_shape": "8,16",
    "residual": "reversible",
    "mask_transform": False,
    "tied_output": False,
}


def changed(**axes: object) -> Transformer:
    changed = Transformer(width=32, embedding_width=32, heads=4, layers=2).with_values(axes)
    assert isinstance(changed, Transformer)
    return changed


def test_what_a_reformer_answers() -> None:
    a = changed(**REFORMER)
    assert (a.output_width, a.sequence_width) == (64, 64)
    assert (a.max_positions, a.longest_input) == (128, 128)
    assert (a.axial_sizes, a.axial_vector_widths) == ((8, 16), (16, 16))
    assert (a.embedding_norm, a.residual_init, a.replayable) == (False, "plain", False)
    assert changed().output_width == 32
    assert Architecture.from_axes(a.written_axes()) == a


@pytest.mark.parametrize(("attention", "look_ahead", "causal"), [
    ("lsh", True, False), ("lsh", False, True), ("chunked,lsh", False, True), ("local", False, True),
    ("causal,lsh", True, False), ("causal,lsh", False, True), ("causal", True, True), ("causal", False, True),
])  # fmt: skip
def test_causal_is_what_never_looks_ahead(attention: str, look_ahead: bool, causal: bool) -> None:
    assert changed(attention=attention, look_ahead=look_ahead).causal is causal


def test_the_longest_sequence_is_the_product_of_the_axial_shape() -> None:
    a = changed(**REFORMER)
    assert a.with_values({"axial_shape": "4,4"}).max_positions == 16
    assert changed(positions="axial").max_positions == 64 * 64
    assert Architecture.from_axes({"positions": "axial", "axial_shape": "3,5"}).max_positions == 15
    assert a.with_values({"positions": "learned"}).max_positions == 128


def test_another_width_divides_axial_positions_into_halves() -> None:
    a = changed(**REFORMER, axial_widths="8,24")
    assert a.axial_vector_widths == (8, 24)
    wider = a.with_values({"width": 64})
    assert isinstance(wider, Transformer)
    assert wider.axial_vector_widths == (32, 32)
    assert changed(positions="axial", width=33, heads=3).axial_vector_widths == (16, 17)


@pytest.mark.parametrize(("axes", "message"), [
    ({"buckets": "1"}, "buckets: each hash has as many buckets .* must be even: 2, not 1"),
    ({"buckets": "7"}, "must be even: 8, not 7"),
    ({"buckets": "32,5"}, "must be even: 32,6, not 32,5"),
    ({"buckets": "2,4,8"}, "must be an even number, or two even factors such as 32,64, not '2,4,8'"),
    ({"buckets": "-2"}, "must be an even number, or two even factors"),
    ({"buckets": "8192,8192"}, "67108864 is more than the 33554432 supported"),
    ({"hashes": 0}, "hashes: must be at least 1, not 0"),
    ({"eval_hashes": -1}, "eval_hashes: must not be negative"),
    ({"lsh_chunk_length": 0}, "lsh_chunk_length: must be at least 1, not 0"),
    ({"chunk_length": 0}, "chunk_length: must be at least 1, not 0"),
    ({"duplicates": "onc"}, "duplicates: unknown value 'onc', did you mean 'once'"),
    ({"attention": "hashed"}, "attention: unknown value 'hashed'"),
    ({"attention": "full,lsh", "look_ahead": False}, "attention: full looks ahead, .*; use causal,lsh"),
    ({"attention": "chunked", "look_ahead": False, "chunks_after": 2}, "chunks_after: .* look_ahead = false; use 0"),
    ({"attention": "local", "shared_qk": True}, "shared_qk: has no meaning with attention = local"),
    ({"attention": "lsh", "positions": "relative"}, "positions: attention = lsh has no scores by distance; use axial"),
    ({"shared_qk": True, "positions": "relative"}, "positions: shared_qk = true has no scores by distance"),
    ({"positions": "axial", "axial_shape": "64"}, "axial_shape: must be two whole numbers of at least 1"),
    ({"positions": "axial", "axial_shape": "0,4"}, "axial_shape: must be two whole numbers of at least 1"),
    ({"positions": "axial", "axial_shape": ""}, "axial_shape: must be two whole numbers of at least 1"),
    ({"positions": "axial", "axial_widths": "8,20"}, "8,20 sum to 28, not to the embedding width 32; for example 8,24"),
    ({"positions": "axial", "axial_widths": "50,20"}, "for example 31,1"),
    (
        {"positions": "axial", "max_positions": 5000},
        "max_positions: axial_shape 64,64 has 4096 positions, not 5000; set axial_shape alone, for example 79,64",
    ),
    (
        {"residual": "reversible", "mask_transform": False},
        "tied_output: .* width 64, but the token embeddings 32; set tied_output = false or mask_transform = true",
    ),
    (
        {"residual": "reversible", "positions": "relative", "attention": "causal", "memory": 8},
        "memory: a reversible residual keeps no hidden states; use memory = 0 or residual = pre-norm",
    ),
    ({"residual": "reversible", "positions": "relative", "query_stream": True}, "query_stream: needs residual"),
])  # fmt: skip
def test_what_cannot_work_is_refused_with_what_would(axes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        changed(**axes)
    assert "\n" not in str(caught.value)
