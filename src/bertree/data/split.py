"""A store in two: the documents to learn from and those held out to measure with. Nothing is copied.

Held-out documents are taken in small runs spread evenly over the corpus, so that a corpus made of several
sources is measured on all of them. The split follows from the store and the share alone.
"""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bertree.data.store import Shard, Store
from bertree.data.varint import Lengths
from bertree.errors import UserError

RUNS = 64  # places where documents are taken out, at most


class ShardView(Shard):
    """Some of the documents of a shard, one after the other."""

    def __init__(self, shard: Shard, first: int, last: int) -> None:
        documents, sentences = shard.document_starts, shard.sentence_starts
        rows = sentences[documents[first] : documents[last] + 1]
        self.tokens = shard.tokens[rows[0] : rows[-1]]
        vars(self)["sentence_starts"] = rows - rows[0]
        vars(self)["document_starts"] = documents[first : last + 1] - documents[first]


def split_held_out(store: Store, share: float, least: int = 1) -> tuple[Store, Store]:
    """(what is left to learn from, what is held out): about `share` of the tokens, `least` whole documents or more."""
    where = store.folder or "store"
    if not 0 < share < 1:
        raise UserError(f"{where}: held_out_share {share}: must lie between 0 and 1")
    if store.documents < 2:
        raise UserError(
            f"{where}: has one document, so none can be held out; divide its text (an empty line ends a document) and "
            "prepare it again, or give data.held_out=ANOTHER-STORE"
        )
    runs = max(least, min(RUNS, int(share * store.documents)))
    chosen = np.unique(np.linspace(0, len(store.shards) - 1, min(runs, len(store.shards))).round().astype(int))
    kept: list[Shard] = []
    held: list[Shard] = []
    missing = 0.0  # a document taken whole may be more than was wanted: the next places then give less
    for number, shard in enumerate(store.shards):
        if number not in chosen:
            kept.append(shard)
            continue
        ends: Lengths = shard.sentence_starts[shard.document_starts]
        places = max(1, runs // len(chosen))
        borders = np.unique(np.searchsorted(ends, np.linspace(0, int(ends[-1]), places + 1)))
        for first, last in pairwise(borders.tolist()):
            missing += share * store.tokens / len(chosen) / (borders.size - 1)
            start, stop = _nearest_run(ends, first, last, missing) if missing > 0 or len(held) < least else (last, last)
            kept += [ShardView(shard, one, other) for one, other in ((first, start), (stop, last)) if other > one]
            held += [ShardView(shard, start, stop)] if stop > start else []
            missing -= int(ends[stop] - ends[start])
    if not kept or sum(shard.document_starts.size - 1 for shard in held) < least:
        raise UserError(f"{where}: too few documents to hold some out; give data.held_out another store")
    return _substore(store, kept, f"without {share}"), _substore(store, held, f"held out {share}")


def _nearest_run(ends: Lengths, first: int, last: int, wanted: float) -> tuple[int, int]:
    """The run of documents between two borders whose size comes nearest to what is wanted."""
    starts = np.arange(first, last)
    stops = np.clip(np.searchsorted(ends, ends[starts] + wanted), starts + 1, last)
    best = int(np.argmin(np.abs(ends[stops] - ends[starts] - wanted)))
    return int(starts[best]), int(stops[best])


def _substore(store: Store, shards: list[Shard], name: str) -> Store:
    tokens, sentences, documents = (
        sum(counts)
        for counts in zip(
            *((s.tokens.size, s.sentence_starts.size - 1, s.document_starts.size - 1) for s in shards), strict=True
        )
    )
    return replace(
        store,
        shards=shards,
        tokens=tokens,
        sentences=sentences,
        documents=documents,
        fingerprint=hashlib.sha256(f"{name} {store.fingerprint}".encode()).hexdigest(),
        complete=False,
    )
