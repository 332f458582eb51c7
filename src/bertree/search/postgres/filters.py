"""Filters of a search as SQL conditions, with the same meaning as in an index on disk."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertree.errors import UserError, suggest
from bertree.search.documents import value_text
from bertree.search.passage_store import Where
from bertree.search.postgres.driver import sql
from bertree.search.postgres.rows import plain, without_nul


def condition(where: Where | None, keys: Sequence[str], empty: bool) -> tuple[sql.Composable, list[Any]]:
    """Return the condition on the passages, and its values. `keys`: those of all metadata; `empty`: no passages."""
    if where is not None and not isinstance(where, Mapping):
        raise UserError(f"where: must be a mapping of keys to values, not {where!r}"[:200])
    clauses: list[sql.Composable] = []
    values: list[Any] = []
    for name, value in (where or {}).items():
        key = plain(str(name))
        given = value if isinstance(value, list | tuple | set) else [value]
        wanted = [value_text(without_nul(one)) for one in given]
        if key not in (*keys, "id", "source") and not empty:
            raise UserError(f"where '{key}': no document has this key; {suggest(key, {*keys, 'id', 'source'})}")
        choices = ["labels @> %s::jsonb"] * len(wanted)
        values += [json.dumps({key: [text]}, ensure_ascii=False) for text in wanted]
        if key in ("id", "source"):  # the document's own, or a metadata key
            choices.append("document = ANY(%s)" if key == "id" else "source = ANY(%s)")
            values.append(wanted + [os.path.abspath(path) for path in wanted if key == "source"])
        clauses.append(sql.SQL("(" + (" OR ".join(choices) or "false") + ")"))
    return sql.SQL(" AND ").join(clauses) if clauses else sql.SQL("true"), values
