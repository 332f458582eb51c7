"""Compare the texts of two files, or two texts, by their vectors: `bertree.similar`."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.console import note, renamed, showing
from bertree.embeddings import mining
from bertree.embeddings.embed import Embedder, EmbedOptions, embed_texts
from bertree.errors import TextsCut, UserError
from bertree.inference.embedding import Vectors, pair_similarities, percentiles, random_sentences
from bertree.inference.model import Model
from bertree.inference.text_rows import TextRows
from bertree.result_table import ResultTable, ShownAsTable
from bertree.text.memory import Rows, takes_rows, task_fields
from bertree.text.sources import STANDARD_INPUT, format_of


@dataclass(frozen=True)
class Side:
    """The texts of one side of a comparison: those of a file, or one text."""

    texts: Sequence[str]
    name: str  # for messages
    is_file: bool


@dataclass(frozen=True, repr=False)
class Matches(ShownAsTable):
    """For each text of A the nearest texts of B, as (row of B, cosine), best first."""

    a: Side
    b: Side
    nearest: Sequence[Sequence[tuple[int, float]]]  # of each text of A
    random_pairs: Vectors  # cosines of random pairs of sentences, in ascending order

    def percentile(self, cosine: float) -> float:
        """Return the percentage of random pairs of sentences that are less similar."""
        return float(percentiles(cosine, self.random_pairs))

    def _result_table(self) -> ResultTable:
        rows = [
            (self.a.texts[row], self.b.texts[near[0][0]] if near else "", f"{near[0][1]:.4f}" if near else "")
            for row, near in enumerate(self.nearest)
        ]
        return ResultTable("nearest", rows, (self.a.name, self.b.name, "cosine"))


@takes_rows(a=task_fields, b=task_fields)
def similar(
    model: str | Path | Model,
    a: str | Path | Rows,
    b: str | Path | Rows,
    *,
    k: int = 5,
    text: str | None = None,
    format: str | None = None,
    prompt: str | None = None,
    max_length: int = 0,
    batch_tokens: int = 0,
    precision: str = "float32",
    device: str = "auto",
    tokenizer: str | Path | None = None,
    progress: bool | None = None,
) -> Matches:
    """Compare two texts, or find the k nearest texts of file `b` for each text of file `a`; one side may be a text.

    `text` is the column with the text. `percentile` of the result says how many random pairs of sentences are less
    similar, since models differ in scale.

    >>> bertree.similar("default", "questions.txt", "answers.txt", k=3).nearest[0]
    """
    if k < 1:
        raise UserError(f"k: must be at least 1, not {k}")
    with showing(progress):
        options = EmbedOptions(
            device=device,
            tokenizer=tokenizer,
            prompt=prompt,
            max_length=max_length,
            batch_tokens=batch_tokens,
            precision=precision,
        )
        side_a = _read_side(str(a), text, format, "the first text")
        side_b = _read_side(str(b), text, format, "the second text")
        embedder = Embedder(model, options)
        vectors_a, vectors_b = (embed_texts(embedder, side.texts, side.name) for side in (side_a, side_b))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextsCut)
            random_pairs = pair_similarities(embedder.embed(random_sentences()))
        if not side_a.is_file and not side_b.is_file:
            return Matches(side_a, side_b, [[(0, mining.cosines(vectors_a, vectors_b)[0])]], random_pairs)
        return Matches(side_a, side_b, list(mining.nearest(vectors_a, vectors_b, k)), random_pairs)


def _read_side(argument: str, column: str | None, format: str | None, label: str) -> Side:
    """Read the texts that an argument stands for: a file's rows, or the argument itself. `label`: for messages."""
    has_suffix = format_of(argument) is not None and not any(map(str.isspace, argument))
    try:
        is_file = has_suffix or argument == STANDARD_INPUT or Path(argument).is_file()
        if argument.strip() and Path(argument).is_dir():
            note(f"{argument}: is a folder too, but is compared as a text; to compare its texts, name a file in it")
    except OSError:  # longer than any path
        is_file = False
    if not is_file:
        if not argument.strip():
            note(f"{label} is empty")
        return Side([argument], label, False)
    rows = TextRows(argument, column, format)
    texts = list(rows)
    for line in rows.counts.notes(rows.name):
        note(line)
    return Side(texts, renamed(rows.name), True)
