"""Masks in a text and candidates for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bertree.batch import Batch, Permutation
from bertree.errors import UserError
from bertree.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")


class Candidate(NamedTuple):
    """A token for a mask."""

    token: str
    probability: float
    id: int


def normalize_mask_tokens(text: str, tokenizer: Tokenizer) -> tuple[str, int]:
    """Write every mask of a text ([MASK], <mask>) as this tokenizer does; return the text and the number of masks."""
    mask = tokenizer.special["mask"]
    for other in MASKS:
        text = text.replace(other, mask)
    count = text.count(mask)
    if not count:
        raise UserError(f"the text has no mask; put {mask} where a token is missing")
    return text, count


def predict_places(batch: Batch, chosen: Sequence[int]) -> tuple[Batch, list[int]]:
    """Let a query stream (XLNet) predict tokens of a batch of one text from all others, and not from each other; return
    the batch and the rows of the states that do."""
    tokens, places = len(batch.ids), torch.tensor(chosen)
    ranks = torch.zeros(tokens, dtype=torch.int32).index_fill(0, places, 1)
    bounds = torch.tensor([0, len(chosen)], dtype=torch.int32)
    predicted = replace(batch, permutation=Permutation(ranks, places, bounds, len(chosen)))
    return predicted, list(range(tokens, tokens + len(chosen)))


def top_candidates(logits_mv: Tensor, tokenizer: Tokenizer, k: int) -> list[list[Candidate]]:
    """Return the k most likely tokens at each of m masks."""
    best = logits_mv.float()[:, : tokenizer.size].softmax(-1).topk(min(k, tokenizer.size))
    return [
        [Candidate(tokenizer.token(i), p, i) for p, i in zip(ps, ids, strict=True)]
        for ps, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
