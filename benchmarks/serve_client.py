"""Clients and servers for the benchmarks of the server, on loopback.

The client costs little: keep-alive connections, requests prepared before, answers read as bytes. Every server runs in
its own process; those that are not measured are stopped meanwhile (SIGSTOP).
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

OnAnswer = Callable[[int, int, bytes, bytes], None]  # number of the request, status, head, body


@dataclass
class Outcome:
    """The answers of a phase."""

    seconds: float = 0.0
    latencies: dict[int, list[float]] = field(default_factory=dict)  # status -> seconds of each request
    lost: int = 0  # requests without an answer
    late: float = 0.0  # seconds that a request was sent too late, the most: the client itself stood still

    def note(self, status: int, seconds: float) -> None:
        """Note an answer."""
        self.latencies.setdefault(status, []).append(seconds)

    def count(self, status: int = 200) -> int:
        """Return how many answers had a status."""
        return len(self.latencies.get(status, ()))

    def quantile(self, share: float, status: int = 200) -> float:
        """Return a quantile of the times, in milliseconds."""
        seconds = sorted(self.latencies.get(status, ()))
        return 1000 * seconds[min(len(seconds) - 1, int(share * len(seconds)))] if seconds else float("nan")

    def quantiles(self) -> dict[str, float]:
        """Return the median and the 99th percentile of answers with status 200, as figures of a row."""
        return {"p50_ms": round(self.quantile(0.5), 2), "p99_ms": round(self.quantile(0.99), 2)}


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
    outcome, numbers = Outcome(), iter(range(10**9))
    started = time.perf_counter()

    async def run() -> None:
        connection = Connection(port)
        while time.perf_counter() - started < seconds:
            number = next(numbers)
            begun = time.perf_counter()
            status, head, body = await connection.ask(requests[number % len(requests)])
            outcome.note(status, time.perf_counter() - begun)
            on_answer(number % len(requests), status, head, body)
        connection.close()

    await asyncio.gather(*(run() for _ in range(clients)))
    outcome.seconds = time.perf_counter() - started
    return outcome


async def open_loop(
    port: int, requests: Sequence[bytes], rate: float, seconds: float, seed: int = 0, on_answer: OnAnswer = _ignore
) -> Outcome:
    """Ask at random moments, so many times a second on average, whether answers come or not."""
    draw, outcome, free = random.Random(seed), Outcome(), list[Connection]()
    pending: set[asyncio.Task[None]] = set()

    async def ask(number: int) -> None:
        connection = free.pop() if free else Connection(port)
        begun = time.perf_counter()
        try:
            status, head, body = await connection.ask(requests[number % len(requests)])
        except (OSError, asyncio.IncompleteReadError):
            outcome.lost += 1
            return
        outcome.note(status, time.perf_counter() - begun)
        on_answer(number % len(requests), status, head, body)
        free.append(connection)

    started = due = time.perf_counter()
    number = 0
    while due - started < seconds:
        due += draw.expovariate(rate)
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        outcome.late = max(outcome.late, time.perf_counter() - due)
        task = asyncio.create_task(ask(number))
        pending.add(task)
        task.add_done_callback(pending.discard)
        number += 1
    await asyncio.gather(*pending)
    outcome.seconds = time.perf_counter() - started  # to the last answer: what was queued at the end counts too
    for connection in free:
        connection.close()
    return outcome


HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 300.0  # seconds for a server to start


class Server:
    """A process that listens on a port."""

    def __init__(self, name: str, command: list[str], path: str, model: str, settings: dict[str, str]) -> None:
        """`{port}` in the command is replaced; `path` of its vectors; `model`: the name to ask for."""
        self.name, self.path, self.model = name, path, model
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._log = tempfile.NamedTemporaryFile(prefix=f"serve-load-{name}-", suffix=".log", delete=False)  # noqa: SIM115
        self.process = subprocess.Popen(
            [part.replace("{port}", str(self.port)) for part in command],
            stdout=self._log,
            stderr=self._log,
            env=os.environ | settings,
        )
        started = time.perf_counter()
        while not self._answers():
            if self.process.poll() is not None or time.perf_counter() - started > PATIENCE:
                sys.exit(f"{name}: did not start; see {self._log.name}")
            time.sleep(0.2)
        self.start_cpu = self.cpu()

    def _answers(self) -> bool:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
            return True
        return False

    def cpu(self) -> float:
        """Return the CPU seconds that it and its children have used."""
        total = 0
        for pid in self._tree(self.process.pid):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def memory(self) -> float:
        """Return its resident memory in megabytes."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._tree(self.process.pid)]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def files(self) -> int:
        """Return how many files and connections it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def _tree(self, pid: int) -> list[int]:
        pids = [pid]
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                for child in children.read_text().split():
                    pids += self._tree(int(child))
        return pids

    def pause(self) -> None:
        """Let it use no CPU."""
        for pid in self._tree(self.process.pid):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        for pid in self._tree(self.process.pid):
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> int:
        """End it; return its exit code."""
        self.go_on()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._log.close()
            Path(self._log.name).unlink()  # it stays if the server did not start


def start_bertree(folder: Path, *options: str) -> Server:
    """Start our server."""
    command = [sys.executable, "-m", "bertree", "serve", str(folder), "--name", "minilm", "--port", "{port}"]
    return Server("bertree", [*command, "--log", "errors", *options], "/v1/embeddings", "minilm", {})


def start_without_model(folder: Path) -> Server:
    """Start our server with a model that computes nothing. -P: our kernels.py would hide a library of this name."""
    command = [sys.executable, "-P", str(HERE / "serve_peers.py"), "without-model", str(folder), "{port}"]
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return Server("without-model", command, "/v1/embeddings", "minilm", settings)


def start_sentence_transformers(folder: Path, python: str) -> Server:
    """Start sentence-transformers behind FastAPI."""
    command = [python, "-P", str(HERE / "serve_peers.py"), "sentence-transformers", str(folder), "{port}"]
    return Server("sentence-transformers", command, "/v1/embeddings", "minilm", {"HF_HUB_OFFLINE": "1"})


def start_infinity(folder: Path, python: str) -> Server:
    """Start Infinity with its torch engine."""
    program = str(Path(python).parent / "infinity_emb")
    command = [program, "v2", "--model-id", str(folder), "--served-model-name", "minilm", "--engine", "torch"]
    command += ["--device", "cpu", "--no-bettertransformer", "--port", "{port}", "--host", "127.0.0.1"]
    settings = {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1"}
    return Server("infinity", command, "/embeddings", "minilm", settings)
