"""Masks in texts, and the most likely tokens for them.

A text is prepared first and computed later. So a server can refuse it before it waits, and compute several texts in one
batch. Shape letters: t tokens, h width, m masks, v vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from bertree.batch import Batch, Permutation
from bertree.errors import UserError
from bertree.inference.inputs import check_finite
from bertree.inference.loaded import LoadedModel
from bertree.model.architecture import Transformer
from bertree.text.cleaning import replace_surrogates
from bertree.text.tokenizer import Encoded, Tokenizer

MASKS = ("[MASK]", "<mask>")
# What language models do instead of filling masks, by the axis `direction`.
READS = {
    "forward": "reads left to right and predicts the next token",
    "backward": "reads right to left and predicts the token before",
    "both": "reads in one direction and then in the other, never both sides at once",
}


class Candidate(NamedTuple):
    """A token for a mask."""

    token: str
    probability: float  # of this token among all of the vocabulary
    id: int


class FilledMask(NamedTuple):
    """A mask of a text, text[start:end], and the most likely tokens for it."""

    start: int
    end: int
    candidates: list[Candidate]  # the most likely one first


class MaskedText(NamedTuple):
    """A text with masks, tokenized, and how many candidates are wanted for each."""

    encoded: Encoded
    positions: list[int]  # of the masks among its tokens
    spans: list[tuple[int, int]]  # of the masks in the text, in characters
    k: int


def prepare_masks(model: LoadedModel, text: str, k: int) -> MaskedText:
    """Check and tokenize a text with masks; `encoded.dropped` of the result counts the tokens that were cut."""
    if model.architecture.causal:
        raise UserError(
            f"{model.name}: {READS[model.architecture.direction]}, so it cannot fill a mask; continue a text"
            f"{' with it' if model.architecture.readers == 1 else ' with a model of one direction'} (bertree generate)"
        )
    if "mask" not in model.network.heads:
        raise UserError(f"{model.name}: has no MLM head, so it cannot fill a mask")
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.id_of("mask") is None:
        raise UserError(f"{model.name}: has no tokenizer with a mask token; give `tokenizer=FOLDER`")
    if not isinstance(text, str):
        raise UserError(f"fill_mask: takes one text, not {type(text).__name__}")
    if k < 1:
        raise UserError(f"k: must be at least 1, not {k}")
    written, spans = find_masks(replace_surrogates(text), tokenizer)
    (encoded,) = tokenizer.encode_batch([written], model.max_length)
    mask = tokenizer.id_of("mask")
    positions = [position for position, token in enumerate(encoded.ids) if token == mask]
    if len(positions) != len(spans):
        if not encoded.dropped:
            raise UserError(f"{model.name}: the tokenizer splits its own mask token; are its files damaged?")
        raise UserError(
            f"{model.name}: a mask is beyond the first {model.max_length} tokens and was cut off; shorten the text"
        )
    return MaskedText(encoded, positions, spans, k)


def fill_prepared(model: LoadedModel, texts: Sequence[MaskedText]) -> list[list[FilledMask]]:
    """Return the masks of each text; the texts are computed as one batch."""
    tokenizer = model.required_tokenizer
    probabilities_mv = mask_logits(model, texts).softmax(-1)
    filled = []
    for text, text_mv in zip(texts, probabilities_mv.split([len(text.positions) for text in texts]), strict=True):
        candidates = top_candidates(text_mv, tokenizer, text.k)
        filled.append([FilledMask(*span, best) for span, best in zip(text.spans, candidates, strict=True)])
    return filled


def mask_logits(model: LoadedModel, texts: Sequence[MaskedText]) -> Tensor:
    """Return the logits of all tokens at the masks of all texts, a row for each mask; one batch is computed."""
    batch = model.pack([text.encoded for text in texts])
    starts = [0, *accumulate(len(text.encoded.ids) for text in texts)]
    rows = [start + position for start, text in zip(starts, texts, strict=False) for position in text.positions]
    counts = [len(text.positions) for text in texts]
    if isinstance(model.architecture, Transformer) and model.architecture.query_stream:
        batch, rows = add_query_rows(batch, rows, counts)
    batch = batch.to(model.device)
    with model.evaluating(), torch.no_grad():
        hidden_th = model.inference_encoder(int8=False)(batch)
        logits_mv = model.network.mask_logits(hidden_th, torch.tensor(rows, device=model.device))
    check_finite(logits_mv, model.name)
    return logits_mv.float()[:, : model.required_tokenizer.size]


def find_masks(text: str, tokenizer: Tokenizer) -> tuple[str, list[tuple[int, int]]]:
    """Find every mask of a text: [MASK], <mask>, or the tokenizer's own.

    Return the text with masks as the tokenizer writes them, and the spans of the masks in the original text.
    """
    mask = tokenizer.special["mask"]
    pattern = re.compile("|".join(map(re.escape, sorted({*MASKS, mask}, key=len, reverse=True))))
    spans = [match.span() for match in pattern.finditer(text)]
    if not spans:
        raise UserError(f"the text has no mask; put {mask} where a token is missing")
    return pattern.sub(lambda match: mask, text), spans


def add_query_rows(batch: Batch, rows: Sequence[int], counts: Sequence[int]) -> tuple[Batch, list[int]]:
    """Let a query stream (XLNet) predict the tokens in `rows` from all others, and not from each other.

    Return the batch and the rows of the hidden states that predict them. `counts`: predicted tokens of each sequence.
    """
    tokens, predicted = len(batch.ids), torch.tensor(rows)
    ranks = torch.zeros(tokens, dtype=torch.int32).index_fill(0, predicted, 1)
    bounds = torch.tensor([0, *accumulate(counts)], dtype=torch.int32)
    permuted = replace(batch, permutation=Permutation(ranks, predicted, bounds, max(counts)))
    return permuted, list(range(tokens, tokens + len(rows)))


def top_candidates(probabilities_mv: Tensor, tokenizer: Tokenizer, k: int) -> list[list[Candidate]]:
    """Return the k most likely tokens of each row of probabilities."""
    best = probabilities_mv.topk(min(k, probabilities_mv.shape[1]))
    return [
        [Candidate(tokenizer.token(i), p, i) for p, i in zip(ps, ids, strict=True)]
        for ps, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
