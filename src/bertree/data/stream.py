"""The batch stream: `stream[k]` is the packed batch of step k, a pure function of the seed and k.

An epoch is one long line of packed tokens. The chunks of the index are put in random order, sixteen to a shuffle group,
and the examples of a group are shuffled together. Epochs follow each other without end. A batch is a slice of the line,
so any step is found by arithmetic and one search. Memory holds a few numbers per chunk and the groups in use.

Batch borders are at equal distances along the line. The examples of a group are ordered so that borders fall on ends of
examples, or shortly before one; then the border moves. A batch never exceeds `batch_tokens` and wastes at most 2 % of
them (up to half, if it holds fewer than six full examples). Where this is not enough, the example at a border is split:
its tail starts the next batch as a sequence of its own, without the head's special tokens. `fixed` allows no waste:
every batch has exactly `batch_tokens` tokens and up to two split examples.

A split pair keeps its NSP or SOP label if its head contains some of the second segment; other sequences have the label
-100, which losses ignore. Masks are drawn in each side. With control codes the tail begins with its code instead of its
first tokens, which are not read in that epoch.
"""

from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertree import keyed_random
from bertree.batch import Batch, Permutation, PretrainingLabels
from bertree.data.example_index import ExampleIndex, balanced_order
from bertree.data.formats import CODED, Format
from bertree.data.masking import Masking, TargetMaker, target_maker
from bertree.data.permutation import OrderedParts, PermutationTargets
from bertree.data.sequences.shuffle_group import PackedSlice, RecentlyUsed, ShuffleGroup, build_group
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.keyed_random import Ints

GROUP_CHUNKS = 16
MAX_GROUPS = 3  # in memory: a step reads one or two


