"""One example as a person would want to see it: its text, its two segments, what is masked, its label.

Colours help on a terminal; the same is readable without them: `shown{original}` marks every token that the
model must guess, also one that stands there unchanged.
"""

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertree.batch import Batch
from bertree.data.formats import Format
from bertree.data.masking import Masking
from bertree.data.store import TOKENIZER, Store
from bertree.data.stream import Stream
from bertree.text.tokenizer import Tokenizer

MARKS, BLANK = ("Ġ", "▁"), "␣"  # a piece that is nothing but the start of a word
Names = Callable[[int], str]
STYLES = {"masked": "bold red", "random": "bold yellow", "kept": "bold magenta"}
SEGMENTS = ("cyan", "green")
LABELS = {
    "nsp": {0: "0, B is the true next segment", 1: "1, B comes from another document"},
    "sop": {0: "0, A and B in order", 1: "1, A and B swapped"},
}


def names_of(store: Store) -> Names:
    """What a person reads for an id: the tokenizer's piece, or the bare number."""
    tokenizer = Tokenizer.load(store.folder / TOKENIZER) if store.folder is not None else None
    special = {number: f"[{kind.upper()}]" for kind, number in store.special.items()}

    def name(number: int) -> str:
        if number in special:
            return special[number]
        text = tokenizer.token(number) if tokenizer is not None else f"<{number}>"
        if text in MARKS:
            return BLANK
        return text.removeprefix("##") if not store.word_start[number] else text

    return name


def show(
    store: Store,
    at: int,
    *,
    format: str | Format = "full-sentences",
    masking: str | Masking | None = "token",
    max_length: int = 512,
    seed: int = 0,
    epoch: int = 0,
    console: Console | None = None,
) -> None:
    """Print example `at` of a store (in the order of the corpus) as an epoch shows it to the model."""
    stream = Stream(store, format=format, masking=masking, batch_tokens=max_length, max_length=max_length, seed=seed)
    example = stream.example(at, epoch)
    (console or Console()).print(render(stream, example, at, names_of(store)))


def render(stream: Stream, example: Batch, at: int, name: Names) -> RenderableType:
    """A head line, the text segment by segment, and a table of what is masked."""
    parts: list[RenderableType] = [_head(stream, example, at), Text()]
    follows = stream.masking is not None and stream.masking.unit == "next"  # the text itself says what is asked
    targets = {} if follows else _targets(example)
    segments = example.segments.tolist()
    for segment in sorted(set(segments)):
        places = [place for place, kind in enumerate(segments) if kind == segment]
        parts.append(_text(stream, example, places, targets, name, segment))
    if targets:
        parts += [Text(), _table(stream, example, targets, name)]
    return Group(*parts)


def _targets(example: Batch) -> dict[int, int]:
    if example.masked is None or example.targets is None:
        return {}
    return dict(zip(example.masked.tolist(), example.targets.tolist(), strict=True))


def _head(stream: Stream, example: Batch, at: int) -> Text:
    masking = stream.masking
    head = Text(f"example {at:,} of {stream.examples:,}", style="bold")
    head.append(f" · {stream.format.name} · {example.ids.numel()} of {stream.max_length} tokens", style="not bold")
    if masking is not None and example.masked is not None:
        how = "predict the next" if masking.unit == "next" else f"masked by {masking.unit}"
        head.append(f" · {example.masked.numel()} {how}", style="not bold")
    if example.pairs is not None and stream.format.objective is not None:
        label = LABELS[stream.format.objective].get(int(example.pairs[0]), "none, there is no second segment")
        head.append(f" · {stream.format.objective.upper()} label {label}", style="not bold")
    return head


def _kind(stream: Stream, shown: int, target: int) -> str:
    if shown == target:
        return "kept"
    return "masked" if shown == stream.store.special.get("mask") else "random"


def _text(
    stream: Stream, example: Batch, places: list[int], targets: dict[int, int], name: Names, segment: int
) -> Text:
    text = Text(f"{'AB'[segment]} ", style="dim")
    special = set(stream.store.special.values())
    before = True  # a special token, or nothing, stands before: a gap in any case
    for place in places:
        shown = int(example.ids[place])
        original = targets.get(place, shown)
        gap = " " if before or original in special or bool(stream.store.word_start[original]) else ""
        before = original in special
        if place in targets:
            word = f"{gap}{name(shown)}{{{name(original)}}}"
            text.append(word, style=f"not dim {STYLES[_kind(stream, shown, original)]}")
        else:
            word = gap if name(shown) == BLANK else gap + name(shown)
            text.append(word, style="dim" if shown in special else f"not dim {SEGMENTS[segment]}")
    return text


def _table(stream: Stream, example: Batch, targets: dict[int, int], name: Names) -> Table:
    table = Table("position", "segment", "the model sees", "it must say", "how", box=None, pad_edge=False)
    for place, target in targets.items():
        shown = int(example.ids[place])
        kind = _kind(stream, shown, target)
        segment = "AB"[int(example.segments[place])]
        words = (Text(name(shown), style=STYLES[kind]), Text(name(target)))
        table.add_row(str(int(example.positions[place])), segment, *words, kind)
    return table
