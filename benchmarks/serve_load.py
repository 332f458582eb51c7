"""The server under load: against `model.embed`, Infinity, and sentence-transformers behind FastAPI; on loopback.

    python -m venv peers && peers/bin/pip install "infinity-emb[server,torch]"      # an environment of its own
    pip install fastapi
    python -m benchmarks.serve_load --infinity peers/bin/python --out benchmarks/results/serving.jsonl

all-MiniLM-L6-v2 in float32, real ragged sentences. Everything is measured in turn in one run; a server that is not
measured is stopped meanwhile (SIGSTOP). Texts per CPU second of the server's processes change less under another load
of the machine than texts per second. The client runs on the same machine and takes a part of its cores.
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

from benchmarks import serve_client as servers
from benchmarks.common import CORPUS, Results, argument_parser, real_weights, sentences
from benchmarks.serve_client import Connection, Outcome, Server, closed_loop, open_loop, post

TEXTS, BULK, CLIENTS, BULK_CLIENTS = 512, 32, 32, 4
TIMES, QUEUE = 5, 10  # the capacity in an overload; seconds that an accepted request may wait
QUERY = "Who hunts the white whale?"


def main() -> None:
    """Measure everything, in turn."""
    parser = argument_parser(__doc__)
    parser.add_argument("--infinity", help="the Python of an environment with infinity-emb; default: it is left out")
    parser.add_argument(
        "--sentence-transformers", default=sys.executable, help="a Python with fastapi; empty: left out"
    )
    parser.add_argument("--seconds", type=float, default=15, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overload", type=float, default=60, help="seconds at five times its capacity")
    parser.add_argument("--only-overload", action="store_true", help="measure nothing else, --rounds times")
    parser.add_argument("--only-compare", action="store_true", help="measure single texts and bulk, and nothing else")
    parser.add_argument("--anchor", type=float, help=argparse.SUPPRESS)  # measure in this process: seconds
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    if options.anchor:
        print(json.dumps(anchor(options.anchor)))
        return
    results = Results("serve-load", options.out, ["uvicorn", "starlette", "sentence-transformers"])
    measure(results, options)
    results.print_table()
    print(f"Load average at the end: {os.getloadavg()[0]:.1f}; cores: {os.cpu_count()}.")


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
            model.embed([texts[(done + n) % TEXTS] for n in range(size)])
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
    outcome = asyncio.run(closed_loop(server.port, requests, clients, seconds))
    own = time.process_time() - own
    assert set(outcome.latencies) == {200}, {status: len(times) for status, times in outcome.latencies.items()}
    cpu, texts = server.cpu() - cpu, size * outcome.count()
    return {
        "rate": texts / outcome.seconds,
        "per_cpu": texts / cpu,
        "p50": outcome.quantile(0.5),
        "p99": outcome.quantile(0.99),
        "request_cpu": cpu / outcome.count(),
        "client_cores": own / outcome.seconds,
    }


def measure(results: Results, options: argparse.Namespace) -> None:
    """Run all phases."""
    folder, texts = real_weights(), sentences(CORPUS, TEXTS)
    started = [servers.start_bertree(folder, f"--queue={QUEUE}")]
    try:
        if options.only_overload:
            for _ in range(options.rounds):
                overload(results, started[0], texts, options)
            return
        if options.infinity:
            started.append(servers.start_infinity(folder, options.infinity))
        if options.sentence_transformers:
            started.append(servers.start_sentence_transformers(folder, options.sentence_transformers))
        for server in started:
            server.pause()
        compare(results, started, texts, options)
        if options.only_compare:
            return
        bertree_server = started[0]
        bertree_server.go_on()
        measure_latency(results, bertree_server, texts, options)
        measure_outside_model(results, folder, options.seconds)
        measure_fairness(results, bertree_server, texts, options.seconds)
        overload(results, bertree_server, texts, options)
        print(f"exit code after SIGTERM: {bertree_server.stop()}")
    finally:
        for server in started:
            if server.process.poll() is None:
                server.stop()


def compare(results: Results, started: list[Server], texts: list[str], options: argparse.Namespace) -> None:
    """Measure single texts and bulk, everything in turn; medians over the rounds."""
    kinds = {"single": (single_requests, CLIENTS, 1), "bulk": (bulk_requests, BULK_CLIENTS, BULK)}
    loads: dict[str, list[dict[str, float]]] = {}
    anchors = []
    for turn in range(options.rounds):
        anchors.append(start_anchor(options.seconds))
        print(f"round {turn + 1}: embed {anchors[-1]}", file=sys.stderr, flush=True)
        for server in started:
            server.go_on()
            for kind, (make, clients, size) in kinds.items():
                load = loaded(server, make(server, texts), clients, options.seconds, size)
                loads.setdefault(f"{server.name}, {kind}", []).append(load)
                print(f"round {turn + 1}: {server.name} {kind} {load}", file=sys.stderr, flush=True)
            if server is started[0]:
                requests = bulk_requests(server, texts, encoding_format="base64")
                load = loaded(server, requests, BULK_CLIENTS, options.seconds, BULK)
                loads.setdefault(f"{server.name}, bulk, base64", []).append(load)
            server.pause()
    rate, cpu = (statistics.median(anchor[key] for anchor in anchors) for key in ("many", "many_cpu"))
    embed = {"texts_per_second": rate, "texts_per_cpu_second": cpu, "of_embed": 1.0, "of_embed_cpu": 1.0}
    results.add(f"model.embed, {TEXTS} texts at once", **embed)
    for name, rounds in loads.items():
        middle = {key: statistics.median(load[key] for load in rounds) for key in rounds[0]}
        results.add(
            name,
            texts_per_second=round(middle["rate"], 1),
            texts_per_cpu_second=round(middle["per_cpu"], 1),
            p50_ms=round(middle["p50"]),
            p99_ms=round(middle["p99"]),
            of_embed=round(middle["rate"] / rate, 2),
            of_embed_cpu=round(middle["per_cpu"] / cpu, 2),
            client_cores=round(middle["client_cores"], 2),
        )
    starts = {f"{server.name.replace('-', '_')}_cpu_seconds": server.start_cpu for server in started}
    results.add("start", **starts)


def measure_latency(results: Results, server: Server, texts: list[str], options: argparse.Namespace) -> None:
    """Measure a lone client, and random arrivals at 70 % of the capacity."""
    capacity = loaded(server, single_requests(server, texts), CLIENTS, options.seconds, 1)
    lone = asyncio.run(closed_loop(server.port, single_requests(server, [QUERY]), 1, options.seconds))
    results.add("lone query", **lone.quantiles(), embed_ms=start_anchor(3)["query_ms"])
    rate = 0.7 * capacity["rate"]
    busy = asyncio.run(open_loop(server.port, single_requests(server, texts), rate, 2 * options.seconds))
    errors = sum(map(len, busy.latencies.values())) - busy.count()
    results.add("70 % load", requests_per_second=round(rate), **busy.quantiles(), errors=errors)


def measure_outside_model(results: Results, folder: Path, seconds: float) -> None:
    """Measure what a request costs besides the computing of its vector: HTTP, JSON, tokens, the queue."""
    import bertree

    tokenizer, times = bertree.load(folder).required_tokenizer, []
    for _ in range(1000):
        begun = time.thread_time()
        tokenizer.encode_batch([QUERY], 256)
        times.append(time.thread_time() - begun)
    server, figures = servers.start_without_model(folder), {"tokenizing_us": round(1e6 * statistics.median(times))}
    try:
        for form in ("float", "base64"):
            load = loaded(server, single_requests(server, [QUERY], encoding_format=form), CLIENTS, seconds, 1)
            figures[f"{form}_us"] = round(1e6 * load["request_cpu"])
    finally:
        server.stop()
    results.add("outside the model", **figures)


def measure_fairness(results: Results, server: Server, texts: list[str], seconds: float) -> None:
    """Measure a query while two clients send requests of 2048 texts without end."""
    large = bulk_requests(server, texts * 4, 2048)
    query = single_requests(server, [QUERY])

    async def run() -> tuple[Outcome, dict[str, float]]:
        bulk = asyncio.create_task(closed_loop(server.port, large, 2, seconds))
        await asyncio.sleep(1)
        before = await batch_times(server)
        outcome, connection = Outcome(), Connection(server.port)
        while not bulk.done():
            begun = time.perf_counter()
            status, _, _ = await connection.ask(query[0])
            outcome.note(status, time.perf_counter() - begun)
            await asyncio.sleep(0.05)
        after = await batch_times(server)
        await bulk
        connection.close()
        return outcome, {key: after[key] - before[key] for key in after}

    outcome, metrics = asyncio.run(run())
    batch = 1000 * metrics["seconds"] / max(1.0, metrics["count"])
    batches = round(outcome.quantile(0.99) / batch, 1)
    results.add("query during bulk", **outcome.quantiles(), batch_ms=round(batch, 1), p99_batches=batches)


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


def overload(results: Results, server: Server, texts: list[str], options: argparse.Namespace) -> None:
    """Send five times the capacity, and compare every vector with the right one."""
    import bertree

    right = bertree.load(real_weights()).embed(texts)
    requests = single_requests(server, texts, encoding_format="base64")
    capacity = loaded(server, requests, CLIENTS, options.seconds, 1)
    wrong, without = 0, 0

    def check(number: int, status: int, head: bytes, body: bytes) -> None:
        nonlocal wrong, without
        if status == 200:
            row = np.frombuffer(base64.b64decode(json.loads(body)["data"][0]["embedding"]), "<f4")
            wrong += bool(np.abs(row - right[number]).max() > 1e-5)
        elif status == 429:
            without += b"retry-after:" not in head

    cpu, load = server.cpu(), os.getloadavg()[0]
    outcome = asyncio.run(open_loop(server.port, requests, TIMES * capacity["rate"], options.overload, on_answer=check))
    cpu = server.cpu() - cpu
    after = loaded(server, requests, CLIENTS, options.seconds, 1)
    # Before and after: the speed of a machine that others share changes within a minute.
    most, most_cpu = ((capacity[key] + after[key]) / 2 for key in ("rate", "per_cpu"))
    counts = {status: len(times) for status, times in outcome.latencies.items()}
    goodput, per_cpu = outcome.count() / outcome.seconds, outcome.count() / cpu
    results.add(
        "overload",
        times_capacity=TIMES,
        requests_per_second=round(TIMES * capacity["rate"]),
        queue_seconds=QUEUE,
        texts_per_second=round(goodput, 1),
        of_maximum=round(goodput / most, 2),
        of_maximum_cpu=round(per_cpu / most_cpu, 2),
        answered=outcome.count(),
        wait_p50_s=round(outcome.quantile(0.5) / 1000, 2),
        wait_most_s=round(outcome.quantile(1.0) / 1000, 2),
        refused=outcome.count(429),
        refusal_p50_ms=round(outcome.quantile(0.5, 429), 1),
        refusal_p99_ms=round(outcome.quantile(0.99, 429), 1),
        refusals_without_retry_after=without,
        other_statuses=sum(count for status, count in counts.items() if status not in (200, 429)),
        lost=outcome.lost,
        client_late_s=round(outcome.late, 2),
        wrong_vectors=wrong,
        load_average=round(load, 1),
    )


if __name__ == "__main__":
    main()
