"""sentence-transformers reads models that began as the bundled one: an ALBERT whose layers are not shared."""

from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

import bertree


def test_vectors_of_a_saved_copy(tmp_path: Path) -> None:
    texts = ["A dog runs.", "The hound is running through the wet grass.", "Shares fell."]
    model = bertree.load("default")
    model.save(tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert theirs.max_seq_length == model.max_length == 256
    np.testing.assert_allclose(theirs.encode(texts), bertree.load(tmp_path / "model").embed(texts), atol=1e-5)
