"""Generate text with a left-to-right model."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bertree.errors import UserError
from bertree.inference.causal.continuation import Choice, Continued, continue_all, continue_one, search
from bertree.inference.causal.sampling import Sampling
from bertree.inference.causal.texts import (
    NEVER,
    PieceDecoder,
    TextMarks,
    check_control,
    check_left_to_right,
    position_limit,
    prompt_ids,
)
from bertree.inference.inputs import Input, list_inputs
from bertree.inference.loaded import LoadedModel

TOKENS = 100  # generated if nothing else is asked for


@dataclass(frozen=True)
class GeneratedText:
    """One continuation of a prompt."""

    prompt: str
    text: str  # what follows the prompt
    ids: list[int]  # its tokens, without the end token
    ended: bool  # the model ended the text; else it was as long as allowed
    number: int = 0  # which continuation of its prompt
    control: str | None = None

    def __str__(self) -> str:
        return self.prompt + self.text


@dataclass(frozen=True)
class Generation(Sequence[GeneratedText]):
    """Generated texts: for each prompt in order, its continuations."""

    texts: list[GeneratedText]
    seconds: float

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> GeneratedText:  # type: ignore[override]
        return self.texts[index]

    @property
    def tokens(self) -> int:
        """Tokens that were generated."""
        return sum(len(text.ids) + text.ended for text in self.texts)

    def __repr__(self) -> str:
        rate = self.tokens / max(self.seconds, 1e-9)
        what = "1 generated text" if len(self) == 1 else f"{len(self)} generated texts"
        head = f"<{what}, {self.tokens:,} tokens in {self.seconds:.2f} s, {rate:,.0f} tokens/s>"
        return "\n".join([head, *(f"{text.prompt!r} -> {text.text!r}" for text in self.texts)])


@dataclass(frozen=True)
class GenerationOptions:
    """What is generated; see `Model.generate`."""

    tokens: int | None = None
    count: int = 1
    seed: int = 0
    control: str | None = None
    stop: bool = True  # at the end token
    beams: int = 1
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("count", self.count), ("beams", self.beams)):
            if value is not None and value < 1:
                raise UserError(f"{name}: must be 1 or more, not {value}")
        if self.beams > 1 and (self.sampling.temperature, self.sampling.top_k, self.sampling.top_p) != (1.0, 0, 1.0):
            raise UserError("beams: a search draws nothing, so it has no temperature, top_k and top_p")
        if 1 < self.beams < self.count:
            raise UserError(f"count: a search with {self.beams} beams finds no {self.count} texts; give more beams")


@dataclass(frozen=True)
class Prompt:
    """A prompt as it was given, and as the model reads it."""

    text: str
    ids: list[int] = field(repr=False)


def generate(
    model: LoadedModel,
    prompts: Iterable[Input] | str,
    options: GenerationOptions,
    on_text: Callable[[int, str], None] | None = None,
) -> Generation:
    """Continue prompts; `on_text` is called with the number of a text and each piece of it as it comes."""
    begun = time.perf_counter()
    check_left_to_right(model, "generate")
    read = [_read_prompt(model, prompt, options.control) for prompt in list_inputs(prompts)]
    most = [_room(model, prompt, options.tokens) for prompt in read]
    choice = _choice(model, options)
    with model.evaluating():
        lanes = options.beams if options.beams > 1 else len(read) * options.count
        greedy = choice.banned(model.architecture.vocab_size) if options.beams == 1 else None
        make = model.decoders.choose(model.network, lanes, greedy, record=options.beams == 1)
        if options.beams > 1:
            found = [
                search(make(), prompt.ids, limit, options.beams, options.count, choice)
                for prompt, limit in zip(read, most, strict=True)
            ]
            sequences = [one for some in found for one in some]
            pieces = _pieces(model, sequences)
        else:
            sequences = [
                Continued(prompt.ids, number, limit)
                for prompt, limit in zip(read, most, strict=True)
                for number in range(options.count)
            ]
            pieces = _pieces(model, sequences)

            def show(row: int, token: int) -> None:
                assert on_text is not None
                if piece := pieces[row].add(token):
                    on_text(row, piece)

            continue_all(make, sequences, choice, model.device.type == "cuda", show if on_text and pieces else None)
    texts = []
    for row, one in enumerate(sequences):
        text = ""
        if pieces:
            pieces[row].ids = one.ids
            text = pieces[row].text
            if on_text is not None and (rest := pieces[row].finish()):
                on_text(row, rest)
        prompt = read[row // options.count].text
        texts.append(GeneratedText(prompt, text, one.ids, one.ended, one.number, options.control))
    return Generation(texts, time.perf_counter() - begun)


class TextStream(Iterator[str]):
    """A text as it is generated: a piece for each token, then the rest. A piece is empty until a word is complete.

    Nothing is computed before it is asked for, and a stream that nobody asks any more costs nothing. `result` is the
    text so far, at the end the one that `generate` gives.
    """

    def __init__(self, model: LoadedModel, prompt: str, options: GenerationOptions) -> None:
        if options.count > 1 or options.beams > 1:
            raise UserError("stream: gives one text token by token, so it has neither count nor beams")
        check_left_to_right(model, "stream")
        self._model, self._options = model, options
        self._prompt = _read_prompt(model, prompt, options.control)
        self.most = _room(model, self._prompt, options.tokens)  # tokens that it generates, unless the text ends before
        self._sequence = Continued(self._prompt.ids, 0, self.most)
        self._decoder = PieceDecoder(model.required_tokenizer, self._prompt.ids)
        self._pieces = self._generate()

    def __next__(self) -> str:
        with self._model.evaluating():
            return next(self._pieces)

    @property
    def prompt_ids(self) -> list[int]:
        """The tokens of the prompt."""
        return self._prompt.ids

    @property
    def tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self._sequence.ids)

    @property
    def result(self) -> GeneratedText:
        """The text so far."""
        one, text = self._sequence, self._decoder.text
        return GeneratedText(self._prompt.text, text, one.ids, one.ended, one.number, self._options.control)

    def _generate(self) -> Iterator[str]:
        model, choice = self._model, _choice(self._model, self._options)
        greedy = choice.banned(model.architecture.vocab_size)
        # Recording a CUDA graph fails if another thread uses the GPU meanwhile, as in a server.
        alone = threading.current_thread() is threading.main_thread()
        make = model.decoders.choose(model.network, 1, greedy, record=alone)
        for _ in continue_one(make, self._sequence, choice, model.device.type == "cuda"):
            if len(self._sequence.ids) > len(self._decoder.ids):
                yield self._decoder.add(self._sequence.ids[-1])
        yield self._decoder.finish()


def _choice(model: LoadedModel, options: GenerationOptions) -> Choice:
    """Return how tokens are chosen: special tokens that are no text never are."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        return Choice(options.sampling, options.seed)
    end = TextMarks.of(tokenizer, model.architecture).end
    found = {tokenizer.id_of(kind) for kind in NEVER} - {None, end}
    never = tuple(sorted(token for token in found if token is not None))
    vocabulary = min(tokenizer.size, model.architecture.vocab_size)
    return Choice(options.sampling, options.seed, end if options.stop else None, never, vocabulary)


