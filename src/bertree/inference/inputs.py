"""Inputs of a model: texts, pairs of texts or token ids, checked, tokenized, packed and batched by length."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertree.batch import Batch
from bertree.console import note
from bertree.errors import TextsCut, UserError
from bertree.inference.cpu_encoder import round_up
from bertree.model.architecture import Architecture
from bertree.text.memory import is_table
from bertree.text.tokenizer import Encoded, Tokenizer

Input = str | tuple[str, str] | Sequence[int] | Tensor
Item = TypeVar("Item")
Job = TypeVar("Job")
Result = TypeVar("Result")
# Tokens computed at once: on the CPU few enough for the caches, on a GPU enough to use all of it.
BATCH_TOKENS = {"cpu": 1024, "cuda": 131072}


def check_inputs(inputs: Iterable[Item]) -> Iterable[Item]:
    """Return the inputs; UserError if they cannot be a list of inputs."""
    if is_table(inputs):
        raise UserError(
            f"expected texts, not a table ({type(inputs).__name__}); give one of its columns: table['text']"
        )
    if hasattr(inputs, "to_pylist"):  # an array of Arrow, whose items are no strings
        return list(inputs.to_pylist())
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes | Mapping):
        raise UserError(f"expected a text or a list of texts, not {type(inputs).__name__} {str(inputs)[:40]!r}")
    return inputs


def list_inputs(inputs: Iterable[Input] | str) -> list[Input]:
    """Return the inputs as a list; a single text is one input."""
    return [inputs] if isinstance(inputs, str) else list(check_inputs(inputs))


def is_one_input(inputs: object) -> bool:
    """Return whether this is a text, a pair of texts or a list of token ids, not a list of such inputs."""
    if isinstance(inputs, Tensor | np.ndarray):
        return inputs.ndim == 1 and (isinstance(inputs, Tensor) or inputs.dtype.kind in "iu")
    return _is_text(inputs) or (
        isinstance(inputs, list | tuple | range) and len(inputs) > 0 and all(isinstance(i, Integral) for i in inputs)
    )


def tokenize_inputs(
    inputs: Sequence[Input], tokenizer: Tokenizer | None, a: Architecture, limit: int, name: str
) -> list[Encoded]:
    """Return ids and segments of each input; texts of more than `limit` tokens are cut: see `note_cuts`.

    `name` is the model's, for messages.
    """
    longest = a.longest_input
    if not 1 <= limit <= longest:
        raise UserError(f"max_length {limit}: must lie between 1 and {longest}")
    texts = [item for item in inputs if _is_text(item)]
    if texts and tokenizer is None:
        raise UserError(
            f"{name}: has no tokenizer, so it takes lists of token ids; for texts, load it with tokenizer=FOLDER"
        )
    encoded = iter(tokenizer.encode_batch(texts, limit) if tokenizer else ())  # type: ignore[arg-type]
    return [next(encoded) if _is_text(item) else _check_ids(item, longest) for item in inputs]  # type: ignore[arg-type]


def note_cuts(encoded: Sequence[Encoded], limit: int) -> None:
    """Warn of texts that were cut to `limit` tokens."""
    if dropped := [e.dropped for e in encoded if e.dropped]:
        note(TextsCut(len(dropped), len(encoded), limit, sum(dropped)))


def check_finite(numbers: NDArray[Any] | Tensor, name: str) -> None:
    """Refuse results with NaN or infinity: finite weights can still be so large that a result overflows."""
    finite = torch.isfinite(numbers) if isinstance(numbers, Tensor) else np.isfinite(numbers)
    if not bool(finite.all()):
        raise not_finite(name)


def not_finite(name: str) -> UserError:
    """Return the error that a model computes NaN or infinity."""
    return UserError(f"{name}: computes numbers that are not finite; are its weights damaged?")


def _check_ids(ids: Sequence[int] | Tensor, longest: int) -> Encoded:
    if type(ids) is list and 0 < len(ids) <= longest and type(ids[0]) is int:  # the usual case, fast
        return Encoded(ids, None, 0)
    if isinstance(ids, Tensor | np.ndarray):
        ids = ids.tolist()
    if not isinstance(ids, list | tuple | range) or (len(ids) and not isinstance(ids[0], Integral)):
        raise UserError(f"an input must be a text, a pair of texts or a list of token ids, not {str(ids)[:60]!r}")
    if len(ids) > longest:
        raise UserError(f"a sequence of {len(ids)} ids is longer than the {longest} positions of the model")
    return Encoded(ids, None, 0)  # type: ignore[arg-type]


def _is_text(item: object) -> bool:
    return isinstance(item, str) or (
        isinstance(item, tuple) and len(item) == 2 and all(isinstance(t, str) for t in item)
    )


def pack_inputs(encoded: Sequence[Encoded], vocab_size: int) -> Batch:
    """Pack inputs into one batch; UserError if an id is not in the vocabulary."""
    try:
        batch = Batch.pack([e.ids for e in encoded], [e.segments for e in encoded], [e.second for e in encoded])
        valid = not batch.ids.numel() or 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < vocab_size
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise UserError(f"token ids must be whole numbers from 0 to {vocab_size - 1}")
    return batch


def batch_by_length(lengths: Sequence[int], device: torch.device, tokens: int = 0) -> Iterator[list[int]]:
    """Yield batches as lists of rows of similar lengths, the longest rows first.

    `tokens`: the most in a batch; 0: the default of the device.
    """
    if tokens < 0:
        raise UserError(f"batch_tokens: must not be negative, not {tokens}")
    sizes = np.asarray(lengths, np.int64)
    total = int(sizes.sum())
    limit = min(tokens or BATCH_TOKENS["cuda" if device.type == "cuda" else "cpu"], total)
    if not tokens and device.type == "cpu" and total > limit:
        threads = torch.get_num_threads()
        batches = threads * math.ceil(total / (limit * threads))  # as many for each thread
        limit = min(limit, round_up(math.ceil(total / batches)))
    order = np.argsort(-sizes, kind="stable")
    ends = np.cumsum(sizes[order])
    start = 0
    while start < len(order):
        before = ends[start] - sizes[order[start]]
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, "right")))
        yield order[start:stop][::-1].tolist()  # shortest first, which suits the CPU's attention
        start = stop


def map_jobs(work: Callable[[Job], Result], jobs: Iterable[Job], device: torch.device) -> Iterator[Result]:
    """Yield the result of each job, in order. On a CPU with several cores, each thread computes jobs of its own.

    Such threads do not wait for one another after every small operation and keep their batch in their own caches:
    about 10 % faster.
    """
    jobs = iter(jobs)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    first = list(islice(jobs, 2)) if threads > 1 else []
    if len(first) < 2:
        yield from map(work, chain(first, jobs))
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting = deque(pool.submit(work, job) for job in chain(first, islice(jobs, 2 * threads)))
            while waiting:  # a few jobs ahead, not all at once
                yield waiting.popleft().result()
                waiting.extend(pool.submit(work, job) for job in islice(jobs, 1))
    finally:
        torch.set_num_threads(threads)  # for threads that are started later
