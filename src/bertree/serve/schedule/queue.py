"""The order in which waiting jobs are computed.

Fairness is between requests: the next job is taken from the request that has been given the fewest tokens so far, the
oldest of them first. So a single text passes a request of thousands of texts after at most one batch, and requests of
the same size take turns. The queue never waits for a batch to fill up: what is there is given to a thread that asks.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from bertree.serve.schedule.work import DeadlineExceeded, Job, Lane

MOST_DROPPED = 64  # dropped requests that may stay in the heap of a lane


class QueuedRequest:
    """The jobs of one request and their results so far."""

    def __init__(
        self, lane: Lane, jobs: Sequence[Job], deadline: float, arrived: float, done: Callable[[], None]
    ) -> None:
        """`done` is called once: when all results are there, or with `error` set."""
        self.lane, self.jobs, self.deadline, self.arrived = lane, jobs, deadline, arrived
        # Similar lengths share a batch; the longest come first, so that the last batch is a short one.
        self._order = sorted(range(len(jobs)), key=lambda row: -jobs[row].tokens) if len(jobs) > 1 else [0]
        self._taken = 0
        self._missing = len(jobs)
        self._done = done
        self.results: list[Any] = [None] * len(jobs)
        self.tokens = sum(job.tokens for job in jobs)
        self.given = 0  # tokens that were taken for computing
        self.error: Exception | None = None
        self.finished = False  # nobody waits for it any more
        self.wait_noted = False  # whether the time until its first batch was noted

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
        self.given += self.jobs[row].tokens
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

    lane: Lane
    jobs: list[tuple[QueuedRequest, int]]
    tokens: int


class TokenQueue:
    """Requests that wait, with the number of tokens they wait for. It has no clock and no lock of its own."""

    def __init__(self) -> None:
        self.tokens = 0  # of jobs that were not taken
        self.requests = 0  # with such jobs
        self.added = 0  # requests so far
        self._heaps: dict[Lane, list[tuple[int, int, QueuedRequest]]] = {}
        self._dropped: dict[Lane, int] = defaultdict(int)

    @property
    def fills_batches(self) -> bool:
        """Whether there is work for more than one thread: several lanes, or more than a batch of one."""
        return len(self._heaps) > 1 or any(self.tokens > lane.budget for lane in self._heaps)

    def add(self, request: QueuedRequest) -> None:
        """Add a request."""
        self.added += 1
        self.tokens += request.tokens
        self.requests += 1
        heappush(self._heaps.setdefault(request.lane, []), (0, self.added, request))

    def drop(self, request: QueuedRequest) -> None:
        """Forget what is left of a request that nobody waits for any more."""
        request.finished = True
        if not request.waiting:
            return
        self._forget(request)
        heap = self._heaps[request.lane]
        self._dropped[request.lane] += 1
        if self._dropped[request.lane] > MOST_DROPPED + len(heap) // 2:
            heap[:] = [item for item in heap if item[2].waiting]
            heapify(heap)
            self._dropped[request.lane] = 0

    def take(self, now: float, threads: int = 1) -> JobBatch | None:
        """Take the next batch; requests whose deadline has passed end with an error.

        `threads`: so many are free, and share what waits."""
        first = [(item[:2], lane) for lane in list(self._heaps) if (item := self._first(lane, now))]
        if not first:
            return None
        _, lane = min(first, key=lambda pair: pair[0])
        jobs: list[tuple[QueuedRequest, int]] = []
        tokens, heap = 0, self._heaps[lane]
        budget = min(lane.budget, -(-self.tokens // threads))
        while self._first(lane, now):
            _, number, request = heap[0]
            if jobs and tokens + request.next_tokens > budget:
                break
            heappop(heap)
            row = request.take()
            jobs.append((request, row))
            tokens += request.jobs[row].tokens
            if request.waiting:
                heappush(heap, (request.given, number, request))
            else:
                self.requests -= 1
        self.tokens -= tokens
        if not heap:
            self._heaps.pop(lane, None)
        return JobBatch(lane, jobs, tokens)

    def _first(self, lane: Lane, now: float) -> tuple[int, int, QueuedRequest] | None:
        """Return the entry of the next request of a lane; None if it has none or computes as many as it may."""
        heap = self._heaps[lane]
        while heap:
            request = heap[0][2]
            if request.finished and request.waiting:  # one of its jobs has failed
                self._forget(request)
            elif request.waiting and request.deadline <= now:
                self._forget(request)
                request.fail(DeadlineExceeded())
            elif request.waiting:
                return None if lane.at_once and lane.running >= lane.at_once else heap[0]
            heappop(heap)
        del self._heaps[lane]
        self._dropped.pop(lane, None)
        return None

    def _forget(self, request: QueuedRequest) -> None:
        self.tokens -= request.tokens - request.given
        self.requests -= 1
        request.take_nothing()
