"""The work behind `bertree sentence evaluate`: encoders and baselines on sets of pairs, in one table."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bertree.console import note
from bertree.embeddings import correlation, sts
from bertree.embeddings import glove as words
from bertree.embeddings.correlation import KINDS, MEASURES, Figures, Judged
from bertree.embeddings.embed import Embedder, How, embedded
from bertree.embeddings.page import EncoderScores, evaluation_page, format_correlation
from bertree.embeddings.sts import PairSet
from bertree.errors import UserError
from bertree.files import Json, json_text, write_into_folder, write_json_lines
from bertree.inference.embedding import Vectors
from bertree.report.formats import end_of_path
from bertree.run_folder import PREDICTIONS, REPORT, SCORES

SHORT = ("cosine", "dot", "eucl", "manh")  # of MEASURES, in a table of 80 columns
NAME = 28  # characters of a name there
WIDE = 120  # columns where nobody is looking


@dataclass(frozen=True)
class Subjects:
    """What is judged: every model in every pooling, and tables of word vectors."""

    models: Sequence[str]
    poolings: Sequence[str]
    glove: Sequence[Path]


@dataclass(frozen=True)
class Result:
    """A row of the table and how its vectors were made."""

    row: EncoderScores
    model: str
    pooling: str


def evaluate(
    subjects: Subjects,
    data: Sequence[Path],
    named: sts.Named,
    split: str,
    how: How,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    """`bertree sentence evaluate`."""
    if not subjects.models and not subjects.glove:
        raise UserError("nothing to judge: name a model, or --glove FILE")
    _free(out)
    sets = sts.find(data, named, split)
    for one in sets:
        correlation.check(one)
        for line in one.notes:
            note(line)
        if one.skipped:
            note(f"{one.name}: {one.skipped:,} pairs have no gold and are left out")
    results = []
    for result in _results(subjects, sets, how, as_json):
        results.append(result)
        for pairs, judged in zip(sets, result.row.judged, strict=True):
            for line in correlation.undefined(pairs, judged):
                note(f"{result.row.name}: {line}")
    found = _as_json(sets, results)
    if out is not None:
        write_into_folder(out / SCORES, json_text(found, 2) + "\n")
        write_json_lines(out / PREDICTIONS, _predictions(sets, results))
        write_into_folder(out / REPORT, evaluation_page(out.resolve().name, sets, [result.row for result in results]))
    if as_json:
        print(json_text(found, 2))
        return
    _show(sets, [result.row for result in results])
    if out is not None:
        print(f"{out}: {SCORES}, {PREDICTIONS}, {REPORT}")


def _free(out: Path | None) -> None:
    """Refused before the work: a folder that holds something else, or an evaluation."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")
    if out.is_dir() and (there := sorted(path.name for path in out.iterdir())):
        raise UserError(f"{out}: exists already and holds {there[0]}; give an empty or a new folder")


def _results(subjects: Subjects, sets: Sequence[PairSet], how: How, quiet: bool) -> Iterator[Result]:
    """One after the other: two models need not fit into memory together."""
    texts = list(dict.fromkeys(text for one in sets for part in one.parts for text in (*part.first, *part.second)))
    places = {text: number for number, text in enumerate(texts)}
    poolings: Sequence[str | None] = subjects.poolings or [None]
    for model in subjects.models:
        for pooling in poolings:
            embedder = Embedder(model, how, pooling)
            vectors = embedded(embedder, texts, model, quiet)
            used = embedder.model.vector.pooling
            name = f"{model}, {used}" if pooling or embedder.model.network.vector is None else model
            yield Result(_row(name, vectors, sets, places), model, used)
    for path in subjects.glove:
        table = words.WordVectors.read(path, words.needed(texts))
        vectors = table.embed(texts)
        others = table.embed(texts, content=True)
        unknown = int((~vectors.any(1)).sum())
        if unknown:
            note(f"{path}: {unknown:,} of {len(texts):,} texts have no known word, and with them no vector")
        yield Result(_row(f"{path.name}, mean", vectors, sets, places), str(path), "mean")
        name = f"{path.name}, mean of content words"
        yield Result(_row(name, others, sets, places), str(path), "mean of content words")


