"""Texts on the terminal: candidates for masks, perplexity, last words, attribution."""

from collections.abc import Sequence

from rich.text import Text

from bertree.cli.render import make_console, make_table
from bertree.inference.causal.perplexity import LastWords, Perplexity
from bertree.inference.causal.scoring import Attribution
from bertree.inference.mask_filling import Candidate

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
