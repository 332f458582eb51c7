"""Training rows from an index: questions, the passages that answer them, and passages that only look like it.

Such hard negatives are the best passages of documents that are not an answer. A model learns more from them than from
passages drawn at random; the first few may be answers that nobody has marked (`skip`).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.errors import UserError
from bertree.files.atomic import refuse_other, write_into_folder
from bertree.files.formats import Json
from bertree.search.evaluation.evaluate import read_questions
from bertree.search.evaluation.figures import SearchQuestion
from bertree.search.index import AnyIndex
from bertree.search.searcher import Searcher

BLOCK = 64  # questions at once


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
    blocks = (asked[at : at + BLOCK] for at in range(0, len(asked), BLOCK))
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
