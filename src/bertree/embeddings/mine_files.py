"""The work behind `bertree similar`, `pairs` and `cluster`: vectors of texts, compared."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.console import note
from bertree.embeddings import clustering, mining
from bertree.embeddings.clustering import Clusters
from bertree.embeddings.embed import Embedder, Given, How, bar, embedded, texts_and_vectors
from bertree.embeddings.text_rows import Rows
from bertree.errors import UserError
from bertree.files import Json, json_text, write_into_folder
from bertree.inference.embedding import Vectors
from bertree.text.sources import STANDARD_INPUT, format_of

KINDS = (".jsonl", ".csv", ".tsv")
SHOWN = 160  # characters of a text on the terminal


def similar(model: str, first: str, second: str, k: int, how: How, given: Given, as_json: bool) -> None:
    """`bertree similar`: the cosine of two texts, or the nearest of one file for each row of another."""
    sides = [_side(name, given, called) for name, called in ((first, "the first text"), (second, "the second text"))]
    embedder = Embedder(model, how)
    vectors = [embedded(embedder, texts, called, as_json) for texts, called, _ in sides]
    (ours, _, of_file), (theirs, _, among_file) = sides
    if not of_file and not among_file:
        cosine = mining.cosines(vectors[0], vectors[1])[0]
        print(json_text({"cosine": round(cosine, 6), "texts": [first, second]}) if as_json else f"{cosine:.4f}")
        return
    for row, found in enumerate(mining.nearest(vectors[0], vectors[1], k)):
        if as_json:
            matches = [{"row": j + 1, "cosine": round(cosine, 6), "text": theirs[j]} for j, cosine in found]
            print(json_text({"row": row + 1, "text": ours[row], "matches": matches}))
        else:
            print(f"{row + 1}  {_line(ours[row])}" if of_file else _line(ours[row]))
            for j, cosine in found:
                print(f"   {cosine:7.4f}  {j + 1}  {_line(theirs[j])}" if among_file else f"   {cosine:7.4f}")


def _side(name: str, given: Given, called: str) -> tuple[list[str], str, bool]:
    """The texts a side stands for, how messages call it, and whether it is a file."""
    named = name == STANDARD_INPUT or (format_of(name) is not None and not any(sign.isspace() for sign in name))
    try:
        is_file = named or Path(name).is_file()
    except OSError:  # longer than any path
        is_file = False
    if not is_file:
        if not name.strip():
            note(f"{called} is empty")
        return [name], called, False
    rows = Rows(name, given.column, given.format)
    texts = list(rows)
    for line in rows.counts.notes(rows.name):
        note(line)
    return texts, rows.name, True


def pairs(
    model: str,
    given: Given,
    how: How,
    *,
    k: int,
    least: float,
    out: Path | None,
    vectors: Path | None,
    duplicates: bool,
    as_json: bool,
) -> None:
    """`bertree pairs`: the most similar pairs of a file's texts."""
    _writable(out)
    _cosine(least)
    texts, rows_nd, counts = texts_and_vectors(model, given, how, vectors, as_json)
    some = mining.distinct(texts)
    if len(texts) < 2:
        raise UserError(f"{given.file}: has {len(texts)} text; pairs need two")
    with bar(len(some.first), "comparing", as_json) as at:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            at(done, done)

        found = mining.closest_pairs(rows_nd[some.first], k, least, advance)
    numbers = some.first.tolist()
    lines = [
        {
            "cosine": round(pair.cosine, 6),
            "rows": [numbers[pair.first] + 1, numbers[pair.second] + 1],
            "texts": [texts[numbers[pair.first]], texts[numbers[pair.second]]],
        }
        for pair in found
    ]
    copies = [{"rows": [row + 1 for row in group], "text": texts[group[0]]} for group in some.groups]
    if copies:
        extra = sum(len(group) - 1 for group in some.groups)
        hint = "" if duplicates or as_json else "; --duplicates lists them"
        note(f"{given.file}: {extra:,} rows repeat another word for word and are not compared again{hint}")
    if counts.empty:
        note(f"{given.file}: {counts.empty:,} empty rows are left out")
    if out is not None:
        _write_pairs(out, lines)
        print(f"{out}: {len(lines):,} pairs")
    if as_json:
        print(json_text({"sentences": len(texts), "pairs": lines, "duplicates": copies}, 2))
    elif out is None:
        _print_pairs(lines, copies if duplicates else [], least)


def _print_pairs(lines: Sequence[Json], copies: Sequence[Json], least: float) -> None:
    for line in lines:
        print(f"{line['cosine']:.4f}  {line['rows'][0]}  {_line(line['texts'][0])}")
        print(f"        {line['rows'][1]}  {_line(line['texts'][1])}")
    if not lines:
        print(f"no two texts have a cosine of {least:g} or more; --least asks for less")
    for group in copies:
        print(f"same    {', '.join(map(str, group['rows']))}  {_line(group['text'])}")


