"""Texts of several requests are tokenized by one call."""

import asyncio
from collections.abc import Sequence

import pytest

from bertree.errors import UserError
from bertree.serve.served import TextGatherer
from bertree.text.tokenizer import Encoded


class Tokenizing:
    """Makes a token of each character, and remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], str | None, str]] = []

    def __call__(self, texts: Sequence[str], prompt: str | None, cut: str) -> list[Encoded]:
        self.calls.append((list(texts), prompt, cut))
        if "bad" in texts:
            raise UserError("a text cannot be encoded")
        return [Encoded([ord(letter) for letter in text], None, 0) for text in texts]


async def ask(gatherer: TextGatherer, texts: list[str], prompt: str | None = None, cut: str = "right") -> list[str]:
    return ["".join(map(chr, encoded.ids)) for encoded in await gatherer.encode(texts, prompt, cut)]


def test_each_request_gets_its_own_texts_and_all_are_tokenized_at_once() -> None:
    tokenizing = Tokenizing()
    gatherer = TextGatherer(tokenizing)

    async def run() -> list[list[str]]:
        first = await asyncio.gather(ask(gatherer, ["a"]), ask(gatherer, ["b", "cc"]), ask(gatherer, ["d"]))
        return [*first, await ask(gatherer, ["e"])]

    assert asyncio.run(run()) == [["a"], ["b", "cc"], ["d"], ["e"]]
    assert [texts for texts, _, _ in tokenizing.calls] == [["a", "b", "cc", "d"], ["e"]]
    assert asyncio.run(ask(gatherer, ["f"])) == ["f"], "in another event loop"


def test_texts_that_are_read_differently_are_not_mixed() -> None:
    tokenizing = Tokenizing()
    gatherer = TextGatherer(tokenizing)

    async def run() -> list[list[str]]:
        return await asyncio.gather(
            ask(gatherer, ["a"]),
            ask(gatherer, ["b"], "query"),
            ask(gatherer, ["c"], None, "left"),
            ask(gatherer, ["d"]),
        )

    assert asyncio.run(run()) == [["a"], ["b"], ["c"], ["d"]]
    assert tokenizing.calls == [(["a", "d"], None, "right"), (["b"], "query", "right"), (["c"], None, "left")]


def test_a_text_that_cannot_be_read_fails_its_own_request_alone() -> None:
    gatherer = TextGatherer(Tokenizing())

    async def run() -> list[object]:
        asked = (ask(gatherer, ["a"]), ask(gatherer, ["b", "bad"]), ask(gatherer, ["c"]))
        return list(await asyncio.gather(*asked, return_exceptions=True))

    first, error, last = asyncio.run(run())
    assert (first, last) == (["a"], ["c"])
    assert isinstance(error, UserError)


def test_a_request_whose_client_has_gone_is_left_out() -> None:
    tokenizing = Tokenizing()
    gatherer = TextGatherer(tokenizing)

    async def run() -> list[str]:
        gone = asyncio.create_task(ask(gatherer, ["a"]))
        stays = asyncio.create_task(ask(gatherer, ["b"]))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays

    assert asyncio.run(run()) == ["b"]
    assert tokenizing.calls == [(["b"], None, "right")]
