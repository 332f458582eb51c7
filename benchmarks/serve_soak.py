"""The server for twenty minutes under mixed load: good and bad requests, aborted connections, slow readers.

    python -m benchmarks.serve_soak --minutes 20 --out benchmarks/results/serving.jsonl
    python -m benchmarks.serve_soak --crowd 180 --out benchmarks/results/serving.jsonl

No answer may be a 5xx, memory must stay flat (the last half within 3 %), and no connection may be left open. With
--crowd: so many seconds with a thousand connections that do nothing, send half of their headers, or do not read, each
opened again when the server closes it, while sixteen clients embed texts.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from contextlib import suppress

from benchmarks.common import CORPUS, Results, argument_parser, real_weights, sentences
from benchmarks.serve_client import Connection, Outcome, Server, closed_loop, post, start_bertree

BAD = (
    b"",
    b"{",
    b"[]",
    b'{"input": 5}',
    b'{"input": ""}',
    b'{"input": "a", "model": "x"}',
    b'{"input": [[-1]]}',
    b"\xff",
)
CLIENTS = {"single": 12, "bulk": 2, "long": 2, "bad": 2, "aborted": 2, "slow": 2}
EVERY = 10.0  # seconds between looks at memory


class Soak:
    """Clients of all kinds against one server, until a moment."""

    def __init__(self, server: Server, seconds: float) -> None:
        self.server, self.until = server, time.perf_counter() + seconds
        self.texts, self.statuses, self.lost = sentences(CORPUS, 2000), Counter[int](), 0
        self.memory: list[tuple[float, float, int]] = []  # seconds, megabytes, open files

    @property
    def going(self) -> bool:
        """Whether there is time left."""
        return time.perf_counter() < self.until

    def body(self, draw: random.Random, kind: str) -> bytes:
        """Return a random body of a kind of client."""
        if kind == "bad":
            return draw.choice(BAD)
        count = draw.randint(16, 128) if kind == "bulk" else 1
        texts = [
            " ".join(draw.choices(self.texts, k=draw.randint(1, 20) if kind == "long" else 1)) for _ in range(count)
        ]
        form = draw.choice(["float", "base64"])
        return json.dumps({"input": texts if count > 1 else texts[0], "encoding_format": form}).encode()

    async def client(self, kind: str, seed: int) -> None:
        """Ask until the time is over."""
        draw, connection = random.Random(f"{kind} {seed}"), Connection(self.server.port)
        while self.going:
            request = post("/v1/embeddings", self.body(draw, "single" if kind in ("aborted", "slow") else kind))
            try:
                if kind == "aborted":
                    await self.abort(request, draw)
                elif kind == "slow":
                    await self.read_slowly(request)
                else:
                    status, _, _ = await connection.ask(request)
                    self.statuses[status] += 1
                    if status >= 400:  # a mistake costs the client nothing, so it would ask for nothing else
                        await asyncio.sleep(1 if status == 429 else 0.05)
            except (OSError, asyncio.IncompleteReadError):
                self.lost += 1
                await asyncio.sleep(0.1)
        connection.close()

    async def abort(self, request: bytes, draw: random.Random) -> None:
        """Close the connection in the middle of a request, or before its answer."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(request[: draw.randint(1, len(request))] if draw.random() < 0.5 else request)
        await writer.drain()
        await asyncio.sleep(draw.random() * 0.05)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def read_slowly(self, request: bytes) -> None:
        """Read an answer in small pieces, with pauses."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, limit=512)
        writer.write(request)
        self.statuses[int((await reader.readline())[9:12])] += 1
        for _ in range(10):
            await reader.read(256)
            await asyncio.sleep(0.2)
        writer.close()

    async def look(self) -> None:
        """Note memory and open files from time to time."""
        started = time.perf_counter()
        while self.going:
            self.memory.append((time.perf_counter() - started, self.server.memory(), self.server.files()))
            await asyncio.sleep(EVERY)

    async def run(self) -> int:
        """Run all clients; return how many files the server has open when they have gone."""
        clients = [self.client(kind, seed) for kind, count in CLIENTS.items() for seed in range(count)]
        await asyncio.gather(self.look(), *clients)
        await asyncio.sleep(2)
        return self.server.files()


CROWD, EMBEDDING = 1000, 16  # connections that do no good, and clients that embed
SPREAD = 10  # seconds in which the crowd comes
HEADERS = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Crowd:
    """Connections that keep a server busy without asking for anything."""

    def __init__(self, port: int, seconds: float) -> None:
        self.port, self.until, self.closed = port, time.perf_counter() + seconds, 0

    async def hold(self, number: int) -> None:
        """Hold a connection, and open it again when it is closed, until the end. Not all begin at the same moment."""
        await asyncio.sleep(SPREAD * number / CROWD)
        while (left := self.until - time.perf_counter()) > 0:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(left):
                    await self._hold_one(number % 3)
                self.closed += 1

    async def _hold_one(self, kind: int) -> None:
        end = socket.socket()
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end.setblocking(False)
        await asyncio.get_running_loop().sock_connect(end, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=end, limit=256)
        try:
            if kind == 2:  # asks for 60 kB and reads 250 bytes a second
                writer.write(HEADERS + b"\r\n")
                while await reader.read(250):
                    await asyncio.sleep(1)
            elif kind == 1:  # a letter of a header each second
                writer.write(HEADERS + b"X-Letters: ")
                while not reader.at_eof():
                    writer.write(b"a")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1):
                            await reader.read(1)
            else:
                await reader.read(1)
        finally:
            writer.close()


def measure_crowd(results: Results, seconds: float) -> None:
    """Measure clients that embed, before, beside and after a crowd."""
    server = start_bertree(real_weights())
    requests = [post("/v1/embeddings", json.dumps({"input": t}).encode()) for t in sentences(CORPUS, 500)]

    async def embed(crowd: Crowd | None, length: float) -> Outcome:
        held = [asyncio.create_task(crowd.hold(n)) for n in range(CROWD)] if crowd else []
        outcome = await closed_loop(server.port, requests, EMBEDDING, length)
        await asyncio.gather(*held)
        return outcome

    try:
        asyncio.run(embed(None, 5))
        before, megabytes, load = asyncio.run(embed(None, 30)), server.memory(), os.getloadavg()[0]
        crowd = Crowd(server.port, seconds)
        beside, memory = asyncio.run(embed(crowd, seconds)), server.memory()
        after = asyncio.run(embed(None, 30))
        assert set(beside.latencies) == {200}, beside.latencies.keys()
    finally:
        server.stop()
    alone = (before.quantile(0.99) + after.quantile(0.99)) / 2
    results.add(
        f"{CROWD:,} connections",
        seconds=seconds,
        closed_by_server=crowd.closed,
        p50_ms=round(beside.quantile(0.5)),
        p99_ms=round(beside.quantile(0.99)),
        p99_before_ms=round(before.quantile(0.99)),
        p99_after_ms=round(after.quantile(0.99)),
        p99_of_alone=round(beside.quantile(0.99) / alone, 2),
        memory_mb_before=round(megabytes),
        memory_mb_after=round(memory),
        load_average=round(load, 1),
    )


def main() -> None:
    """Soak a server and record the answers and its memory."""
    parser = argument_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--crowd", type=float, default=0, help="measure a crowd of connections for so many seconds")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.crowd:
        measure_crowd(Results("serve-crowd", options.out, ["uvicorn", "starlette"]), options.crowd)
        return
    server = start_bertree(real_weights())
    try:
        files = server.files()
        soak = Soak(server, 60 * options.minutes)
        left = asyncio.run(soak.run())
        code = server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    late = [megabytes for seconds, megabytes, _ in soak.memory if seconds >= 30 * options.minutes]
    answers = {f"answers_{status}": soak.statuses[status] for status in (200, 400, 404, 422, 429)}
    results = Results("serve-soak", options.out, ["uvicorn", "starlette"])
    results.add(
        f"{options.minutes:g} minutes",
        minutes=options.minutes,
        **answers,
        answers_5xx=sum(count for status, count in soak.statuses.items() if status >= 500),
        lost=soak.lost,
        memory_mb_lowest=round(min(late)),
        memory_mb_highest=round(max(late)),
        memory_spread_percent=round(100 * (max(late) - min(late)) / min(late), 1),
        open_files_before=files,
        open_files_after=left,
        exit_code=code,
    )
    for seconds, megabytes, count in soak.memory[:: max(1, len(soak.memory) // 10)]:
        print(f"{seconds / 60:5.1f} min {megabytes:6.0f} MB {count} open files")


if __name__ == "__main__":
    main()
