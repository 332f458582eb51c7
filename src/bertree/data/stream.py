"""The batch stream: `stream[k]` is the packed batch of step k, a pure function of the seed and k.

An epoch is one long line of packed tokens: the chunks of the index in random order, sixteen to a window, the examples
of a window shuffled together. Epochs follow each other without end. Batch k is a piece of that line, so any step is
found by arithmetic and one search, and no order of the whole corpus is held in memory: a few numbers per chunk, and the
windows in use.

Borders lie at equal distances along the line, and the examples of a window are ordered so that the borders fall on
their ends, or a little before one, in which case the border moves: no batch has more than `batch_tokens` tokens, and it
wastes at most 2 % of them. Batches of fewer than six full examples cannot be filled that well with whole examples and
may waste a third, or half of a batch of two. If the allowed waste is not enough (`waste` is small, lengths do not add
up), the example at a border is split: its head ends one batch, its tail starts the next as a sequence of its own, with
positions from 0 and without the other's special tokens. `fixed` allows no waste: every batch has exactly `batch_tokens`
tokens, and up to two split sequences.

A split pair keeps its NSP or SOP label if its head still contains some of the second segment, as after BERT's
truncation; otherwise, in its tail, and in an example of one sentence, the label is -100, which torch's losses ignore.
Masks are drawn in each side, so static masks repeat except in split sequences; a side of special tokens alone has none.
In a store with control codes the second side of a split sequence begins with its code, which takes the place of its
first tokens: these are not read in that epoch.
"""

from collections import OrderedDict
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from bertree import keyed_random
from bertree.batch import Batch, Permutation, PretrainingLabels
from bertree.data.example_index import ExampleIndex
from bertree.data.formats import CODED, Format
from bertree.data.masking import Masking, TargetMaker, target_maker
from bertree.data.permutation import Parts, PermutationTargets
from bertree.data.store import Store
from bertree.data.windows.balanced_order import balanced_order
from bertree.data.windows.window import PackedSlice, ShuffleWindow, build_window
from bertree.errors import UserError
from bertree.keyed_random import Ints

