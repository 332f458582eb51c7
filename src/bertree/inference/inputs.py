"""Inputs of a model: texts, pairs of texts or token ids, checked, tokenized and packed."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import TextsCut, UserError
from bertree.model.architecture import Architecture
from bertree.text.tokenizer import Encoded, Tokenizer

Input = str | tuple[str, str] | Sequence[int] | Tensor
Item = TypeVar("Item")


def check_inputs(inputs: Iterable[Item]) -> Iterable[Item]:
    """Return the inputs; UserError if they cannot be a list of them."""
    if not isinstance(inputs, Iterable) or isinstance(inputs, bytes | Mapping):
        raise UserError(f"expected a text or a list of texts, not {type(inputs).__name__} {str(inputs)[:40]!r}")
    return inputs


def list_inputs(inputs: Iterable[Input] | str) -> list[Input]:
    """Return the inputs as a list; a single text is one input."""
    return [inputs] if isinstance(inputs, str) else list(check_inputs(inputs))


def tokenize_inputs(
    inputs: Sequence[Input], tokenizer: Tokenizer | None, a: Architecture, limit: int, name: str
) -> list[Encoded]:
    """Return ids and segments of each input; texts of more than `limit` tokens are cut, with a warning.

    `name` is the model's, for messages.
    """
    most = a.longest_input
    if not 1 <= limit <= most:
        raise UserError(f"max_length {limit}: must lie between 1 and {most}")
    texts = [i for i in inputs if _is_text(i)]
    if texts and tokenizer is None:
        raise UserError(
            f"{name}: has no tokenizer, so it takes lists of token ids; for texts, load it with tokenizer=FOLDER"
        )
    encoded = iter(tokenizer.encode(texts, limit) if tokenizer else ())  # type: ignore[arg-type]
    result = [next(encoded) if _is_text(i) else _check_ids(i, most) for i in inputs]  # type: ignore[arg-type]
    cut = [e.dropped for e in result if e.dropped]
    if cut:
        warnings.warn(TextsCut(len(cut), len(inputs), limit, sum(cut)), stacklevel=4)
    return result


def check_finite(numbers: NDArray[Any] | Tensor, name: str) -> None:
    """Refuse results that are not numbers: finite weights can be so large that a model computes none."""
    finite = torch.isfinite(numbers) if isinstance(numbers, Tensor) else np.isfinite(numbers)
    if not bool(finite.all()):
        raise UserError(f"{name}: computes numbers that are not finite; are its weights damaged?")


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


def pack_inputs(encoded: Sequence[Encoded], vocab_size: int) -> Batch:
    """Pack inputs into one batch; UserError if an id is not in the vocabulary."""
    try:
        batch = Batch.pack([e.ids for e in encoded], [e.segments for e in encoded], [e.second for e in encoded])
        known = not batch.ids.numel() or 0 <= int(batch.ids.min()) <= int(batch.ids.max()) < vocab_size
    except (TypeError, ValueError, OverflowError):
        known = False
    if not known:
        raise UserError(f"token ids must be whole numbers from 0 to {vocab_size - 1}")
    return batch


def _is_text(item: Input) -> bool:
    return isinstance(item, str) or (
        isinstance(item, tuple) and len(item) == 2 and all(isinstance(t, str) for t in item)
    )
