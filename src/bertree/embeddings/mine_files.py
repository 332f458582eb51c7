"""Compare the texts of a file with each other by their vectors: `bertree.find_pairs` and `cluster_texts`.

Here arguments are checked, files read and results written; mining.py and clustering.py compute on vectors. All vectors
of a file are in memory at once.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertree.console import bar, note, renamed, showing
from bertree.embeddings import clustering, mining
from bertree.embeddings.clustering import Clusters
from bertree.embeddings.embed import EmbedOptions, read_texts_and_vectors
from bertree.embeddings.mining import CrossOptions, cross_pairs
from bertree.errors import UserError, counted
from bertree.files.atomic import write_into_folder
from bertree.files.formats import Json, json_text
from bertree.inference.embedding import Vectors
from bertree.inference.load import choose_device, load_or_take
from bertree.inference.model import Model
from bertree.inference.text_rows import TextRows
from bertree.result_table import ResultTable, ShownAsTable
from bertree.text.memory import Rows, takes_rows, task_fields

TABLE_FORMATS = (".jsonl", ".csv", ".tsv")


@dataclass(frozen=True, repr=False)
class SimilarPairs(ShownAsTable):
    """The most similar pairs of a file's texts, and the texts that occur several times. Rows count from 1."""

    texts: Sequence[str]
    pairs: Sequence[Json]  # cosine (of a cross-encoder: score), rows, texts
    duplicates: Sequence[Json]  # rows, text

    def _result_table(self) -> ResultTable:
        measure = "score" if any("score" in pair for pair in self.pairs) else "cosine"
        rows = [(*pair["texts"], f"{pair[measure]:.4f}") for pair in self.pairs]
        amounts = f"{counted(len(self.pairs), 'pair')} among {counted(len(self.texts), 'text')}"
        return ResultTable(f"{amounts}, {len(self.duplicates):,} repeated", rows, ("text", "pair", measure))


@dataclass(frozen=True, repr=False)
class TextClusters(ShownAsTable):
    """The texts of a file and their clusters, largest first. `rows` are the rows that have text, from 0."""

    texts: Sequence[str]  # of all rows of the file
    rows: Sequence[int]  # of the texts in the file
    clusters: Clusters  # `clusters`: rows and central text of each; `labels`: of each of `rows`, -1: none

    @property
    def unclustered(self) -> int:
        """Number of texts that belong to no cluster."""
        return int((self.clusters.labels < 0).sum())

    def _result_table(self) -> ResultTable:
        clusters = self.clusters.clusters
        rows = [(f"{len(each.rows):,}", f"{each.mean:.4f}", self.texts[each.central]) for each in clusters]
        amounts = f"{counted(len(clusters), 'cluster')} of {counted(len(self.rows), 'text')}"
        title = f"{amounts}, {self.unclustered:,} in none"
        return ResultTable(title, rows, ("texts", "mean cosine", "central text"))


