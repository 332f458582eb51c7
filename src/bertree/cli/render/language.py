"""Results of language-model heads: candidates for masks, perplexity, last words, attribution."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from bertree.cli.render import make_console
from bertree.inference.causal.attribution import Attribution
from bertree.inference.causal.last_words import LastWords
from bertree.inference.causal.perplexity import Perplexity
from bertree.inference.mask_filling import Candidate

SHOWN = 100  # characters of a text


def print_perplexity(found: Perplexity) -> None:
    """Print perplexity and what it was measured on."""
    counts = found.counts
    rows = [
        ("per token", f"{found.perplexity:,.3f}", f"loss {found.loss:.4f}, {found.tokens:,} tokens"),
        ("per word", f"{found.word_perplexity:,.3f}", f"{counts.words:,} words divided by white space"),
    ]
    if counts.lines:
        both = counts.words + counts.lines
        rows.append(("per word", f"{found.word_and_line_perplexity:,.3f}", f"{both:,} with line ends"))
    rows += [
        ("bits per character", f"{found.bits_per_character:.4f}", f"{counts.characters:,} characters"),
        ("bits per byte", f"{found.bits_per_byte:.4f}", f"{counts.bytes:,} bytes"),
    ]
    table = Table("perplexity", "", "", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    for row in rows:
        table.add_row(*row)
    make_console().print(table)
    context = f"each from {found.context_least:,} or more tokens before it, {found.context_mean:,.1f} on average"
    if found.unpredicted:
        first = f"{found.unpredicted:,} first token{'s' * (found.unpredicted > 1)}"
        context += f"; {first} not predicted: the tokenizer has no start token"
    print(context)
    if found.unknown:
        print(f"{found.unknown:,} tokens stand for text that the tokenizer does not know: no fair comparison")
    print(f"{found.seconds:.1f} s, {found.speed:,.0f} tokens/s")


def print_last_words(found: LastWords) -> None:
    """Print accuracy and perplexity of last words."""
    print(f"accuracy    {100 * found.accuracy:.2f} %; {100 * found.filtered_accuracy:.2f} % without stop words")
    print(f"perplexity  {found.perplexity:,.2f} per last word")
    print(f"{found.passages:,} passages in {found.seconds:.1f} s")


def print_attributions(found: Sequence[Attribution], k: int) -> None:
    """Print the codes of each text with a bar for their probability."""
    console = make_console()
    for one in found:
        if len(found) > 1:
            words = " ".join(one.text.split())
            console.print(Text(words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"))
        given = any(score.given for score in one.codes)
        table = Table("code", *(["given"] if given else []), "probability", "loss", "", box=None, pad_edge=False)
        for score in one.codes[:k]:
            bar = "█" * round(score.probability * 30)
            named = [Text(score.code, "bold"), *([Text(score.given)] if given else [])]
            table.add_row(*named, f"{score.probability:.4f}", f"{score.loss:.4f}", Text(bar, "green"))
        console.print(table)


def print_candidates(masks: Sequence[Sequence[Candidate]]) -> None:
    """Print the candidates of each mask."""
    console = make_console()
    for number, candidates in enumerate(masks, 1):
        table = Table("token", "probability", "", box=None, pad_edge=False)
        for candidate in candidates:
            bar = "█" * round(candidate.probability * 30)
            table.add_row(Text(candidate.token, "bold"), f"{candidate.probability:.4f}", Text(bar, "green"))
        if len(masks) > 1:
            console.print(f"mask {number} of {len(masks)}")
        console.print(table)
