"""Jobs, and the order in which waiting jobs are computed.

Fairness is between requests: the next job is taken from the request that has received the least work so far, the
oldest of them first. So a single text passes a request of thousands of texts after at most one batch, and requests of
the same size take turns. A request that arrives begins with a part of the work that was done before it (a virtual
time), so that a stream of short requests cannot keep a long one waiting for ever. Work is measured in seconds: tokens
times what a token of the kind costs now. A thread that asks gets what is there.
"""

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

MOST_DROPPED = 64  # dropped requests that may stay in the heap of a kind
FIRST_COST = 1 / 5000  # seconds of a token, until batches are measured
SLOWER, FASTER = 0.5, 2.0  # seconds of computing after which a higher, a lower cost is believed (to 63 %)
URGENT = 2  # batches of a long request that short ones may have to wait for
LONG = 3  # batches of a kind that wait, from which on they may be larger
SHARE = 4  # long requests together receive at least a quarter of the work while short ones keep coming


class Job(NamedTuple):
    """A piece of work that can share a batch with others of its kind."""

    tokens: int
    payload: Any


class JobKind:
    """One kind of work of one model. A batch has jobs of one kind."""

    def __init__(
        self, name: str, compute: Callable[[Sequence[Any]], Sequence[Any]], budget: int, most: int = 0, at_once: int = 0
    ) -> None:
        """`compute`: payloads -> as many results. `budget`: tokens of a batch; a longer job is a batch of its own.
        `most`: tokens of a batch while many wait; 0: as `budget`. `at_once`: batches computed at the same time; 0: one
        for each thread."""
        self.name, self.compute, self.budget, self.at_once = name, compute, budget, at_once
        self.most = most or budget
        self.running = 0  # batches being computed; the scheduler counts them
        self.urgent = URGENT * budget if budget > 1 else math.inf  # tokens of a request that others may wait for
        self.cost = self.least_cost = FIRST_COST  # seconds of a token in one thread: now, and at best
        self.measured = False

    def measure(self, tokens: int, seconds: float) -> None:
        """Learn from a batch what a token costs now. Small batches say little: most of their time is fixed."""
        cost = seconds / max(1, tokens)
        if not self.measured:
            self.cost = self.least_cost = cost
            self.measured = True
        elif cost < self.cost or 2 * tokens >= self.budget:
            patience = SLOWER if cost > self.cost else FASTER
            self.cost += (cost - self.cost) * (1 - math.exp(-seconds / patience))
            self.least_cost = min(self.least_cost, self.cost)