@takes_rows(file=task_fields)
def find_pairs(
    model: str | Path | Model,
    file: str | Path | Rows,
    *,
    k: int = 100,
    min_similarity: float = 0.7,
    cross: bool = False,
    label: str | None = None,
    max_pairs: int = 500_000,
    text: str | None = None,
    format: str | None = None,
    vectors: str | Path | None = None,
    prompt: str | None = None,
    max_length: int = 0,
    batch_tokens: int = 0,
    precision: str = "float32",
    device: str = "auto",
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> SimilarPairs:
    """Find the k most similar pairs of texts in a file: paraphrases and near copies.

    Texts that are equal word for word are not compared with each other but listed as duplicates. `vectors` is a file
    that `embed_file` has written for these rows; `out` a .jsonl, .csv or .tsv file for the pairs.

    With `cross`, the model is a cross-encoder that scores every pair of texts, in the order of the file: slower and
    better, for small files. Up to `max_pairs` are scored; `label` is the positive class. A pair then has a `score`.

    >>> bertree.find_pairs("default", "questions.txt", min_similarity=0.8).pairs[0]
    """
    with showing(progress):
        target = _check_table(out)
        if k < 1:
            raise UserError(f"k: must be at least 1, not {k}")
        if cross:
            _check_cross({"vectors": vectors, "prompt": prompt, "batch_tokens": batch_tokens or None})
        elif label is not None:
            raise UserError("`label`: is the positive class of a cross-encoder; it is for `cross`")
        else:
            _check_cosine(min_similarity)
        reader = TextRows(str(file), text, format)
        options = EmbedOptions(
            device=device,
            tokenizer=tokenizer,
            prompt=prompt,
            max_length=max_length,
            batch_tokens=batch_tokens,
            precision=precision,
        )
        if cross:
            texts = list(reader)
        else:
            texts, rows_nd = read_texts_and_vectors(model, reader, options, vectors)
        distinct = mining.find_distinct(texts)
        numbers = distinct.first.tolist()  # the row of each distinct text
        if len(texts) < 2:
            raise UserError(f"{file}: has {len(texts)} text; pairs need two")
        if cross:
            loaded, _ = load_or_take(model, device=choose_device(device), tokenizer=tokenizer, precision=precision)
            asked = CrossOptions(k=k, min_score=min_similarity, label=label, max_length=max_length, max_pairs=max_pairs)
            closest = cross_pairs(loaded, [texts[row] for row in numbers], renamed(str(file)), asked)
        else:
            with bar("comparing", len(numbers), speed="texts") as shown:
                closest = mining.closest_pairs(rows_nd[distinct.first], k, min_similarity, shown.advance)
        measure = "score" if cross else "cosine"
        pairs: list[Json] = [
            {
                measure: round(value, 6),
                "rows": [numbers[first] + 1, numbers[second] + 1],
                "texts": [texts[numbers[first]], texts[numbers[second]]],
            }
            for first, second, value in closest
        ]
        duplicates: list[Json] = [
            {"rows": [row + 1 for row in group], "text": texts[group[0]]} for group in distinct.groups
        ]
        if empty := reader.counts.empty:
            note(f"{file}: {empty:,} empty rows are left out")
        if target is not None:
            rows = ((pair[measure], *pair["rows"], *pair["texts"]) for pair in pairs)
            _write_table(target, (measure, "row1", "row2", "text1", "text2"), rows, pairs)
        return SimilarPairs(texts, pairs, duplicates)


@takes_rows(file=task_fields)
def cluster_texts(
    model: str | Path | Model,
    file: str | Path | Rows,
    *,
    clusters: int | None = None,
    min_similarity: float = 0.75,
    min_size: int = 2,
    seed: int = 0,
    text: str | None = None,
    format: str | None = None,
    vectors: str | Path | None = None,
    prompt: str | None = None,
    max_length: int = 0,
    batch_tokens: int = 0,
    precision: str = "float32",
    device: str = "auto",
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> TextClusters:
    """Group the texts of a file: into `clusters` groups (k-means), or into all groups that are similar enough.

    `min_similarity` (cosine with the centre of a group) and `min_size` are for groups by similarity; `out` is a .jsonl,
    .csv or .tsv file for row, cluster and text.

    >>> bertree.cluster_texts("default", "questions.txt", clusters=20).clusters
    """
    with showing(progress):
        target = _check_table(out)
        _check_cosine(min_similarity)
        reader = TextRows(str(file), text, format)
        options = EmbedOptions(
            device=device,
            tokenizer=tokenizer,
            prompt=prompt,
            max_length=max_length,
            batch_tokens=batch_tokens,
            precision=precision,
        )
        texts, rows_nd = read_texts_and_vectors(model, reader, options, vectors)
        filled = np.flatnonzero([bool(text.strip()) for text in texts])
        if not len(filled):
            raise UserError(f"{file}: holds no text")
        if clusters is not None and clusters > len(filled):
            raise UserError(f"`clusters={clusters}`: {file} has {counted(len(filled), 'text')}; ask for fewer clusters")
        if empty := reader.counts.empty:
            note(f"{file}: {empty:,} empty rows belong to no cluster")
        grouped = _cluster(rows_nd[filled], clusters, min_similarity, min_size, seed)
        if target is not None:
            labels = np.full(len(texts), clustering.ALONE, np.int64)
            labels[filled] = grouped.labels
            lines: list[Json] = [
                {"row": row, "cluster": None if label < 0 else label + 1, "text": row_text}
                for row, (label, row_text) in enumerate(zip(labels.tolist(), texts, strict=True), 1)
            ]
            _write_table(target, ("row", "cluster", "text"), (tuple(line.values()) for line in lines), lines)
        return TextClusters(texts, filled.tolist(), grouped)


def _cluster(vectors: Vectors, clusters: int | None, min_similarity: float, min_size: int, seed: int) -> Clusters:
    with bar("grouping", len(vectors) if clusters is None else clustering.RESTARTS) as progress:
        if clusters is None:
            return clustering.communities(vectors, min_similarity, min_size, progress.advance)
        return clustering.k_means(vectors, clusters, seed, advance=progress.advance)


def _check_cross(others: Json) -> None:
    """Refuse what a cross-encoder, which has no vectors, does not take."""
    if name := next((name for name, value in others.items() if value is not None), None):
        raise UserError(f"`{name}`: is for vectors; a cross-encoder (`cross`) reads the texts themselves")


def _check_cosine(min_similarity: float) -> None:
    if not -1 <= min_similarity <= 1:
        raise UserError(f"`min_similarity={min_similarity}`: a cosine lies between -1 and 1")


def _check_table(out: str | Path | None) -> Path | None:
    """Return the path to write; refuse it before the work, not after it."""
    if out is None:
        return None
    out = Path(out)
    if out.suffix.lower() not in TABLE_FORMATS:
        raise UserError(f"{out}: is written as {', '.join(TABLE_FORMATS)}; give it such an ending")
    if out.exists():
        raise UserError(f"{out}: exists already; remove it, or give another `out`")
    return out


def _write_table(out: Path, head: Sequence[str], rows: Iterable[Sequence[object]], lines: Sequence[Json]) -> None:
    if out.suffix.lower() == ".jsonl":
        write_into_folder(out, "".join(json_text(line) + "\n" for line in lines))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter="\t" if out.suffix.lower() == ".tsv" else ",", lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    write_into_folder(out, text.getvalue())
