"""The server under load: against `model.embed`, Infinity, and sentence-transformers behind FastAPI; on loopback.

    python -m venv peers && peers/bin/pip install "infinity-emb[server,torch]"      # an environment of its own
    pip install fastapi
    python -m benchmarks.serve_load --infinity peers/bin/python --out benchmarks/serve_load_cpu_DATE.md

all-MiniLM-L6-v2 in float32, real ragged sentences. Everything is measured in turns in one run; a server that is not
measured is stopped meanwhile (SIGSTOP). Beside texts a second stand texts per CPU second of the server's processes,
which another load on the machine changes less. The client runs on the same machine and takes a part of its cores.
"""

import argparse
import asyncio
import base64
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import CORPUS, environment, real_weights, sentences, table
from benchmarks.serving import servers
from benchmarks.serving.client import Connection, Outcome, closed_loop, open_loop, post
from benchmarks.serving.servers import Server

TEXTS, BULK, CLIENTS, BULK_CLIENTS = 512, 32, 32, 4
QUERY = "Who hunts the white whale?"


def main() -> None:
    """Measure everything and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infinity", help="the Python of an environment with infinity-emb; without it, it is left out")
    parser.add_argument(
        "--sentence-transformers", default=sys.executable, help="a Python with fastapi; empty: left out"
    )
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overload", type=float, default=60, help="seconds at three times the load it can bear")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--anchor", type=float, help=argparse.SUPPRESS)  # measure in this process: seconds
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    if given.anchor:
        print(json.dumps(anchor(given.anchor)))
        return
    report = measure(given)
    print(report)
    if given.out:
        given.out.write_text(report + "\n", encoding="utf-8")


def anchor(seconds: float) -> dict[str, float]:
    """Measure `model.embed` in this process: many texts at once, and one after another."""
    import torch

    import bertree

    texts, cores = sentences(CORPUS, TEXTS), os.cpu_count() or 1
    torch.set_num_threads(cores)
    model = bertree.load(real_weights())
    model.embed(texts[:64])

    def rate(size: int) -> tuple[float, float, list[float]]:
        done, times, started, cpu = 0, list[float](), time.perf_counter(), time.process_time()
        while time.perf_counter() - started < seconds:
            begun = time.perf_counter()
            some = [texts[(done + n) % TEXTS] for n in range(size)]
            model.embed(some)
            times.append(time.perf_counter() - begun)
            done += size
        return done / (time.perf_counter() - started), done / (time.process_time() - cpu), times

    many, many_cpu, _ = rate(TEXTS)
    one, one_cpu, _ = rate(1)
    medians = []
    for threads in {1, cores}:  # a lone text is not always faster with several
        torch.set_num_threads(threads)
        times = []
        for _ in range(200):
            begun = time.perf_counter()
            model.embed(QUERY)
            times.append(time.perf_counter() - begun)
        medians.append(1000 * statistics.median(times))
    return {
        "many": many,
        "many_cpu": many_cpu,
        "one": one,
        "one_cpu": one_cpu,
        "query_ms": min(medians),
    }


def start_anchor(seconds: float) -> dict[str, float]:
    """Measure `model.embed` in a process with the server's environment."""
    command = [sys.executable, "-m", "benchmarks.serve_load", "--anchor", str(seconds)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def single_requests(server: Server, texts: list[str], **more: Any) -> list[bytes]:
    """Return a request for each text."""
    return [post(server.path, json.dumps({"input": t, "model": server.model, **more}).encode()) for t in texts]


def bulk_requests(server: Server, texts: list[str], size: int = BULK, **more: Any) -> list[bytes]:
    """Return requests of many texts each."""
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    return [post(server.path, json.dumps({"input": p, "model": server.model, **more}).encode()) for p in parts]


def loaded(server: Server, requests: list[bytes], clients: int, seconds: float, size: int) -> dict[str, float]:
    """Ask with many clients; return texts a second, texts per CPU second and quantiles."""
    asyncio.run(closed_loop(server.port, requests, clients, 2))
    cpu, own = server.cpu(), time.process_time()
    found = asyncio.run(closed_loop(server.port, requests, clients, seconds))
    own = time.process_time() - own
    assert set(found.latencies) == {200}, {status: len(times) for status, times in found.latencies.items()}
    cpu, texts = server.cpu() - cpu, size * found.count()
    return {
        "rate": texts / found.seconds,
        "per_cpu": texts / cpu,
        "p50": found.quantile(0.5),
        "p99": found.quantile(0.99),
        "request_cpu": cpu / found.count(),
        "client_cores": own / found.seconds,
    }


def measure(given: argparse.Namespace) -> str:
    """Run all phases; return the report."""
    folder, texts = real_weights(), sentences(CORPUS, TEXTS)
    started = [servers.start_bertree(folder)]
    try:
        if given.infinity:
            started.append(servers.start_infinity(folder, given.infinity))
        if given.sentence_transformers:
            started.append(servers.start_sentence_transformers(folder, given.sentence_transformers))
        for server in started:
            server.pause()
        lines = compare(started, texts, given)
        ours = started[0]
        ours.go_on()
        lines += lone_and_busy(ours, texts, given)
        lines += outside_the_model(folder, given.seconds)
        lines += fairness(ours, texts, given.seconds)
        lines += overload(ours, texts, given)
        lines.append(f"SIGTERM at the end: exit code {ours.stop()}.")
    finally:
        for server in started:
            if server.process.poll() is None:
                server.stop()
    command = " ".join(["python -m benchmarks.serve_load", *sys.argv[1:]])
    head = ["# The server under load", f"    {command}", environment("uvicorn", "starlette", "sentence-transformers")]
    load = f"Load average of the machine at the end: {os.getloadavg()[0]:.1f}; cores: {os.cpu_count()}."
    return "\n\n".join([*head, load, *lines])


def compare(started: list[Server], texts: list[str], given: argparse.Namespace) -> list[str]:
    """Measure single texts and bulk, everything in turns."""
    kinds = {"single": (single_requests, CLIENTS, 1), "bulk": (bulk_requests, BULK_CLIENTS, BULK)}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    anchors = []
    for turn in range(given.rounds):
        anchors.append(start_anchor(given.seconds))
        print(f"round {turn + 1}: embed {anchors[-1]}", file=sys.stderr, flush=True)
        for server in started:
            server.go_on()
            for kind, (make, clients, size) in kinds.items():
                result = loaded(server, make(server, texts), clients, given.seconds, size)
                found.setdefault((server.name, kind), []).append(result)
                print(f"round {turn + 1}: {server.name} {kind} {result}", file=sys.stderr, flush=True)
            if server is started[0]:
                base64_requests = bulk_requests(server, texts, encoding_format="base64")
                result = loaded(server, base64_requests, BULK_CLIENTS, given.seconds, BULK)
                found.setdefault((server.name, "bulk, base64"), []).append(result)
            server.pause()
    anchor_rate = statistics.median(a["many"] for a in anchors)
    anchor_cpu = statistics.median(a["many_cpu"] for a in anchors)
    rows = [["`model.embed`, 512 texts at once", f"{anchor_rate:.1f}", f"{anchor_cpu:.1f}", "", "", "1.00", "1.00"]]
    for (name, kind), results in found.items():
        rate, cpu, p50, p99 = (statistics.median(r[key] for r in results) for key in ("rate", "per_cpu", "p50", "p99"))
        share = [f"{rate / anchor_rate:.2f}", f"{cpu / anchor_cpu:.2f}"]
        rows.append([f"{name}, {kind}", f"{rate:.1f}", f"{cpu:.1f}", f"{p50:.0f}", f"{p99:.0f}", *share])
    ratios = []
    for (name, kind), results in found.items():
        if name != started[0].name:
            ours = found[started[0].name, kind]
            values = [
                statistics.median(r[key] for r in ours) / statistics.median(r[key] for r in results)
                for key in ("rate", "per_cpu")
            ]
            ratios.append([f"{name}, {kind}", *(f"{value:.2f}" for value in values)])
    query = statistics.median(a["query_ms"] for a in anchors)
    one = statistics.median(a["one_cpu"] for a in anchors)
    client = ", ".join(
        f"{kind} {statistics.median(r['client_cores'] for r in found[started[0].name, kind]):.2f}" for kind in kinds
    )
    starts = ", ".join(f"{server.name} {server.start_cpu:.1f}" for server in started)
    head = ("what", "texts/s", "texts/CPU-s", "p50 ms", "p99 ms", "of embed", "of embed, CPU")
    return [
        f"## Throughput\n\nsingle: {CLIENTS} clients, one text each; bulk: {BULK_CLIENTS} clients, {BULK} texts each. "
        f"Medians of {given.rounds} rounds of {given.seconds:g} s.",
        table(head, rows),
        "Times faster than:" if ratios else "",
        table(("server", "texts/s", "texts/CPU-s"), ratios) if ratios else "",
        f"`model.embed` of one text at a time: {one:.1f} texts/CPU-s; of a short query: {query:.2f} ms (median).",
        f"Cores that the client of {started[0].name} took from it: {client}.",
        f"CPU seconds from the start to the first answer: {starts}.",
    ]


def lone_and_busy(server: Server, texts: list[str], given: argparse.Namespace) -> list[str]:
    """Measure a lone client, and random arrivals at 70 % of the capacity."""
    capacity = loaded(server, single_requests(server, texts), CLIENTS, given.seconds, 1)
    lone = asyncio.run(closed_loop(server.port, single_requests(server, [QUERY]), 1, given.seconds))
    inside = start_anchor(3)["query_ms"]
    rate = 0.7 * capacity["rate"]
    busy = asyncio.run(open_loop(server.port, single_requests(server, texts), rate, 2 * given.seconds))
    share = busy.quantile(0.99) / busy.quantile(0.5)
    return [
        f"## Latency\n\nA lone client, one query: p50 {lone.quantile(0.5):.2f} ms, p99 {lone.quantile(0.99):.2f} ms; "
        f"`model.embed` of it: {inside:.2f} ms; difference {lone.quantile(0.5) - inside:.2f} ms.",
        f"At 70 % of the capacity ({rate:.0f} texts/s, random arrivals): p50 {busy.quantile(0.5):.1f} ms, "
        f"p99 {busy.quantile(0.99):.1f} ms, {share:.1f} times as long; {busy.count()} answers, "
        f"{sum(map(len, busy.latencies.values())) - busy.count()} errors.",
    ]


def outside_the_model(folder: Path, seconds: float) -> list[str]:
    """Measure what a request costs beside the computing of its vector: HTTP, JSON, tokens, the queue."""
    import bertree

    tokenizer, times = bertree.load(folder).required_tokenizer, []
    for _ in range(1000):
        begun = time.thread_time()
        tokenizer.encode([QUERY], 256)
        times.append(time.thread_time() - begun)
    server = servers.start_without_model(folder)
    rows = []
    try:
        for form in ("float", "base64"):
            result = loaded(server, single_requests(server, [QUERY], encoding_format=form), CLIENTS, seconds, 1)
            rows.append(f"{form} {1e6 * result['request_cpu']:.0f} us")
    finally:
        server.stop()
    what = "CPU of a request whose vector is not computed"
    tokenizing = f"of it tokenizing, as in `model.embed`: {1e6 * statistics.median(times):.0f} us"
    return [f"## Outside the model\n\n{what}: {', '.join(rows)}; {tokenizing}."]


def fairness(server: Server, texts: list[str], seconds: float) -> list[str]:
    """Measure a query while other clients send requests of 2048 texts without end."""
    large = bulk_requests(server, texts * 4, 2048)
    query = single_requests(server, [QUERY])

    async def run() -> tuple[Outcome, dict[str, float]]:
        bulk = asyncio.create_task(closed_loop(server.port, large, 2, seconds))
        await asyncio.sleep(1)
        before = await batch_times(server)
        found, connection = Outcome(), Connection(server.port)
        while not bulk.done():
            begun = time.perf_counter()
            status, _, _ = await connection.ask(query[0])
            found.note(status, time.perf_counter() - begun)
            await asyncio.sleep(0.05)
        after = await batch_times(server)
        await bulk
        connection.close()
        return found, {key: after[key] - before[key] for key in after}

    found, metrics = asyncio.run(run())
    batch = 1000 * metrics["seconds"] / max(1.0, metrics["count"])
    p50, p99 = found.quantile(0.5), found.quantile(0.99)
    return [
        f"## Fairness\n\nA query while two clients send 2048 texts at a time without end: p50 {p50:.1f} ms, "
        f"p99 {p99:.1f} ms ({found.count()} queries). A batch takes {batch:.1f} ms on average: "
        f"p50 is {p50 / batch:.1f} batches, p99 {p99 / batch:.1f}."
    ]


async def batch_times(server: Server) -> dict[str, float]:
    """Return how many batches were computed, and in how many seconds."""
    connection = Connection(server.port)
    request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    _, _, body = await connection.ask(request)
    connection.close()
    lines = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    values = {name: float(value) for name, _, value in lines}
    return {
        "seconds": values['bertree_compute_seconds_sum{lane="minilm: embed"}'],
        "count": values['bertree_compute_seconds_count{lane="minilm: embed"}'],
    }


def overload(server: Server, texts: list[str], given: argparse.Namespace) -> list[str]:
    """Send three times what the server can bear, and compare every vector with the right one."""
    import bertree

    right = bertree.load(real_weights()).embed(texts)
    requests = single_requests(server, texts, encoding_format="base64")
    capacity = loaded(server, requests, CLIENTS, given.seconds, 1)
    wrong, without = 0, 0

    def check(number: int, status: int, head: bytes, body: bytes) -> None:
        nonlocal wrong, without
        if status == 200:
            row = np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), "<f4")
            wrong += bool(np.abs(row - right[number]).max() > 1e-5)
        elif status == 429:
            without += b"retry-after:" not in head

    cpu = server.cpu()
    found = asyncio.run(open_loop(server.port, requests, 3 * capacity["rate"], given.overload, on_answer=check))
    cpu = server.cpu() - cpu
    after = loaded(server, requests, CLIENTS, given.seconds, 1)
    # Before and after: the speed of a machine that others share changes within a minute.
    most, most_cpu = ((capacity[key] + after[key]) / 2 for key in ("rate", "per_cpu"))
    counts = {status: len(times) for status, times in sorted(found.latencies.items())}
    goodput = found.count() / found.seconds
    other = sum(count for status, count in counts.items() if status not in (200, 429))
    return [
        f"## Overload\n\nThree times the load it can bear ({3 * capacity['rate']:.0f} requests/s, random arrivals) for "
        f"{given.overload:g} s: {goodput:.1f} texts/s answered, {goodput / most:.2f} of the maximum "
        f"(the mean of {capacity['rate']:.1f} before and {after['rate']:.1f} after); per CPU second "
        f"{found.count() / cpu:.1f}, {found.count() / cpu / most_cpu:.2f} of it (the mean of {capacity['per_cpu']:.1f} "
        f"and {after['per_cpu']:.1f}).",
        f"Answers: {counts}; others than 200 and 429: {other}; lost: {found.lost}; wrong vectors: "
        f"{wrong}; refusals without Retry-After: {without}. A refusal took {found.quantile(0.5, 429):.1f} ms (p50), "
        f"{found.quantile(0.99, 429):.1f} ms (p99).",
    ]


if __name__ == "__main__":
    main()
