"""A client that costs little: keep-alive connections, requests prepared before, answers read as bytes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

OnAnswer = Callable[[int, int, bytes, bytes], None]  # number of the request, status, head, body


@dataclass
class Outcome:
    """What a phase has seen."""

    seconds: float = 0.0
    latencies: dict[int, list[float]] = field(default_factory=dict)  # status -> seconds of each request
    lost: int = 0  # requests without an answer

    def note(self, status: int, seconds: float) -> None:
        """Note an answer."""
        self.latencies.setdefault(status, []).append(seconds)

    def count(self, status: int = 200) -> int:
        """Return how many answers had a status."""
        return len(self.latencies.get(status, ()))

    def quantile(self, share: float, status: int = 200) -> float:
        """Return a quantile of the times, in milliseconds."""
        found = sorted(self.latencies.get(status, ()))
        return 1000 * found[min(len(found) - 1, int(share * len(found)))] if found else float("nan")


class Connection:
    """A connection that is kept open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Send a request; return status, head and body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**26)
        reader, writer = self._streams
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            length = int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
            body = await reader.readexactly(length)
        except BaseException:
            self.close()
            raise
        if b"connection: close" in lower:
            self.close()
        return int(head[9:12]), lower, body

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def post(path: str, body: bytes) -> bytes:
    """Return a request as bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def _ignore(number: int, status: int, head: bytes, body: bytes) -> None:
    """Do nothing with an answer."""


async def closed_loop(
    port: int, requests: Sequence[bytes], clients: int, seconds: float, on_answer: OnAnswer = _ignore
) -> Outcome:
    """Ask with so many clients, each without pause, for so many seconds."""
    found, numbers = Outcome(), iter(range(10**9))
    started = time.perf_counter()

    async def run() -> None:
        connection = Connection(port)
        while time.perf_counter() - started < seconds:
            number = next(numbers)
            begun = time.perf_counter()
            status, head, body = await connection.ask(requests[number % len(requests)])
            found.note(status, time.perf_counter() - begun)
            on_answer(number % len(requests), status, head, body)
        connection.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    found.seconds = time.perf_counter() - started
    return found


async def open_loop(
    port: int, requests: Sequence[bytes], rate: float, seconds: float, seed: int = 0, on_answer: OnAnswer = _ignore
) -> Outcome:
    """Ask at random moments, so many times a second on average, whether answers come or not."""
    import random

    draw, found, free = random.Random(seed), Outcome(), list[Connection]()
    pending: set[asyncio.Task[None]] = set()

    async def ask(number: int) -> None:
        connection = free.pop() if free else Connection(port)
        begun = time.perf_counter()
        try:
            status, head, body = await connection.ask(requests[number % len(requests)])
        except (OSError, asyncio.IncompleteReadError):
            found.lost += 1
            return
        found.note(status, time.perf_counter() - begun)
        on_answer(number % len(requests), status, head, body)
        free.append(connection)

    started = due = time.perf_counter()
    number = 0
    while due - started < seconds:
        due += draw.expovariate(rate)
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(ask(number))
        pending.add(task)
        task.add_done_callback(pending.discard)
        number += 1
    await asyncio.gather(*pending)
    found.seconds = time.perf_counter() - started  # to the last answer: what was queued at the end counts too
    for connection in free:
        connection.close()
    return found
