"""What `import bertree` gives: load a model by path or by name and use it."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import BertreeWarning, UserError, suggest
from bertree.files import Json
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.interop.shipped import located
from bertree.model.architecture import Architecture
from bertree.model.network import Network, build
from bertree.model.presets import PRESETS, preset
from bertree.tasks import registry
from bertree.tasks.answering import fitting, half, logits
from bertree.tasks.task import Task
from bertree.text.tokenizer import Encoded, Tokenizer

Input = str | tuple[str, str] | Sequence[int] | Tensor
MASKS = ("[MASK]", "<mask>")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = DTYPES | {"int8": torch.int8}  # int8 is a way to store weights, not to compute with them
Job = TypeVar("Job")
Result = TypeVar("Result")
# Tokens computed at once: on the CPU small enough for the caches, on a GPU enough to fill it.
BATCH_TOKENS = {"cpu": 1024, "cuda": 131072}


class Candidate(NamedTuple):
    """A token that may stand at a mask."""

    token: str
    probability: float
    id: int


class Model:
    """An encoder with its heads and, where the folder had one, its tokenizer."""

    def __init__(self, contents: Contents, trained: bool = True) -> None:
        self._contents = contents
        self.trained = trained
        self.network.eval()

    @property
    def architecture(self) -> Architecture:
        """The point of the design space."""
        return self._contents.architecture

    @property
    def network(self) -> Network:
        """The torch module: encoder and heads."""
        return self._contents.network

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None if the model came without one: then only ids are taken."""
        return self._contents.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._contents.tokenizer = tokenizer

    @property
    def labels(self) -> list[str]:
        """Names of the task head's classes."""
        return self._contents.labels

    @property
    def classes(self) -> dict[str, int]:
        """The heads and how many scores each gives."""
        return folder.heads_of(self.network)

    @property
    def task(self) -> Json:
        """What the folder remembers of the task it was fine-tuned for: name and settings."""
        return self._contents.task

    @property
    def limit(self) -> int | None:
        """A length shorter than the positions allow, where the folder says so."""
        return self._contents.max_length

    @property
    def max_length(self) -> int:
        """Texts are cut to this many tokens."""
        limit = self.architecture.max_positions
        return min(limit, self._contents.max_length or limit)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def to(self, device: str | torch.device | None = None, dtype: str | None = None) -> "Model":
        """Move the model to a device, a precision, or both."""
        self.network.to(device=device, dtype=_dtype(dtype) if dtype else None)
        return self

    def save(self, path: str | Path, dtype: str | None = None) -> None:
        """Write the model as a folder, whole or not at all.

        `dtype`: precision of the written weights (float32, bfloat16, float16, int8), where not the model's own. int8
        is a quarter of float32 and for bertree alone; loaded, it is floating-point again.
        """
        folder.write(self._contents, Path(path), dtype=_dtype(dtype, STORED) if dtype else None)

    def encode(self, inputs: Sequence[Input], max_length: int | None = None) -> list[Encoded]:
        """Ids and segments of each input, checked; texts that are too long are cut, with a warning."""
        limit = self.max_length if max_length is None else max_length
        if not 1 <= limit <= self.architecture.max_positions:
            raise UserError(f"max_length {limit}: must lie between 1 and {self.architecture.max_positions}")
        texts = [i for i in inputs if _is_text(i)]
        if texts and self.tokenizer is None:
            raise UserError(
                "this model has no tokenizer, so it takes lists of token ids; for texts, load it with tokenizer=FOLDER"
            )
        encoded = iter(self.tokenizer.encode(texts, limit) if self.tokenizer else ())  # type: ignore[arg-type]
        result = [next(encoded) if _is_text(i) else self._checked(i) for i in inputs]  # type: ignore[arg-type]
        cut = [e.dropped for e in result if e.dropped]
        if cut:
            line = f"{len(cut)} of {len(inputs)} texts cut to {limit} tokens ({sum(cut)} tokens dropped)"
            warnings.warn(line, BertreeWarning, stacklevel=3)
        return result

    def _checked(self, ids: Sequence[int] | Tensor) -> Encoded:
        longest = self.architecture.max_positions
        if type(ids) is list and 0 < len(ids) <= longest and type(ids[0]) is int:  # the usual case, quickly
            return Encoded(ids, None, 0)
        if isinstance(ids, Tensor | np.ndarray):
            ids = ids.tolist()
        if not isinstance(ids, list | tuple | range) or (len(ids) and not isinstance(ids[0], Integral)):
            raise UserError(f"an input must be a text, a pair of texts or a list of token ids, not {str(ids)[:60]!r}")
        if len(ids) > longest:
            raise UserError(f"a sequence of {len(ids)} ids is longer than the {longest} positions of the model")
        return Encoded(ids, None, 0)  # type: ignore[arg-type]

    def _packed(self, encoded: Sequence[Encoded]) -> Batch:
        try:
            batch = Batch.pack([e.ids for e in encoded], [e.segments for e in encoded], [e.second for e in encoded])
            known = (
                not batch.ids.numel()
                or 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < self.architecture.vocab_size
            )
        except (TypeError, ValueError, OverflowError):
            known = False
        if not known:
            raise UserError(f"token ids must be whole numbers from 0 to {self.architecture.vocab_size - 1}")
        return batch

    def hidden(self, inputs: Iterable[Input] | str, max_length: int | None = None) -> list[Tensor]:
        """Last hidden states of each input (tokens x width), in the order given.

        Inputs are texts, pairs of texts (as tuples), or lists of token ids. What else is in the list
        does not change the result.
        """
        encoded = self.encode([inputs] if isinstance(inputs, str) else list(inputs), max_length)
        results: dict[int, Tensor] = {}
        for rows, states in _spread(self._states, self._batches(encoded), self.device):
            results.update(zip(rows, states, strict=True))
        return [results[i] for i in range(len(encoded))]

    @torch.no_grad()
    def _states(self, job: tuple[list[int], Batch]) -> tuple[list[int], tuple[Tensor, ...]]:
        rows, batch = job
        return rows, batch.split(self.network.encoder(batch.to(self.device)))

    def _batches(self, encoded: Sequence[Encoded]) -> Iterator[tuple[list[int], Batch]]:
        """Packed batches of similar lengths, the longest first, and which inputs each holds."""
        limit = BATCH_TOKENS["cuda" if self.device.type == "cuda" else "cpu"]
        lengths = np.fromiter((len(e.ids) for e in encoded), np.int64, len(encoded))
        order = np.argsort(-lengths, kind="stable")
        ends = np.cumsum(lengths[order])
        start = 0
        while start < len(order):
            before = ends[start] - lengths[order[start]]
            stop = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
            rows = order[start:stop][::-1].tolist()  # shortest first, as the CPU's attention likes them
            yield rows, self._packed([encoded[i] for i in rows])
            start = stop

    @torch.no_grad()
    def fill_mask(self, text: str, k: int = 5) -> list[Candidate] | list[list[Candidate]]:
        """The k likeliest tokens at the mask, or one such list per mask if there are several."""
        if "mask" not in self.network.heads:
            raise UserError("this model has no MLM head, so it cannot fill a mask")
        if self.tokenizer is None or self.tokenizer.id_of("mask") is None:
            raise UserError(
                "this model has no tokenizer with a mask token; give one: tokenizer=FOLDER, or --tokenizer FOLDER"
            )
        if k < 1:
            raise UserError(f"k: must be at least 1, not {k}")
        mask = self.tokenizer.special["mask"]
        for other in MASKS:  # another member's spelling of the mask is understood
            text = text.replace(other, mask)
        wanted = text.count(mask)
        if not wanted:
            raise UserError(f"the text has no mask; put {mask} where a token is to be guessed")
        (encoded,) = self.encode([text])
        mask_id = self.tokenizer.id_of("mask")
        chosen = [i for i, token in enumerate(encoded.ids) if token == mask_id]
        if len(chosen) < wanted:
            raise UserError(
                f"a mask stands beyond the first {self.max_length} tokens and was cut off; shorten the text"
            )
        if self.architecture.attention == "causal":
            line = "this model sees only what stands before a mask; trained on next tokens, it says what follows it"
            warnings.warn(line, BertreeWarning, stacklevel=2)
        batch = self._packed([encoded]).to(self.device)
        logits = self.network.mask_logits(self.network(batch), torch.tensor(chosen, device=self.device))
        best = logits.float()[:, : self.tokenizer.size].softmax(-1).topk(min(k, self.tokenizer.size))
        lists = [
            [Candidate(self.tokenizer.token(i), p, i) for p, i in zip(ps, ids, strict=True)]
            for ps, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        return lists[0] if len(lists) == 1 else lists

    def task_named(self, name: str | None = None, **columns: str | None) -> Task[Any]:
        """The task it answers: the one of that name, or the one it was fine-tuned for."""
        return registry.of_model(self.classes, self.labels, self.task, self.network.crf is not None, name, columns)

    @property
    def needed_tokenizer(self) -> Tokenizer:
        """The tokenizer, where there must be one."""
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer; load it with tokenizer=FOLDER, or give --tokenizer FOLDER")
        return self.tokenizer

    def predict(
        self, inputs: Iterable[str | tuple[str, str] | Json], max_length: int = 0, first: int = 1
    ) -> list[Json]:
        """What a fine-tuned model says about each input: `predicted`, `score`, and what belongs to its head.

        An input is a text, a pair of texts, or an object with the parts by name (question and context; context,
        question and options; words). `max_length`: tokens a sequence; 0: as it was fine-tuned. `first`: number of the
        first input, for messages.
        """
        task = self.task_named()
        longest = fitting(max_length, self.task.get("max_length") or self.max_length, self.architecture.max_positions)
        examples: list[Any] = []
        for number, record in enumerate(inputs, first):
            try:
                examples += task.parse_all(_record(record, task.head))
            except UserError as error:
                raise UserError(f"input {number}: {error}") from None
        units, cut = task.units(examples, self.needed_tokenizer, longest)
        if cut.examples:
            warnings.warn(cut.line("input", len(examples), longest), BertreeWarning, stacklevel=2)
        found = logits(self.network, task.head, units, lambda: half(self.device))
        return task.predict(examples, units, found)


def load(
    name: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    tokenizer: str | Path | None = None,
    seed: int = 0,
) -> Model:
    """A model from a folder (bertree's or Hugging Face's), a preset with fresh weights drawn from `seed`, or
    `default`: the trained model that comes with bertree.

    `tokenizer` is a folder to take the tokenizer from; a preset then gets the size of its vocabulary.
    """
    precision = _dtype(dtype)
    given = _tokenizer(located(tokenizer)) if tokenizer is not None else None
    path = located(name)
    try:
        is_there = path.exists()
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})") from None
    if is_there:
        contents = folder.read(path, precision, given)
        model = Model(contents)
    else:
        if str(name) not in PRESETS and ("/" in str(name) or str(name).startswith(".")):
            raise UserError(f"{name}: no such folder")
        a = preset(str(name)).architecture
        heads = {"mask": 0} if a.body == "transformer" else {}
        model = fresh(a.with_values({"vocab_size": given.size}) if given else a, heads, seed)
        model.tokenizer = given
        model.network.to(precision)
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{device}': cannot be used here ({reason})") from None


