"""A small Reformer: hashed and chunked attention in turn, two streams, axial positions; and long texts for it."""

import random
from pathlib import Path

from bertree.text.tokenizer import Tokenizer
from tests.support import learnable

AXES: dict[str, object] = {
    "attention": "chunked,lsh",
    "residual": "reversible",
    "positions": "axial",
    "axial_shape": "16,64",
    "max_positions": 1024,
    "chunk_length": 16,
    "lsh_chunk_length": 16,
    "hashes": 2,
    "ffn_chunk": 64,
    "segments": 0,
    "embedding_norm": True,
}


def save_reformer(path: Path, words: Tokenizer, causal: bool = False) -> Path:
    """Write a folder with an untrained model."""
    heads = {"mask": 0}
    return learnable.model(path, words, heads=heads, pooler=False, sequence_head="tanh", **AXES, look_ahead=not causal)


def long_texts(count: int, seed: int = 0, least: int = 100, most: int = 300) -> list[learnable.Row]:
    """Texts of hundreds of words that are good or bad by one of their last, which a short model never sees."""
    draw = random.Random(f"long {seed}")
    rows: list[learnable.Row] = []
    for _ in range(count):
        kind = draw.choice(("good", "bad"))
        words = draw.choices(learnable.FILL, k=draw.randint(least, most))
        words.insert(len(words) - draw.randint(0, 20), draw.choice(learnable.GOOD if kind == "good" else learnable.BAD))
        rows.append({"text": " ".join(words), "label": kind})
    return rows
