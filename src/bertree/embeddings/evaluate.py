"""Evaluate sentence vectors on sets of pairs with gold scores: `bertree.evaluate_embeddings`.

Baselines are means of word vectors (GloVe). The plain mean is dominated by "the" and "of"; without the most frequent
words it is far better (STS-B, 50 dimensions: 53 instead of 38), so both are evaluated. The files of word vectors are
large (840B tokens: 5 GB), so only the words of the evaluated texts are parsed.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertree.console import note, showing
from bertree.embeddings import correlation, sts
from bertree.embeddings.correlation import MEASURES, EncoderScores, SetScores, evaluation_page
from bertree.embeddings.embed import Embedder, EmbedOptions, embed_texts
from bertree.embeddings.sts import PairSet
from bertree.errors import UserError
from bertree.files.atomic import new_folder, write_json_lines, write_text
from bertree.files.formats import Json, json_text
from bertree.inference.embedding import Vectors
from bertree.inference.model import Model
from bertree.result_table import ResultTable, ShownAsTable
from bertree.run_folder import PREDICTIONS, REPORT, SCORES
from bertree.tasks.intervals import few_line
from bertree.text.memory import Rows, pair_fields, takes_rows
from bertree.text.sources import Source, open_source

CLITICS = re.compile(r"(n't|'(?:s|m|d|re|ve|ll))\b")  # words of their own in these files
WORDS = re.compile(r"n't|'\w+|\d+(?:[.,:]\d+)*|\w+(?:-\w+)*|[^\w\s]")

FREQUENT = 100  # words at the start of a file, which is sorted by frequency: "the", "of" ...


def split_words(text: str) -> list[str]:
    """Split a text into words as these files have them: lower case, punctuation separate."""
    return WORDS.findall(CLITICS.sub(r" \1", text.lower().replace("’", "'")))


def words_of(texts: Iterable[str]) -> set[str]:
    """Return the words that may be looked up for these texts."""
    words = {word for text in texts for word in split_words(text)}
    return words | {part for word in words if "-" in word for part in word.split("-")}


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors."""

    rows: dict[str, int]
    table: NDArray[np.float32]
    frequent: frozenset[str] = field(default=frozenset())  # the first words of its file

    @classmethod
    def read(cls, path: Path, only: Collection[str] | None = None) -> "WordVectors":
        """Read a file with one word and its numbers per line, plain or compressed; `only`: skip all other words."""
        rows: dict[str, int] = {}
        frequent: set[str] = set()
        vectors: list[NDArray[np.float32]] = []
        width = 0
        with open_source(Source(str(path), "text", 0, 0)) as (stream, _):
            for number, line in enumerate(stream, 1):
                name, _, rest = line.rstrip().partition(b" ")
                if not name:
                    continue
                if not width:
                    width = len(rest.split())
                    if width == 1 and name.isdigit():  # word2vec's text form begins with the number of words
                        width = 0
                        continue
                if number <= FREQUENT:
                    frequent.add(_word(name))
                if only is not None and _word(name) not in only:
                    continue
                vector = _numbers(rest)
                if vector is None and line.count(b" ") > width:
                    continue  # a few of GloVe's words hold spaces: no text is split into them
                if vector is None:
                    raise UserError(f"{path}: line {number}: is not a word and its numbers")
                if len(vector) != width or not width:
                    raise UserError(f"{path}: line {number}: has {len(vector)} numbers, unlike the lines before")
                if (word := _word(name)) not in rows:
                    rows[word] = len(vectors)
                    vectors.append(vector)
        if not width:
            raise UserError(f"{path}: holds no vectors")
        if not vectors:
            raise UserError(f"{path}: has a vector for none of the words of these texts")
        return cls(rows, np.stack(vectors), frozenset(frequent))

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self.table.shape[1]

    @cached_property
    def digest(self) -> str:
        """Hash of words and vectors."""
        digest = hashlib.sha256("\n".join(self.rows).encode())
        digest.update(self.table.tobytes())
        return digest.hexdigest()

    def mean(self, text: str, content: bool = False) -> NDArray[np.float32]:
        """Return the mean vector of the known words; zeros if there is none. `content`: leave out punctuation and the
        most frequent words, unless there are no others."""
        words = [word for word in self._words(text) if word in self.rows]
        if content:
            words = [word for word in words if word not in self.frequent and word[-1].isalnum()] or words
        rows = [self.rows[word] for word in words]
        return self.table[rows].mean(0) if rows else np.zeros(self.dimension, np.float32)

    def embed(self, texts: Iterable[str], content: bool = False) -> NDArray[np.float32]:
        """Return the mean vectors of n texts (n x d)."""
        return np.array([self.mean(text, content) for text in texts], np.float32).reshape(-1, self.dimension)

    def _words(self, text: str) -> Iterator[str]:
        for word in split_words(text):
            if word in self.rows or "-" not in word:
                yield word
            else:
                yield from word.split("-")


def _word(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _numbers(data: bytes) -> NDArray[np.float32] | None:
    try:
        numbers = np.array(data.split(), np.float32)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


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