class Overloaded(Exception):
    """Too much work is waiting; try again after `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("too many requests are waiting")
        self.retry_after = max(1, math.ceil(retry_after))


class TooLong(Exception):
    """A request takes longer than it may, even on an idle server: about so many `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__("the request takes too long")
        self.seconds = seconds


class DeadlineExceeded(Exception):
    """A request was not done in its time."""


class QueuedRequest:
    """The jobs of one request and their results so far."""

    def __init__(
        self, kind: JobKind, jobs: Sequence[Job], deadline: float, arrived: float, done: Callable[[], None]
    ) -> None:
        """`done` is called once: when all results are there, or with `error` set."""
        self.kind, self.jobs, self.deadline, self.arrived = kind, jobs, deadline, arrived
        self.number = 0  # in the order of arrival; the queue sets it
        self.begin_by = math.inf  # when it is refused unless a job was taken
        # Similar lengths share a batch; the longest come first, so that the last batch is a short one.
        self._order = sorted(range(len(jobs)), key=lambda row: -jobs[row].tokens) if len(jobs) > 1 else [0]
        self._taken = 0
        self._missing = len(jobs)
        self._done = done
        self.results: list[Any] = [None] * len(jobs)
        self.tokens = sum(job.tokens for job in jobs)
        self.tokens_taken = 0  # tokens of the jobs that were taken
        self.work = 0.0  # seconds: the virtual time of its arrival, and the work of its jobs that were taken
        self.error: Exception | None = None
        self.finished = False  # nobody waits for it any longer
        self.wait_recorded = False  # whether its waiting time was recorded

    @property
    def waiting(self) -> bool:
        """Whether it has jobs that were not taken."""
        return self._taken < len(self._order)

    @property
    def remaining(self) -> int:
        """Tokens of the jobs that were not taken."""
        return self.tokens - self.tokens_taken

    @property
    def urgent(self) -> float:
        """Those of them that a request after this one may have to wait for."""
        return min(self.remaining, self.kind.urgent)

    @property
    def place(self) -> float:
        """Its place in the queue, the lowest first. Work that cannot be divided lets shorter work pass."""
        return self.work if self.kind.budget > 1 else self.work + self.next_tokens * self.kind.cost

    @property
    def next_tokens(self) -> int:
        """Tokens of the next job."""
        return self.jobs[self._order[self._taken]].tokens

    def take(self) -> int:
        """Take the next job; return its row."""
        row = self._order[self._taken]
        self._taken, self.begin_by = self._taken + 1, math.inf
        self.tokens_taken += self.jobs[row].tokens
        self.work += self.jobs[row].tokens * self.kind.cost
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
    seconds: float  # of computing, as estimated


class WaitingJobs:
    """The requests of one kind that wait: a heap by place and number, and their tokens."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, QueuedRequest]] = []
        self.tokens = 0
        self.urgent = 0.0  # tokens that a new request has to wait for
        self.dropped = 0  # requests in the heap that nobody waits for


class TokenQueue:
    """Requests that wait, with the number of tokens they wait for. It has no clock and no lock of its own."""

    def __init__(self, reserve: float = 0.0) -> None:
        """`reserve`: seconds that are kept at most for computing when a request must begin."""
        self.reserve = reserve
        self.tokens = 0  # of jobs that were not taken
        self.requests = 0  # with such jobs
        self.added = 0  # requests so far
        self._kinds: dict[JobKind, WaitingJobs] = {}
        self._untouched: dict[int, QueuedRequest] = {}  # those of which nothing was taken, by number
        self._begun: set[int] = set()  # numbers of those of which a part was taken
        self._virtual = 0.0  # seconds of work with which a new request begins

    @property
    def fills_batches(self) -> bool:
        """Whether there is work for more than one thread: several kinds, or more than one batch of a kind."""
        return len(self._kinds) > 1 or any(self.tokens > kind.budget for kind in self._kinds)

    @property
    def urgent_seconds(self) -> float:
        """Work that a new short request has to wait for, in seconds of one thread. It may be read without a lock."""
        return sum([waiting.urgent * kind.cost for kind, waiting in list(self._kinds.items())])

    @property
    def seconds(self) -> float:
        """All work that waits, in seconds of one thread."""
        return sum([waiting.tokens * kind.cost for kind, waiting in self._kinds.items()])

    def seconds_of(self, kind: JobKind) -> float:
        """Return the work of one kind that waits."""
        waiting = self._kinds.get(kind)
        return waiting.tokens * kind.cost if waiting else 0.0

    def add(self, request: QueuedRequest) -> None:
        """Add a request."""
        self.added += 1
        self.tokens += request.tokens
        self.requests += 1
        request.work = self._virtual
        waiting = self._kinds.setdefault(request.kind, WaitingJobs())
        waiting.tokens += request.tokens
        waiting.urgent += request.urgent
        self._untouched[self.added] = request
        request.number = self.added
        heappush(waiting.heap, (request.place, self.added, request))

    def drop(self, request: QueuedRequest) -> None:
        """Forget what is left of a request that nobody waits for any more."""
        request.finished = True
        if not request.waiting:
            return
        self._forget(request)
        waiting = self._kinds[request.kind]
        waiting.dropped += 1
        if waiting.dropped > MOST_DROPPED + len(waiting.heap) // 2:
            waiting.heap[:] = [item for item in waiting.heap if item[2].waiting]
            heapify(waiting.heap)
            waiting.dropped = 0

    def newest_untouched(self) -> QueuedRequest | None:
        """Return the last of the requests of which nothing was taken."""
        return next(reversed(self._untouched.values()), None)

    def take(self, now: float, threads: int = 1) -> JobBatch | None:
        """Take the next batch; requests whose deadline has passed end with an error.

        `threads`: number of free threads, which share the waiting jobs."""
        first = [(item[:2], kind) for kind in list(self._kinds) if (item := self._first(kind, now))]
        if not first:
            return None
        _, kind = min(first, key=lambda pair: pair[0])
        jobs: list[tuple[QueuedRequest, int]] = []
        tokens, waiting = 0, self._kinds[kind]
        most = kind.most if waiting.tokens >= LONG * kind.budget else kind.budget
        budget = min(most, -(-self.tokens // threads))
        while self._first(kind, now):
            _, number, request = waiting.heap[0]
            if jobs and tokens + request.next_tokens > budget:
                break
            heappop(waiting.heap)
            urgent = request.urgent
            row = request.take()
            waiting.urgent -= urgent - request.urgent
            jobs.append((request, row))
            tokens += request.jobs[row].tokens
            self._untouched.pop(number, None)
            if request.waiting:
                self._begun.add(number)
                heappush(waiting.heap, (request.place, number, request))
            else:
                self._begun.discard(number)
                self.requests -= 1
        self.tokens -= tokens
        waiting.tokens -= tokens
        if not waiting.heap:
            self._kinds.pop(kind, None)
        self._virtual += tokens * kind.cost / SHARE / max(1, len(self._begun))
        return JobBatch(kind, jobs, tokens, tokens * kind.cost)

    def _first(self, kind: JobKind, now: float) -> tuple[float, int, QueuedRequest] | None:
        """Return the entry of the next request of a kind; None if it has none or computes as many as it may."""
        heap = self._kinds[kind].heap
        begun = now + min(self.reserve, kind.cost * min(kind.most, self._kinds[kind].tokens))
        while heap:
            request = heap[0][2]
            if request.finished and request.waiting:  # one of its jobs has failed
                self._forget(request)
            elif request.waiting and (request.deadline <= now or request.begin_by <= begun):
                self._forget(request)
                request.fail(DeadlineExceeded() if request.deadline <= now else Overloaded(1))
            elif request.waiting:
                return None if kind.at_once and kind.running >= kind.at_once else heap[0]
            heappop(heap)
        del self._kinds[kind]
        return None

    def _forget(self, request: QueuedRequest) -> None:
        waiting = self._kinds[request.kind]
        self.tokens -= request.remaining
        waiting.tokens -= request.remaining
        waiting.urgent -= request.urgent
        self.requests -= 1
        self._untouched.pop(request.number, None)
        self._begun.discard(request.number)
        request.take_nothing()
