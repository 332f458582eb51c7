"""One example of a store in readable form: its text, its segments, what is masked, its label."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bertree.batch import IGNORED, Batch, Permutation, PretrainingLabels
from bertree.data.formats import Format
from bertree.data.masking import Masking
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError, suggest
from bertree.result_table import ResultTable, ShownAsTable

MARKS, BLANK = ("Ġ", "▁"), "␣"  # a token that is only the start of a word
LABELS = {
    "nsp": {0: "0, B is the true next segment", 1: "1, B comes from another document"},
    "sop": {0: "0, A and B in order", 1: "1, A and B swapped"},
}
OBJECTIVES = {"mlm": "token", "next": "next", "permutation": "permutation"}  # and the masking of each
TokenNames = Callable[[int], str]


@dataclass(frozen=True, kw_only=True)
class PreviewToken:
    """One token as the model sees it, and what it must predict there."""

    text: str
    position: int
    segment: int
    special: bool
    starts_word: bool
    target: str | None = None  # the original token, if it must be predicted
    action: str = ""  # what was done to it: masked, random, kept, or ordered: predicted in a random order
    rank: int = 0  # in that order, from 1; 0: every token sees it


@dataclass(frozen=True, kw_only=True, repr=False)
class ExamplePreview(ShownAsTable):
    """One example in readable form."""

    number: int  # in corpus order
    examples: int  # in the store
    format: str
    max_length: int
    predicted: str  # how many tokens are predicted, and how they are chosen; "" if none are
    label: str  # of the sentence objective, in words; "" without one
    tokens: tuple[PreviewToken, ...]

    def _result_table(self) -> ResultTable:
        text = " ".join(token.text for token in self.tokens)
        targets = [f"{token.position}: {token.target}" for token in self.tokens if token.target is not None]
        rows = [("seen", text), ("predicted", ", ".join(targets)), *([("label", self.label)] if self.label else [])]
        return ResultTable(f"example {self.number:,} of {self.examples:,}, {self.format}", rows)


def token_names(store: Store) -> TokenNames:
    """Return a function that gives the text of a token id, or the bare number without a tokenizer."""
    tokenizer = store.load_tokenizer() if store.folder is not None else None
    special = {number: f"[{kind.upper()}]" for kind, number in store.special.items()}

    def name(number: int) -> str:
        if number in special:
            return special[number]
        text = tokenizer.token(number) if tokenizer is not None else f"<{number}>"
        if text in MARKS:
            return BLANK
        return text.removeprefix("##") if not store.word_start[number] else text

    return name


def preview_masking(masking: str | None, objective: str | None, partial: int, spans: int) -> Masking | None:
    """Return how tokens are chosen, from the name of a masking or of an objective."""
    if masking is not None and objective is not None:
        raise UserError("`objective`, `masking`: both say what is predicted; give one of them")
    if objective is not None and objective not in OBJECTIVES:
        raise UserError(f"`objective={objective}`: unknown, {suggest(objective, OBJECTIVES)}")
    parsed = Masking.parse(OBJECTIVES[objective] if objective is not None else masking or "token")
    return None if parsed is None else replace(parsed, partial=partial, spans=spans)


def show_batch(
    store: str | Path,
    *,
    at: int = 0,
    format: str | None = None,
    masking: str | None = None,
    objective: str | None = None,
    partial: int = 6,
    spans: int = 5,
    max_length: int = 512,
    seed: int = 0,
    epoch: int = 0,
) -> ExamplePreview:
    """Return one example of a token store as the model reads it: tokens, segments, what is predicted, the label.

    `at` counts examples in the order of the corpus. `masking` or `objective` says what is predicted; `partial` and
    `spans` are for permutations.

    >>> [token.text for token in bertree.show_batch("my-store", max_length=32).tokens]
    """
    chosen = preview_masking(masking, objective, partial, spans)
    opened = Store.open(Path(store))
    opened.check_sample()
    format = format or ("doc-sentences" if opened.controls else "full-sentences")
    return preview_example(opened, at, format=format, masking=chosen, max_length=max_length, seed=seed, epoch=epoch)


def preview_example(
    store: Store,
    number: int,
    *,
    format: str | Format = "full-sentences",
    masking: str | Masking | None = "token",
    max_length: int = 512,
    seed: int = 0,
    epoch: int = 0,
) -> ExamplePreview:
    """Return example `number` of a store (in corpus order) as the model reads it in an epoch."""
    if isinstance(format, str) and format.startswith("lanes"):
        raise UserError(f"format '{format}': lanes are continuous text without examples; give 'stream' instead")
    stream = Stream(store, format=format, masking=masking, batch_tokens=max_length, max_length=max_length, seed=seed)
    example = stream.example(number, epoch)
    return ExamplePreview(
        number=number,
        examples=stream.examples,
        format=stream.format.name,
        max_length=max_length,
        predicted=_describe_predicted(stream, example),
        label=_describe_label(stream, example),
        tokens=_tokens(stream, example, token_names(store)),
    )


def _describe_predicted(stream: Stream, example: Batch) -> str:
    if stream.masking is None:
        return ""
    masked, _ = PretrainingLabels.of(example).predicted
    unit = stream.masking.unit
    how = {"next": "predict the next", "permutation": "predicted in a random order"}.get(unit, f"masked by {unit}")
    return f"{masked.numel()} {how}"


def _describe_label(stream: Stream, example: Batch) -> str:
    objective = stream.format.objective
    pairs = PretrainingLabels.of(example).pairs
    if pairs is None or objective is None:
        return ""
    label = LABELS[objective].get(int(pairs[0]), "none, there is no second segment")
    return f"{objective.upper()} label {label}"


def _tokens(stream: Stream, example: Batch, name: TokenNames) -> tuple[PreviewToken, ...]:
    store, special = stream.store, set(stream.store.special.values())
    targets: dict[int, int] = {}
    order = example.permutation
    if stream.masking is not None and stream.masking.unit != "next":  # the targets of "next" are the text itself
        rows, ids = PretrainingLabels.of(example).predicted
        rows = rows if order is None else order.queries
        pairs = zip(rows.tolist(), ids.tolist(), strict=True)
        targets = {row: target for row, target in pairs if target != IGNORED}
    ranks = [0] * example.ids.numel() if order is None else order.ranks.tolist()
    tokens = []
    for row, (seen, position, segment) in enumerate(
        zip(example.ids.tolist(), example.positions.tolist(), example.segments.tolist(), strict=True)
    ):
        original = targets.get(row, seen)
        tokens.append(
            PreviewToken(
                text=name(seen),
                position=position,
                segment=segment,
                special=original in special,
                starts_word=bool(store.word_start[original]),
                target=name(original) if row in targets else None,
                action=_action(seen, original, store.special.get("mask"), order) if row in targets else "",
                rank=ranks[row],
            )
        )
    return tuple(tokens)


def _action(seen: int, target: int, mask: int | None, order: Permutation | None) -> str:
    if order is not None:
        return "ordered"
    if seen == target:
        return "kept"
    return "masked" if seen == mask else "random"
