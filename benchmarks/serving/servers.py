"""Servers to measure, each in a process of its own; those that are not measured are stopped meanwhile."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

HERE = Path(__file__).parent
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 300.0  # seconds for a server to start


class Server:
    """A process that listens on a port."""

    def __init__(self, name: str, command: list[str], path: str, model: str, environment: dict[str, str]) -> None:
        """`{port}` in the command is replaced; `path` of its vectors; `model`: the name to ask for."""
        self.name, self.path, self.model = name, path, model
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._log = tempfile.NamedTemporaryFile(prefix=f"serve-load-{name}-", suffix=".log", delete=False)  # noqa: SIM115
        self.process = subprocess.Popen(
            [part.replace("{port}", str(self.port)) for part in command],
            stdout=self._log,
            stderr=self._log,
            env=os.environ | environment,
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
        found = [pid]
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                for child in children.read_text().split():
                    found += self._tree(int(child))
        return found

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
    """Start our server with a model that computes nothing."""
    command = [sys.executable, "-m", "benchmarks.serving.without_model", str(folder), "{port}"]
    environment = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return Server("without-model", command, "/v1/embeddings", "minilm", environment)


def start_sentence_transformers(folder: Path, python: str) -> Server:
    """Start sentence-transformers behind FastAPI."""
    command = [python, str(HERE / "sentence_transformers_server.py"), str(folder), "{port}"]
    return Server("sentence-transformers", command, "/v1/embeddings", "minilm", {"HF_HUB_OFFLINE": "1"})


def start_infinity(folder: Path, python: str) -> Server:
    """Start Infinity with its torch engine."""
    program = str(Path(python).parent / "infinity_emb")
    command = [program, "v2", "--model-id", str(folder), "--served-model-name", "minilm", "--engine", "torch"]
    command += ["--device", "cpu", "--no-bettertransformer", "--port", "{port}", "--host", "127.0.0.1"]
    environment = {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "HF_HUB_OFFLINE": "1"}
    return Server("infinity", command, "/embeddings", "minilm", environment)
