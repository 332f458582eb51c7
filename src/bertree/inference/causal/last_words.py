"""LAMBADA: the last word of a passage, predicted from the text before it (Paperno et al. 2016)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bertree.console import bar
from bertree.errors import UserError
from bertree.inference.causal.scoring import score
from bertree.inference.causal.texts import TextMarks, check_left_to_right, is_backward, position_limit
from bertree.inference.loaded import LoadedModel
from bertree.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LastWords:
    """How well a model predicts the last words of passages."""

    accuracy: float  # share of words whose tokens are each the most likely one
    filtered_accuracy: float  # the same if no stop word is predicted, as GPT-2's authors have it
    perplexity: float  # per word
    passages: int
    seconds: float

    def __repr__(self) -> str:
        accuracy = f"accuracy {100 * self.accuracy:.2f} % ({100 * self.filtered_accuracy:.2f} % without stop words)"
        share = f"{accuracy}, perplexity {self.perplexity:.2f} of the last word"
        return f"<{share}; {self.passages:,} passages in {self.seconds:.1f} s>"


# English function words, which seldom end a passage; "s", "t" and "don" are what some tokenizers leave of "don't".
STOP_WORDS = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself
    it its itself they them their theirs themselves what which who whom this that these those am is are was were be
    been being have has had having do does did doing a an the and but if or because as until while of at by for with
    about against between into through during before after above below to from up down in out on off over under again
    further then once here there when where why how all any both each few more most other some such no nor not only own
    same so than too very s t can will just don should now
"""


def stop_word_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that are stop words."""
    words = set(STOP_WORDS.split())
    texts = tokenizer.backend.decode_batch([[token] for token in range(tokenizer.size)], skip_special_tokens=False)
    return [token for token, text in enumerate(texts) if text.strip().lower() in words]


def predict_last_words(model: LoadedModel, passages: Sequence[str]) -> LastWords:
    """Predict the last word of each passage from the text before it (LAMBADA, Paperno et al. 2016).

    The strict accuracy counts words whose tokens are each the most likely one. Because stop words seldom end a passage,
    the filtered one leaves them out of the candidates for the first token (Radford et al. 2019)."""
    check_left_to_right(model, "lambada")
    if is_backward(model):
        raise UserError(f"lambada: {model.name} reads from right to left, so nothing comes before the last word")
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
        ids, position = ids[spare:], len(start) + before - spare
        if position < 1 or position >= len(ids):
            raise UserError(f"passage {number}: its last word cannot be predicted: {text[-40:]!r}")
        sequences.append(ids)
        first.append(position)
    if not sequences:
        raise UserError("lambada: there are no passages")
    with bar("words", sum(map(len, sequences)) - sum(first), speed="tokens") as progress:
        scored = score(model, sequences, first, progress.advance, stop_word_ids(tokenizer))
    loss = sum(float(word.losses.sum()) for word in scored) / len(scored)
    right = sum(bool(word.right.all()) for word in scored) / len(scored)
    filtered = sum(bool(word.first_right and word.right[1:].all()) for word in scored) / len(scored)
    return LastWords(right, filtered, math.exp(min(loss, 700)), len(scored), time.perf_counter() - begun)
