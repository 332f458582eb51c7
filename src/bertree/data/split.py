"""Split a store into training documents and held-out documents. Nothing is copied.

Held-out documents are taken in short runs spread evenly over the corpus, so that a corpus of several sources is
measured on all of them. The split depends on the store and the share alone.
"""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bertree.data.store import DecodedShard, Shard, Store
from bertree.data.store_files import ControlCode
from bertree.errors import UserError
from bertree.keyed_random import Ints

MAX_RUNS = 64


def split_held_out(store: Store, share: float, min_documents: int = 1) -> tuple[Store, Store]:
    """Return the training and the held-out split: about `share` of the tokens, at least `min_documents` documents."""
    if not 0 < share < 1:
        raise UserError(f"{store.name}: held_out_share {share}: must lie between 0 and 1")
    if store.documents < 2:
        raise UserError(
            f"{store.name}: has one document, so none can be held out; divide its text (an empty line ends a document) "
            "and prepare it again, or set data.held_out=ANOTHER-STORE"
        )
    runs = max(min_documents, min(MAX_RUNS, int(share * store.documents)))
    chosen = np.unique(np.linspace(0, len(store.shards) - 1, min(runs, len(store.shards))).round().astype(int))
    training: list[Shard] = []
    held_out: list[Shard] = []
    missing = 0.0  # tokens still to hold out; a long document makes this negative, and the next runs take less
    for number, shard in enumerate(store.shards):
        if number not in chosen:
            training.append(shard)
            continue
        offsets = shard.sentence_starts[shard.document_starts]  # tokens before each document
        sections = max(1, runs // len(chosen))
        borders = np.unique(np.searchsorted(offsets, np.linspace(0, int(offsets[-1]), sections + 1)))
        for first, last in pairwise(borders.tolist()):
            missing += share * store.tokens / len(chosen) / (borders.size - 1)
            start = stop = last
            if missing > 0 or len(held_out) < min_documents:
                start, stop = _nearest_run(offsets, first, last, missing)
                held_out.append(DecodedShard.view(shard, start, stop))
            for low, high in ((first, start), (stop, last)):
                if high > low:
                    training.append(DecodedShard.view(shard, low, high))
            missing -= int(offsets[stop] - offsets[start])
    if not training or sum(shard.document_starts.size - 1 for shard in held_out) < min_documents:
        raise UserError(f"{store.name}: too few documents to hold some out; set data.held_out=ANOTHER-STORE")
    return _substore(store, training, f"without {share}"), _substore(store, held_out, f"held out {share}")


def _nearest_run(offsets: Ints, first: int, last: int, wanted: float) -> tuple[int, int]:
    """Return the run of documents between two borders whose size is nearest to the wanted one."""
    starts = np.arange(first, last)
    stops = np.clip(np.searchsorted(offsets, offsets[starts] + wanted), starts + 1, last)
    best = int(np.argmin(np.abs(offsets[stops] - offsets[starts] - wanted)))
    return int(starts[best]), int(stops[best])


def _substore(store: Store, shards: list[Shard], name: str) -> Store:
    split = replace(
        store,
        shards=shards,
        tokens=sum(shard.tokens.size for shard in shards),
        sentences=sum(shard.sentence_starts.size - 1 for shard in shards),
        documents=sum(shard.document_starts.size - 1 for shard in shards),
        fingerprint=hashlib.sha256(f"{name} {store.fingerprint}".encode()).hexdigest(),
        complete=False,
    )
    return replace(split, controls=_count_codes(split))


def _count_codes(store: Store) -> tuple[ControlCode, ...]:
    """Return the control codes of a store with the documents and tokens it has of each."""
    if not store.controls:
        return ()
    lengths = np.concatenate([np.diff(shard.sentence_starts[shard.document_starts]) for shard in store.shards])
    documents = np.bincount(store.document_codes, minlength=len(store.controls))
    tokens = np.bincount(store.document_codes, lengths, len(store.controls))
    return tuple(
        replace(code, documents=int(documents[number]), tokens=int(tokens[number]))
        for number, code in enumerate(store.controls)
    )
