"""The scheduler, without threads and without a clock of its own: each test computes batch by batch."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from bertree.serve.scheduler import Scheduler
from bertree.serve.token_queue import DeadlineExceeded, Job, JobKind, Overloaded, QueuedRequest, TokenQueue, TooLong
from tests.support.asking import in_event_loop
from tests.support.processes import PATIENCE


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


def make(clock: Clock, seconds: float = 10.0) -> Scheduler:
    """A scheduler whose requests may wait so long; a token takes 0.2 ms until a batch is measured."""
    return Scheduler(0, seconds, clock=clock)


def jobs(*payloads: int, tokens: int = 10) -> list[Job]:
    return [Job(tokens, payload) for payload in payloads]


async def begin(
    scheduler: Scheduler, kind: JobKind, arguments: list[Job], deadline: float = 99.0
) -> "asyncio.Task[list[Any]]":
    """Start a request and let it get into the queue."""
    task = asyncio.create_task(scheduler.run(kind, arguments, deadline))
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
    scheduler, kind = make(clock), JobKind("a", engine, 50)
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
    left, right = Engine(), Engine()
    scheduler, a, b = make(clock), JobKind("a", left, 100), JobKind("b", right, 100)
    tasks = [await begin(scheduler, kind, jobs(n)) for n, kind in enumerate((a, b, a, b))]
    assert scheduler.compute_next()
    assert scheduler.compute_next()
    assert not scheduler.compute_next()
    assert (left.batches, right.batches) == ([[0, 2]], [[1, 3]])
    assert [await task for task in tasks] == [[0], [2], [4], [6]]


def test_batches_are_larger_while_many_jobs_wait(engine: Engine) -> None:
    queue, kind = TokenQueue(), JobKind("a", engine, 50, most=75)
    queue.add(QueuedRequest(kind, jobs(*range(21)), 99, 0, lambda: None))
    batches = [queue.take(0) for _ in range(4)]
    assert [batch and len(batch.jobs) for batch in batches] == [7, 5, 5, 4]


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
    scheduler, kind = make(clock), JobKind("a", engine, 10)
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


class SlowEngine(Engine):
    """Takes so many seconds for every job."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def __call__(self, payloads: Sequence[int]) -> list[int]:
        self.clock.now += self.seconds * len(payloads)
        return super().__call__(payloads)


async def measured(clock: Clock, seconds: float) -> tuple[Scheduler, JobKind, SlowEngine]:
    """A scheduler that has computed a batch of five jobs, of so many seconds each."""
    engine = SlowEngine(clock, seconds)
    scheduler, kind = make(clock), JobKind("a", engine, 50)
    first = await begin(scheduler, kind, jobs(*range(5)))
    scheduler.compute_next()
    await first
    return scheduler, kind, engine


@in_event_loop
async def test_requests_wait_no_longer_than_the_queue_allows_by_the_measured_speed(clock: Clock) -> None:
    scheduler, kind, _ = await measured(clock, 0.5)
    waiting = [await begin(scheduler, kind, jobs(n)) for n in range(13)]
    assert not scheduler.is_full
    waiting += [await begin(scheduler, kind, jobs(n)) for n in range(13, 20)]
    assert scheduler.is_full, "so requests are refused before they are tokenized"
    assert scheduler.wait == pytest.approx(10)
    waiting.append(await begin(scheduler, kind, jobs(20)))
    with pytest.raises(Overloaded) as refused:
        await scheduler.run(kind, jobs(1), 99)
    assert refused.value.retry_after == 6, "until half of the queue is done"
    arrived = clock.now
    while scheduler.compute_next():
        pass
    assert [await task for task in waiting] == [[2 * n] for n in range(21)]
    assert clock.now - arrived == pytest.approx(10.5)
    assert not scheduler.is_full


@in_event_loop
async def test_the_newest_requests_are_refused_when_the_machine_slows_down(clock: Clock) -> None:
    scheduler, kind, engine = await measured(clock, 0.1)
    arrived = clock.now
    waiting = [await begin(scheduler, kind, jobs(n)) for n in range(90)]
    engine.seconds = 0.4
    while scheduler.compute_next():
        await asyncio.sleep(0)
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    done = [n for n, answer in enumerate(answers) if answer == [2 * n]]
    assert done == list(range(len(done))), "the oldest are answered"
    assert all(isinstance(answer, Overloaded) for answer in answers[len(done) :])
    assert 20 < len(done) < 35
    assert clock.now - arrived < 12
    assert scheduler.queued_tokens == scheduler.queued_requests == 0


@in_event_loop
async def test_a_request_that_has_waited_too_long_is_refused_and_not_computed(engine: Engine, clock: Clock) -> None:
    scheduler, kind = make(clock), JobKind("a", engine, 30)
    long, short = await begin(scheduler, kind, jobs(*range(9))), await begin(scheduler, kind, jobs(50))
    scheduler.compute_next()
    clock.now = 12.0  # nothing was computed meanwhile
    scheduler.compute_next()
    assert await short == [100], "it was in the first batch"
    late = await begin(scheduler, kind, jobs(60))
    clock.now = 24.0
    while scheduler.compute_next():
        pass
    with pytest.raises(Overloaded):
        await late
    assert len(await long) == 9, "of which a part was computed"
    assert 60 not in [payload for batch in engine.batches for payload in batch]


