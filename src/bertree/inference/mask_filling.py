"""Masks in texts, and the most likely tokens for them.

A text is prepared first and computed later, so that a server can refuse it before it waits, and compute several texts
at once. Shape letters: m masks, v vocabulary.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from bertree.batch import Batch, Permutation
from bertree.errors import TextsCut, UserError
from bertree.inference.inputs import check_finite
from bertree.inference.loaded import LoadedModel
from bertree.model.architecture import Transformer
from bertree.text.cleaning import replace_surrogates
from bertree.text.tokenizer import Encoded, Tokenizer

MASKS = ("[MASK]", "<mask>")


class Candidate(NamedTuple):
    """A token for a mask."""

    token: str
    probability: float
    id: int


class FilledMask(NamedTuple):
    """A mask of a text, text[start:end], and the most likely tokens for it."""

    start: int
    end: int
    candidates: list[Candidate]


class MaskedText(NamedTuple):
    """A text with masks, tokenized, and how many candidates are wanted for each."""

    encoded: Encoded
    places: list[int]  # of the masks among its tokens
    spans: list[tuple[int, int]]  # of the masks in the text, in characters
    k: int


class MaskMethods(LoadedModel):
    """`fill_mask`, `fill_masks`: for models with an MLM head."""

    def fill_mask(self, text: str, k: int = 5) -> list[Candidate] | list[list[Candidate]]:
        """Return the k most likely tokens at the mask, or one such list per mask if there are several."""
        lists = [mask.candidates for mask in self.fill_masks(text, k)]
        return lists[0] if len(lists) == 1 else lists

    def fill_masks(self, text: str, k: int = 5) -> list[FilledMask]:
        """Return every mask of a text with its place in characters and the k most likely tokens for it."""
        masked = self.prepare_masks(text, k)
        if dropped := masked.encoded.dropped:
            warnings.warn(TextsCut(1, 1, self.max_length, dropped), stacklevel=2)
        return self.fill_prepared([masked])[0]

    def prepare_masks(self, text: str, k: int = 5) -> MaskedText:
        """Check and tokenize a text with masks; `encoded.dropped` of the result counts the tokens that were cut."""
        if self.architecture.causal:
            raise UserError(
                f"{self.name}: reads left to right and predicts the next token, so it cannot fill a mask; "
                "continue a text with it (bertree generate)"
            )
        if "mask" not in self.network.heads:
            raise UserError(f"{self.name}: has no MLM head, so it cannot fill a mask")
        if self.tokenizer is None or self.tokenizer.id_of("mask") is None:
            raise UserError(f"{self.name}: has no tokenizer with a mask token; give `tokenizer=FOLDER`")
        if not isinstance(text, str):
            raise UserError(f"fill_mask: takes one text, not {type(text).__name__}")
        if k < 1:
            raise UserError(f"k: must be at least 1, not {k}")
        written, spans = find_masks(replace_surrogates(text), self.tokenizer)
        (encoded,) = self.tokenizer.encode([written], self.max_length)
        mask = self.tokenizer.id_of("mask")
        places = [place for place, token in enumerate(encoded.ids) if token == mask]
        if len(places) != len(spans):
            if not encoded.dropped:
                raise UserError(f"{self.name}: the tokenizer splits its own mask token; are its files damaged?")
            raise UserError(
                f"{self.name}: a mask is beyond the first {self.max_length} tokens and was cut off; shorten the text"
            )
        return MaskedText(encoded, places, spans, k)

    def fill_prepared(self, texts: Sequence[MaskedText]) -> list[list[FilledMask]]:
        """Return the masks of each of these texts, which are computed together."""
        batch = self._pack([text.encoded for text in texts])
        starts = [0, *accumulate(len(text.encoded.ids) for text in texts)]
        chosen = [start + place for start, text in zip(starts, texts, strict=False) for place in text.places]
        if isinstance(self.architecture, Transformer) and self.architecture.query_stream:
            batch, chosen = predict_places(batch, chosen, [len(text.places) for text in texts])
        batch = batch.to(self.device)
        with self._evaluating(), torch.no_grad():
            logits_mv = self.network.mask_logits(self._states(batch), torch.tensor(chosen, device=self.device))
        check_finite(logits_mv, self.name)
        tokenizer = self.required_tokenizer
        shares_mv = logits_mv.float()[:, : tokenizer.size].softmax(-1)
        parts = zip(texts, shares_mv.split([len(text.places) for text in texts]), strict=True)
        lists = ((text.spans, top_candidates(rows, tokenizer, text.k)) for text, rows in parts)
        return [[FilledMask(*s, found) for s, found in zip(spans, some, strict=True)] for spans, some in lists]

    def _states(self, batch: Batch) -> Tensor:
        """Return the states that the head reads, by the fast encoder if there is one; int8 is for vectors alone."""
        compute = self.network if self._runtime.int8 else self._runtime.states_of(self.network)
        states_th: Tensor = compute(batch)
        return states_th


def find_masks(text: str, tokenizer: Tokenizer) -> tuple[str, list[tuple[int, int]]]:
    """Find every mask of a text ([MASK], <mask>, or the tokenizer's own); return the text with masks as the tokenizer
    writes them, and where they are in the text as it was given."""
    mask = tokenizer.special["mask"]
    pattern = re.compile("|".join(map(re.escape, sorted({*MASKS, mask}, key=len, reverse=True))))
    spans = [found.span() for found in pattern.finditer(text)]
    if not spans:
        raise UserError(f"the text has no mask; put {mask} where a token is missing")
    return pattern.sub(lambda found: mask, text), spans


def predict_places(batch: Batch, chosen: Sequence[int], counts: Sequence[int]) -> tuple[Batch, list[int]]:
    """Let a query stream (XLNet) predict tokens of a batch from all others, and not from each other; return the batch
    and the rows of the states that do. `counts`: how many of the tokens are in each sequence."""
    tokens, places = len(batch.ids), torch.tensor(chosen)
    ranks = torch.zeros(tokens, dtype=torch.int32).index_fill(0, places, 1)
    bounds = torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
    predicted = replace(batch, permutation=Permutation(ranks, places, bounds, max(counts)))
    return predicted, list(range(tokens, tokens + len(chosen)))


def top_candidates(shares_mv: Tensor, tokenizer: Tokenizer, k: int) -> list[list[Candidate]]:
    """Return the k most likely tokens of each row of probabilities."""
    best = shares_mv.topk(min(k, shares_mv.shape[1]))
    return [
        [Candidate(tokenizer.token(i), p, i) for p, i in zip(ps, ids, strict=True)]
        for ps, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
