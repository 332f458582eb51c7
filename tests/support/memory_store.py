"""Token stores in memory, from documents written out as lists of ids."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.data.store import DecodedShard, Store
from bertree.data.store_files import CONTROLS, PARTS, ControlCode, ShardFile, dtype_for, encode_lengths, fingerprint
from bertree.keyed_random import cumulative_offsets


def memory_store(
    documents: Sequence[Sequence[Sequence[int]]],
    *,
    vocab_size: int,
    special: Mapping[str, int],
    word_start: NDArray[np.bool_] | None = None,
    controls: Sequence[ControlCode] = (),
    codes: Sequence[int] = (),
) -> Store:
    """A store without a folder. Empty sentences and documents are left out, as on the disk.

    `codes` is the number of each document's code in `controls`, if documents have codes.
    """
    kept = [[sentence for sentence in document if len(sentence)] for document in documents]
    numbers = np.array([code for code, document in zip(codes, kept, strict=bool(controls)) if document], np.int64)
    kept = [document for document in kept if document]
    tokens = np.array(
        [token for document in kept for sentence in document for token in sentence], dtype_for(vocab_size)
    )
    assert all(token < vocab_size for token in tokens.tolist()), "ids must lie within the vocabulary"
    sentences = np.array([len(sentence) for document in kept for sentence in document], np.int64)
    counts = np.array([len(document) for document in kept], np.int64)
    arrays: list[NDArray[Any]] = [tokens, sentences, counts, *([numbers] if controls else [])]
    data = [tokens.tobytes(), *map(encode_lengths, arrays[1:])]
    files = {
        part: ShardFile(array.size, len(raw), hashlib.sha256(raw).hexdigest())
        for part, array, raw in zip((*PARTS, CONTROLS), arrays, data, strict=False)
    }
    starts = cumulative_offsets(sentences), cumulative_offsets(counts)
    shard = DecodedShard(tokens, "store", *starts, codes=numbers if controls else None)
    return Store(
        vocab_size=vocab_size,
        special=dict(special),
        word_start=np.ones(vocab_size, np.bool_) if word_start is None else np.asarray(word_start, np.bool_),
        tokens=tokens.size,
        sentences=sentences.size,
        documents=counts.size,
        fingerprint=fingerprint([files], controls),
        shards=[shard] if tokens.size else [],
        controls=tuple(controls),
    )
