"""Which tokens a text begins and ends with, and how tokens become text again."""

from collections.abc import Sequence
from dataclasses import dataclass

from bertree.errors import UserError, suggest
from bertree.model.architecture import Architecture
from bertree.text.cleaning import replace_surrogates
from bertree.text.control import control_prefix
from bertree.text.tokenizer import Tokenizer

NEVER = ("pad", "mask", "cls", "unk")  # special tokens that are no text
REPLACEMENT = "�"  # what an incomplete character is decoded to


@dataclass(frozen=True)
class TextMarks:
    """The special tokens around a text.

    Models whose classifier reads a token of its own ([CLS], as in BERT) have it before every text that they read.
    Others (GPT) are trained on streams of texts with a token between them, and read cuts of it that start anywhere.
    """

    before: list[int]  # put before every text
    start: list[int]  # what a model may start from without a text; empty: there is none
    end: int | None  # the token that ends a text

    @classmethod
    def of(cls, tokenizer: Tokenizer, a: Architecture) -> "TextMarks":
        """Find those of a model's texts."""
        first, last = tokenizer.id_of("cls"), tokenizer.end_id
        if first is not None and a.sequence_head != "linear":
            return cls([first], [first], last)
        start = _named_start(tokenizer) if last is None else last
        return cls([], [] if start is None else [start], last)


def _named_start(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that the tokenizer's configuration calls bos."""
    named = tokenizer.config.get("bos_token")
    named = named.get("content") if isinstance(named, dict) else named
    return tokenizer.backend.token_to_id(named) if isinstance(named, str) else None


def check_control(control: str, known: Sequence[str], name: str) -> None:
    """Refuse a control code that a model does not know."""
    if not known:
        raise UserError(f"{name}: was not trained with control codes; leave out the code '{control}'")
    if control not in known:
        raise UserError(f"control code '{control}': {name} does not know it, {suggest(control, known)}")


def prompt_ids(tokenizer: Tokenizer, prompt: str, control: str | None, marks: TextMarks) -> list[int]:
    """Return the tokens that a model reads before it continues a prompt."""
    before = marks.before if control is None else control_prefix(tokenizer, control)
    ids = before + tokenizer.encode_plain([replace_surrogates(prompt)])[0].ids
    ids = ids or marks.start
    if not ids:
        raise UserError("the tokenizer has no start token, so the prompt must not be empty")
    return ids


class PieceDecoder:
    """Turns the tokens that follow a prompt into text, piece by piece and only whole characters.

    Decoders join pieces by what follows (WordPiece puts a space before a word but not before a full stop), so a word is
    given once the next one has begun. `finish` gives the rest.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer, self.prompt = tokenizer, list(prompt)
        self.ids: list[int] = []
        self.before = self._decode(self.prompt)
        self.given = ""

    @property
    def text(self) -> str:
        """The text so far."""
        whole = self._decode(self.prompt + self.ids)
        return whole[len(self.before) :] if whole.startswith(self.before) else self._decode(self.ids)

    def add(self, token: int) -> str:
        """Add a token and return what can be shown now."""
        self.ids.append(token)
        text = self.text.rstrip(REPLACEMENT)
        end = max(text.rfind(" "), text.rfind("\n"))
        return self._give(text[: max(end, 0)])

    def finish(self) -> str:
        """Return the rest."""
        return self._give(self.text)

    def _give(self, text: str) -> str:
        if not text.startswith(self.given):  # the decoder joined what was given before in another way
            return ""
        piece = text[len(self.given) :]
        self.given = text
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.backend.decode(list(ids), skip_special_tokens=True))
