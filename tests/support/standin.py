"""An encoder for tests of what is done with vectors: a text is the sum of random vectors of its words."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Words:
    """Texts that share words are near; the same text always has the same vector."""

    def __init__(self, dimension: int = 128, digest: str = "standin") -> None:
        self.dimension, self.digest = dimension, digest
        self.seen = 0  # texts it was asked for
        self._known: dict[str, NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.seen += len(texts)
        vectors = [sum(map(self._word, re.findall(r"\w+", text.lower())), np.zeros(self.dimension)) for text in texts]
        return np.array(vectors, np.float32).reshape(len(texts), self.dimension)

    def _word(self, word: str) -> NDArray[np.float32]:
        if word not in self._known:
            seed = int.from_bytes(hashlib.sha256(f"{self.digest} {word}".encode()).digest()[:8], "little")
            self._known[word] = np.random.default_rng(seed).standard_normal(self.dimension).astype(np.float32)
        return self._known[word]
