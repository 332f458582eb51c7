"""Print an index: the documents that were added, its contents, the hits of a query, its evaluation."""

import textwrap
from typing import TYPE_CHECKING

from bertree.errors import counted
from bertree.files.formats import Json
from bertree.search.index import Index
from bertree.search.passages import Hit

if TYPE_CHECKING:
    from bertree.search.evaluation import SearchEvaluation
    from bertree.search.postgres.export import ExportSummary

NONE = "none; `bertree index upgrade` makes a word index"
SHOWN = 12  # sources that are listed


def print_added(index: Index) -> None:
    """Print how many documents were added, replaced and left as they are."""
    added = index.added
    parts = (
        (added.new, "new"),
        (added.replaced, "replaced"),
        (added.unchanged, "unchanged"),
        (added.gone, "removed (no longer in their file)"),
    )
    counts = ", ".join(f"{count:,} {what}" for count, what in parts if count) or "no documents"
    print(f"{counts}; {counted(added.passages, 'passage')} embedded")
    for line in index.read.lines():
        print(f"  {line}")


def print_index_info(info: Json, checked: bool) -> None:
    """Print what an index holds."""
    sizes, chunking = info["bytes"], info["chunking"]
    parts = ", ".join(f"{name} {bytes / 1e6:,.1f}" for name, bytes in sizes.items() if name != "all")
    for name, value in (
        ("contents", describe_contents(info) + ("" if info["complete"] else " (not finished)")),
        ("kind", f"{info['kind']}: {info['why']}"),
        ("vectors", f"{info['dimension']} numbers each, of the model {info['model']['path'] or 'given in Python'}"),
        ("weights", info["model"]["digest"]),
        (
            "words",
            f"{info['bytes']['words'] / 1e6:,.1f} MB, language {chunking['language']}, weight {info['word_weight']:g}"
            if info["words"]
            else NONE,
        ),
        ("passages", f"up to {chunking['tokens']} tokens, {chunking['overlap']} of them repeated"),
        ("removed", f"{info['removed']:,} vectors, left out at the next compaction" if info["removed"] else ""),
        ("metadata", ", ".join(info["metadata"]) or "none"),
        ("size", f"{sizes['all'] / 1e6:,.1f} MB: {parts}"),
        ("made with", ", ".join(f"{k} {v}" for k, v in info["versions"].items()) + f"; format {info['format']}"),
        ("checked", "every byte is what was written" if checked else ""),
    ):
        if value:
            print(f"{name:<10} {value}")
    sources = list(info["sources"].items())
    for source, count in sources[:SHOWN]:
        print(f"  {count:>10,}  {source or '(no file)'}")
    if len(sources) > SHOWN:
        print(f"  ... and {len(sources) - SHOWN:,} more sources")


def print_exported_info(info: Json) -> None:
    """Print what an index in a database holds."""
    for name, value in (
        ("contents", describe_contents(info)),
        ("table", f"{info['schema']}.{info['table']} at {info['server']}"),
        ("vectors", f"{info['dimension']} numbers each, of the model {info['model']['path'] or 'given in Python'}"),
        ("weights", info["model"]["digest"]),
        ("metadata", ", ".join(info["metadata"]) or "none"),
        ("exported", f"from {info['origin']}"),
        ("size", f"{info['bytes']['all'] / 1e6:,.1f} MB"),
        ("made with", ", ".join(f"{k} {v}" for k, v in info["versions"].items()) + f"; format {info['format']}"),
    ):
        print(f"{name:<10} {value}")


def print_exported(export: "ExportSummary") -> None:
    """Print what an export has changed."""
    parts = (
        (export.new, "new"),
        (export.replaced, "replaced"),
        (export.removed, "removed"),
        (export.unchanged, "unchanged"),
    )
    counts = ", ".join(f"{count:,} {what}" for count, what in parts if count) or "no documents"
    print(f"{counts}; {counted(export.passages, 'passage')} written; {counted(export.documents, 'document')} are there")


def print_hits(hits: list[Hit]) -> None:
    """Print the passages that were found, best first; shared words are marked."""
    for number, hit in enumerate(hits, 1):
        about = ", ".join(f"{key}={value}" for key, value in hit.metadata.items())
        print(f"{number}  {hit.score:.3f}  {hit.document}  {hit.start}-{hit.end}{f'  {about}' if about else ''}")
        if hit.cosine is not None and hit.word_score is not None:
            words = _rank("words", hit.word_rank) if hit.word_score else "words: none shared"
            print(f"   {words}, {_rank('vectors', hit.vector_rank)}")
        text = " ".join(_mark_words(hit).split())
        print(textwrap.fill(text, 110, initial_indent="   ", subsequent_indent="   ", max_lines=6, placeholder=" …"))


def _rank(part: str, rank: int | None) -> str:
    return f"{part}: rank {rank}" if rank else f"{part}: not among the best"


def _mark_words(hit: Hit) -> str:
    """Return the text with a star before and after each shared word."""
    text, end = "", 0
    for first, last in hit.highlights:
        text, end = f"{text}{hit.text[end:first]}*{hit.text[first:last]}*", last
    return text + hit.text[end:]


def print_evaluation(result: "SearchEvaluation") -> None:
    """Print the figures of each mode, with their intervals."""
    from bertree.search.evaluation import tuned_line

    figures = result.json()["modes"]
    rows = [["percent", *next(iter(figures.values()))]]
    for mode, values in figures.items():
        intervals = (tuple(100 * side for side in value["interval"]) for value in values.values())
        scores = (100 * value["score"] for value in values.values())
        rows.append([mode, *(f"{s:.1f} ({a:.1f} to {b:.1f})" for s, (a, b) in zip(scores, intervals, strict=True))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    if result.missing:
        print(f"{counted(len(result.missing), 'right document')} not in the index, such as {result.missing[0]!r}")
    if result.tuned:
        print(tuned_line(result))


def describe_contents(info: Json) -> str:
    """Return the number of documents and passages in words."""
    return f"{counted(info['documents'], 'document')} in {counted(info['passages'], 'passage')}"