def _tokenizer(path: Path) -> Tokenizer:
    found = Tokenizer.load(path) if path.is_dir() else None
    if found is None:
        raise UserError(
            f"{path}: holds no tokenizer (tokenizer.json, vocab.txt, vocab.json + merges.txt or spiece.model)"
        )
    return found


def fresh(a: Architecture, heads: dict[str, int], seed: int = 0) -> Model:
    """An untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(Contents(a, build(a, heads)), trained=False)


def _spread(work: Callable[[Job], Result], jobs: Iterable[Job], device: torch.device) -> Iterator[Result]:
    """Do the jobs: on a CPU with several threads, one job a thread.

    Threads that each take a batch of their own need not wait for one another after every small operation,
    and keep their batch in their own caches; it is worth about a tenth."""
    jobs = iter(jobs)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    first = list(islice(jobs, 2)) if threads > 1 else []
    if len(first) < 2:
        yield from map(work, chain(first, jobs))
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting = deque(pool.submit(work, job) for job in chain(first, islice(jobs, 2 * threads)))
            while waiting:  # a few jobs ahead, not all of them at once
                yield waiting.popleft().result()
                waiting.extend(pool.submit(work, job) for job in islice(jobs, 1))
    finally:
        torch.set_num_threads(threads)  # what threads that are yet to come start with


def _dtype(name: str, known: Mapping[str, torch.dtype] = DTYPES) -> torch.dtype:
    if name == "int8" and name not in known:
        raise UserError("dtype 'int8': is for saving alone (save, convert); a model computes in float32 or a half")
    if name not in known:
        raise UserError(f"dtype '{name}': unknown, {suggest(name, known)}")
    return known[name]


def _record(record: str | tuple[str, str] | Json, head: str) -> str | Json:
    """A pair by its names, so that no character in it can divide it."""
    if not isinstance(record, tuple):
        return record
    names = ("question", "context") if head == "span" else ("text", "pair")
    return dict(zip(names, record, strict=True))


def _is_text(item: Input) -> bool:
    return isinstance(item, str) or (
        isinstance(item, tuple) and len(item) == 2 and all(isinstance(t, str) for t in item)
    )
