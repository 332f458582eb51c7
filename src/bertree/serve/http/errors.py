"""Errors as answers: a status, one line, and the form that the clients of each interface expect."""

from collections.abc import Mapping
from typing import Any

# Status -> OpenAI's type of error, Text Embeddings Inference's type of error.
TYPES = {
    400: ("invalid_request_error", "Validation"),
    401: ("authentication_error", "Unauthorized"),
    403: ("permission_error", "Unauthorized"),
    404: ("not_found_error", "Validation"),
    405: ("invalid_request_error", "Validation"),
    408: ("timeout_error", "Validation"),
    413: ("invalid_request_error", "Validation"),
    422: ("invalid_request_error", "Validation"),
    429: ("rate_limit_error", "Overloaded"),
    500: ("server_error", "Backend"),
    503: ("unavailable_error", "Unhealthy"),
    504: ("timeout_error", "Overloaded"),
}

LONGEST = 400  # characters of a message: it may repeat what a client has sent


class HttpError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`param`: the field at fault."""
        super().__init__(message)
        line = " ".join(message.split())
        self.message = line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})


def error_body(error: HttpError, form: str) -> dict[str, Any]:
    """Return the body of an error in a form: openai, tei or cohere."""
    openai, tei = TYPES.get(error.status, TYPES[500 if error.status >= 500 else 422])
    if form == "tei":
        return {"error": error.message, "error_type": "Empty" if error.code == "empty" else tei}
    if form == "cohere":
        return {"message": error.message}
    return {"error": {"message": error.message, "type": openai, "param": error.param, "code": error.code}}
