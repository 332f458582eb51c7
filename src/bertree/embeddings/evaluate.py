"""Evaluate sentence vectors on sets of pairs with gold scores: `bertree.evaluate_embeddings`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertree.console import note, showing
from bertree.embeddings import correlation, glove, sts
from bertree.embeddings.correlation import MEASURES, SetScores
from bertree.embeddings.embed import Embedder, EmbedOptions, embed_texts
from bertree.embeddings.page import EncoderScores, evaluation_page
from bertree.embeddings.sts import PairSet
from bertree.errors import UserError
from bertree.files.atomic import new_folder, write_json_lines, write_text
from bertree.files.formats import Json, json_text
from bertree.inference.embedding import Vectors
from bertree.inference.model import Model
from bertree.run_folder import PREDICTIONS, REPORT, SCORES


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


@dataclass(frozen=True)
class EmbeddingScores:
    """The correlations of every encoder with the gold scores of every set."""

    sets: Sequence[PairSet]
    results: Sequence[EncoderResult]

    @property
    def metrics(self) -> Json:
        """Correlations x 100, as in metrics.json."""
        return _as_json(self.sets, self.results)


def evaluate_embeddings(
    models: Sequence[str | Path | Model] | str | Path | Model = (),
    *,
    data: Sequence[str | Path] | str | Path,
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
    are sets of pairs or folders of sets; `text`, `pair` and `label` name your columns; `out` is a folder for
    metrics.json, predictions.jsonl and report.html.

    >>> bertree.evaluate_embeddings("default", data="STS-B").metrics["encoders"][0]["average"]
    """
    encoders = Encoders(
        [models] if isinstance(models, str | Path | Model) else models, pooling, [Path(path) for path in glove]
    )
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    with showing(progress):
        if not encoders.models and not encoders.glove:
            raise UserError("nothing to evaluate: name a model, or `glove=FILE`")
        folder = _check_folder(out)
        sets = sts.find(paths, sts.PairColumns(text, pair, label), split)
        for one in sets:
            correlation.check(one)
            for line in one.notes:
                note(line)
            if one.skipped:
                note(f"{one.name}: {one.skipped:,} pairs have no gold score and are left out")
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
            for pairs, found in zip(sets, result.row.sets, strict=True):
                for line in correlation.undefined(pairs, found):
                    note(f"{result.row.name}: {line}")
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
    if out.is_dir() and (there := sorted(path.name for path in out.iterdir())):
        raise UserError(f"{out}: exists already and holds {there[0]}; give an empty or a new folder")
    return out


def _evaluate_encoders(encoders: Encoders, sets: Sequence[PairSet], options: EmbedOptions) -> Iterator[EncoderResult]:
    """Evaluate one encoder after the other: two models need not fit into memory together."""
    texts = list(dict.fromkeys(text for one in sets for part in one.parts for text in (*part.first, *part.second)))
    places = {text: number for number, text in enumerate(texts)}
    poolings: Sequence[str | None] = encoders.poolings or [None]
    for model in encoders.models:
        for pooling in poolings:
            embedder = Embedder(model, options, pooling)
            vectors = embed_texts(embedder, texts, embedder.given)
            used = embedder.model.vector.pooling
            given = embedder.given
            name = f"{given}, {used}" if pooling or embedder.model.network.vector is None else given
            yield EncoderResult(_row(name, vectors, sets, places), given, used)
    for path in encoders.glove:
        table = glove.WordVectors.read(path, glove.words_of(texts))
        vectors = table.embed(texts)
        others = table.embed(texts, content=True)
        unknown = int((~vectors.any(1)).sum())
        if unknown:
            note(f"{path}: {unknown:,} of {len(texts):,} texts have no known word, so their vector is zero")
        yield EncoderResult(_row(f"{path.name}, mean", vectors, sets, places), str(path), "mean")
        name = f"{path.name}, mean of content words"
        yield EncoderResult(_row(name, others, sets, places), str(path), "mean of content words")


def _row(name: str, vectors: Vectors, sets: Sequence[PairSet], places: dict[str, int]) -> EncoderScores:
    scores = []
    for one in sets:
        sides = [
            (vectors[[places[text] for text in part.first]], vectors[[places[text] for text in part.second]])
            for part in one.parts
        ]
        scores.append(correlation.score_set(one, sides))
    average = correlation.average([found.whole for found in scores])["spearman"]["cosine"]
    return EncoderScores(name, vectors.shape[1], tuple(scores), average)


def _as_json(sets: Sequence[PairSet], results: Sequence[EncoderResult]) -> Json:
    """Return correlations x 100 for metrics.json."""
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
                "sets": {one.name: _figures(found) for one, found in zip(sets, result.row.sets, strict=True)},
                "average": correlation.average([found.whole for found in result.row.sets]),
            }
            for result in results
        ],
    }


def _figures(scores: SetScores) -> Json:
    found: Json = {"all": scores.whole}
    if scores.parts:
        found |= {"mean": scores.mean, "weighted_mean": scores.weighted, "parts": scores.parts}
    return found


def _predictions(sets: Sequence[PairSet], results: Sequence[EncoderResult]) -> Iterator[Json]:
    for result in results:
        for one, found in zip(sets, result.row.sets, strict=True):
            for part, scores in zip(one.parts, found.scores, strict=True):
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
