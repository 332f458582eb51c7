"""Clients that close the connection before their answer: what is left of their work is cancelled."""

import asyncio

from starlette.types import Receive

WATCHED_AFTER = 0.05  # seconds from which on it is watched whether a client has gone; up to twice as many


class ClientWatch:
    """Cancels the task that made it when its client closes the connection. It looks after a moment, when most requests
    are done."""

    __slots__ = ("_all", "_receive", "_task", "_watcher", "gone")

    def __init__(self, receive: Receive, watches: "ClientWatches") -> None:
        self._receive, self._all, self.gone = receive, watches, False
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch, once the body was read."""
        self._task = asyncio.current_task()
        self._all.add(self)

    def stop(self) -> None:
        """Watch no longer."""
        self._all.remove(self)
        if self._watcher is not None:
            self._watcher.cancel()

    def begin(self) -> None:
        """Look from now on."""
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        assert self._task is not None
        self._task.cancel()


class ClientWatches:
    """Begins watches that are old enough. All share a timer: one for each request would cost more than it is used."""

    def __init__(self) -> None:
        self._new: set[ClientWatch] = set()
        self._old: set[ClientWatch] = set()  # those that the next look begins
        self._loop: asyncio.AbstractEventLoop | None = None  # whose timer runs

    def add(self, watch: ClientWatch) -> None:
        """Begin a watch after a moment, unless it is removed before."""
        self._new.add(watch)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            loop.call_later(WATCHED_AFTER, self._look, loop)

    def remove(self, watch: ClientWatch) -> None:
        """Forget a watch."""
        self._new.discard(watch)
        self._old.discard(watch)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        for watch in self._old:
            watch.begin()
        self._old, self._new = self._new, set()
        if self._old:
            loop.call_later(WATCHED_AFTER, self._look, loop)
        else:
            self._loop = None
