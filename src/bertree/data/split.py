"""Split a store into documents to train on and held-out documents. Nothing is copied.

Held-out documents are taken in short runs spread evenly over the corpus, so that a corpus of several sources is
measured on all of them. The split depends on the store and the share alone.
"""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bertree.data.controls import ControlCode
from bertree.data.store import Shard, Store
from bertree.data.varint import Lengths
from bertree.errors import UserError

RUNS = 64  # runs at most


class ShardView(Shard):
    """Some consecutive documents of a shard."""

    def __init__(self, shard: Shard, first: int, last: int) -> None:
        documents, sentences = shard.document_starts, shard.sentence_starts
        rows = sentences[documents[first] : documents[last] + 1]
        self.tokens, self.name = shard.tokens[rows[0] : rows[-1]], shard.name
        vars(self)["sentence_starts"] = rows - rows[0]
        vars(self)["document_starts"] = documents[first : last + 1] - documents[first]
        if shard.coded:
            vars(self)["codes"] = shard.codes[first:last]

    @property
    def coded(self) -> bool:
        """Whether its documents have control codes."""
        return "codes" in vars(self)


def split_held_out(store: Store, share: float, min_documents: int = 1) -> tuple[Store, Store]:
    """Return the training and the held-out part: about `share` of the tokens, at least `min_documents` documents."""
    where = store.folder or "store"
    if not 0 < share < 1:
        raise UserError(f"{where}: held_out_share {share}: must lie between 0 and 1")
    if store.documents < 2:
        raise UserError(
            f"{where}: has one document, so none can be held out; divide its text (an empty line ends a document) and "
            "prepare it again, or set data.held_out=ANOTHER-STORE"
        )
    runs = max(min_documents, min(RUNS, int(share * store.documents)))
    chosen = np.unique(np.linspace(0, len(store.shards) - 1, min(runs, len(store.shards))).round().astype(int))
    training: list[Shard] = []
    held_out: list[Shard] = []
    missing = 0.0  # a whole document may be more than wanted: the next runs then take less
    for number, shard in enumerate(store.shards):
        if number not in chosen:
            training.append(shard)
            continue
        ends: Lengths = shard.sentence_starts[shard.document_starts]
        places = max(1, runs // len(chosen))
        borders = np.unique(np.searchsorted(ends, np.linspace(0, int(ends[-1]), places + 1)))
        for first, last in pairwise(borders.tolist()):
            missing += share * store.tokens / len(chosen) / (borders.size - 1)
            start, stop = (
                _nearest_run(ends, first, last, missing)
                if missing > 0 or len(held_out) < min_documents
                else (last, last)
            )
            training += [ShardView(shard, one, other) for one, other in ((first, start), (stop, last)) if other > one]
            held_out += [ShardView(shard, start, stop)] if stop > start else []
            missing -= int(ends[stop] - ends[start])
    if not training or sum(shard.document_starts.size - 1 for shard in held_out) < min_documents:
        raise UserError(f"{where}: too few documents to hold some out; set data.held_out=ANOTHER-STORE")
    return _substore(store, training, f"without {share}"), _substore(store, held_out, f"held out {share}")


def _nearest_run(ends: Lengths, first: int, last: int, wanted: float) -> tuple[int, int]:
    """Return the run of documents between two borders whose size is nearest to the wanted one."""
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
    part = replace(
        store,
        shards=shards,
        tokens=tokens,
        sentences=sentences,
        documents=documents,
        fingerprint=hashlib.sha256(f"{name} {store.fingerprint}".encode()).hexdigest(),
        complete=False,
    )
    return replace(part, controls=_count_codes(part))


def _count_codes(store: Store) -> tuple[ControlCode, ...]:
    """Return the control codes of a store with what it has of each."""
    if not store.controls:
        return ()
    lengths = np.concatenate([np.diff(shard.sentence_starts[shard.document_starts]) for shard in store.shards])
    documents = np.bincount(store.document_codes, minlength=len(store.controls))
    tokens = np.bincount(store.document_codes, lengths, len(store.controls))
    return tuple(
        replace(known, documents=int(documents[number]), tokens=int(tokens[number]))
        for number, known in enumerate(store.controls)
    )
