"""A cache on disk of a teacher's most likely tokens for every step of a run: computed once for any number of students.

Batches and masks follow from the seed, so the teacher's output for step k is always the same. Stored are the
log-probabilities (half precision) and ids of the k most likely tokens at each masked position: 4 bytes per stored token
for vocabularies of up to 65,536. Of the rest of the distribution only the sum is known (see `top_k_divergence`).

FOLDER/targets.json             identity: teacher, text, masks, seed, temperature
FOLDER/steps-0000064.safetensors   steps 64 up to 127: `scores`, `ids` (rows x k), `rows` of each batch
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor

from bertree.batch import Batch, PretrainingLabels, TeacherTokens
from bertree.errors import UserError
from bertree.files.atomic import make_folder, refuse_other, write_atomically
from bertree.files.formats import Json, check_regular, read_json
from bertree.model.network import Network
from bertree.objectives.distill_task import top_k_log_probabilities
from bertree.train.feed import StepBatches, StreamFeed, prefetch

CHUNK = 64  # steps per file
HEADER = "targets.json"


class TeacherCache(StreamFeed):
    """A feed whose batches carry the teacher's most likely tokens. The files hold those of all ranks, as `all_ranks`
    reads them."""

    def __init__(
        self, folder: Path, feed: StreamFeed, all_ranks: StreamFeed, *, k: int, vocabulary: int, identity: Json
    ) -> None:
        self.schedule, self.streams = feed.schedule, feed.streams
        self._rank, self._ranks = feed._rank, feed._ranks
        self._folder, self._feed, self._all_ranks = folder, feed, all_ranks
        self._k, self._vocabulary = k, vocabulary
        self._identity = identity
        self._loaded: tuple[int, list[tuple[Tensor, Tensor]]] = (-1, [])
        header = folder / HEADER
        if header.exists():
            before = read_json(header)
            changed = next((key for key, value in identity.items() if before.get(key) != value), None)
            if changed:
                raise UserError(f"{folder}: was made with another {changed}; give another folder for distill.cache")
        elif folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; give the path of a folder for distill.cache")

    @property
    def missing(self) -> list[int]:
        """The first steps of the files that are missing."""
        return [first for first in range(0, len(self.schedule), CHUNK) if not self._path(first).exists()]

    @property
    def steps_missing(self) -> int:
        """Number of steps that are missing."""
        return sum(min(CHUNK, len(self.schedule) - first) for first in self.missing)

    @property
    def bytes(self) -> int:
        """Size on disk."""
        return sum(self._path(first).stat().st_size for first in range(0, len(self.schedule), CHUNK))

    @torch.no_grad()
    def compute(
        self,
        teacher: Network,
        temperature: float,
        autocast: Callable[[], AbstractContextManager[object]],
        advance: Callable[[int], None],
    ) -> None:
        """Compute every missing step. `advance` is called with the number of new steps."""
        refuse_other(self._folder)
        try:
            make_folder(self._folder)
        except OSError as error:
            raise UserError(f"{self._folder}: cannot be written ({error.strerror})") from None
        write_atomically(self._folder / HEADER, json.dumps(self._identity, indent=2) + "\n")
        device = next(teacher.parameters()).device
        kind = np.uint16 if self._vocabulary <= 2**16 else np.uint32
        for first in self.missing:
            last = min(first + CHUNK, len(self.schedule))
            scores, ids, rows = [], [], []
            for work in prefetch(self._all_ranks.__getitem__, first, last):
                for batch in work.batches:
                    moved = batch.to(device)
                    masked_m, _ = PretrainingLabels.of(moved).predicted
                    with autocast():
                        logits_mv = teacher.mask_logits(teacher(moved), masked_m)
                    values, token_ids = top_k_log_probabilities(logits_mv, self._k, temperature)
                    scores.append(values.half().cpu().numpy())
                    ids.append(token_ids.cpu().numpy().astype(kind))
                    rows.append(len(values))
                advance(1)
            tensors = {"scores": np.concatenate(scores), "ids": np.concatenate(ids), "rows": np.array(rows, np.int64)}
            write_atomically(self._path(first), save(tensors))

    def __getitem__(self, number: int) -> StepBatches:
        """Return the batches of a step with the teacher's tokens."""
        work = self._feed[number]
        first = number // CHUNK * CHUNK
        if self._loaded[0] != first:
            self._loaded = first, self._load(first)
        before = sum(self._batches(n) for n in range(first, number))
        loaded = self._loaded[1]
        if len(loaded) < before + self._batches(number):
            raise self._broken(first)
        kept = [loaded[before + number_in_step] for number_in_step in work.numbers]
        batches = [self._with(batch, *targets, first) for batch, targets in zip(work.batches, kept, strict=True)]
        return replace(work, batches=batches)

    def _batches(self, number: int) -> int:
        update = self.schedule.updates[number]
        return update.batches * self.micro_batches[update.phase]

    def _with(self, batch: Batch, scores_mk: Tensor, ids_mk: Tensor, first: int) -> Batch:
        labels = PretrainingLabels.of(batch)
        if len(labels.predicted[0]) != len(scores_mk):
            raise self._broken(first)
        return replace(batch, labels=replace(labels, teacher=TeacherTokens(scores_mk, ids_mk)))

    def _path(self, first: int) -> Path:
        return self._folder / f"steps-{first:07}.safetensors"

    def _broken(self, first: int) -> UserError:
        return UserError(
            f"{self._path(first)}: does not belong to this run or is damaged; remove it, and it is computed again"
        )

    def _load(self, first: int) -> list[tuple[Tensor, Tensor]]:
        """Read and validate the batches of a file."""
        check_regular(self._path(first))
        try:
            tensors = load_file(self._path(first))
            scores, ids, rows = tensors["scores"], tensors["ids"], tensors["rows"]
        except (SafetensorError, KeyError, OSError):
            raise self._broken(first) from None
        kinds = scores.dtype == np.float16 and ids.dtype in (np.uint16, np.uint32) and rows.dtype == np.int64
        if not kinds or rows.ndim != 1 or (rows < 0).any():
            raise self._broken(first)
        valid = scores.shape == ids.shape == (int(rows.sum()), self._k) and bool(np.isfinite(scores).all())
        if not valid or (ids >= self._vocabulary).any() or (np.exp(scores, dtype=np.float32).sum(-1) > 1.02).any():
            raise self._broken(first)
        cuts = rows.cumsum()[:-1]
        pairs = zip(np.split(scores, cuts), np.split(ids.astype(np.int32), cuts), strict=True)
        return [(torch.from_numpy(s), torch.from_numpy(i)) for s, i in pairs]