def _pieces(model: LoadedModel, sequences: Sequence[Continued]) -> list[PieceDecoder]:
    tokenizer = model.tokenizer
    return [PieceDecoder(tokenizer, one.prompt) for one in sequences] if tokenizer else []


def _read_prompt(model: LoadedModel, prompt: Input, control: str | None) -> Prompt:
    if isinstance(prompt, str):
        if control is not None:
            check_control(control, model.controls, model.name)
        tokenizer = model.required_tokenizer
        marks = TextMarks.of(tokenizer, model.architecture)
        return Prompt(prompt, prompt_ids(tokenizer, prompt, control, marks))
    if isinstance(prompt, tuple) and any(isinstance(part, str) for part in prompt):
        raise UserError("generate: a prompt is one text, not a pair of texts")
    (encoded,) = model.tokenize([prompt])
    if control is not None:
        raise UserError("control: is for prompts that are texts, not for token ids")
    model.pack([encoded])
    return Prompt("", list(encoded.ids))


def _room(model: LoadedModel, prompt: Prompt, tokens: int | None) -> int:
    """Return how many tokens may follow a prompt."""
    positions = position_limit(model.architecture)
    if positions is None:
        return tokens or TOKENS
    length, room = len(prompt.ids), positions - len(prompt.ids)
    if room < 1:
        raise UserError(
            f"the prompt has {length:,} tokens, and {model.name} has {positions:,} positions: nothing can follow; "
            "shorten the prompt"
        )
    if tokens is not None and tokens > room:
        raise UserError(
            f"tokens: a prompt of {length:,} tokens and {tokens:,} more are longer than the {positions:,} positions of "
            f"{model.name}; at most {room:,} fit"
        )
    return tokens or min(TOKENS, room)