WINDOW_CHUNKS = 16
KEPT = 3  # windows in memory: a step reads one or two


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
        """`batch_tokens` is the budget of the whole batch, of which rank r of `world` reads its part: whole sequences,
        or with `fixed` one equal share. A fixed batch is split at the borders of `shares` equal shares (default: one
        per rank): with the same `shares`, any number of ranks that divides it reads the same batch."""
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
                f"{store.folder or 'store'}: no document has two sentences, so there are no pairs for "
                f"{self.format.name}; use another format"
            )
        self.epoch_tokens = int(self.index.totals.sum())  # including special tokens
        self._orders: OrderedDict[int, tuple[list[Ints], Ints, Ints]] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], ShuffleWindow] = OrderedDict()
        self._window_chunks = WINDOW_CHUNKS
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for worker processes: a store on disk is opened there again, not copied."""
        return _reopen, (self.store.folder if self.store.folder and self.store.complete else self.store, self._settings)

    def _check(self, waste: float | None) -> None:
        where = self.store.folder or "store"
        if self.store.controls and self.format.kind not in CODED:
            raise UserError(
                f"{where}: has control codes, and {self.format.name} is not for them; use format {' or '.join(CODED)}"
            )
        for kind in () if self.format.kind == "stream" else ("cls", "sep"):
            if kind not in self.store.special:
                raise UserError(f"{where}: the vocabulary has no {kind} token, which {self.format.name} needs")
        if self.format.objective == "nsp" and self.store.documents < 2:
            part = "this store has" if self.store.complete else "the part used here has"
            raise UserError(f"{where}: NSP needs two documents or more; {part} {self.store.documents}")
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
        """Return one example, by its number in corpus order, as a batch of this epoch."""
        count = self.examples
        if not 0 <= number < count:
            raise UserError(f"example {number}: the store has {count:,} of this format, from 0 on")
        chunk = int(np.searchsorted(self.index.chunks, number, "right")) - 1
        groups, order, _ = self._order(epoch)
        place = next(p for p, group in enumerate(order) if chunk in groups[group])
        window = self._window(epoch, place)
        at = int(np.flatnonzero(window.numbers == number)[0])
        low, high = int(window.bounds[at]), int(window.bounds[at + 1])
        return self._pack([(window, window.read(low, high))])

    # Places in the line.

    def _order(self, epoch: int) -> tuple[list[Ints], Ints, Ints]:
        """Return the chunks of each window, the order of the windows, and where each starts in the epoch's line.

        With static masks an epoch's windows are those of the epoch it repeats, in another order.
        """
        with self._lock:
            if epoch not in self._orders:
                chunks = np.arange(self.index.totals.size)
                mixed = np.argsort(
                    keyed_random.bits(keyed_random.key(self.seed, self._content(epoch), "chunks"), chunks)
                )
                groups = np.array_split(mixed, ceil(mixed.size / self._window_chunks))
                order = np.argsort(
                    keyed_random.bits(keyed_random.key(self.seed, epoch, "windows"), np.arange(len(groups)))
                )
                sizes = np.array([int(self.index.totals[groups[group]].sum()) for group in order])
                self._orders[epoch] = (groups, order, np.concatenate(([0], np.cumsum(sizes))))
                if len(self._orders) > KEPT:
                    self._orders.popitem(last=False)
            return self._orders[epoch]

    def _content(self, epoch: int) -> int:
        return epoch % self.masking.duplicates if self.masking and self.masking.duplicates else epoch

    def _window(self, epoch: int, place: int) -> ShuffleWindow:
        groups, order, starts = self._order(epoch)
        with self._lock:
            if (epoch, place) not in self._windows:
                group, repeated = int(order[place]), self._content(epoch)
                self._windows[epoch, place] = build_window(
                    self.store,
                    self.index,
                    self.format,
                    self._room,
                    groups[group],
                    keyed_random.key(self.seed, repeated, group, "content"),
                    keyed_random.key(self.seed, epoch, group, "order"),
                    lambda lengths: balanced_order(
                        lengths, epoch * self.epoch_tokens + int(starts[place]), self._stride, self._slack
                    ),
                )
                if len(self._windows) > KEPT:
                    self._windows.popitem(last=False)
            self._windows.move_to_end((epoch, place))
            return self._windows[epoch, place]

    def _find(self, place: int) -> tuple[ShuffleWindow, int, int]:
        """Return the window at a place of the line, and where the window starts and ends."""
        epoch, offset = divmod(place, self.epoch_tokens)
        _, _, starts = self._order(epoch)
        number = int(np.searchsorted(starts, offset, "right")) - 1
        base = epoch * self.epoch_tokens
        return self._window(epoch, number), base + int(starts[number]), base + int(starts[number + 1])

    def _sequence(self, place: int) -> tuple[int, int]:
        """Return where the example at a place of the line starts and ends."""
        window, start, _ = self._find(place)
        at = int(np.searchsorted(window.bounds, place - start, "right")) - 1
        return start + int(window.bounds[at]), start + int(window.bounds[at + 1])

    def _border(self, place: int) -> int:
        """Return the border of a batch: the end of the example at the place if it is near, else the place."""
        start, end = self._sequence(place)
        return end if start < place and end - place <= self._slack else place

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
            window, start, end = self._find(low)
            stop = min(high, end)
            inner = cuts[(cuts > low) & (cuts < stop)] - start
            slices.append((window, window.read(low - start, stop - start, inner)))
            low = stop
        return self._pack(slices)

    def _between(self, low: int, high: int, rank: int) -> int:
        """Return where a rank's part of the batch starts: the sequence border nearest to its equal share."""
        if rank in (0, self.world):
            return low if rank == 0 else high
        place = low + (high - low) * rank // self.world
        start, end = self._sequence(place)
        start, end = max(start, low), min(end, high)
        return start if 2 * place < start + end else end

    def _pack(self, slices: list[tuple[ShuffleWindow, PackedSlice]]) -> Batch:
        masked, targets, bounds, base = [], [], [np.zeros(1, np.int64)], 0
        for window, piece in slices:
            if self._targets:
                places, there = self._targets.apply(
                    piece.ids, piece.bounds, piece.counters, window.mask_key, piece.given
                )
                masked.append(places + base)
                targets.append(there)
            bounds.append(piece.bounds[1:] + base)
            base += piece.ids.size
        edges = _concatenate(bounds)
        permutation = None
        if self._permuted:
            permutation, masked, targets = self._permute(self._permuted, slices, edges)
        labels = [piece.labels for _, piece in slices if piece.labels is not None]
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
                pairs=torch.from_numpy(_concatenate(labels)) if self.format.objective else None,
            ),
        )

    def _permute(
        self, maker: PermutationTargets, slices: list[tuple[ShuffleWindow, PackedSlice]], edges: Ints
    ) -> tuple[Permutation, list[Ints], list[Ints]]:
        """Return the order of a batch, the rows that predict (one for each target, behind the tokens), the targets."""
        draws = [maker.draw(p.ids, p.bounds, p.counters, window.mask_key) for window, p in slices if p.ids.size]
        given = [piece.given for _, piece in slices if piece.given is not None]
        ids = _concatenate([piece.ids for _, piece in slices])
        random = np.concatenate(draws) if draws else np.zeros(0, np.uint64)
        parts = Parts(edges, maker.counts(edges, even=self.fixed), random)
        found = maker.choose(ids, parts, np.concatenate(given) if given else None)
        rows = ids.size + np.arange(found.places.size)
        return found.permutation(edges), [rows], [found.ids]


def _slack(batch_tokens: int, max_length: int, waste: float | None) -> int:
    """Return how far behind an equal border an example may end. A batch loses at most twice as much, less on
    average."""
    if waste is not None:
        return int(batch_tokens * waste / 2)
    few = 2 * max_length <= batch_tokens < 6 * max_length
    return max_length if few else batch_tokens // 100


def _reopen(store: Store | Path, settings: dict[str, Any]) -> Stream:
    return Stream(Store.open(store) if isinstance(store, Path) else store, **settings)


def _concatenate(arrays: list[Ints]) -> Ints:
    if not arrays:  # the part of a rank in an epoch's last batch may be empty
        return np.zeros(0, np.int64)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
