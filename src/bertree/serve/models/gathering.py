"""Texts of several requests, tokenized by one call.

A call for a single short text takes three times as long as a text does in a call for many: what it needs is no longer
in the caches, and the interpreter's lock is released and taken once more.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bertree.text.tokenizer import Encoded

Tokenize = Callable[[Sequence[str], str | None, str], list[Encoded]]


class WaitingTexts(NamedTuple):
    """The texts of a request."""

    texts: Sequence[str]
    future: "asyncio.Future[list[Encoded]]"


class TextGatherer:
    """Collects what the requests of one turn of the event loop bring, and tokenizes it at the end of the turn."""

    def __init__(self, tokenize: Tokenize) -> None:
        """`tokenize`: texts, the name of a prompt, and the end at which texts are cut -> one result each."""
        self._tokenize = tokenize
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, str | None, str], list[WaitingTexts]] = {}

    async def encode(self, texts: Sequence[str], prompt: str | None, cut: str) -> list[Encoded]:
        """Return texts tokenized, in their order."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Encoded]] = loop.create_future()
        key = (loop, prompt, cut)
        if (waiting := self._waiting.get(key)) is None:
            waiting = self._waiting[key] = []
            loop.call_soon(self._tokenize_all, key)
        waiting.append(WaitingTexts(texts, future))
        return await future

    def _tokenize_all(self, key: tuple[asyncio.AbstractEventLoop, str | None, str]) -> None:
        _, prompt, cut = key
        waiting = [one for one in self._waiting.pop(key) if not one.future.done()]
        try:
            encoded = self._tokenize([text for one in waiting for text in one.texts], prompt, cut)
        except BaseException as error:  # a tokenizer that panics, too: nobody else would tell those who wait
            if len(waiting) == 1:
                waiting[0].future.set_exception(error)
                return
            for one in waiting:  # so that the text at fault fails its own request alone
                self._waiting[key] = [one]
                self._tokenize_all(key)
            return
        start = 0
        for one in waiting:
            end = start + len(one.texts)
            one.future.set_result(encoded[start:end])
            start = end
