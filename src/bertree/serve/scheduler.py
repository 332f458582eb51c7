"""Compute the jobs of all requests in a few threads.

The event loop puts jobs into the queue; threads take batches from it, compute them and hand the results back to the
loop. A batch that raises is halved until the job at fault is alone, so it fails no other request; a thread never ends.

A request is accepted if it will not have to wait longer than the queue allows, and can be done before its deadline, by
what the last batches cost. If the machine slows down afterwards, the newest requests are refused after all, so that the
older ones are answered in time.
"""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bertree.serve.http.telemetry import Metrics
from bertree.serve.token_queue import (
    DeadlineExceeded,
    Job,
    JobBatch,
    JobKind,
    Overloaded,
    QueuedRequest,
    TokenQueue,
    TooLong,
)

FULL = 0.7  # of the queue's seconds: from here on requests are refused, before they are read; machines slow down
LATE = 1.1  # of the queue's seconds: what would have to wait longer is refused after it was accepted
LONGEST_WAIT = 60.0  # seconds that a client is told to wait
MOST_TURNS = 16  # of the event loop that may bring requests of one batch
RETURN, LONGEST_RETURN = 0.1, 0.05  # of a batch's seconds, and seconds, in which clients that it answered may ask again


class Scheduler:
    """Takes jobs from an event loop and computes them in threads."""

    def __init__(
        self,
        threads: int,
        queue_seconds: float,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`threads`: 0 to compute by `compute_next` alone. `queue_seconds`: that a request may have to wait."""
        self.threads, self.queue_seconds = threads, queue_seconds
        self._metrics = metrics or Metrics()
        self._clock = clock
        self._queue = TokenQueue(reserve=(LATE - FULL) * queue_seconds)
        self._running = 0.0  # seconds of work in the batches that are being computed
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self.idle_threads = 0
        self._gathering: asyncio.AbstractEventLoop | None = None  # the loop that will wake the threads
        self._returning = (0, 0.0)  # requests so far with those of clients just answered, and until when these may come
        self._pausing = 0  # threads that wait for them
        self._stopped = False
        self._started: list[threading.Thread] = []
        self._finished: threading.local = threading.local()

    @property
    def queued_tokens(self) -> int:
        """Tokens that wait."""
        return self._queue.tokens

    @property
    def queued_requests(self) -> int:
        """Requests with jobs that wait."""
        return self._queue.requests

    @property
    def wait(self) -> float:
        """Seconds that a new short request has to wait, by what the last batches cost."""
        return (self._queue.urgent_seconds + self._running) / max(1, self.threads)

    def room(self, kind: JobKind, tokens: int) -> int:
        """Return how many jobs of so many tokens may wait."""
        return max(1, int(self.queue_seconds * max(1, self.threads) / (kind.cost * tokens)))

    @property
    def is_full(self) -> bool:
        """Whether further requests are refused unread: most of them would be tokenized and then refused."""
        return self.wait >= FULL * self.queue_seconds

    @property
    def retry_after(self) -> float:
        """Seconds until half of what may wait is done."""
        return min(LONGEST_WAIT, self.wait - self.queue_seconds / 2)

    def now(self) -> float:
        """Return the time on its clock."""
        return self._clock()

    def start(self) -> None:
        """Start the threads."""
        for number in range(self.threads):
            thread = threading.Thread(target=self._work, name=f"compute-{number}", daemon=True)
            thread.start()
            self._started.append(thread)

    def stop(self) -> None:
        """End the threads after the batches that they compute now. Waiting jobs are not computed."""
        with self._lock:
            self._stopped = True
            self._ready.notify_all()
        for thread in self._started:
            thread.join()
        self._started.clear()

    async def run(self, kind: JobKind, jobs: Sequence[Job], deadline: float, waited: float = 0.0) -> list[Any]:
        """Return the results of jobs, in their order. `deadline`: on the scheduler's clock. `waited`: seconds that the
        request waited before it was read.

        Overloaded if too much waits already: all of the jobs are taken, or none. TooLong if they cannot be done before
        the deadline even if nothing waits; DeadlineExceeded if they were not. The error of the first job that fails. If
        the caller is cancelled, what is left is not computed."""
        if not jobs:
            return []
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        now = self._clock()
        # The thread that ends a request tells its caller later, together with others.
        request = QueuedRequest(
            kind, jobs, deadline, now - waited, lambda: self._finished.requests.append((loop, future))
        )
        request.begin_by = request.arrived + LATE * self.queue_seconds
        with self._lock:
            self._check(request, deadline - now, waited)
            self._queue.add(request)
        if self._gathering is not loop:
            self._gathering = loop
            loop.call_soon(self._gather, loop, self._queue.added, MOST_TURNS)
        timer = loop.call_later(deadline - now, _expire, future)
        try:
            await future
        finally:
            timer.cancel()
            if not request.finished:
                with self._lock:
                    self._queue.drop(request)
        if request.error is not None:
            raise request.error
        return request.results

    def _check(self, request: QueuedRequest, seconds: float, waited: float) -> None:
        """Refuse a request that has to wait too long, or cannot be done in so many seconds."""
        kind, threads = request.kind, max(1, self.threads)
        parallel = min(threads, len(request.jobs), kind.at_once or threads)
        alone = request.tokens * kind.least_cost / parallel
        if len(request.jobs) > 1 and kind.measured and alone > seconds:  # a single job is tried: it may go faster now
            raise TooLong(alone)
        wait = self.wait
        if kind.at_once:
            wait = max(wait, self._queue.seconds_of(kind) / kind.at_once)
        ahead = (self._queue.seconds + self._running) / threads if request.tokens > kind.urgent else wait
        if waited + wait > self.queue_seconds or (ahead and ahead + request.tokens * kind.cost / parallel > seconds):
            raise Overloaded(max(self.retry_after, ahead - self.queue_seconds / 2))

    def _refuse_late(self) -> None:
        """Refuse the newest requests while the last one would have to wait too long: the machine has slowed down."""
        limit = LATE * self.queue_seconds
        while (newest := self._queue.newest_untouched()) is not None:
            if self._clock() - newest.arrived + self.wait <= limit:
                return
            self._queue.drop(newest)
            newest.finished = False
            newest.fail(Overloaded(self.retry_after))

    def _gather(self, loop: asyncio.AbstractEventLoop, added: int, turns: int) -> None:
        """Wake the threads once a turn of the loop has brought no further request, so that they share a batch."""
        with self._lock:
            several = self._queue.fills_batches
            if turns and self._queue.added != added and not several:
                loop.call_soon(self._gather, loop, self._queue.added, turns - 1)
                return
            self._gathering = None
            if self._pausing and self._pause():  # a thread that waits will see it
                return
            if self.idle_threads > 1 and (several or self._queue.requests > 1):
                self._ready.notify_all()
            else:
                self._ready.notify()

    def compute_next(self) -> bool:
        """Compute the next batch in this thread; return False if nothing waits."""
        self._finished.requests, self._finished.since = [], self._clock()
        with self._lock:
            batch = self._take()
        self._wake(self._finished.requests)  # those that were too late
        if batch is None:
            return False
        self._compute(batch)
        return True

    def _take(self) -> JobBatch | None:
        batch = self._queue.take(self._clock(), max(1, self.idle_threads))
        if batch is not None:
            batch.kind.running += 1
            self._running += batch.seconds
            if self.idle_threads > 1 and self._queue.tokens:
                self._ready.notify()
        return batch

    def _work(self) -> None:
        self._finished.since = self._clock()
        while True:
            self._finished.requests = []
            with self._lock:
                self.idle_threads += 1
                batch = self._wait_for_batch()
                self.idle_threads -= 1
                if batch is None and self._stopped:
                    return
            self._wake(self._finished.requests)
            if batch is not None:
                self._compute(batch)

    def _wait_for_batch(self) -> JobBatch | None:
        """Return the next batch; None to stop, or if requests were too late and must be told."""
        while not self._stopped:
            pause = self._pause()
            if not pause and ((batch := self._take()) is not None or self._finished.requests):
                return batch
            self._pausing += pause > 0
            self._ready.wait(pause or None)
            self._pausing -= pause > 0
            self._finished.since = self._clock()
        return None

    def _pause(self) -> float:
        """Return how long to wait for the clients that were just answered: a larger batch costs less for each text."""
        added, until = self._returning
        return 0.0 if self._queue.added >= added or self._queue.fills_batches else max(0.0, until - self._clock())

    def _compute(self, batch: JobBatch) -> None:
        started = self._clock()
        since = self._finished.since  # the end of the last batch, if it did not have to wait for this one
        live = [(request, row) for request, row in batch.jobs if not request.finished]
        results = self._results(batch.kind, [request.jobs[row].payload for request, row in live])
        ended = self._clock()
        self._finished.requests, self._finished.since = [], ended
        with self._lock:
            batch.kind.running -= 1
            self._running = max(0.0, self._running - batch.seconds)
            if live and ended > since:
                batch.kind.measure(sum([request.jobs[row].tokens for request, row in live]), ended - since)
                self._refuse_late()
            for (request, row), result in zip(live, results, strict=True):
                if isinstance(result, Exception):
                    request.fail(result)
                else:
                    request.deliver(row, result)
            if batch.kind.budget > 1:
                until = ended + min(LONGEST_RETURN, RETURN * (ended - started))
                self._returning = (self._queue.added + len(self._finished.requests), until)
            if batch.kind.at_once:
                self._ready.notify()
        self._wake(self._finished.requests)
        self._metrics.batch(batch.kind.name, len(live), batch.tokens, ended - started)
        for request, _ in live:
            if not request.wait_recorded:
                request.wait_recorded = True
                self._metrics.waited(batch.kind.name, request.tokens, started - request.arrived)

    def _results(self, kind: JobKind, payloads: Sequence[Any]) -> list[Any]:
        """Compute payloads; the result of one that cannot be computed is its error."""
        if not payloads:
            return []
        try:
            results = list(kind.compute(payloads))
            assert len(results) == len(payloads), f"{kind.name}: a result for each job"
            return results
        except Exception as error:
            if len(payloads) == 1:
                self._metrics.failures.labels(kind.name).inc()
                return [error]
        half = len(payloads) // 2
        return self._results(kind, payloads[:half]) + self._results(kind, payloads[half:])

    def _wake(self, finished: "list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]") -> None:
        """Wake the callers of requests that have ended: one call for each event loop."""
        if not finished:
            return
        by_loop = defaultdict(list)
        for loop, future in finished:
            by_loop[loop].append(future)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_set_done, futures)


def _expire(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(DeadlineExceeded())


def _set_done(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