class Stream:
    """Endless batches from a token store."""

    def __init__(
        self,
        store: Store | Path | str,
        *,
        format: str | Format = "full-sentences",
        masking: str | Masking | None = "token",
        batch_tokens: int,
        max_length: int = 512,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        fixed: bool = False,
        waste: float | None = None,
        shares: int | None = None,
    ) -> None:
        """`batch_tokens` is the budget of the batch of all ranks. Each of `world` ranks reads some of its sequences, or
        with `fixed` an equal share of its tokens. A fixed batch is split at the borders of `shares` equal shares
        (default: one per rank): any number of ranks that divides `shares` reads the same batch."""
        self._settings = {name: value for name, value in locals().items() if name not in ("self", "store")}
        store = store if isinstance(store, Store) else Store.open(store)
        self.store, self.seed, self.fixed = store, seed, fixed
        if not isinstance(batch_tokens, int) or not isinstance(max_length, int) or not isinstance(seed, int):
            raise UserError("batch_tokens, max_length and seed must be whole numbers")
        self.format, self.masking = Format.parse(format), Masking.parse(masking)
        self.batch_tokens, self.max_length = batch_tokens, max_length
        self.rank, self.world, self.shares = rank, world, (shares or world) if fixed else 1
        self._check(waste)
        self._slack = 0 if fixed else _slack(batch_tokens, max_length, waste)
        self._stride = batch_tokens - self._slack
        self._room = self.format.room(max_length, store.prefixes.longest)
        self._targets: TargetMaker | None = None
        self._permuted: PermutationTargets | None = None
        if self.masking and self.masking.unit == "permutation":
            self._permuted = PermutationTargets(self.masking, store)
        elif self.masking:
            self._targets = target_maker(self.masking, store)
        self.index = ExampleIndex.load_or_build(store, self.format, max_length, seed)
        self.examples = int(self.index.chunks[-1])
        if self.format.objective and self.index.marks[-1] == 0:
            raise UserError(
                f"{store.name}: no document has two sentences, so there are no pairs for "
                f"{self.format.name}; use another format"
            )
        self.epoch_tokens = int(self.index.totals.sum())  # including special tokens
        self._orders = RecentlyUsed(self._order, MAX_GROUPS)
        self._groups = RecentlyUsed(self._group, MAX_GROUPS)
        self._group_chunks = GROUP_CHUNKS

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for worker processes: they open a store on disk again instead of copying it."""
        return _reopen, (self.store.folder if self.store.folder and self.store.complete else self.store, self._settings)

    def _check(self, waste: float | None) -> None:
        where = self.store.name
        check_codes(self.store, self.format, self.max_length)
        for kind in () if self.format.kind == "stream" else ("cls", "sep"):
            if kind not in self.store.special:
                raise UserError(f"{where}: the vocabulary has no {kind} token, which {self.format.name} needs")
        if self.format.objective == "nsp" and self.store.documents < 2:
            split = "this store has" if self.store.complete else "this split has"
            raise UserError(f"{where}: NSP needs two documents or more; {split} {self.store.documents}")
        if not 0 <= self.rank < self.world:
            raise UserError(f"rank {self.rank} of {self.world}: ranks go from 0 to {self.world - 1}")
        if self.shares < 1:
            raise UserError(f"shares {self.shares}: must be 1 or more")
        if waste is not None and not 0 <= waste < 1:
            raise UserError(f"waste {waste}: is not a share; give 0 up to 1")
        if self.fixed and (self.shares % self.world or self.batch_tokens % self.shares):
            raise UserError(
                f"batch_tokens {self.batch_tokens}: {self.world} ranks must divide {self.shares} shares, and "
                f"the shares must divide the fixed batch; change one of them"
            )
        least = self.max_length * (1 if self.world == 1 else 2 * self.world)
        if self.fixed:
            least = self.max_length * self.shares
        if self.batch_tokens < least:
            raise UserError(
                f"batch_tokens {self.batch_tokens}: too few for max_length {self.max_length}"
                f"{f' on {self.world} ranks' if self.world > 1 else ''}; give {least} or more"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read an epoch; the last of them already starts the next."""
        return ceil(self.epoch_tokens / self._stride)

    def epoch_at(self, step: int) -> float:
        """Return the epochs read before a step."""
        return step * self._stride / self.epoch_tokens

    def __getitem__(self, step: int) -> Batch:
        if step < 0:
            raise IndexError("steps count from 0")
        return self._batch(self._border(step * self._stride), self._border((step + 1) * self._stride))

    def __iter__(self) -> Iterator[Batch]:
        step = 0
        while True:
            yield self[step]
            step += 1

    def one_epoch(self, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches of one epoch, every token once, for evaluation. The last batch may be smaller."""
        low, end = epoch * self.epoch_tokens, (epoch + 1) * self.epoch_tokens
        first = (low // self._stride + 1) * self._stride
        for nominal in range(first, end + self._stride, self._stride):
            high = end if nominal >= end else min(end, self._border(nominal))
            if high > low:
                yield self._batch(low, high)
            low = high

    def example(self, number: int, epoch: int = 0) -> Batch:
        """Return one example, by its number in corpus order, as a batch of an epoch."""
        count = self.examples
        if not 0 <= number < count:
            raise UserError(f"example {number}: the store has {count:,} of this format, from 0 on")
        chunk = int(np.searchsorted(self.index.chunks, number, "right")) - 1
        chunks, order, _ = self._orders[epoch]
        index = next(index for index, group in enumerate(order) if chunk in chunks[group])
        group = self._groups[epoch, index]
        at = int(np.flatnonzero(group.numbers == number)[0])
        low, high = int(group.bounds[at]), int(group.bounds[at + 1])
        return self._pack([(group, group.read(low, high))])

    # Offsets in the line.

    def _order(self, epoch: int) -> tuple[list[Ints], Ints, Ints]:
        """Return the chunks of each group, the order of the groups, and where each starts in the epoch's line.

        With static masks an epoch has the groups of the epoch it repeats, in another order.
        """
        chunks = np.arange(self.index.totals.size)
        mixed = np.argsort(keyed_random.bits(keyed_random.key(self.seed, self._content(epoch), "chunks"), chunks))
        groups = np.array_split(mixed, ceil(mixed.size / self._group_chunks))
        order = np.argsort(keyed_random.bits(keyed_random.key(self.seed, epoch, "windows"), np.arange(len(groups))))
        sizes = np.array([int(self.index.totals[groups[group]].sum()) for group in order])
        return groups, order, np.concatenate(([0], np.cumsum(sizes)))

    def _content(self, epoch: int) -> int:
        """Return the epoch whose pairs and masks this epoch has."""
        return epoch % self.masking.duplicates if self.masking and self.masking.duplicates else epoch

    def _group(self, place: tuple[int, int]) -> ShuffleGroup:
        """Return a group by its epoch and its index in the order of the epoch."""
        epoch, index = place
        chunks, order, starts = self._orders[epoch]
        group, repeated = int(order[index]), self._content(epoch)
        return build_group(
            self.store,
            self.index,
            self.format,
            chunks[group],
            room=self._room,
            content_key=keyed_random.key(self.seed, repeated, group, "content"),
            order_key=keyed_random.key(self.seed, epoch, group, "order"),
            arrange=lambda lengths: balanced_order(
                lengths, epoch * self.epoch_tokens + int(starts[index]), self._stride, self._slack
            ),
        )

    def _find(self, offset: int) -> tuple[ShuffleGroup, int, int]:
        """Return the group at an offset of the line, and where the group starts and ends."""
        epoch, within = divmod(offset, self.epoch_tokens)
        _, _, starts = self._orders[epoch]
        index = int(np.searchsorted(starts, within, "right")) - 1
        base = epoch * self.epoch_tokens
        return self._groups[epoch, index], base + int(starts[index]), base + int(starts[index + 1])

    def _example_bounds(self, offset: int) -> tuple[int, int]:
        """Return where the example at an offset of the line starts and ends."""
        group, start, _ = self._find(offset)
        at = int(np.searchsorted(group.bounds, offset - start, "right")) - 1
        return start + int(group.bounds[at]), start + int(group.bounds[at + 1])

    def _border(self, offset: int) -> int:
        """Return the border of a batch: the end of the example at the offset if it is near, else the offset."""
        start, end = self._example_bounds(offset)
        return end if start < offset and end - offset <= self._slack else offset

    # Batches.

    def _batch(self, low: int, high: int) -> Batch:
        cuts = np.array([low, high])
        if self.fixed and self.shares > 1:
            cuts = low + (high - low) * np.arange(self.shares + 1) // self.shares
            mine = self.shares // self.world
            cuts = cuts[self.rank * mine : (self.rank + 1) * mine + 1]
        elif self.world > 1:
            cuts = np.array([self._between(low, high, self.rank), self._between(low, high, self.rank + 1)])
        low, high = int(cuts[0]), int(cuts[-1])
        slices = []
        while low < high:
            group, start, end = self._find(low)
            stop = min(high, end)
            inner = cuts[(cuts > low) & (cuts < stop)] - start
            slices.append((group, group.read(low - start, stop - start, inner)))
            low = stop
        return self._pack(slices)

    def _between(self, low: int, high: int, rank: int) -> int:
        """Return where a rank's sequences start: the border of sequences nearest to its equal share."""
        if rank in (0, self.world):
            return low if rank == 0 else high
        offset = low + (high - low) * rank // self.world
        start, end = self._example_bounds(offset)
        start, end = max(start, low), min(end, high)
        return start if 2 * offset < start + end else end

    def _pack(self, slices: list[tuple[ShuffleGroup, PackedSlice]]) -> Batch:
        masked, targets, bounds, base = [], [], [np.zeros(1, np.int64)], 0
        for group, piece in slices:
            if self._targets:
                predicted, labels = self._targets.apply(
                    piece.ids, piece.bounds, piece.counters, group.mask_key, piece.is_code
                )
                masked.append(predicted + base)
                targets.append(labels)
            bounds.append(piece.bounds[1:] + base)
            base += piece.ids.size
        edges = _concatenate(bounds)
        permutation = None
        if self._permuted:
            permutation, masked, targets = self._permute(self._permuted, slices, edges)
        pairs = [piece.labels for _, piece in slices if piece.labels is not None]
        return Batch(
            ids=torch.from_numpy(_concatenate([piece.ids for _, piece in slices])),
            positions=torch.from_numpy(_concatenate([piece.positions for _, piece in slices])),
            segments=torch.from_numpy(_concatenate([piece.segments for _, piece in slices])),
            cu_seqlens=torch.from_numpy(edges.astype(np.int32)),
            max_seqlen=int(np.diff(edges).max(initial=0)),
            permutation=permutation,
            labels=PretrainingLabels(
                masked=torch.from_numpy(_concatenate(masked)) if self.masking else None,
                targets=torch.from_numpy(_concatenate(targets)) if self.masking else None,
                pairs=torch.from_numpy(_concatenate(pairs)) if self.format.objective else None,
            ),
        )

    def _permute(
        self, maker: PermutationTargets, slices: list[tuple[ShuffleGroup, PackedSlice]], edges: Ints
    ) -> tuple[Permutation, list[Ints], list[Ints]]:
        """Return the order of a batch, the rows that predict (one per target, after the tokens) and the targets."""
        draws = [maker.draw(p.ids, p.bounds, p.counters, group.mask_key) for group, p in slices if p.ids.size]
        is_code = [piece.is_code for _, piece in slices if piece.is_code is not None]
        ids = _concatenate([piece.ids for _, piece in slices])
        random = np.concatenate(draws) if draws else np.zeros(0, np.uint64)
        parts = OrderedParts(edges, maker.counts(edges, even=self.fixed), random)
        targets = maker.choose(ids, parts, np.concatenate(is_code) if is_code else None)
        rows = ids.size + np.arange(targets.positions.size)
        return targets.permutation(edges), [rows], [targets.ids]


def check_codes(store: Store, format: Format, max_length: int) -> None:
    """Raise an error if sequences of this format and length cannot begin with the store's control codes."""
    if store.controls and format.kind not in CODED:
        raise UserError(
            f"{store.name}: has control codes, which {format.name} does not support; use format {' or '.join(CODED)}"
        )
    if store.has_given and 2 * (longest := store.prefixes.longest) > max_length:
        raise UserError(
            f"max_length {max_length}: the longest given text of {store.name} has {longest} tokens with its code, "
            f"more than half of a sequence; give {2 * longest} or more, or prepare shorter texts"
        )


def _slack(batch_tokens: int, max_length: int, waste: float | None) -> int:
    """Return how far after an equal border an example may end. A batch wastes at most twice as much, less on
    average."""
    if waste is not None:
        return int(batch_tokens * waste / 2)
    few = 2 * max_length <= batch_tokens < 6 * max_length
    return max_length if few else batch_tokens // 100


def _reopen(store: Store | Path, settings: dict[str, Any]) -> Stream:
    return Stream(Store.open(store) if isinstance(store, Path) else store, **settings)


def _concatenate(arrays: list[Ints]) -> Ints:
    if not arrays:  # a rank may have no sequence in an epoch's last batch
        return np.zeros(0, np.int64)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
