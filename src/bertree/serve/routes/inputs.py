"""Checks of texts and numbers that the routes of bertree's own interface share."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from bertree.errors import UserError
from bertree.serve.http.context import Context
from bertree.serve.http.errors import HttpError
from bertree.serve.models.served import unit_tokens
from bertree.tasks.task import Unit

SMALL = 4000  # characters that are tokenized at once on the event loop: about a millisecond
Count = Annotated[int, Meta(ge=1, le=1000)]  # how many results are wanted


def check_text(text: str, field: str) -> None:
    """Refuse a text without anything in it."""
    if not text.strip():
        raise HttpError(422, f"{field}: is empty", param=field, code="empty")


def check_units(context: Context, units: Sequence[Unit], field: str) -> None:
    """Refuse a text that is longer than a request may be."""
    tokens = sum(map(unit_tokens, units))
    if tokens > context.limits.tokens:
        message = f"{field}: has {tokens:,} tokens; at most {context.limits.tokens:,} in a request"
        raise HttpError(422, message, param=field)


def note_cut(context: Context, texts: int, tokens: int) -> bool:
    """Say in headers and metrics how many texts were cut, and by how many tokens; return whether any was."""
    if texts:
        context.headers["x-truncated-texts"] = str(texts)
        context.headers["x-truncated-tokens"] = str(tokens)
        context.service.metrics.truncated(texts)
    return texts > 0


def about(field: str, error: UserError) -> HttpError:
    """Return the answer to a mistake in a field."""
    return HttpError(422, f"{field}: {str(error).removeprefix(f'{field}: ')}", param=field)
