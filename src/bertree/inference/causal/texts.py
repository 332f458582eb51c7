"""Texts of left-to-right models: checks of the model, files, the special tokens around a text, and tokens as text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.console import note
from bertree.errors import UserError, listed, suggest
from bertree.inference.loaded import LoadedModel
from bertree.model.architecture import Architecture
from bertree.model.directions import DirectedEncoder
from bertree.model.network import Network
from bertree.model.presets import PRESETS
from bertree.text.cleaning import replace_surrogates
from bertree.text.framing import control_prefix
from bertree.text.readers import CorpusCounts, read_documents
from bertree.text.sources import STANDARD_INPUT, find_sources, open_source
from bertree.text.tokenizer import Tokenizer


def check_left_to_right(model: LoadedModel, what: str, for_masked: str = "") -> None:
    """Refuse a model that does not predict the next token. `for_masked`: what to do with a masked model."""
    if not model.architecture.causal:
        causal = [name for name, preset in PRESETS.items() if preset.architecture.causal and not preset.study]
        which = f" ({listed(causal)})" if causal else ""
        raise UserError(
            f"{what}: {model.name} sees the text on both sides of a token; only left-to-right models{which}, or others "
            f"with attention = causal, predict the next one{for_masked}"
        )
    if "mask" not in model.network.heads or model.network.features is not None:
        raise UserError(f"{what}: {model.name} has no LM head; give a model that was not fine-tuned to a task")
    if model.architecture.readers > 1:
        raise UserError(
            f"{what}: {model.name} reads a text in both directions (direction = both), so it has no next token; give a "
            "model with direction = forward or backward"
        )
    if not model.architecture.has_attention:
        raise UserError(f"{what}: is for transformers; {model.name} is an LSTM")


def is_backward(model: LoadedModel) -> bool:
    """Return whether a model reads from right to left: its sequences have their tokens in reverse order."""
    return model.architecture.direction == "backward"


def reading_network(model: LoadedModel) -> Network:
    """Return the network that predicts the next token of a sequence in the order in which the model reads."""
    network = model.network
    if not isinstance(network.encoder, DirectedEncoder):
        return network
    return Network(network.encoder.read_in_reverse(), {"mask": network.heads["mask"]}, width=network.width).eval()


def position_limit(a: Architecture) -> int | None:
    """Return how long a sequence may be; None if positions have no table and so no end."""
    return a.max_positions if getattr(a, "positions", "learned") in ("learned", "axial") else None


def read_texts(
    path: str | Path, *, lines: bool = False, column: str | None = None, format: str | None = None
) -> list[str]:
    """Return the texts of a file: plain text is one text, or one for each line that is not empty (`lines`); .jsonl,
    .csv, .tsv and .parquet have one in each record."""
    name = str(path)
    sources = find_sources([name], format)
    if len(sources) != 1:
        raise UserError(f"{name}: is not one file; give one")
    if column is not None and sources[0].format == "text":
        raise UserError(f"{name}: is plain text and has no column '{column}'")
    counts = CorpusCounts()
    with open_source(sources[0]) as (stream, _):
        texts = [document.text for document in read_documents(sources[0], stream, column or "text", True, counts)]
    if sources[0].format == "text":  # it was read in pieces
        texts = "".join(texts).splitlines() if lines else ["".join(texts)]
    if counts.invalid_lines:
        note(f"{name}: {counts.invalid_lines:,} lines hold bytes that are not UTF-8, which were replaced")
    if counts.broken or counts.missing:
        note(f"{name}: {counts.broken + counts.missing:,} records have no text and were left out")
    texts = [replace_surrogates(text) for text in texts if text.strip()]
    if not texts:
        raise UserError(f"{'standard input' if name == STANDARD_INPUT else name}: holds no text")
    return texts


NEVER = ("pad", "mask", "cls", "unk")  # special tokens that are no text
REPLACEMENT = "�"  # what an incomplete character is decoded to
CONTEXT, MOST_KEPT = 16, 48  # tokens that the text of a token may depend on; tokens kept before older ones are dropped
LONGEST = 256  # tokens, or characters, that decode to nothing valid before they are shown as they are
LONGEST_WORD = 40  # characters that are held back
WORD_END = re.compile(r"[\s\u2e80-\ufffc\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class TextMarks:
    """The special tokens around a text, in the order in which the model reads.

    Models whose classifier reads a token of its own ([CLS], as in BERT) read it before every text.
    Others (GPT) are trained on streams of texts with a token between them, and read slices that start anywhere.
    """

    before: list[int]  # put before every text
    start: list[int]  # read instead of an empty text; empty: the model needs a text
    end: int | None  # the token that ends a text

    @classmethod
    def of(cls, tokenizer: Tokenizer, a: Architecture) -> "TextMarks":
        """Find those of a model's texts."""
        first, last = tokenizer.id_of("cls"), tokenizer.end_id
        if first is not None and a.sequence_head != "linear":
            if a.direction == "backward" and last is not None:
                first, last = last, first
            return cls([first], [first], last)
        start = _named_start(tokenizer) if last is None else last
        return cls([], [] if start is None else [start], last)


