"""Metrics for Prometheus. With several worker processes they are those of all of them together."""

import os
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # a folder in which the workers of a server keep their numbers
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
disable_created_metrics()  # a second line for each
TOKENS = (8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288)


class LaneMetrics(NamedTuple):
    """The metrics of one lane."""

    queue: Histogram
    compute: Histogram
    tokens: Histogram
    batch: Histogram
    jobs: Counter


class Metrics:
    """Counters and histograms of one process; a `Watch` of the scheduler."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._lanes: dict[str, LaneMetrics] = {}
        self._routes: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter("bertree_requests", "Requests answered.", ("route", "status"), registry=registry)
        self._seconds = Histogram(
            "bertree_request_seconds", "Time of a request.", ("route",), buckets=SECONDS, registry=registry
        )
        self._queue = Histogram(
            "bertree_queue_seconds",
            "Wait for the first batch.",
            ("lane",),
            buckets=SECONDS,
            registry=registry,
        )
        self._compute = Histogram(
            "bertree_compute_seconds", "Time of a batch.", ("lane",), buckets=SECONDS, registry=registry
        )
        self._tokens = Histogram(
            "bertree_request_tokens", "Tokens of a request.", ("lane",), buckets=TOKENS, registry=registry
        )
        self._batch = Histogram(
            "bertree_batch_tokens", "Tokens of a batch.", ("lane",), buckets=TOKENS, registry=registry
        )
        self._jobs = Counter("bertree_jobs", "Texts, pairs or calls computed.", ("lane",), registry=registry)
        self._failures = Counter("bertree_failures", "Jobs that could not be computed.", ("lane",), registry=registry)
        self._cut = Counter("bertree_truncated_texts", "Texts that were too long.", registry=registry)
        self._swaps = Counter("bertree_swaps", "Models loaded again.", ("model", "result"), registry=registry)
        self.queue_tokens = Gauge(
            "bertree_queue_tokens", "Tokens that wait.", registry=registry, multiprocess_mode="livesum"
        )
        self.queue_requests = Gauge(
            "bertree_queue_requests", "Requests that wait.", registry=registry, multiprocess_mode="livesum"
        )

    def _of_lane(self, lane: str) -> LaneMetrics:
        """Return the metrics of a lane; looking each of them up by its label would take longer than counting."""
        if (found := self._lanes.get(lane)) is None:
            found = self._lanes[lane] = LaneMetrics(
                self._queue.labels(lane),
                self._compute.labels(lane),
                self._tokens.labels(lane),
                self._batch.labels(lane),
                self._jobs.labels(lane),
            )
        return found

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Note a request that was answered."""
        if (found := self._routes.get((route, status))) is None:
            found = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._routes[route, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def batch(self, lane: str, jobs: int, tokens: int, seconds: float) -> None:
        """Note a batch that was computed."""
        found = self._of_lane(lane)
        found.compute.observe(seconds)
        found.batch.observe(tokens)
        found.jobs.inc(jobs)

    def waited(self, lane: str, tokens: int, seconds: float) -> None:
        """Note how long a request waited for its first batch."""
        found = self._of_lane(lane)
        found.queue.observe(seconds)
        found.tokens.observe(tokens)

    def failed(self, lane: str, error: Exception) -> None:
        """Note a job that could not be computed."""
        self._failures.labels(lane).inc()

    def truncated(self, texts: int) -> None:
        """Note texts that were too long."""
        self._cut.inc(texts)

    def swapped(self, model: str, result: str) -> None:
        """Note a model that was loaded again, or could not be."""
        self._swaps.labels(model, result).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        return generate_latest(registry)
