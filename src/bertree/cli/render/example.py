"""An example of a token store on the terminal.

Colours help, but it can be read without them: `seen{original}` marks every token that the model must predict, also one
that is unchanged.
"""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bertree.data.preview import BLANK, ExamplePreview, PreviewToken

STYLES = {"masked": "bold red", "random": "bold yellow", "kept": "bold magenta"}
SEGMENTS = ("cyan", "green")


def print_example(example: ExamplePreview, console: Console | None = None) -> None:
    """Print a header line, the text segment by segment, and a table of the predicted tokens."""
    parts: list[RenderableType] = [_header(example), Text()]
    for segment in sorted({token.segment for token in example.tokens}):
        parts.append(_text([token for token in example.tokens if token.segment == segment], segment))
    if any(token.target is not None for token in example.tokens):
        parts += [Text(), _table(example)]
    (console or Console()).print(Group(*parts))


def _header(example: ExamplePreview) -> Text:
    header = Text(f"example {example.number:,} of {example.examples:,}", style="bold")
    lengths = f"{len(example.tokens)} of {example.max_length} tokens"
    for part in (example.format, lengths, example.predicted, example.label):
        if part:
            header.append(f" · {part}", style="not bold")
    return header


def _text(tokens: list[PreviewToken], segment: int) -> Text:
    text = Text(f"{'AB'[segment]} ", style="dim")
    after_special = True  # or at the start: with a space in any case
    for token in tokens:
        space = " " if after_special or token.special or token.starts_word else ""
        after_special = token.special
        if token.target is not None:
            text.append(f"{space}{token.text}{{{token.target}}}", style=f"not dim {STYLES[token.action]}")
        else:
            word = space if token.text == BLANK else space + token.text
            text.append(word, style="dim" if token.special else f"not dim {SEGMENTS[segment]}")
    return text


def _table(example: ExamplePreview) -> Table:
    table = Table("position", "segment", "the model sees", "it must predict", "how", box=None, pad_edge=False)
    for token in example.tokens:
        if token.target is not None:
            words = (Text(token.text, style=STYLES[token.action]), Text(token.target))
            table.add_row(str(token.position), "AB"[token.segment], *words, token.action)
    return table
