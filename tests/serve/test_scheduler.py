"""The scheduler, without threads and without a clock of its own: each test computes batch by batch."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from bertree.serve.scheduler import Scheduler
from bertree.serve.token_queue import DeadlineExceeded, Job, JobKind, Overloaded, QueuedRequest, TokenQueue
from tests.support.asking import in_event_loop


class Engine:
    """Computes by doubling numbers, and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, payloads: Sequence[int]) -> list[int]:
        self.batches.append(list(payloads))
        if -1 in payloads:
            raise ValueError("poison")
        return [2 * payload for payload in payloads]


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(clock: Clock, most: int = 1000) -> Scheduler:
    return Scheduler(0, most, clock=clock)


def jobs(*payloads: int, tokens: int = 10) -> list[Job]:
    return [Job(tokens, payload) for payload in payloads]


async def begin(
    scheduler: Scheduler, kind: JobKind, given: list[Job], deadline: float = 99.0
) -> "asyncio.Task[list[Any]]":
    """Start a request and let it get into the queue."""
    task = asyncio.create_task(scheduler.run(kind, given, deadline))
    await asyncio.sleep(0)
    return task


@in_event_loop
async def test_results_come_in_the_order_of_the_jobs_whatever_their_length(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock), JobKind("a", engine, 25)
    task = await begin(scheduler, kind, [Job(5, 1), Job(20, 2), Job(10, 3)])
    while scheduler.compute_next():
        pass
    assert await task == [2, 4, 6]
    assert engine.batches == [[2], [3, 1]], "the longest first, within the budget"
    assert scheduler.queued_tokens == scheduler.queued_requests == 0


@in_event_loop
async def test_a_single_text_passes_a_bulk_request_after_one_batch(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock, 100_000), JobKind("a", engine, 50)
    bulk = await begin(scheduler, kind, jobs(*range(100, 300)))
    scheduler.compute_next()
    single = await begin(scheduler, kind, jobs(7))
    scheduler.compute_next()
    assert await single == [14]
    assert engine.batches[1][0] == 7
    assert len(engine.batches[1]) == 5, "the rest of the batch is filled with the bulk request"
    assert not bulk.done()
    bulk.cancel()


@in_event_loop
async def test_requests_of_the_same_size_take_turns(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock), JobKind("a", engine, 20)
    tasks = [await begin(scheduler, kind, jobs(first, first + 1, first + 2)) for first in (10, 20)]
    while scheduler.compute_next():
        pass
    assert engine.batches == [[10, 20], [11, 21], [12, 22]]
    await asyncio.gather(*tasks)


@in_event_loop
async def test_kinds_never_share_a_batch(clock: Clock) -> None:
    one, other = Engine(), Engine()
    scheduler, a, b = make(clock), JobKind("a", one, 100), JobKind("b", other, 100)
    tasks = [await begin(scheduler, kind, jobs(n)) for n, kind in enumerate((a, b, a, b))]
    assert scheduler.compute_next()
    assert scheduler.compute_next()
    assert not scheduler.compute_next()
    assert (one.batches, other.batches) == ([[0, 2]], [[1, 3]])
    assert [await task for task in tasks] == [[0], [2], [4], [6]]


def test_a_kind_computes_no_more_batches_at_once_than_it_may(engine: Engine, clock: Clock) -> None:
    queue, kind = TokenQueue(), JobKind("a", engine, 1, at_once=1)
    for payload in (1, 2):
        queue.add(QueuedRequest(kind, jobs(payload), 99, 0, lambda: None))
    assert queue.take(0) is not None
    kind.running = 1
    assert queue.take(0) is None
    kind.running = 0
    assert queue.take(0) is not None


@in_event_loop
async def test_what_is_too_late_is_not_computed(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock), JobKind("a", engine, 10)
    late, timely = await begin(scheduler, kind, jobs(1), 5.0), await begin(scheduler, kind, jobs(2), 50.0)
    clock.now = 6.0
    scheduler.compute_next()
    with pytest.raises(DeadlineExceeded):
        await late
    assert await timely == [4]
    assert engine.batches == [[2]]
    with pytest.raises(DeadlineExceeded):  # nothing computes it, and its time passes
        await scheduler.run(kind, jobs(3), 6.0)
    assert scheduler.queued_tokens == scheduler.queued_requests == 0