def _named_start(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that the tokenizer's configuration calls bos."""
    named = tokenizer.config.get("bos_token")
    named = named.get("content") if isinstance(named, dict) else named
    return tokenizer.backend.token_to_id(named) if isinstance(named, str) else None


def check_control(control: str, codes: Sequence[str], name: str) -> None:
    """Refuse a control code that a model does not know."""
    if not codes:
        raise UserError(f"{name}: was not trained with control codes; leave out the code '{control}'")
    if control not in codes:
        raise UserError(f"control code '{control}': {name} does not know it, {suggest(control, codes)}")


def prefix_ids(model: LoadedModel, control: str | None, given: str | None) -> list[int]:
    """Return the tokens of a control code and of the given text that follows it; none without a code."""
    if control is None:
        if given:
            raise UserError("given: the text follows a control code; give one too (`control`)")
        return []
    check_control(control, model.controls, model.name)
    if given and not model.takes_given:
        raise UserError(f"given: {model.name} was trained with control codes alone; leave it out")
    prefix = control_prefix(model.required_tokenizer, control, replace_surrogates(" ".join((given or "").split())))
    limit = position_limit(model.architecture)
    if limit is not None and len(prefix) >= limit:
        raise UserError(
            f"given: the text and its code have {len(prefix):,} tokens, and {model.name} has {limit:,} positions: "
            "nothing can follow; shorten it"
        )
    return prefix


def prompt_ids(
    tokenizer: Tokenizer, prompt: str, prefix: list[int], marks: TextMarks, backward: bool = False
) -> list[int]:
    """Return the tokens that a model reads before it continues a prompt: those of a control code (`prefix`), or what
    comes before every text, and the prompt; `backward`: from its end."""
    before = prefix or marks.before
    text = tokenizer.encode_plain([replace_surrogates(prompt)])[0].ids
    ids = before + (text[::-1] if backward else text)
    ids = ids or marks.start
    if not ids:
        raise UserError("the tokenizer has no start token, so the prompt must not be empty")
    return ids


def text_before(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of tokens that were generated before a prompt, both in the order in which they were read."""
    decode = lambda tokens: str(tokenizer.backend.decode(list(tokens)[::-1], skip_special_tokens=True))  # noqa: E731
    after, whole = decode(prompt), decode([*prompt, *ids])
    return whole.removesuffix(after) if whole.endswith(after) else decode(ids)


class PieceDecoder:
    """Turns the tokens that follow a prompt into text, piece by piece, in complete characters.

    Decoders join tokens by what follows (WordPiece puts a space before a word but not before a full stop), so a word is
    returned once the next one has begun. `finish` returns the rest. The text of a token depends on a few tokens before
    it at most, so only those are decoded again with it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer, self.prompt = tokenizer, list(prompt)
        self.ids: list[int] = []
        self._returned: list[str] = []
        self._kept: list[int] = []  # the last tokens
        self._shown: str = ""  # the beginning of their text that was returned
        self._restart(self.prompt[-CONTEXT:])

    @property
    def text(self) -> str:
        """The text so far."""
        prompt, text = self._decode(self.prompt), self._decode(self.prompt + self.ids)
        return text[len(prompt) :] if text.startswith(prompt) else self._decode(self.ids)

    def add(self, token: int) -> str:
        """Add a token and return what can be shown now."""
        self.ids.append(token)
        self._kept.append(token)
        text = self._decode(self._kept)
        if not text.startswith(self._shown) and not self._returned:  # the prompt ends within a character
            self._restart([])
            self._kept, text = list(self.ids), self._decode(self.ids)
        if not text.startswith(self._shown):  # within a character: some decoders write each of its bytes
            if len(self._kept) > LONGEST:
                self._restart(self._kept[-CONTEXT:])
            return ""
        piece = _whole_words(text[len(self._shown) :])
        self._shown += piece
        if piece:
            self._returned.append(piece)
        if len(self._kept) >= MOST_KEPT and not len(self._kept) % CONTEXT:
            self._forget(text)
        return piece

    def finish(self) -> str:
        """Return the rest."""
        text, returned = self.text, "".join(self._returned)
        if not text.startswith(returned):  # the last words are still right
            text, returned = self._decode(self._kept), self._shown
        rest = text[len(returned) :] if text.startswith(returned) else ""
        self._returned.append(rest)
        return rest

    def _restart(self, tokens: list[int]) -> None:
        """Continue after these tokens, whose text was shown."""
        self._kept, self._shown = tokens, self._decode(tokens)

    def _forget(self, text: str) -> None:
        """Keep only the last tokens: enough that their text is the same without the others (they do not begin within a
        character) and includes what was not returned yet. `text`: of all kept tokens."""
        rest = len(text) - len(self._shown)
        for count in range(CONTEXT, 2 * CONTEXT):
            last = self._decode(self._kept[-count:])
            if len(last) >= rest and text.endswith(last):
                self._kept, self._shown = self._kept[-count:], last[: len(last) - rest]
                return

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.backend.decode(list(ids), skip_special_tokens=True))


def _whole_words(text: str) -> str:
    """Return the beginning of a text that no further token changes: up to the last space, or the last character of a
    script that has no spaces; all of it if it is long and has neither. The last characters may be incomplete."""
    complete = text.rstrip(REPLACEMENT)
    if len(text) - len(complete) > LONGEST:
        return text
    end = max(
        (match.start() if match.group().isspace() else match.end() for match in WORD_END.finditer(complete)), default=0
    )
    return complete[:end] if end or len(complete) <= LONGEST_WORD else complete
