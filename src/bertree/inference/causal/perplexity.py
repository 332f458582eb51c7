"""How well a left-to-right model predicts texts: perplexity per token and word, bits per character and byte; and the
last words of passages, as in LAMBADA (Paperno et al. 2016).

Losses per token of different tokenizers cannot be compared; those per word, character and byte of the same text can.
A text longer than the context is read in overlapping windows, and every token is predicted exactly once:

    [prefix] a b c d e f        the first window predicts all of its tokens
    [prefix]     c d e f g h    the next ones predict `stride` tokens each; the rest is context
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bertree.console import bar
from bertree.errors import UserError
from bertree.inference.causal.scoring import SEGMENT, Ints, Losses, check_memory, score, score_segments
from bertree.inference.causal.texts import (
    TextMarks,
    check_left_to_right,
    is_backward,
    position_limit,
    prefix_ids,
)
from bertree.inference.inputs import check_finite
from bertree.inference.loaded import LoadedModel
from bertree.text.tokenizer import Tokenizer

LONGEST = 1024  # tokens of a window, if the positions of a model have no limit


@dataclass(frozen=True, kw_only=True)
class TextCounts:
    """Sizes of texts that do not depend on the tokenizer."""

    documents: int
    words: int  # divided by white space
    lines: int  # line ends
    characters: int
    bytes: int  # in UTF-8

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextCounts":
        """Count."""
        return cls(
            documents=len(texts),
            words=sum(len(text.split()) for text in texts),
            lines=sum(text.count("\n") for text in texts),
            characters=sum(map(len, texts)),
            bytes=sum(len(text.encode("utf-8", "replace")) for text in texts),
        )


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a model predicts texts. Losses are in nats."""

    total: float  # loss of all predicted tokens
    tokens: int  # predicted
    unpredicted: int  # first tokens of documents, where the tokenizer has no start token
    unknown: int  # predicted tokens that stand for text the tokenizer does not know
    counts: TextCounts
    context_least: int  # tokens that a predicted token was predicted from: the fewest
    context_mean: float
    seconds: float

    @property
    def loss(self) -> float:
        """Loss per token."""
        return self.total / self.tokens

    @property
    def perplexity(self) -> float:
        """Perplexity per token, for models with the same tokenizer."""
        return _exp(self.loss)

    @property
    def word_perplexity(self) -> float:
        """Perplexity per word, words divided by white space."""
        return _exp(self.total / max(self.counts.words, 1))

    @property
    def word_and_line_perplexity(self) -> float:
        """Perplexity per word where the end of a line counts as a word, as published for WikiText."""
        return _exp(self.total / max(self.counts.words + self.counts.lines, 1))

    @property
    def bits_per_character(self) -> float:
        """Bits per character."""
        return self.total / math.log(2) / self.counts.characters

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of UTF-8."""
        return self.total / math.log(2) / self.counts.bytes

    @property
    def speed(self) -> float:
        """Predicted tokens per second."""
        return self.tokens / max(self.seconds, 1e-9)

    def as_mapping(self) -> dict[str, float]:
        """Return every figure by name."""
        figures = ("loss", "perplexity", "word_perplexity", "word_and_line_perplexity", "bits_per_character")
        values = {name: getattr(self, name) for name in (*figures, "bits_per_byte", "speed")}
        return values | {k: v for k, v in vars(self).items() if k != "counts"} | vars(self.counts)

    def __repr__(self) -> str:
        return (
            f"<perplexity {self.perplexity:.2f} per token, {self.word_perplexity:.2f} per word, "
            f"{self.bits_per_byte:.3f} bits per byte; {self.tokens:,} tokens, {self.speed:,.0f} tokens/s>"
        )


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


@dataclass(frozen=True)
class Reading:
    """How documents are read; see `Model.perplexity`."""

    context: int | None = None
    stride: int | None = None
    memory: int | None = None
    control: str | None = None
    given: str | None = None

    def __post_init__(self) -> None:
        for name, value, least in (
            ("context", self.context, 2),
            ("stride", self.stride, 1),
            ("memory", self.memory, 1),
        ):
            if value is not None and value < least:
                hint = "; leave it out to read windows without memory" if name == "memory" else ""
                raise UserError(f"{name}: must be {least} or more, not {value}{hint}")
        if self.memory is not None and self.stride is not None:
            raise UserError("stride: is for windows; with a memory every segment is read once")


def measure_perplexity(model: LoadedModel, texts: Iterable[str] | str, reading: Reading) -> Perplexity:
    """Predict every token of texts once."""
    check_left_to_right(model, "perplexity", "; for masked tokens: `bertree evaluate --task mlm --store STORE`")
    checked = _check_texts(texts)
    tokenizer = model.required_tokenizer
    remembers = bool(getattr(model.architecture, "memory", 0))
    with_memory = reading.memory is not None or (remembers and reading.stride is None)
    marks = TextMarks.of(tokenizer, model.architecture)
    prefix = prefix_ids(model, reading.control, reading.given) or marks.before
    start = prefix or marks.start
    documents = [encoding.ids for encoding in tokenizer.encode_plain(checked)]
    if is_backward(model):
        documents = [ids[::-1] for ids in documents]
    predicted = sum(max(0, len(ids) - (not start)) for ids in documents)
    if not predicted:
        raise UserError(
            "perplexity: the text has one token, and the tokenizer has no start token to predict it from; give more"
        )
    begun = time.perf_counter()
    with bar("tokens", predicted, speed="tokens") as progress:
        if with_memory:
            memory, segment = check_memory(model, reading.memory), reading.context or SEGMENT
            losses, context = score_segments(model, documents, start, memory, segment, progress.advance)
        else:
            losses, context = _score_windows(model, documents, prefix, start, reading, progress.advance)
    seconds = time.perf_counter() - begun
    assert len(losses) == predicted, "every token is predicted once"
    check_finite(losses, model.name)
    unknown = tokenizer.id_of("unk")
    return Perplexity(
        total=float(losses.sum()),
        tokens=len(losses),
        unpredicted=0 if start else len(documents),
        unknown=0 if unknown is None else sum(ids.count(unknown) for ids in documents),
        counts=TextCounts.of(checked),
        context_least=int(context.min()),
        context_mean=float(context.mean()),
        seconds=seconds,
    )


def _score_windows(
    model: LoadedModel,
    documents: Sequence[Sequence[int]],
    prefix: Sequence[int],
    start: Sequence[int],
    reading: Reading,
    advance: Callable[[int], None],
) -> tuple[Losses, Ints]:
    """Return the loss of every token of documents, and the number of tokens each was predicted from."""
    limit = position_limit(model.architecture)
    context = reading.context or min(limit or LONGEST, model.max_length)
    if limit is not None and context > limit:
        raise UserError(f"context: {model.name} has {limit:,} positions, so windows cannot have {context:,} tokens")
    stride = reading.stride or max(1, min(context // 2, context - len(prefix)))
    if stride > context - max(1, len(prefix)):
        raise UserError(f"stride: a window of {context:,} tokens cannot predict {stride:,} new ones")
    windows = [window for ids in documents for window in cut_windows(ids, prefix, start, context, stride)]
    scored = score(model, [window.ids for window in windows], [window.first for window in windows], advance)
    seen = [np.arange(window.first, len(window.ids)) for window in windows]
    return np.concatenate([window_scores.losses for window_scores in scored]), np.concatenate(seen)


def _check_texts(texts: Iterable[str] | str) -> list[str]:
    checked = [texts] if isinstance(texts, str) else list(texts)
    for text in checked:
        if not isinstance(text, str):
            raise UserError(f"perplexity: takes texts, not {type(text).__name__}")
    checked = [text for text in checked if text.strip()]
    if not checked:
        raise UserError("perplexity: the text is empty")
    return checked


@dataclass(frozen=True)
class TextWindow:
    """Tokens that a model reads at once; it predicts those from index `first` on."""

    ids: list[int]
    first: int


def cut_windows(
    document: Sequence[int], prefix: Sequence[int], start: Sequence[int], context: int, stride: int
) -> Iterator[TextWindow]:
    """Cut a document into windows of at most `context` tokens.

    `prefix` is put before every window. Without a prefix, `start` is put before the first one; without either, the
    first token of the document cannot be predicted.
    """
    first = list(prefix or start)
    if context <= len(first):
        raise UserError(f"context {context}: leaves no room for text after {len(first)} tokens that are put before it")
    assert 1 <= stride <= context - max(1, len(prefix)), "a token is predicted from one before it"
    end = min(len(document), context - len(first))
    if first or end > 1:
        yield TextWindow([*first, *document[:end]], max(1, len(first)))
    while end < len(document):
        done, end = end, min(len(document), end + stride)
        begin = max(0, end - (context - len(prefix)))
        yield TextWindow([*prefix, *document[begin:end]], len(prefix) + done - begin)


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