@in_event_loop
async def test_what_would_end_too_late_is_not_begun(clock: Clock) -> None:
    scheduler, kind, _ = await measured(clock, 0.5)  # a batch takes 2.5 seconds
    waiting = [await begin(scheduler, kind, jobs(n)) for n in range(10)]
    clock.now += 9  # the machine stood still
    assert not scheduler.compute_next()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(answer, Overloaded) for answer in answers)


@in_event_loop
async def test_seconds_in_which_a_request_was_not_read_are_a_part_of_its_wait(clock: Clock) -> None:
    scheduler, kind, _ = await measured(clock, 0.5)
    first = asyncio.create_task(scheduler.run(kind, jobs(1), 99, 9.6))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await scheduler.run(kind, jobs(2), 99, 9.6)
    clock.now += 1.5
    while scheduler.compute_next():
        pass
    with pytest.raises(Overloaded):
        await first


@in_event_loop
async def test_what_cannot_be_done_before_its_deadline_is_refused_at_once(clock: Clock) -> None:
    scheduler, kind, _ = await measured(clock, 0.5)
    now = clock.now
    with pytest.raises(TooLong) as alone:
        await scheduler.run(kind, jobs(*range(10)), now + 4)
    assert alone.value.seconds == pytest.approx(5)
    long = await begin(scheduler, kind, jobs(*range(100)), now + 60)
    with pytest.raises(Overloaded) as behind:  # 50 s are waiting, and two such requests take turns
        await scheduler.run(kind, jobs(*range(100)), now + 60)
    assert behind.value.retry_after == 45
    assert scheduler.wait == 5, "a short request passes all but two batches of it"
    short = await begin(scheduler, kind, jobs(1), now + 6)
    with pytest.raises(Overloaded):
        await scheduler.run(kind, jobs(1), now + 5)
    while scheduler.compute_next():
        pass
    assert (await short, len(await long)) == ([2], 100)


@in_event_loop
async def test_short_requests_that_keep_coming_do_not_starve_a_long_one(clock: Clock) -> None:
    scheduler, kind, engine = await measured(clock, 0.1)
    long = await begin(scheduler, kind, jobs(*range(100, 120)))
    others: list[asyncio.Task[list[Any]]] = []
    while not long.done():
        while scheduler.queued_requests < 11:
            others.append(await begin(scheduler, kind, jobs(7), clock.now + 99))
        scheduler.compute_next()
        await asyncio.sleep(0)
    assert len(await long) == 20
    assert 40 < sum(len(batch) for batch in engine.batches) < 140
    for other in others:
        other.cancel()


def test_work_that_cannot_be_divided_lets_shorter_work_pass(engine: Engine) -> None:
    queue, whole, texts = TokenQueue(), JobKind("layers", engine, 1), JobKind("embed", engine, 500)
    for payload in range(3):
        queue.add(QueuedRequest(whole, jobs(payload, tokens=1000), 99, 0, lambda: None))
    queue.add(QueuedRequest(texts, jobs(9), 99, 0, lambda: None))
    batches = [queue.take(0) for _ in range(4)]
    assert [batch and batch.kind for batch in batches] == [texts, whole, whole, whole]


def test_threads_compute_everything_and_end() -> None:
    engine = Engine()
    scheduler, kind = Scheduler(3, 60, clock=Clock()), JobKind("a", engine, 30)
    scheduler.start()

    async def run() -> list[list[int]]:
        return await asyncio.gather(*(scheduler.run(kind, jobs(*range(n, n + 20)), 30) for n in range(50)))

    results = asyncio.run(run())
    scheduler.stop()
    assert results == [[2 * payload for payload in range(n, n + 20)] for n in range(50)]


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
        self.barrier = threading.Barrier(threads, timeout=PATIENCE)

    def __call__(self, payloads: Sequence[int]) -> list[int]:
        self.barrier.wait()
        return super().__call__(payloads)


@pytest.mark.parametrize("threads", [1, 2])
def test_requests_that_come_at_once_share_batches(threads: int) -> None:
    engine = EngineOfThreads(threads)
    scheduler, kind = Scheduler(threads, 60, clock=Clock()), JobKind("a", engine, 1000)
    scheduler.start()

    async def run() -> list[list[int]]:
        while scheduler.idle_threads < threads:
            await asyncio.sleep(0.001)
        return await asyncio.gather(*(scheduler.run(kind, jobs(n), 60) for n in range(16)))

    assert asyncio.run(run()) == [[2 * n] for n in range(16)]
    scheduler.stop()
    sizes = [len(batch) for batch in engine.batches]
    assert sizes == [16 // threads] * threads, "not one text first and the others after it"


def test_clients_that_were_answered_together_share_the_next_batch_too(clock: Clock) -> None:
    engine = SlowEngine(clock, 1.0)
    scheduler, kind = Scheduler(1, 60, clock=clock), JobKind("a", engine, 1000)
    scheduler.start()

    async def run() -> None:
        await asyncio.gather(*(scheduler.run(kind, jobs(n), 999) for n in range(4)))
        again = []
        for n in range(4, 8):  # the clients come back one by one
            again.append(await begin(scheduler, kind, jobs(n), 999))
            await asyncio.sleep(0.02)  # the thread could begin
        await asyncio.gather(*again)
        last = await begin(scheduler, kind, jobs(8), 999)  # the others have gone
        clock.now += 1
        assert await last == [16]

    asyncio.run(run())
    scheduler.stop()
    assert sorted(map(len, engine.batches)) == [1, 4, 4]
