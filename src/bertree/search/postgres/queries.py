"""The rows of an index in PostgreSQL that a filter, a vector or the words of a question select, and rows as hits.

PostgreSQL's own text search: which of its configurations suits a language, and questions as its queries. Its score
(`ts_rank`, divided by the logarithm of the length) is not BM25: it does not know which words are rare.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertree.errors import UserError, suggest
from bertree.search.passages import Hit, Passage, PassageScore, Where, check_where, wanted_values
from bertree.search.postgres.connection import Connection, sql
from bertree.search.postgres.tables import ExportedState, plain, without_nul
from bertree.search.ranking import fuse
from bertree.search.vector_files import Vectors
from bertree.search.words.terms import base_language

BEAM, MOST_BEAM = 400, 1000  # candidates of a search in the graph, and how many pgvector allows
EXACT = 10_000  # passages up to which all are compared: of the index, or of those that match a filter
FIELDS = sql.SQL("text, document, source, start_at, end_at, metadata")
SELECT = (
    "SELECT {fields}, number, {distance} AS distance, {word_score} AS word_score FROM {table} WHERE {condition} "
    "ORDER BY {order} LIMIT %s"
)
DISTANCE, WORD_SCORE, NOT_COMPARED = (
    sql.SQL(text) for text in ("embedding <=> %s::vector", "ts_rank(words, %s::tsquery, 1)", "NULL::float")
)
NUMBER_AT, DISTANCE_AT = -3, -2  # of a row


def condition(where: Where | None, keys: Sequence[str], empty: bool) -> tuple[sql.Composable, list[Any]]:
    """Return the filter of a search as an SQL condition on the passages, and its values.

    It means the same as in an index on disk. `keys`: those of all metadata; `empty`: there are no passages."""
    check_where(where)
    clauses: list[sql.Composable] = []
    values: list[Any] = []
    for name, value in (where or {}).items():
        key = plain(str(name))
        wanted = wanted_values(without_nul(value))
        if key not in (*keys, "id", "source") and not empty:
            raise UserError(f"where '{key}': no document has this key; {suggest(key, {*keys, 'id', 'source'})}")
        choices = ["labels @> %s::jsonb"] * len(wanted)
        values += [json.dumps({key: [text]}, ensure_ascii=False) for text in wanted]
        if key in ("id", "source"):  # the document's own, or a metadata key
            choices.append("document = ANY(%s)" if key == "id" else "source = ANY(%s)")
            values.append(wanted + [os.path.abspath(path) for path in wanted if key == "source"])
        clauses.append(sql.SQL("(" + (" OR ".join(choices) or "false") + ")"))
    return sql.SQL(" AND ").join(clauses) if clauses else sql.SQL("true"), values


class TableSearch:
    """Searches of one state of the index, within its transaction, with one filter."""

    def __init__(
        self, connection: Connection, state: ExportedState, table: sql.Identifier, where: Where | None
    ) -> None:
        self.connection, self.table = connection, table
        self.clause, self.values = condition(where, state.keys, not state.passages)
        self.few = state.passages <= EXACT or (bool(where) and self._matches_few())

    def by_vector(self, vector: Vectors, text: str, most: int) -> list[tuple[Any, ...]]:
        """Return the rows nearest to a vector; with the score of their words, if there is a text query."""
        exact = self.few or 2 * most > MOST_BEAM
        _tune(self.connection, exact, beam=max(BEAM, 2 * most))
        query, values = self._select(vector, text, sql.SQL("distance"))
        rows = self.connection.execute(query, [*values, *self.values, most]).fetchall()
        if not exact and len(rows) < most:  # pgvector ends a search that takes too long
            _tune(self.connection, True)
            rows = self.connection.execute(query, [*values, *self.values, most]).fetchall()
        return rows

    def by_words(self, vector: Vectors | None, text: str, most: int) -> list[tuple[Any, ...]]:
        """Return the best rows of a text query; with their distance, if there is a vector."""
        _tune(self.connection, True)
        query, values = self._select(vector, text, sql.SQL("word_score DESC, number"), " AND words @@ %s::tsquery")
        return self.connection.execute(query, [*values, *self.values, text, most]).fetchall()

    def _select(
        self, vector: Vectors | None, text: str, order: sql.SQL, and_also: str = ""
    ) -> tuple[sql.Composed, list[str]]:
        """Return a query and its values before those of the filter."""
        query = sql.SQL(SELECT).format(
            fields=FIELDS,
            distance=NOT_COMPARED if vector is None else DISTANCE,
            word_score=WORD_SCORE if text else NOT_COMPARED,
            table=self.table,
            condition=sql.SQL("({}){}").format(self.clause, sql.SQL(and_also)),
            order=order,
        )
        literal = [] if vector is None else [f"[{','.join(map(repr, vector.tolist()))}]"]
        return query, [*literal, *([text] if text else [])]

    def _matches_few(self) -> bool:
        """Whether few enough passages match a filter to compare all of them."""
        query = "SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition} LIMIT {most}) AS matching"
        parts = {"table": self.table, "condition": self.clause, "most": sql.Literal(EXACT + 1)}
        row = self.connection.execute(sql.SQL(query).format(**parts), self.values).fetchone()
        return row is not None and row[0] <= EXACT


def _tune(connection: Connection, exact: bool, beam: int = BEAM) -> None:
    """Set for this transaction whether the graph is used, and how many candidates it gives."""
    if exact:
        connection.execute("SET LOCAL enable_seqscan = on")
        connection.execute("SET LOCAL enable_indexscan = off")  # a scan of the graph; others are bitmap scans
        return
    connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
    connection.execute(sql.SQL("SET LOCAL hnsw.ef_search = {}").format(sql.Literal(min(beam, MOST_BEAM))))


def passage_of(fields: Sequence[Any]) -> Passage:
    text, document, source, start, end, metadata = fields
    return Passage(text=text, document=document, source=source, start=start, end=end, metadata=metadata)


def make_hits(
    near: Sequence[tuple[Any, ...]], by_words: Sequence[tuple[Any, ...]], sample: Vectors | None, weight: float
) -> list[Hit]:
    """Return rows as hits: best first, and of equals the one that was added first. `sample`: cosines of the query with
    passages of the index, if both parts were searched."""
    near = sorted(near, key=lambda row: (-_cosine(row[DISTANCE_AT]), row[NUMBER_AT]))
    ranks = [{row[NUMBER_AT]: rank for rank, row in enumerate(rows, 1)} for rows in (near, by_words)]
    rows = list({row[NUMBER_AT]: row for row in (*near, *by_words)}.values())
    cosines = [_cosine(row[DISTANCE_AT]) if near or sample is not None else None for row in rows]
    word_scores = [float(row[-1] or 0.0) if by_words or sample is not None else None for row in rows]
    if sample is not None and rows:
        both = (np.array(cosines, np.float32), np.array(word_scores, np.float32))
        scores: list[float] = fuse(*both, float(sample.mean()), float(sample.std()), weight).tolist()
    else:
        scores = [float(score or 0.0) for score in (cosines if near else word_scores)]
    hits = [
        Hit.of_passage(passage_of(fields), PassageScore(score, cosine, word, ranks[0].get(n), ranks[1].get(n)))
        for (*fields, n, _, _), score, cosine, word in zip(rows, scores, cosines, word_scores, strict=True)
    ]
    return sorted(hits, key=lambda hit: -hit.score)


def _cosine(distance: float) -> float:
    """The cosine; 0 for a vector of zeros, which has none."""
    return 1.0 - distance if distance == distance else 0.0


CONFIGURATIONS = {
    "da": "danish",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hu": "hungarian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "tr": "turkish",
}
QUERY = "SELECT string_agg(quote_literal(lexeme), ' | ') FROM unnest(to_tsvector(%s::text::regconfig, %s))"


def configuration_for(language: str) -> str:
    """Return PostgreSQL's configuration of a language; simple, without stop words and endings, if it has none."""
    return CONFIGURATIONS.get(base_language(language), "simple")


def text_query(connection: Connection, configuration: str, question: str) -> str:
    """Return the tsquery of passages that have one of the words of a question; "" matches none."""
    row = connection.execute(sql.SQL(QUERY), (configuration, question.replace("\0", " "))).fetchone()
    return (row and row[0]) or ""
