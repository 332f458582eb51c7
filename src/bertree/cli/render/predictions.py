"""Candidates for masks, and the predictions of fine-tuned models."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.files import Json
from bertree.inference.mask_filling import Candidate


def print_candidates(masks: Sequence[Sequence[Candidate]]) -> None:
    """Print the candidates of each mask."""
    console = Console()
    for number, candidates in enumerate(masks, 1):
        table = Table("token", "probability", "", box=None, pad_edge=False)
        for candidate in candidates:
            bar = "█" * round(candidate.probability * 30)
            table.add_row(Text(candidate.token, "bold"), f"{candidate.probability:.4f}", Text(bar, "green"))
        if len(masks) > 1:
            console.print(f"mask {number} of {len(masks)}")
        console.print(table)


def prediction_text(head: str, line: Json) -> str:
    """Return a prediction as one or more lines, with tabs between columns."""
    if head == "token":
        if "entities" not in line:
            return " ".join(f"{word}/{tag}" for word, tag in zip(line["words"], line["predicted"], strict=True))
        found = [
            f"  {e['type']}\t{e['text']}\t{e['start']}-{e['end']}{_probability(e['score'])}" for e in line["entities"]
        ]
        return "\n".join([str(line["text"]), *(found or ["  no entity"])])
    if head == "span":
        place = f"{line['start']}-{line['end']}" if line.get("start") is not None else "-"
        return f"{' '.join(line['predicted'].split()) or 'no answer'}\t{line['score']:.3f}\t{place}\t{line['question']}"
    if head == "choice":
        return f"{line['predicted']}\t{line['answer']}\t{line['score']:.3f}"
    said = line["predicted"]
    text = "\t".join(" ".join(str(line[key]).split()) for key in ("text", "pair") if line.get(key) is not None)
    return f"{said:.3f}\t{text}" if isinstance(said, float) else f"{said}\t{line['score']:.3f}\t{text}"


def _probability(score: float | None) -> str:
    return "" if score is None else f"\t{score:.3f}"
