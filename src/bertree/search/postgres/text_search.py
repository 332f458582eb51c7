"""PostgreSQL's own text search: which of its configurations suits a language, and questions as its queries.

Its score (`ts_rank`, divided by the logarithm of the length) is not BM25: it does not know which words are rare.
"""

from bertree.search.postgres.connection import Connection, sql
from bertree.search.words.terms import base_language

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
