"""Texts on the terminal: what language-model heads say of them (candidates for masks, perplexity, last words,
attribution), and an example of a token store, for `bertree store show`.

The example can be read without colours: `seen{original}` marks every token that the model must predict, including
unchanged ones. Where tokens are predicted in a random order, `token{3}` is the third in this order, and a grid shows
which tokens each one may see.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertree.cli.render import make_console, make_table
from bertree.inference.causal.perplexity import LastWords, Perplexity
from bertree.inference.causal.scoring import Attribution
from bertree.inference.mask_filling import Candidate

if TYPE_CHECKING:
    from bertree.data.preview import ExamplePreview, PreviewToken

SHOWN = 100  # characters of a text


def print_perplexity(result: Perplexity) -> None:
    """Print perplexity and what it was measured on."""
    counts = result.counts
    rows = [
        ("per token", f"{result.perplexity:,.3f}", f"loss {result.loss:.4f}, {result.tokens:,} tokens"),
        ("per word", f"{result.word_perplexity:,.3f}", f"{counts.words:,} words divided by white space"),
    ]
    if counts.lines:
        both = counts.words + counts.lines
        rows.append(("per word", f"{result.word_and_line_perplexity:,.3f}", f"{both:,} with line ends"))
    rows += [
        ("bits per character", f"{result.bits_per_character:.4f}", f"{counts.characters:,} characters"),
        ("bits per byte", f"{result.bits_per_byte:.4f}", f"{counts.bytes:,} bytes"),
    ]
    table = make_table("perplexity", "", "", rows=rows)
    table.columns[1].justify = "right"
    make_console().print(table)
    context = f"each from {result.context_least:,} or more tokens before it, {result.context_mean:,.1f} on average"
    if result.unpredicted:
        first = f"{result.unpredicted:,} first token{'s' * (result.unpredicted > 1)}"
        context += f"; {first} not predicted: the tokenizer has no start token"
    print(context)
    if result.unknown:
        print(f"{result.unknown:,} tokens stand for text that the tokenizer does not know: no fair comparison")
    print(f"{result.seconds:.1f} s, {result.speed:,.0f} tokens/s")


def print_last_words(result: LastWords) -> None:
    """Print accuracy and perplexity of last words."""
    print(f"accuracy    {100 * result.accuracy:.2f} %; {100 * result.filtered_accuracy:.2f} % without stop words")
    print(f"perplexity  {result.perplexity:,.2f} per last word")
    print(f"{result.passages:,} passages in {result.seconds:.1f} s")


def print_attributions(attributions: Sequence[Attribution], k: int) -> None:
    """Print the codes of each text with a bar for their probability."""
    console = make_console()
    for attribution in attributions:
        if len(attributions) > 1:
            words = " ".join(attribution.text.split())
            console.print(Text(words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"))
        has_given = any(score.given for score in attribution.codes)
        table = make_table("code", *(["given"] if has_given else []), "probability", "loss", "")
        for score in attribution.codes[:k]:
            bar = "█" * round(score.probability * 30)
            named = [Text(score.code, "bold"), *([Text(score.given)] if has_given else [])]
            table.add_row(*named, f"{score.probability:.4f}", f"{score.loss:.4f}", Text(bar, "green"))
        console.print(table)


def print_candidates(masks: Sequence[Sequence[Candidate]]) -> None:
    """Print the candidates of each mask."""
    console = make_console()
    for number, candidates in enumerate(masks, 1):
        table = make_table("token", "probability", "")
        for candidate in candidates:
            bar = "█" * round(candidate.probability * 30)
            table.add_row(Text(candidate.token, "bold"), f"{candidate.probability:.4f}", Text(bar, "green"))
        if len(masks) > 1:
            console.print(f"mask {number} of {len(masks)}")
        console.print(table)


STYLES = {"masked": "bold red", "random": "bold yellow", "kept": "bold magenta", "ordered": "bold red"}
NAMES, SEGMENTS = "AB-", ("cyan", "green", "dim")  # the third: a [CLS] with a segment of its own
SEEN, HIDDEN, ITSELF = "x", ".", "?"
MOST_NAMED = 6  # earlier tokens that are listed by name; if there are more, only their number is printed


def print_example(example: "ExamplePreview", console: Console | None = None) -> None:
    """Print a header line, the text segment by segment, and a table of the predicted tokens."""
    parts: list[RenderableType] = [_header(example), Text()]
    for segment in sorted({token.segment for token in example.tokens}):
        parts.append(_text([token for token in example.tokens if token.segment == segment], segment))
    console = console or make_console()
    if any(token.rank for token in example.tokens):
        parts += [Text(), _order(example), *_grid(example, console.width)]
    elif any(token.target is not None for token in example.tokens):
        parts += [Text(), _table(example)]
    console.print(Group(*parts))


def _header(example: "ExamplePreview") -> Text:
    header = Text(f"example {example.number:,} of {example.examples:,}", style="bold")
    lengths = f"{len(example.tokens)} of {example.max_length} tokens"
    for part in (example.format, lengths, example.predicted, example.label):
        if part:
            header.append(f" · {part}", style="not bold")
    return header


def _text(tokens: "list[PreviewToken]", segment: int) -> Text:
    from bertree.data.preview import BLANK

    text = Text(f"{NAMES[segment]} ", style="dim")
    after_special = True  # a space follows a special token, and precedes the first token
    for token in tokens:
        space = " " if after_special or token.special or token.starts_word else ""
        after_special = token.special
        if token.rank:
            style = STYLES[token.action] if token.target is not None else "default"
            text.append(f"{space}{token.text}{{{token.rank}}}", style=f"not dim {style}")
        elif token.target is not None:
            text.append(f"{space}{token.text}{{{token.target}}}", style=f"not dim {STYLES[token.action]}")
        else:
            word = space if token.text == BLANK else space + token.text
            text.append(word, style="dim" if token.special else f"not dim {SEGMENTS[segment]}")
    return text


def _table(example: "ExamplePreview") -> Table:
    table = make_table("position", "segment", "the model sees", "it must predict", "how")
    for token in example.tokens:
        if token.target is not None:
            cells = (Text(token.text, style=STYLES[token.action]), Text(token.target))
            table.add_row(str(token.position), NAMES[token.segment], *cells, token.action)
    return table


def _in_order(example: "ExamplePreview") -> "list[PreviewToken]":
    return sorted((token for token in example.tokens if token.rank), key=lambda token: token.rank)


def _order(example: "ExamplePreview") -> Table:
    """List the tokens in the order of prediction, each with the tokens it is predicted from."""
    table = make_table("order", "position", "segment", "token", "is predicted from")
    earlier: list[str] = []
    for token in _in_order(example):
        named = ", ".join(earlier) if len(earlier) <= MOST_NAMED else f"the {len(earlier)} above"
        seen = f"context + {named}" if earlier else "context"
        if token.target is None:
            table.add_row(str(token.rank), str(token.position), NAMES[token.segment], token.text, "not predicted")
        else:
            word = Text(token.text, style=STYLES[token.action])
            table.add_row(str(token.rank), str(token.position), NAMES[token.segment], word, Text(seen))
        earlier.append(token.text)
    return table


def _grid(example: "ExamplePreview", width: int) -> list[RenderableType]:
    """Draw which tokens each target may see, one column for each token, if the terminal is wide enough."""
    targets = [token for token in _in_order(example) if token.target is not None]
    names = max((len(token.text) for token in targets), default=0)
    if names + 2 + len(example.tokens) > width:
        return [Text(f"\na grid of what each may see needs {names + 2 + len(example.tokens)} columns", style="dim")]
    lines = [Text(f"\nwhat each may see ({SEEN}), token by token")]
    for target in targets:
        row = [ITSELF if token is target else SEEN if token.rank < target.rank else HIDDEN for token in example.tokens]
        lines.append(Text(f"{target.text:<{names}}  {''.join(row)}"))
    return list(lines)
