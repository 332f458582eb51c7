"""Metrics for Prometheus and structured logs (one JSON object a line). Neither has texts of requests or keys.

With several worker processes the metrics are the sums over all of them.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO

import orjson
import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, multiprocess

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder in which the workers of a server keep their numbers
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288)
KIND = ("lane",)  # the label of a kind of jobs
prometheus.disable_created_metrics()  # they would be a second line for each metric


class Metrics:
    """Counters and histograms of one process; the scheduler reports its work to it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._children: dict[tuple[Any, ...], Any] = {}

        def histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"bertree_{name}", text, labels, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"bertree_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, mode: Literal["livesum", "livemax"] = "livesum") -> Gauge:
            return Gauge(f"bertree_{name}", text, registry=registry, multiprocess_mode=mode)

        self._requests = counter("requests", "Requests answered.", "route", "status")
        self._seconds = histogram("request_seconds", "Time of a request.", ("route",), SECONDS)
        self._queue = histogram("queue_seconds", "Wait for the first batch.", KIND, SECONDS)
        self._compute = histogram("compute_seconds", "Time of a batch.", KIND, SECONDS)
        self._tokens = histogram("request_tokens", "Tokens of a request.", KIND, TOKENS)
        self._batch = histogram("batch_tokens", "Tokens of a batch.", KIND, TOKENS)
        self._jobs = counter("jobs", "Texts, pairs or calls computed.", *KIND)
        self.failures = counter("failures", "Jobs that could not be computed.", *KIND)
        self.truncated = counter("truncated_texts", "Texts that were too long.")
        self.swaps = counter("swaps", "Models loaded again.", "model", "result")
        self.queue_tokens = gauge("queue_tokens", "Tokens that wait.")
        self.queue_requests = gauge("queue_requests", "Requests that wait.")
        self.wait_seconds = gauge("wait_seconds", "Expected wait of a new request.", "livemax")

    def _child(self, metric: Any, *labels: object) -> Any:
        """Return the part of a metric with these labels; the library's own look-up takes longer than counting."""
        if (child := self._children.get((metric, *labels))) is None:
            child = self._children[metric, *labels] = metric.labels(*labels)
        return child

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._child(self._requests, route, status).inc()
        self._child(self._seconds, route).observe(seconds)

    def batch(self, kind: str, jobs: int, tokens: int, seconds: float) -> None:
        """Count a batch that was computed."""
        self._child(self._compute, kind).observe(seconds)
        self._child(self._batch, kind).observe(tokens)
        self._child(self._jobs, kind).inc(jobs)

    def waited(self, kind: str, tokens: int, seconds: float) -> None:
        """Record how long a request waited for its first batch."""
        self._child(self._queue, kind).observe(seconds)
        self._child(self._tokens, kind).observe(tokens)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        registry = self.registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)
        return prometheus.generate_latest(registry) + prometheus.generate_latest(ServerProcesses())


class ServerProcesses:
    """Memory, CPU time and open files (process_*) of this process, or of all workers of the server."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: sums, but the time at which the first of them started."""
        pids = [os.getpid()]
        if SHARED in os.environ:
            with suppress(OSError):
                pids = [
                    int(pid) for pid in Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
                ]
        totals: dict[str, Metric] = {}
        for pid in pids:
            for metric in prometheus.ProcessCollector(pid=partial(int, pid), registry=None).collect():
                total = totals.setdefault(metric.name, metric)
                if total is not metric and "start_time" not in metric.name:
                    new = total.samples[0].value + metric.samples[0].value
                    total.samples[0] = total.samples[0]._replace(value=new)
        yield from totals.values()


class Log:
    """Writes events to a stream, by default standard error."""

    def __init__(self, stream: TextIO | None = None, requests: bool = True) -> None:
        """`requests`: also write a line for each successful request."""
        self._stream, self._requests = stream, requests

    def write(self, event: str, **values: Any) -> None:
        """Write an event."""
        line = {"time": round(time.time(), 3), "event": event, **values}
        stream = self._stream or sys.stderr
        with suppress(OSError, ValueError):  # the reader of the log has gone
            stream.write(orjson.dumps(line, default=str).decode() + "\n")
            stream.flush()

    def wants(self, status: int) -> bool:
        """Return whether a request with this status gets a line."""
        return self._requests or status >= 500


class LogHandler(logging.Handler):
    """Writes what libraries log as events, so that every line of the log is JSON. Their texts may quote a request, so
    of an error only its kind is written."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        error = record.exc_info[0] if record.exc_info else None
        message = str(record.msg).strip().partition("\n")[0][:200]
        self._log.write("library", source=record.name, message=message, error=error.__name__ if error else None)
