"""Evaluate sentence vectors on sets of pairs with gold scores: `bertree.evaluate_embeddings`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertree.console import note, showing
from bertree.embeddings import correlation, sts
from bertree.embeddings.correlation import MEASURES, EncoderScores, SetScores, evaluation_page
from bertree.embeddings.embed import Embedder, EmbedOptions, embed_texts
from bertree.embeddings.sts import PairSet
from bertree.embeddings.word_vectors import WordVectors, words_of
from bertree.errors import UserError
from bertree.files.atomic import new_folder, write_json_lines, write_text
from bertree.files.formats import Json, json_text
from bertree.inference.embedding import Vectors
from bertree.inference.model import Model
from bertree.result_table import ResultTable, ShownAsTable
from bertree.run_folder import PREDICTIONS, REPORT, SCORES
from bertree.tasks.metrics import few_line
from bertree.text.memory import Rows, pair_fields, takes_rows


@dataclass(frozen=True)
class Encoders:
    """What is evaluated: every model in every pooling, and tables of word vectors."""

    models: Sequence[str | Path | Model]
    poolings: Sequence[str]
    glove: Sequence[Path]


@dataclass(frozen=True)
class EncoderResult:
    """One row of the table, and how its vectors were made."""

    row: EncoderScores
    model: str
    pooling: str


@dataclass(frozen=True, repr=False)
class EmbeddingScores(ShownAsTable):
    """The correlations of every encoder with the gold scores of every set."""

    sets: Sequence[PairSet]
    results: Sequence[EncoderResult]

    @property
    def metrics(self) -> Json:
        """Correlations x 100, as in metrics.json."""
        return _as_json(self.sets, self.results)

    def _result_table(self) -> ResultTable:
        heads = ["encoder", *(pairs.name for pairs in self.sets), "average", "95 % interval"]
        rows = []
        for row in (result.row for result in self.results):
            values = [scored.overall["spearman"]["cosine"] for scored in row.sets]
            figures = map(correlation.format_correlation, [*values, row.average])
            rows.append([row.name, *figures, correlation.format_span(row.interval)])
        return ResultTable("Spearman of the cosine x 100", rows, heads)


@takes_rows(data=pair_fields, several=["data"])
def evaluate_embeddings(
    models: Sequence[str | Path | Model] | str | Path | Model = (),
    *,
    data: Sequence[str | Path] | str | Path | Rows,
    pooling: Sequence[str] = (),
    glove: Sequence[str | Path] = (),
    split: str = "test",
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    prompt: str | None = None,
    max_length: int = 0,
    batch_tokens: int = 0,
    precision: str = "float32",
    device: str = "auto",
    tokenizer: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> EmbeddingScores:
    """Correlate the similarities of sentence vectors with the gold scores of pairs (STS12-16, STS-B, SICK, your own).

    `models` are compared in each `pooling` (default: their own), `glove` files of word vectors are baselines; `data`
    are sets of pairs, folders of sets, or rows in memory; `text`, `pair` and `label` name your columns; `out` is a
    folder for metrics.json, predictions.jsonl and report.html.

    >>> bertree.evaluate_embeddings("default", data="STS-B").metrics["encoders"][0]["average"]
    """
    encoders = Encoders(
        [models] if isinstance(models, str | Path | Model) else models, pooling, [Path(path) for path in glove]
    )
    if data is None:
        raise UserError("data: give sets of pairs, folders of them, or rows")
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    with showing(progress):
        if not encoders.models and not encoders.glove:
            raise UserError("nothing to evaluate: name a model, or `glove=FILE`")
        folder = _check_folder(out)
        sets = sts.find(paths, sts.PairColumns(text, pair, label), split)
        for pairs in sets:
            correlation.check(pairs)
            for line in pairs.notes:
                note(line)
            if pairs.skipped:
                note(f"{pairs.name}: {pairs.skipped:,} pairs have no gold score and are left out")
        results = []
        options = EmbedOptions(
            device=device,
            tokenizer=tokenizer,
            prompt=prompt,
            max_length=max_length,
            batch_tokens=batch_tokens,
            precision=precision,
        )
        for result in _evaluate_encoders(encoders, sets, options):
            results.append(result)
            for pairs, set_scores in zip(sets, result.row.sets, strict=True):
                for line in correlation.undefined(pairs, set_scores):
                    note(f"{result.row.name}: {line}")
        for line in filter(None, (few_line(pairs.name, pairs.pairs) for pairs in sets)):
            note(line)
        scores = EmbeddingScores(sets, results)
        if folder is not None:
            with new_folder(folder, ()) as work:  # all of it or nothing: a folder that holds something is refused
                write_text(work / SCORES, json_text(scores.metrics, 2) + "\n")
                write_json_lines(work / PREDICTIONS, _predictions(sets, results))
                rows = [result.row for result in results]
                write_text(work / REPORT, evaluation_page(folder.resolve().name, sets, rows))
        return scores


def _check_folder(out: str | Path | None) -> Path | None:
    """Return the folder to write; refuse one that holds something, before the work."""
    if out is None:
        return None
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; give the path of a folder to write")
    if out.is_dir() and (names := sorted(path.name for path in out.iterdir())):
        raise UserError(f"{out}: exists already and holds {names[0]}; give an empty or a new folder")
    return out


def _evaluate_encoders(encoders: Encoders, sets: Sequence[PairSet], options: EmbedOptions) -> Iterator[EncoderResult]:
    """Evaluate one encoder after the other: two models need not fit into memory together."""
    texts = list(dict.fromkeys(text for pairs in sets for part in pairs.parts for text in (*part.first, *part.second)))
    rows = {text: row for row, text in enumerate(texts)}
    poolings: Sequence[str | None] = encoders.poolings or [None]
    for model in encoders.models:
        for pooling in poolings:
            embedder = Embedder(model, options, pooling)
            vectors = embed_texts(embedder, texts, embedder.name)
            used, model_name = embedder.model.vector.pooling, embedder.name
            name = f"{model_name}, {used}" if pooling or embedder.model.network.vector is None else model_name
            yield EncoderResult(_row(name, vectors, sets, rows), model_name, used)
    for path in encoders.glove:
        table = WordVectors.read(path, words_of(texts))
        vectors = table.embed(texts)
        content_vectors = table.embed(texts, content=True)
        unknown = int((~vectors.any(1)).sum())
        if unknown:
            note(f"{path}: {unknown:,} of {len(texts):,} texts have no known word, so their vector is zero")
        yield EncoderResult(_row(f"{path.name}, mean", vectors, sets, rows), str(path), "mean")
        name = f"{path.name}, mean of content words"
        yield EncoderResult(_row(name, content_vectors, sets, rows), str(path), "mean of content words")


def _row(name: str, vectors: Vectors, sets: Sequence[PairSet], rows: dict[str, int]) -> EncoderScores:
    scores = []
    for pairs in sets:
        sides = [
            (vectors[[rows[text] for text in part.first]], vectors[[rows[text] for text in part.second]])
            for part in pairs.parts
        ]
        scores.append(correlation.score_set(pairs, sides))
    average = correlation.average([set_scores.overall for set_scores in scores])["spearman"]["cosine"]
    return EncoderScores(name, vectors.shape[1], tuple(scores), average)


def _as_json(sets: Sequence[PairSet], results: Sequence[EncoderResult]) -> Json:
    """Return correlations x 100 for metrics.json."""
    return {
        "unit": "correlation x 100",
        "sets": {
            pairs.name: {
                "pairs": pairs.pairs,
                "without_gold": pairs.skipped,
                "parts": {part.name: len(part.gold) for part in pairs.parts},
            }
            for pairs in sets
        },
        "encoders": [
            {
                "name": result.row.name,
                "model": result.model,
                "pooling": result.pooling,
                "dimension": result.row.dimension,
                "sets": {pairs.name: _figures(scores) for pairs, scores in zip(sets, result.row.sets, strict=True)},
                "average": correlation.average([scores.overall for scores in result.row.sets]),
                "average_interval": {"spearman": {"cosine": result.row.interval}},
            }
            for result in results
        ],
    }


def _figures(scores: SetScores) -> Json:
    figures: Json = {"all": scores.overall}
    figures |= {"intervals": {kind: {"cosine": span} for kind, span in scores.intervals.items()}}
    if scores.parts:
        figures |= {"mean": scores.mean, "weighted_mean": scores.weighted, "parts": scores.parts}
    return figures


def _predictions(sets: Sequence[PairSet], results: Sequence[EncoderResult]) -> Iterator[Json]:
    for result in results:
        for pairs, set_scores in zip(sets, result.row.sets, strict=True):
            for part, scores in zip(pairs.parts, set_scores.scores, strict=True):
                columns = [np.round(scores[measure], 6).tolist() for measure in MEASURES]
                rows = zip(part.lines, part.first, part.second, part.gold.tolist(), *columns, strict=True)
                for line, text, pair, gold, *values in rows:
                    yield {
                        "encoder": result.row.name,
                        "set": pairs.name,
                        "part": part.name,
                        "line": line,
                        "text": text,
                        "pair": pair,
                        "gold": gold,
                        **dict(zip(MEASURES, values, strict=True)),
                    }
