"""Who may ask: keys, and the pages of a browser."""

from collections.abc import Iterable

from bertree.serve.http.context import Context
from bertree.serve.http.errors import HttpError
from bertree.serve.settings import RequestSettings

LOCAL_NAMES = (b"localhost", b"127.0.0.1", b"[::1]")
ALLOW_ORIGIN = "access-control-allow-origin"
PREFLIGHT = {
    "access-control-allow-methods": "GET, POST",
    "access-control-allow-headers": "authorization, content-type, x-timeout, x-request-id",
    "access-control-max-age": "600",
}


class Access:
    """Refuses requests without a key, if the server has keys, and what pages of other sites make a browser send.

    A browser tells where a page comes from (Origin). A page whose name was bound to this machine's address after it was
    loaded sends a foreign Host; that can be told only where the names of the server are known: on the loopback."""

    def __init__(self, settings: RequestSettings, open_paths: Iterable[str]) -> None:
        """`open_paths`: those that need no key; of one with a parameter, what stands before it counts."""
        self._keys, self._loopback = settings.keys, settings.loopback
        self._origins = {origin.encode() for origin in settings.cors}
        paths = [path.partition("{") for path in open_paths]
        self._open_paths = frozenset(path for path, brace, _ in paths if not brace)
        self._open_folders = tuple(path for path, brace, _ in paths if brace)

    def refusal(self, context: Context) -> HttpError | None:
        """Return why a request is refused; None: it is not. A page that may ask is told so by headers."""
        given = context.given
        host, origin = given.get(b"host", b""), given.get(b"origin")
        if origin is not None:
            if origin in self._origins:
                context.headers[ALLOW_ORIGIN] = origin.decode("latin-1")
                context.headers["vary"] = "Origin"
            elif origin.rpartition(b"//")[2] != host:
                return HttpError(403, "this page is of another site (see --cors)")
        if self._loopback and host and host.rsplit(b":", 1)[0] not in LOCAL_NAMES and host not in LOCAL_NAMES:
            return HttpError(403, "the server is reached by a foreign name")
        if self._keys and not self.is_preflight(context):
            return self._wrong_key(context.scope["path"], given.get(b"authorization"))
        return None

    def is_preflight(self, context: Context) -> bool:
        """Return whether a browser asks if a page that is allowed may send a request (CORS)."""
        return ALLOW_ORIGIN in context.headers and context.scope["method"] == "OPTIONS"

    def _wrong_key(self, path: str, given: bytes | None) -> HttpError | None:
        if path in self._open_paths or path.startswith(self._open_folders):
            return None
        if given is not None and self._keys.allow(given.decode("latin-1")):
            return None
        message = "a key is needed (Authorization: Bearer KEY)" if given is None else "the key is wrong"
        return HttpError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
