"""Evaluate an index on questions in each mode, and tune the weight of words (what is counted: evaluation.py); and write
training rows from an index: questions, the passages that answer them, and passages that only look like it.

Such hard negatives are the best passages of documents that are not an answer. A model learns more from them than from
passages drawn at random; the first few may be answers that nobody has marked (`skip`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.errors import UserError, counted, suggest
from bertree.files.atomic import make_folders, refuse_other, write_atomically, write_into_folder
from bertree.files.formats import Json
from bertree.report.html import write_report
from bertree.run_folder import SCORES
from bertree.search.evaluation import (
    DEPTH,
    FIGURES,
    ModeScores,
    SearchEvaluation,
    SearchQuestion,
    Tuned,
    evaluation_page,
)
from bertree.search.index import AnyIndex, Index
from bertree.search.passage_vectors import embed_texts
from bertree.search.passages import Hit
from bertree.search.rerank import CANDIDATES, Reranker, rerank_hits
from bertree.search.searcher import Searcher
from bertree.search.words.terms import analyzer_for
from bertree.search.writer import open_writer
from bertree.text.records import location, read_records

WEIGHTS = tuple(round(0.05 * step, 2) for step in range(21))  # that are tried
BLOCK = 256  # questions that are evaluated at once


def read_questions(path: str | Path, question: str = "question", document: str = "document") -> list[SearchQuestion]:
    """Read questions: a table or JSON lines with a question and the id of its document, or a list of ids."""
    path = Path(path)
    questions = []
    for number, record in read_records(path):
        where = location(path, number)
        for column in (question, document):
            if column not in record:
                raise UserError(f"{where}: has no column '{column}'; {suggest(column, map(str, record))}")
        text, ids = record[question], record[document]
        ids = ids if isinstance(ids, list) else [ids]
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"{where}: the question is empty")
        if not ids or not all(str(id) for id in ids):
            raise UserError(f"{where}: has no document that answers the question")
        questions.append(SearchQuestion(text, frozenset(map(str, ids))))
    if not questions:
        raise UserError(f"{path}: has no questions")
    return questions


def evaluate_search(
    index: AnyIndex,
    questions: str | Path | Iterable[SearchQuestion | Mapping[str, Any]],
    *,
    question: str = "question",
    document: str = "document",
    rerank: Reranker | None = None,
    candidates: int = CANDIDATES,
    label: str | None = None,
    tune: bool = False,
    out: str | Path | None = None,
) -> SearchEvaluation:
    """Search for the answers of questions in each mode, and count how often the right documents come first.

    `questions`: a file with the columns `question` and `document` (an id, or a list of ids), or such mappings.
    `rerank`: a further mode, the hybrid one sorted again. `tune`: choose the weight of words on every second question,
    report it on the others, and keep it in the index. `out`: a folder for metrics.json and report.html, a page of the
    questions that fail.
    """
    if out is not None:
        refuse_other(Path(out))
    if isinstance(questions, str | Path):
        asked = read_questions(questions, question, document)
    else:
        asked = [
            item if isinstance(item, SearchQuestion) else _question(item, question, document) for item in questions
        ]
    if not asked:
        raise UserError("questions: there are none")
    missing = sorted({id for item in asked for id in item.documents if not index.document(id)})
    if len(missing) == len({id for item in asked for id in item.documents}):
        raise UserError(f"{index.name}: has none of these documents, such as {missing[0]!r}; give ids of the index")

    vectors = None
    if index.model is not None:
        vectors = embed_texts(index.model, [item.text for item in asked], index.state.prompts[1])
    search = _Searches(index, asked, vectors)
    tuned = search.tune() if tune else None
    modes = [mode for mode in ("words", "vectors", "hybrid") if _possible(mode, index)]
    scores = [search.score(mode, search.hits(mode)) for mode in modes]
    if rerank is not None:
        scores.append(search.score("reranked", search.reranked(modes[-1], rerank, candidates, label)))
    evaluation = SearchEvaluation(index.name, asked, scores, tuned, missing)
    if out is not None:
        with make_folders(Path(out)):
            write_atomically(Path(out) / SCORES, json.dumps(evaluation.json(), indent=2) + "\n")
        write_report(Path(out), lambda: evaluation_page(evaluation))
    if tuned is not None:  # last: a run that was stopped before finds the index as it was
        assert isinstance(index, Index)
        with open_writer(index.path) as writer:
            writer.set_word_weight(tuned.weight)
    return evaluation


def _question(record: Mapping[str, Any], question: str, document: str) -> SearchQuestion:
    if question not in record or document not in record:
        raise UserError(f"questions: each needs '{question}' and '{document}', not {sorted(map(str, record))}")
    ids = record[document]
    return SearchQuestion(
        str(record[question]), frozenset(map(str, ids if isinstance(ids, list | tuple | set) else [ids]))
    )


def _possible(mode: str, index: AnyIndex) -> bool:
    return (mode == "vectors" or index.has_words) and (mode == "words" or index.model is not None)


class _Searches:
    """Searches of all questions, whose vectors are computed once."""

    def __init__(
        self, index: AnyIndex, questions: Sequence[SearchQuestion], vectors: NDArray[np.float32] | None
    ) -> None:
        self.index, self.questions, self.vectors = index, questions, vectors
        self.weight: float | None = None  # of words; None: that of the index

    def hits(self, mode: str, rows: Sequence[int] | None = None, weight: float | None = None) -> list[list[Hit]]:
        """Return the best passages of the questions at `rows`; of all if None."""
        analyzer = analyzer_for(self.index.language)
        chosen = range(len(self.questions)) if rows is None else rows
        # A question of stop words has no result in the mode words, which refuses it.
        asked = [n for n in chosen if mode != "words" or analyzer.terms(self.questions[n].text)]
        results: dict[int, list[Hit]] = {}
        for at in range(0, len(asked), BLOCK):
            block = asked[at : at + BLOCK]
            vectors = None if self.vectors is None or mode == "words" else self.vectors[block]
            texts = [self.questions[n].text for n in block]
            hits = self.index.find(texts, vectors, DEPTH, mode=mode, weight=self.weight if weight is None else weight)
            results |= zip(block, hits, strict=True)
        return [results.get(n, []) for n in chosen]

    def reranked(self, mode: str, model: Reranker, candidates: int, label: str | None) -> list[list[Hit]]:
        """Return the hits of a mode, sorted again."""
        texts = [question.text for question in self.questions]
        return rerank_hits(model, texts, self.hits(mode), candidates=candidates, label=label)

    def score(self, mode: str, results: Sequence[Sequence[Hit]], rows: Sequence[int] | None = None) -> ModeScores:
        """Return the figures of hits."""
        chosen = range(len(self.questions)) if rows is None else rows
        ranked = [list(dict.fromkeys(hit.document for hit in hits)) for hits in results]
        figures = [_figures(ids, self.questions[n].documents) for n, ids in zip(chosen, ranked, strict=True)]
        values = {name: np.array([row[name] for row in figures]) for name in FIGURES}
        return ModeScores(mode, ranked, values, [hits[0] if hits else None for hits in results])

    def tune(self) -> Tuned:
        """Choose the weight of words by mrr on every second question, and use it from now on."""
        index = self.index
        if not isinstance(index, Index):
            raise UserError(f"{index.name}: the weight is tuned in an index on disk")
        if not _possible("hybrid", index):
            raise UserError(f"{index.name}: tuning needs the model and a word index; `bertree index upgrade` makes one")
        if len(self.questions) < 4:
            raise UserError(f"tune: {counted(len(self.questions), 'question')} cannot be divided; give at least 4")
        part, held_out = (list(range(first, len(self.questions), 2)) for first in (0, 1))

        def mrr(weight: float, rows: Sequence[int]) -> float:
            return self.score("hybrid", self.hits("hybrid", rows, weight), rows).mean("mrr")

        before = index.state.word_weight
        scores = np.array([mrr(weight, part) for weight in WEIGHTS])
        self.weight = weight = _choose_weight(scores, before)
        return Tuned(weight, before, len(part), len(held_out), mrr(weight, held_out), mrr(before, held_out))


def _choose_weight(scores: NDArray[np.float64], before: float) -> float:
    """Return the weight with the best score; of equals, the one nearest to that before."""
    smooth = np.convolve(np.pad(scores, 1, mode="edge"), np.ones(3) / 3, "valid")  # a weight in a flat region
    best = np.flatnonzero(smooth >= smooth.max() - 1e-9).tolist()
    return min((WEIGHTS[number] for number in best), key=lambda weight: abs(weight - before))


def _figures(ranked: Sequence[str], right: frozenset[str]) -> dict[str, float]:
    places = [place for place, id in enumerate(ranked, 1) if id in right]
    gain = sum(1 / np.log2(place + 1) for place in places if place <= 10)
    ideal = sum(1 / np.log2(place + 1) for place in range(1, min(len(right), 10) + 1))
    return {
        "first": float(bool(places) and places[0] == 1),
        "recall@5": sum(place <= 5 for place in places) / len(right),
        "recall@10": sum(place <= 10 for place in places) / len(right),
        "mrr": 1 / places[0] if places and places[0] <= 10 else 0.0,
        "ndcg": gain / ideal,
    }


MINED_BLOCK = 64  # questions that are mined for at once


@dataclass(frozen=True)
class MinedNegatives:
    """Counts of what was written."""

    rows: int  # one for each question
    missing: int  # questions without a document in the index


def mine_negatives(
    index: AnyIndex,
    questions: str | Path,
    out: str | Path,
    *,
    question: str = "question",
    document: str = "document",
    negatives: int = 5,
    skip: int = 0,
    mode: str | None = None,
) -> MinedNegatives:
    """Write, for each question, its answer and the best other passages to a .jsonl file that `embeddings train` reads.

    `skip`: leave out so many of the best other passages.
    """
    if negatives < 1 or skip < 0:
        raise UserError(f"negatives {negatives}, skip {skip}: must be at least 1 and 0")
    if Path(out).suffix != ".jsonl":
        raise UserError(f"{out}: must be a .jsonl file")
    refuse_other(Path(out))
    asked = read_questions(questions, question, document)
    blocks = (asked[at : at + MINED_BLOCK] for at in range(0, len(asked), MINED_BLOCK))
    rows = [row for block in blocks for row in _mine(index, block, negatives, skip, mode)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows if row is not None]
    if not lines:
        raise UserError(f"{index.name}: has no document of the questions; the ids are those of the index")
    write_into_folder(Path(out), "".join(lines))
    return MinedNegatives(len(lines), len(rows) - len(lines))


def _mine(
    index: Searcher, asked: Sequence[SearchQuestion], negatives: int, skip: int, mode: str | None
) -> Iterator[Json | None]:
    """Yield a row for each question; None for one whose document is not in the index."""
    results = index.find_unmarked([question.text for question in asked], 4 * (negatives + skip) + 20, mode=mode)
    for question, hits in zip(asked, results, strict=True):
        right = [hit for hit in hits if hit.document in question.documents]
        if not right:
            right = index.search(question.text, 1, mode="vectors", where={"id": sorted(question.documents)})
        if not right:
            yield None
            continue
        others = [hit.text for hit in hits if hit.document not in question.documents and hit.text != right[0].text]
        yield {"query": question.text, "positive": right[0].text, "negatives": others[skip : skip + negatives]}
