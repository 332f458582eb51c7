"""Texts of a file: one stream, one for each line, or one for each record."""

from pathlib import Path

from bertree.console import note
from bertree.errors import UserError
from bertree.text.cleaning import replace_surrogates
from bertree.text.readers import CorpusCounts, read_documents
from bertree.text.sources import STANDARD_INPUT, find_sources, open_source


def read_texts(
    path: str | Path, *, lines: bool = False, column: str | None = None, format: str | None = None
) -> list[str]:
    """Return the texts of a file: plain text is one text, or one for each line that is not empty (`lines`); .jsonl,
    .csv, .tsv and .parquet have one in each record."""
    name = str(path)
    sources = find_sources([name], format)
    if len(sources) != 1:
        raise UserError(f"{name}: is not one file; give one")
    if column is not None and sources[0].format == "text":
        raise UserError(f"{name}: is plain text and has no column '{column}'")
    counts = CorpusCounts()
    with open_source(sources[0]) as (stream, _):
        found = [one.text for one in read_documents(sources[0], stream, column or "text", True, counts)]
    if sources[0].format == "text":  # pieces of one text, cut for the reader's sake
        found = ["".join(found)]
        found = found[0].splitlines() if lines else found
    if counts.invalid_lines:
        note(f"{name}: {counts.invalid_lines:,} lines hold bytes that are not UTF-8, which were replaced")
    if counts.broken or counts.missing:
        note(f"{name}: {counts.broken + counts.missing:,} records have no text and were left out")
    texts = [replace_surrogates(text) for text in found if text.strip()]
    if not texts:
        raise UserError(f"{'standard input' if name == STANDARD_INPUT else name}: holds no text")
    return texts
