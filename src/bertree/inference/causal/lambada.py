"""LAMBADA: predict the last word of a passage (Paperno et al. 2016)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bertree.console import bar
from bertree.errors import UserError
from bertree.inference.causal.checks import check_left_to_right, position_limit
from bertree.inference.causal.prompts import TextMarks
from bertree.inference.causal.scoring import score
from bertree.inference.loaded import LoadedModel


@dataclass(frozen=True)
class LastWords:
    """How well a model predicts the last words of passages."""

    accuracy: float  # share of words whose tokens are all the likeliest, one after the other
    perplexity: float  # per word
    passages: int
    seconds: float

    def __repr__(self) -> str:
        share = f"accuracy {100 * self.accuracy:.2f} %, perplexity {self.perplexity:.2f} of the last word"
        return f"<{share}; {self.passages:,} passages in {self.seconds:.1f} s>"


def predict_last_words(model: LoadedModel, passages: Sequence[str]) -> LastWords:
    """Predict the last word of each passage from all that stands before it."""
    check_left_to_right(model, "lambada")
    tokenizer = model.required_tokenizer
    start = TextMarks.of(tokenizer, model.architecture).before
    limit = position_limit(model.architecture)
    begun, sequences, first = time.perf_counter(), [], []
    texts = [passage.strip() for passage in passages]
    for number, (text, encoding) in enumerate(zip(texts, tokenizer.encode_plain(texts, offsets=True), strict=True), 1):
        begin = len(text) - len((text.split() or [""])[-1])
        if not begin:
            raise UserError(f"passage {number}: has fewer than two words: {text[:40]!r}")
        before = sum(end <= begin for _, end in encoding.offsets)
        ids = [*start, *encoding.ids]
        spare = max(0, len(ids) - (limit or len(ids)))
        ids, place = ids[spare:], len(start) + before - spare
        if place < 1 or place >= len(ids):
            raise UserError(f"passage {number}: its last word cannot be predicted: {text[-40:]!r}")
        sequences.append(ids)
        first.append(place)
    if not sequences:
        raise UserError("lambada: there are no passages")
    with bar("words", sum(map(len, sequences)) - sum(first), speed="tokens") as progress:
        scored = score(model, sequences, first, progress.advance)
    loss = sum(float(one.losses.sum()) for one in scored) / len(scored)
    right = sum(bool(one.right.all()) for one in scored) / len(scored)
    return LastWords(right, math.exp(min(loss, 700)), len(scored), time.perf_counter() - begun)