@in_event_loop
async def test_jobs_of_a_caller_that_has_gone_are_dropped(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock, 100_000), JobKind("a", engine, 10)
    tasks = [await begin(scheduler, kind, jobs(n, n, n)) for n in range(1000)]
    scheduler.compute_next()
    for task in tasks[:-1]:
        task.cancel()
    await asyncio.gather(*tasks[:-1], return_exceptions=True)
    assert scheduler.queued_requests == 1
    assert scheduler.queued_tokens == 30
    while scheduler.compute_next():
        pass
    assert await tasks[-1] == [1998] * 3
    assert len(engine.batches) == 4
    assert scheduler.queued_tokens == scheduler.queued_requests == 0


@in_event_loop
async def test_a_job_that_raises_fails_its_own_request_alone(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock), JobKind("a", engine, 1000)
    good = [await begin(scheduler, kind, jobs(n)) for n in range(5)]
    bad = await begin(scheduler, kind, jobs(8, -1, 9))
    also = await begin(scheduler, kind, jobs(6, 7))
    while scheduler.compute_next():
        pass
    assert [await task for task in good] == [[0], [2], [4], [6], [8]]
    assert await also == [12, 14]
    with pytest.raises(ValueError, match="poison"):
        await bad
    assert scheduler.queued_tokens == scheduler.queued_requests == 0


@in_event_loop
async def test_a_queue_with_room_for_a_few_texts_only_is_full(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock, most=1000), JobKind("a", engine, 50)
    waiting = [await begin(scheduler, kind, jobs(*range(97)))]
    assert not scheduler.is_full
    waiting.append(await begin(scheduler, kind, jobs(1)))
    assert scheduler.is_full, "so requests are refused before they are tokenized"
    while scheduler.compute_next():
        pass
    assert not scheduler.is_full
    await asyncio.gather(*waiting)


@in_event_loop
async def test_a_request_is_taken_as_a_whole_or_refused_with_the_time_to_wait(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock, most=100), JobKind("a", engine, 50)
    first = await begin(scheduler, kind, jobs(*range(9)))
    with pytest.raises(Overloaded) as refused:
        await scheduler.run(kind, jobs(1, 2), 99)
    assert refused.value.retry_after >= 1
    assert scheduler.queued_tokens == 90, "nothing of the refused request is there"
    second = await begin(scheduler, kind, jobs(5))
    assert scheduler.is_full
    while scheduler.compute_next():
        pass
    assert len(await first) == 9
    assert await second == [10]
    large = await begin(scheduler, kind, jobs(*range(50)))  # larger than the queue: taken if nothing waits
    while scheduler.compute_next():
        pass
    assert len(await large) == 50


def test_threads_compute_everything_and_end() -> None:
    engine = Engine()
    scheduler, kind = Scheduler(3, 100_000, clock=Clock()), JobKind("a", engine, 30)
    scheduler.start()

    async def run() -> list[list[int]]:
        return await asyncio.gather(*(scheduler.run(kind, jobs(*range(n, n + 20)), 30) for n in range(50)))

    found = asyncio.run(run())
    scheduler.stop()
    assert found == [[2 * payload for payload in range(n, n + 20)] for n in range(50)]


def test_free_threads_share_what_waits(engine: Engine) -> None:
    queue, kind = TokenQueue(), JobKind("a", engine, 100)
    for payload in range(8):
        queue.add(QueuedRequest(kind, jobs(payload), 99, 0, lambda: None))
    first, second = queue.take(0, threads=2), queue.take(0)
    assert first is not None
    assert second is not None
    assert (len(first.jobs), len(second.jobs)) == (4, 4)
    assert queue.tokens == 0


class EngineOfThreads(Engine):
    """Computes when all threads have a batch."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(threads, timeout=60)

    def __call__(self, payloads: Sequence[int]) -> list[int]:
        self.barrier.wait()
        return super().__call__(payloads)


@pytest.mark.parametrize("threads", [1, 2])
def test_requests_that_come_at_once_share_batches(threads: int) -> None:
    engine = EngineOfThreads(threads)
    scheduler, kind = Scheduler(threads, 100_000, clock=Clock()), JobKind("a", engine, 1000)
    scheduler.start()

    async def run() -> list[list[int]]:
        while scheduler.idle_threads < threads:
            await asyncio.sleep(0.001)
        return await asyncio.gather(*(scheduler.run(kind, jobs(n), 60) for n in range(16)))

    assert asyncio.run(run()) == [[2 * n] for n in range(16)]
    scheduler.stop()
    sizes = [len(batch) for batch in engine.batches]
    assert sizes == [16 // threads] * threads, "not one text first and the others after it"
