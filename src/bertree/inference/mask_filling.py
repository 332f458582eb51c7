"""Masks in a text and the tokens that may stand there."""

from typing import NamedTuple

from torch import Tensor

from bertree.errors import UserError
from bertree.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")


class Candidate(NamedTuple):
    """A token that may stand at a mask."""

    token: str
    probability: float
    id: int


def normalize_mask_tokens(text: str, tokenizer: Tokenizer) -> tuple[str, int]:
    """A text with its masks as this tokenizer writes them, also another member's; and how many there are."""
    mask = tokenizer.special["mask"]
    for other in MASKS:
        text = text.replace(other, mask)
    wanted = text.count(mask)
    if not wanted:
        raise UserError(f"the text has no mask; put {mask} where a token is to be guessed")
    return text, wanted


def top_candidates(logits_mv: Tensor, tokenizer: Tokenizer, k: int) -> list[list[Candidate]]:
    """The k best tokens at each of m masks."""
    best = logits_mv.float()[:, : tokenizer.size].softmax(-1).topk(min(k, tokenizer.size))
    return [
        [Candidate(tokenizer.token(i), p, i) for p, i in zip(ps, ids, strict=True)]
        for ps, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
