"""The server for twenty minutes under mixed load: good and bad requests, aborted connections, slow readers.

    python -m benchmarks.serve_soak --minutes 20 --out benchmarks/serve_soak_cpu_DATE.md

No answer may be a 5xx, memory must stay flat (the last half within 3 %), and no connection may be left open.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.common import CORPUS, environment, real_weights, sentences, table
from benchmarks.serving.client import Connection, post
from benchmarks.serving.servers import Server, start_bertree

BAD = (
    b"",
    b"{",
    b"[]",
    b'{"input": 5}',
    b'{"input": ""}',
    b'{"input": "a", "model": "x"}',
    b'{"input": [[1]]}',
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


def main() -> None:
    """Soak a server and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = start_bertree(real_weights())
    try:
        files = server.files()
        soak = Soak(server, 60 * given.minutes)
        left = asyncio.run(soak.run())
        code = server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
    report = describe(soak, given.minutes, files, left, code)
    print(report)
    if given.out:
        given.out.write_text(report + "\n", encoding="utf-8")


def describe(soak: Soak, minutes: float, files: int, left: int, code: int) -> str:
    """Return the report."""
    late = [megabytes for seconds, megabytes, _ in soak.memory if seconds >= 30 * minutes]
    wrong = sum(count for status, count in soak.statuses.items() if status >= 500)
    step = max(1, len(soak.memory) // 10)
    rows = [(f"{seconds / 60:.1f}", f"{memory:.0f}", count) for seconds, memory, count in soak.memory[::step]]
    spread = (max(late) - min(late)) / min(late) if late else float("nan")
    return "\n\n".join(
        [
            "# The server for minutes on end",
            f"    python -m benchmarks.serve_soak {' '.join(sys.argv[1:])}",
            environment("uvicorn", "starlette"),
            f"Clients: {CLIENTS}. Load average at the end: {os.getloadavg()[0]:.1f}.",
            f"Answers by status: {dict(sorted(soak.statuses.items()))}; 5xx: {wrong}; lost: {soak.lost}. "
            f"Memory in the last half: {min(late):.0f} to {max(late):.0f} MB, {100 * spread:.1f} %. "
            f"Open files before {files}, after {left}. Exit code {code}.",
            table(("minute", "MB", "open files"), rows),
        ]
    )


if __name__ == "__main__":
    main()
