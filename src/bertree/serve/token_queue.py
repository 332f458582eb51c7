"""Jobs, and the order in which waiting jobs are computed.

Fairness is between requests: the next job is taken from the request that has received the fewest tokens so far, the
oldest of them first. So a single text passes a request of thousands of texts after at most one batch, and requests of
the same size take turns. The queue never waits for a batch to fill up: a thread that asks gets what is there.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

MOST_DROPPED = 64  # dropped requests that may stay in the heap of a kind


class Job(NamedTuple):
    """A piece of work that can share a batch with others of its kind."""

    tokens: int
    payload: Any


class JobKind:
    """One kind of work of one model. A batch has jobs of one kind."""

    def __init__(
        self, name: str, compute: Callable[[Sequence[Any]], Sequence[Any]], budget: int, at_once: int = 0
    ) -> None:
        """`compute`: payloads -> as many results. `budget`: tokens of a batch; a longer job is a batch of its own.
        `at_once`: batches computed at the same time; 0: one for each thread."""
        self.name, self.compute, self.budget, self.at_once = name, compute, budget, at_once
        self.running = 0  # batches being computed; the scheduler counts them


class Overloaded(Exception):
    """Too much work is waiting; try again after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("too many requests are waiting")
        self.retry_after = max(1, math.ceil(retry_after))


class DeadlineExceeded(Exception):
    """A request was not done in its time."""


class JobObserver:
    """Is told what the scheduler computes, for metrics; this one ignores it. `kind`: the name of a kind of jobs."""

    def batch(self, kind: str, jobs: int, tokens: int, seconds: float) -> None:
        """Record a batch that was computed."""

    def waited(self, kind: str, tokens: int, seconds: float) -> None:
        """Record how long a request waited for its first batch."""

    def failed(self, kind: str, error: Exception) -> None:
        """Record a job that could not be computed."""


class QueuedRequest:
    """The jobs of one request and their results so far."""

    def __init__(
        self, kind: JobKind, jobs: Sequence[Job], deadline: float, arrived: float, done: Callable[[], None]
    ) -> None:
        """`done` is called once: when all results are there, or with `error` set."""
        self.kind, self.jobs, self.deadline, self.arrived = kind, jobs, deadline, arrived
        # Similar lengths share a batch; the longest come first, so that the last batch is a short one.
        self._order = sorted(range(len(jobs)), key=lambda row: -jobs[row].tokens) if len(jobs) > 1 else [0]
        self._taken = 0
        self._missing = len(jobs)
        self._done = done
        self.results: list[Any] = [None] * len(jobs)
        self.tokens = sum(job.tokens for job in jobs)
        self.tokens_taken = 0  # tokens of the jobs that were taken
        self.error: Exception | None = None
        self.finished = False  # nobody waits for it any longer
        self.wait_recorded = False  # whether its waiting time was recorded

    @property
    def waiting(self) -> bool:
        """Whether it has jobs that were not taken."""
        return self._taken < len(self._order)

    @property
    def next_tokens(self) -> int:
        """Tokens of the next job."""
        return self.jobs[self._order[self._taken]].tokens

    def take(self) -> int:
        """Take the next job; return its row."""
        row = self._order[self._taken]
        self._taken += 1
        self.tokens_taken += self.jobs[row].tokens
        return row

    def take_nothing(self) -> None:
        """Leave out the jobs that were not taken."""
        self._taken = len(self._order)

    def deliver(self, row: int, result: Any) -> None:
        """Set the result of a job."""
        self.results[row] = result
        self._missing -= 1
        if not self._missing:
            self._finish()

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        if not self.finished:
            self.error = error
            self._finish()

    def _finish(self) -> None:
        if not self.finished:
            self.finished = True
            self._done()


class JobBatch(NamedTuple):
    """Jobs to be computed at once: their requests and rows."""

    kind: JobKind
    jobs: list[tuple[QueuedRequest, int]]
    tokens: int


class TokenQueue:
    """Requests that wait, with the number of tokens they wait for. It has no clock and no lock of its own."""

    def __init__(self) -> None:
        self.tokens = 0  # of jobs that were not taken
        self.requests = 0  # with such jobs
        self.added = 0  # requests so far
        self._heaps: dict[JobKind, list[tuple[int, int, QueuedRequest]]] = {}
        self._dropped: dict[JobKind, int] = defaultdict(int)

    @property
    def fills_batches(self) -> bool:
        """Whether there is work for more than one thread: several kinds, or more than one batch of a kind."""
        return len(self._heaps) > 1 or any(self.tokens > kind.budget for kind in self._heaps)

    def add(self, request: QueuedRequest) -> None:
        """Add a request."""
        self.added += 1
        self.tokens += request.tokens
        self.requests += 1
        heappush(self._heaps.setdefault(request.kind, []), (0, self.added, request))

    def drop(self, request: QueuedRequest) -> None:
        """Forget what is left of a request that nobody waits for any more."""
        request.finished = True
        if not request.waiting:
            return
        self._forget(request)
        heap = self._heaps[request.kind]
        self._dropped[request.kind] += 1
        if self._dropped[request.kind] > MOST_DROPPED + len(heap) // 2:
            heap[:] = [item for item in heap if item[2].waiting]
            heapify(heap)
            self._dropped[request.kind] = 0

    def take(self, now: float, threads: int = 1) -> JobBatch | None:
        """Take the next batch; requests whose deadline has passed end with an error.

        `threads`: number of free threads, which share the waiting jobs."""
        first = [(item[:2], kind) for kind in list(self._heaps) if (item := self._first(kind, now))]
        if not first:
            return None
        _, kind = min(first, key=lambda pair: pair[0])
        jobs: list[tuple[QueuedRequest, int]] = []
        tokens, heap = 0, self._heaps[kind]
        budget = min(kind.budget, -(-self.tokens // threads))
        while self._first(kind, now):
            _, number, request = heap[0]
            if jobs and tokens + request.next_tokens > budget:
                break
            heappop(heap)
            row = request.take()
            jobs.append((request, row))
            tokens += request.jobs[row].tokens
            if request.waiting:
                heappush(heap, (request.tokens_taken, number, request))
            else:
                self.requests -= 1
        self.tokens -= tokens
        if not heap:
            self._heaps.pop(kind, None)
        return JobBatch(kind, jobs, tokens)

    def _first(self, kind: JobKind, now: float) -> tuple[int, int, QueuedRequest] | None:
        """Return the entry of the next request of a kind; None if it has none or computes as many as it may."""
        heap = self._heaps[kind]
        while heap:
            request = heap[0][2]
            if request.finished and request.waiting:  # one of its jobs has failed
                self._forget(request)
            elif request.waiting and request.deadline <= now:
                self._forget(request)
                request.fail(DeadlineExceeded())
            elif request.waiting:
                return None if kind.at_once and kind.running >= kind.at_once else heap[0]
            heappop(heap)
        del self._heaps[kind]
        self._dropped.pop(kind, None)
        return None

    def _forget(self, request: QueuedRequest) -> None:
        self.tokens -= request.tokens - request.tokens_taken
        self.requests -= 1
        request.take_nothing()