def _write_pairs(out: Path, lines: Sequence[Json]) -> None:
    rows = ((line["cosine"], *line["rows"], *line["texts"]) for line in lines)
    _write(out, ("cosine", "row1", "row2", "text1", "text2"), rows, lines)


def cluster(
    model: str,
    given: Given,
    how: How,
    *,
    clusters: int | None,
    least: float,
    smallest: int,
    seed: int,
    out: Path | None,
    vectors: Path | None,
    show: int,
    as_json: bool,
) -> None:
    """`bertree cluster`: texts in groups."""
    _writable(out)
    _cosine(least)
    texts, rows_nd, counts = texts_and_vectors(model, given, how, vectors, as_json)
    full = np.flatnonzero([bool(text.strip()) for text in texts])
    if not len(full):
        raise UserError(f"{given.file}: holds no text")
    if counts.empty:
        note(f"{given.file}: {counts.empty:,} empty rows belong to no cluster")
    found = _clustered(rows_nd[full], clusters, least, smallest, seed, as_json)
    labels = np.full(len(texts), clustering.ALONE, np.int64)
    labels[full] = found.labels
    if out is not None:
        lines: list[Json] = [
            {"row": row, "cluster": None if label < 0 else label + 1, "text": text}
            for row, (label, text) in enumerate(zip(labels.tolist(), texts, strict=True), 1)
        ]
        _write(out, ("row", "cluster", "text"), (tuple(line.values()) for line in lines), lines)
    alone = int((found.labels < 0).sum())
    if as_json:
        groups = [
            {
                "cluster": number,
                "size": len(one.rows),
                "cosine": round(one.mean, 6),
                "central": {"row": int(full[one.central]) + 1, "text": texts[full[one.central]]},
                "rows": [int(full[row]) + 1 for row in one.rows],
            }
            for number, one in enumerate(found.clusters, 1)
        ]
        print(json_text({"sentences": len(texts), "clusters": groups, "alone": alone}, 2))
        return
    _print_clusters(found, [texts[row] for row in full], show)
    if alone:
        print(f"{alone:,} texts belong to no cluster")
    if out is not None:
        print(f"{out}: {len(texts):,} rows, {len(found.clusters):,} clusters")


def _clustered(vectors: Vectors, clusters: int | None, least: float, smallest: int, seed: int, quiet: bool) -> Clusters:
    total = len(vectors) if clusters is None else clustering.RESTARTS
    with bar(total, "grouping", quiet) as at:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            at(done, done * len(vectors) // total)

        if clusters is None:
            return clustering.communities(vectors, least, smallest, advance)
        return clustering.k_means(vectors, clusters, seed, advance=advance)


def _print_clusters(found: Clusters, texts: Sequence[str], show: int) -> None:
    table = Table("cluster", "size", "cosine", "most central", box=None, pad_edge=False)
    for column in table.columns[:3]:
        column.justify = "right"
        column.no_wrap = True
    for number, one in enumerate(found.clusters[:show], 1):
        table.add_row(str(number), f"{len(one.rows):,}", f"{one.mean:.3f}", Text(_line(texts[one.central])))
    if found.clusters:
        Console().print(table)
    if len(found.clusters) > show:
        rest = found.clusters[show:]
        texts_of_rest = sum(len(one.rows) for one in rest)
        print(f"... and {len(rest):,} more with {texts_of_rest:,} texts (--show {len(found.clusters)})")
    if not found.clusters:
        print("no two texts are that alike; --least asks for less, --clusters N for groups in any case")


def _line(text: str) -> str:
    """A text on one line, not too long."""
    words = " ".join(text.split())
    return words if len(words) <= SHOWN else words[: SHOWN - 1] + "…"


def _cosine(least: float) -> None:
    if not -1 <= least <= 1:
        raise UserError(f"--least {least}: a cosine lies between -1 and 1")


def _writable(out: Path | None) -> None:
    """Refused before the work, not after it."""
    if out is None:
        return
    if out.suffix.lower() not in KINDS:
        raise UserError(f"{out}: is written as {', '.join(KINDS)}; give it such an ending")
    if out.exists():
        raise UserError(f"{out}: exists already; remove it, or give another --out")


def _write(out: Path, head: Sequence[str], rows: Iterable[Sequence[object]], lines: Sequence[Json]) -> None:
    if out.suffix.lower() == ".jsonl":
        write_into_folder(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t" if out.suffix.lower() == ".tsv" else ",", lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    write_into_folder(out, text.getvalue())
