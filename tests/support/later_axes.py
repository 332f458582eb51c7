"""Axes that architectures did not always have: a value of each, and how implementations that do not know it name it."""

LATER: dict[str, tuple[dict[str, object], str]] = {
    "local attention": ({"attention": "full,local", "window": 2}, "window mask"),
    "chunked attention": (
        {"attention": "chunked,full", "chunk_length": 8},
        "encoder.stack.attention.0.part is a ChunkedAttention",
    ),
    # Texts of one chunk, which see all of themselves whatever the rotations of a step are.
    "lsh attention": (
        {"attention": "lsh", "lsh_chunk_length": 40},
        "encoder.stack.attention.0.part is a LshAttention",
    ),
    "shared queries and keys": ({"shared_qk": True}, "encoder.stack.attention.0.part is a SharedQueryKeyAttention"),
    "rotary positions": ({"positions": "rotary"}, "has RotaryPositions"),
    "axial positions": (
        {"positions": "axial", "axial_shape": "5,8"},
        "encoder.embeddings.positions is a AxialPositions",
    ),
    "gated feed-forward": ({"ffn": "gated"}, "encoder.stack.ffn.0.part is a GatedFeedForward"),
    "rms norms": ({"norm": "rms"}, "encoder.embeddings.norm is a RmsNorm"),
    "norms without bias": ({"norm_bias": False}, "encoder.embeddings.norm has no bias"),
    "attention without bias": ({"attention_bias": False}, "encoder.stack.attention.0.part.qkv has no bias"),
    "feed-forward without bias": ({"ffn_bias": False}, "encoder.stack.ffn.0.part.up has no bias"),
}
EVERYTHING = {
    "attention": "full,local,local",
    "window": 3,
    "positions": "rotary",
    "rotary_base": 160_000.0,
    "ffn": "gated",
    "norm_bias": False,
    "attention_bias": False,
    "ffn_bias": False,
    "residual": "pre-norm",
    "segments": 0,
    "embedding_norm": True,
    "first_norm": False,
    "head_bias": False,
}
