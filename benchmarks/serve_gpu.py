"""The server on a GPU against `model.embed` in process: bulk requests, base64 answers, on loopback.

    python -m benchmarks.serve_gpu                                # bert-base with random weights, and the bundled model
    python -m benchmarks.serve_gpu --device cpu --texts 512 --seconds 3 --presets bert-tiny   # to see that it runs

The same texts for both, in bfloat16. In process they are given to `embed` all at once; the server gets them in
requests of --size texts from several clients, which run on the same machine.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import bertree
from benchmarks.common import CORPUS, environment, sentences, table
from benchmarks.embed import model_folder
from benchmarks.serving.client import closed_loop, post
from benchmarks.serving.servers import Server, start_bertree


def in_process(folder: str | Path, texts: list[str], given: argparse.Namespace) -> float:
    """Return the texts a second of `embed`: the median of several calls."""
    model = bertree.load(folder, device=given.device, precision="bfloat16")
    model.embed(texts)
    rates, started = [], time.perf_counter()
    while time.perf_counter() - started < given.seconds:
        begun = time.perf_counter()
        model.embed(texts)
        rates.append(len(texts) / (time.perf_counter() - begun))
    return statistics.median(rates)


def served(server: Server, texts: list[str], given: argparse.Namespace, clients: int) -> tuple[float, float]:
    """Return the texts a second of the server, and the median of the milliseconds of a request."""
    parts = [texts[first : first + given.size] for first in range(0, len(texts), given.size)]
    bodies = [{"input": part, "model": server.model, "encoding_format": "base64"} for part in parts]
    requests = [post(server.path, json.dumps(body).encode()) for body in bodies]
    asyncio.run(closed_loop(server.port, requests, clients, 2))
    found = asyncio.run(closed_loop(server.port, requests, clients, given.seconds))
    assert set(found.latencies) == {200}, {status: len(times) for status, times in found.latencies.items()}
    return given.size * found.count() / found.seconds, found.quantile(0.5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["bert-base", "default"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--texts", type=int, default=8192)
    parser.add_argument("--size", type=int, default=256, help="texts of a request")
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--options", nargs="*", default=[], metavar="OPTION", help="of bertree serve, without dashes")
    given = parser.parse_args()
    texts = sentences(CORPUS, given.texts)
    texts = texts[: len(texts) // given.size * given.size]
    rows = []
    options = [f"--{option}" for option in given.options]
    for name in given.presets:
        with tempfile.TemporaryDirectory() as made:
            folder = "default" if name == "default" else model_folder(name, Path(made))
            alone = in_process(folder, texts, given)
            server = start_bertree(Path(folder), "--device", given.device, "--precision", "bfloat16", *options)
            try:
                for clients in given.clients:
                    rate, middle = served(server, texts, given, clients)
                    rows.append(
                        (name, f"{alone:,.0f}", clients, f"{rate:,.0f}", f"{rate / alone:.2f}", f"{middle:.0f}")
                    )
            finally:
                server.stop()
    head = ("model", "in process, texts/s", "clients", "server, texts/s", "share", "ms of a request, median")
    print(f"{environment()}; {len(texts):,} texts, {given.size} a request\n\n{table(head, rows)}")


if __name__ == "__main__":
    main()
