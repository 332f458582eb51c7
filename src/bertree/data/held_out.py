"""Held-out documents of a store, and their text with masks: the same for all recipes, so that losses can be compared.

A store is split into training documents and held-out documents; nothing is copied. Held-out documents are taken in
short runs spread evenly over the corpus, so that a corpus of several sources is measured on all of them. The split
depends on the store and the share alone.

For masked text, documents are chosen in an order that depends on their number alone, up to a number of tokens. Their
tokens are masked document by document, before they are cut into sequences: the masked tokens depend on the text, not on
the length of a sequence, the input format, the masking or the seed of a run. 15 % of the tokens are masked as in BERT.
A sequence is `[CLS] text [SEP]`; a document is cut into equal parts, and every token is read once.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from bertree import keyed_random
from bertree.batch import Batch, Permutation, PretrainingLabels
from bertree.data.formats import cut_long_ranges
from bertree.data.masking import Masker, Masking
from bertree.data.sequences.shuffle_group import CLS_SEGMENT
from bertree.data.store import DecodedShard, Shard, Store
from bertree.data.store_files import ControlCode
from bertree.errors import UserError
from bertree.keyed_random import Ints
from bertree.text.identity import token_bytes

MAX_RUNS = 64
SPECIAL_TOKENS = 2  # of a sequence: [CLS] and [SEP]
SHORTEST = 6  # tokens of a sequence


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


class MaskedDocuments:
    """Documents of a store with masks, in sequences of at most `max_length` tokens."""

    def __init__(self, store: Store, *, max_length: int, tokens: int, batch_tokens: int = 16384) -> None:
        """`tokens`: at most this much text is read, without [CLS] and [SEP]."""
        for kind in ("cls", "sep"):
            if kind not in store.special:
                raise UserError(f"{store.name}: the vocabulary has no {kind} token, which masked text needs")
        if max_length < SHORTEST:
            raise UserError(f"max_length {max_length}: too short for masked text; give {SHORTEST} or more")
        self.store, self.max_length, self.tokens = store, max_length, min(tokens, store.tokens)
        self.batch_tokens = max(batch_tokens, max_length)

    @cached_property
    def _text(self) -> tuple[Ints, Ints, Ints, Ints]:
        """The ids with masks, where documents start, the masked positions and their ids."""
        ids, counters, bounds = self._read()
        masker = Masker(Masking("token"), self.store)
        masked, targets = masker.apply(ids, bounds, counters, keyed_random.key("evaluation", "mask"))
        return ids, bounds, masked, targets

    def _read(self) -> tuple[Ints, Ints, Ints]:
        """Return the ids of the chosen documents, each token's number in the store, and where documents start."""
        shards = self.store.shards
        starts = [shard.load_sentence_starts()[shard.document_starts] for shard in shards]
        before = keyed_random.cumulative_offsets(np.array([shard.tokens.size for shard in shards]))
        first = np.concatenate([start[:-1] + offset for start, offset in zip(starts, before, strict=False)])
        sizes = np.concatenate([np.diff(start) for start in starts])
        order = np.argsort(keyed_random.bits(keyed_random.key("evaluation", "documents"), np.arange(sizes.size)))
        ends = np.cumsum(sizes[order])
        chosen = order[: int(np.searchsorted(ends, self.tokens)) + 1]
        lengths = sizes[chosen].copy()
        lengths[-1] -= int(lengths.sum()) - self.tokens  # the last document is cut off
        texts, counters = [], keyed_random.concatenate_ranges(first[chosen], lengths)
        for document, length in zip(chosen.tolist(), lengths.tolist(), strict=True):
            shard = int(np.searchsorted(before, first[document], "right")) - 1
            begin = int(first[document] - before[shard])
            texts.append(shards[shard].read(begin, begin + length, self.store.vocab_size).astype(np.int64))
        return np.concatenate(texts), counters, keyed_random.cumulative_offsets(lengths)

    def one_epoch(self) -> Iterator[Batch]:
        """Yield the text in batches."""
        ids, documents, masked, targets = self._text
        room = self.max_length - SPECIAL_TOKENS
        edges = cut_long_ranges(documents, room, room, even=True)
        sizes = np.diff(edges) + SPECIAL_TOKENS
        batches = np.concatenate(([0], np.cumsum(sizes))) // self.batch_tokens
        borders = [0, *(np.flatnonzero(np.diff(batches[:-1])) + 1).tolist(), sizes.size]
        for first, last in pairwise(borders):
            low, high = int(edges[first]), int(edges[last])
            within = slice(*np.searchsorted(masked, (low, high)).tolist())
            yield self._batch(ids[low:high], edges[first : last + 1] - low, masked[within] - low, targets[within])

    def _batch(self, ids: Ints, edges: Ints, masked: Ints, targets: Ints) -> Batch:
        """Return the sequences between some edges of the text, with [CLS] and [SEP]."""
        cls, sep = self.store.special["cls"], self.store.special["sep"]
        sequences, cls_last = edges.size - 1, self.store.cls_last
        bounds = edges + SPECIAL_TOKENS * np.arange(edges.size)
        shift = SPECIAL_TOKENS * np.repeat(np.arange(sequences), np.diff(edges)) + (0 if cls_last else 1)
        packed = np.empty(int(bounds[-1]), np.int64)
        packed[np.arange(ids.size) + shift] = ids
        packed[bounds[1:] - (2 if cls_last else 1)] = sep
        cls_positions = bounds[1:] - 1 if cls_last else bounds[:-1]
        packed[cls_positions] = cls
        segments = np.zeros(packed.size, np.int64)
        if cls_last:
            segments[cls_positions] = CLS_SEGMENT
        lengths = np.diff(bounds)
        return Batch(
            ids=torch.from_numpy(packed),
            positions=torch.from_numpy(np.arange(packed.size) - np.repeat(bounds[:-1], lengths)),
            segments=torch.from_numpy(segments),
            cu_seqlens=torch.from_numpy(bounds.astype(np.int32)),
            max_seqlen=int(lengths.max(initial=0)),
            labels=PretrainingLabels(
                masked=torch.from_numpy(masked + shift[masked]), targets=torch.from_numpy(targets.astype(np.int64))
            ),
        )

    @property
    def target_bytes(self) -> int:
        """Bytes of the masked tokens' text, by which the losses of different tokenizers can be compared."""
        return int(token_bytes(self.store.load_tokenizer(), self.store.word_start)[self._text[3]].sum())


class HiddenDocuments(MaskedDocuments):
    """The same text for a model with a query stream: tokens are hidden instead of masked.

    Each is predicted by a query row that sees all tokens that are not hidden.
    """

    def one_epoch(self) -> Iterator[Batch]:
        """Yield the text in batches."""
        for batch in super().one_epoch():
            hidden, targets = PretrainingLabels.of(batch).predicted
            ids, ranks = batch.ids.clone(), torch.zeros_like(batch.ids, dtype=torch.int32)
            ids[hidden], ranks[hidden] = targets, 1
            edges = torch.searchsorted(hidden, batch.cu_seqlens.long()).int()
            order = Permutation(ranks, hidden, edges, int(edges.diff().max()))
            labels = PretrainingLabels(masked=ids.numel() + torch.arange(hidden.numel()), targets=targets)
            yield replace(batch, ids=ids, permutation=order, labels=labels)