def _row(name: str, vectors: Vectors, sets: Sequence[PairSet], places: dict[str, int]) -> EncoderScores:
    judged = []
    for one in sets:
        sides = [
            (vectors[[places[text] for text in part.first]], vectors[[places[text] for text in part.second]])
            for part in one.parts
        ]
        judged.append(correlation.judge(one, sides))
    average = correlation.average([found.whole for found in judged])["spearman"]["cosine"]
    return EncoderScores(name, vectors.shape[1], tuple(judged), average)


def _as_json(sets: Sequence[PairSet], results: Sequence[Result]) -> Json:
    """Correlations x 100, rounded no further than a file needs."""
    return {
        "unit": "correlation x 100",
        "sets": {
            one.name: {
                "pairs": one.pairs,
                "without_gold": one.skipped,
                "parts": {part.name: len(part.gold) for part in one.parts},
            }
            for one in sets
        },
        "encoders": [
            {
                "name": result.row.name,
                "model": result.model,
                "pooling": result.pooling,
                "dimension": result.row.dimension,
                "sets": {one.name: _figures(judged) for one, judged in zip(sets, result.row.judged, strict=True)},
                "average": correlation.average([judged.whole for judged in result.row.judged]),
            }
            for result in results
        ],
    }


def _figures(judged: Judged) -> Json:
    found: Json = {"all": judged.whole}
    if judged.parts:
        found |= {"mean": judged.mean, "weighted_mean": judged.weighted, "parts": judged.parts}
    return found


def _predictions(sets: Sequence[PairSet], results: Sequence[Result]) -> Iterator[Json]:
    for result in results:
        for one, judged in zip(sets, result.row.judged, strict=True):
            for part, scores in zip(one.parts, judged.scores, strict=True):
                columns = [np.round(scores[measure], 6).tolist() for measure in MEASURES]
                rows = zip(part.lines, part.first, part.second, part.gold.tolist(), *columns, strict=True)
                for line, text, pair, gold, *values in rows:
                    yield {
                        "encoder": result.row.name,
                        "set": one.name,
                        "part": part.name,
                        "line": line,
                        "text": text,
                        "pair": pair,
                        "gold": gold,
                        **dict(zip(MEASURES, values, strict=True)),
                    }


def _show(sets: Sequence[PairSet], rows: Sequence[EncoderScores]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    for number, one in enumerate(sets):
        console.print(Text(f"{one.name}: {one.pairs:,} pairs", style="bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        table.add_column("", no_wrap=True)
        for kind in KINDS:
            for measure, label in zip(MEASURES, SHORT, strict=True):
                head = f"{kind.capitalize()}\n{label}" if measure == "cosine" else f"\n{label}"
                table.add_column(head, justify="right", no_wrap=True)
        for row in rows:
            for part, figures in row.judged[number].rows:
                several = bool(row.judged[number].parts)
                name = (
                    f"  {part}" if part != "all" else end_of_path(row.name, NAME) + (", all pairs" if several else "")
                )
                table.add_row(Text(name), *_cells(figures))
        console.print(table)
    if len(sets) > 1:
        _summary(console, sets, rows)


def _cells(figures: Figures) -> list[str]:
    return [format_correlation(figures[kind][measure]) for kind in KINDS for measure in MEASURES]


def _summary(console: Console, sets: Sequence[PairSet], rows: Sequence[EncoderScores]) -> None:
    console.print(Text("Spearman of the cosine, all pairs of each set", style="bold"))
    table = Table("", *(escape(one.name) for one in sets), "average", box=None, pad_edge=False, padding=(0, 1))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        values = [judged.whole["spearman"]["cosine"] for judged in row.judged]
        table.add_row(
            Text(end_of_path(row.name, NAME)), *map(format_correlation, values), format_correlation(row.average)
        )
    console.print(table)
